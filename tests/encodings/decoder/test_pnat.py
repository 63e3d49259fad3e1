"""Position learning: the heuristic search, the pointer network, and the sinusoids in a predicted order."""

import itertools

import pytest
import torch

from floater import Positions, build
from floater.encodings.decoder.pnat import heuristic_order
from floater.encodings.decoder.pointer import PointerNetwork
from floater.flow import sinusoid

SIZES = {"dim": 6, "heads": 2, "layers": 1, "max_length": 16}
LENGTHS = torch.tensor([5, 1, 3])


def items(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def greedy(inputs, targets):
    """The largest cosine similarity first, then the largest of what is left."""
    like = {
        (t, j): float(torch.cosine_similarity(x, y, dim=0))
        for (t, x), (j, y) in itertools.product(enumerate(inputs), enumerate(targets))
    }
    order = {}
    for t, j in sorted(like, key=like.get, reverse=True):
        if t not in order and j not in order.values():
            order[t] = j
    return [order[t] for t in range(len(inputs))]


@pytest.mark.parametrize("seed", range(5))
def test_the_heuristic_search_takes_the_largest_similarity_first(seed):
    inputs, targets = items(4, 9, 3, seed=seed), items(4, 9, 3, seed=seed + 100)
    lengths = torch.tensor([9, 4, 1, 7])
    actual = heuristic_order(inputs, targets, torch.arange(9) < lengths[:, None])
    for row, length in enumerate(lengths.tolist()):
        expected = greedy(inputs[row, :length], targets[row, :length])
        assert actual[row].tolist() == [*expected, *range(length, 9)]


def test_equal_targets_are_all_taken():
    words = items(5, 3)[torch.tensor([0, 1, 1, 1, 2])][None]
    order = heuristic_order(words, words, torch.ones(1, 5, dtype=torch.bool))
    assert order[0, [0, 4]].tolist() == [0, 4]
    assert sorted(order[0].tolist()) == [0, 1, 2, 3, 4]


def pointer(dim=6):
    torch.manual_seed(0)
    return PointerNetwork(dim).double()


def likelihoods(network, x):
    """p of every permutation of the items x (T, dim)."""
    length = torch.tensor([len(x)])
    return {
        picks: float(torch.exp(-len(x) * network.loss(x[None], length, torch.tensor([picks])).detach()))
        for picks in itertools.permutations(range(len(x)))
    }


def test_the_likelihoods_of_all_permutations_sum_to_one_and_the_picks_are_the_likeliest_step_by_step():
    network, x = pointer(), items(4, 6)
    network.query.weight.data *= 30
    p = likelihoods(network, x)
    assert sum(p.values()) == pytest.approx(1)
    assert max(p.values()) > 2 / 24  # far from uniform
    begun: list[int] = []
    for step in range(4):
        mass = [sum(q for picks, q in p.items() if picks[: step + 1] == (*begun, item)) for item in range(4)]
        begun.append(mass.index(max(mass)))
    assert network(x[None], torch.tensor([4])).tolist() == [begun]


def test_padding_changes_neither_picks_nor_their_loss():
    network, x = pointer(), items(3, 5, 6)
    picks = network(x, LENGTHS)
    alone = [network(x[i : i + 1, :n], LENGTHS[i : i + 1]) for i, n in enumerate(LENGTHS)]
    assert [row[:n].tolist() for row, n in zip(picks, LENGTHS, strict=True)] == [a[0].tolist() for a in alone]
    assert picks[1].tolist() == [0, 1, 2, 3, 4]
    losses = [network.loss(x[i : i + 1, :n], LENGTHS[i : i + 1], alone[i]) for i, n in enumerate(LENGTHS)]
    mean = sum(n * loss for n, loss in zip(LENGTHS, losses, strict=True)) / LENGTHS.sum()
    torch.testing.assert_close(network.loss(x, LENGTHS, picks), mean)


def test_it_learns_to_sort():
    torch.manual_seed(0)
    network = PointerNetwork(8)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    lengths = torch.full((64,), 5)
    for step in range(151):
        x = torch.randn(64, 5, 8)
        order = x[..., 0].argsort(1)
        if step < 150:
            network.loss(x, lengths, order).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (network(x, lengths) == order).float().mean() > 0.8  # 0.2 by chance


def test_the_model_adds_the_sinusoids_in_the_order_of_its_pointer():
    torch.manual_seed(0)
    model, x = build("pnat", **SIZES).double(), items(2, 5, 6)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
    out = model.embed(x, model.prepare(Positions.from_mask(mask)))
    for row, kept in enumerate(mask.bool()):
        tokens = x[row, kept][None]
        picks = model.pointer(tokens, kept.sum()[None])[0]
        expected = torch.empty_like(tokens[0])
        for slot, item in enumerate(picks.tolist()):
            expected[item] = tokens[0, item] + sinusoid(torch.tensor(slot), 6)
        torch.testing.assert_close(out[row, kept], expected)


@pytest.mark.parametrize(
    ("options", "pointers"),
    [({"plain": True}, 0), ({"site": "decoder"}, 1), ({"site": "decoder", "plain": True}, 1)],
)
def test_plain_or_in_a_decoder_it_is_sinusoids(options, pointers):
    model, x = build("pnat", **SIZES, **options), torch.zeros(1, 4, 6)
    out = model.embed(x, model.prepare(Positions.arange(4)))
    assert torch.equal(out[0], sinusoid(torch.arange(4), 6))
    assert sum(isinstance(part, PointerNetwork) for part in model.modules()) == pointers
    assert bool(model.card.exceptions) == bool(pointers)
