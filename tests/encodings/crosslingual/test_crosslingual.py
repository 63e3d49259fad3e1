"""Models for several languages against loops over tokens."""

import math

import pytest
import torch

from floater import FloaterConfig, PositionError, Positions, build
from floater.encodings import AttentionContext
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast

SIZES = {"dim": 4, "heads": 2, "layers": 1, "max_length": 9}


def wave(t):
    return [
        math.sin(10000 ** (-j / 4) * t) if j % 2 == 0 else math.cos(10000 ** (-(j - 1) / 4) * t)
        for j in range(4)
    ]


def embedded(model, x, positions):
    return model.embed(x, model.prepare(positions))


def test_each_language_has_its_table():
    torch.manual_seed(0)
    model = build("language_specific", **SIZES, languages=3).double()
    first, languages = torch.tensor([[0, 1, 2], [4, 5, 8]]), torch.tensor([[2, 2, 0]])
    x = torch.randn(2, 3, 4, dtype=torch.double)
    actual = embedded(model, x, Positions(first, first, language=languages))
    for b in range(2):
        for n in range(3):
            expected = x[b, n] + model.table[[2, 2, 0][n], int(first[b, n])]
            assert torch.equal(actual[b, n], expected)


@pytest.mark.parametrize(
    ("language", "message"),
    [
        (None, "no language in the positions"),
        (torch.tensor([[0, 3]]), "languages are 0 to 2; got 0 to 3"),
        (torch.tensor([[-1, 0]]), "languages are 0 to 2; got -1 to 0"),
    ],
)
def test_a_language_must_be_known(language, message):
    first = torch.tensor([[0, 1]])
    model = build("language_specific", **SIZES, languages=3)
    with pytest.raises(PositionError, match=message):
        model.prepare(Positions(first, first, language=language))


@pytest.mark.parametrize("join", ["sum", "learned"])
def test_both_orders_join(join):
    torch.manual_seed(0)
    model = build("xl", **SIZES, join=join).double()
    first, second = torch.tensor([[0.0, 1, 2]]).double(), torch.tensor([[2.0, 0, 1], [0, 2, 1]]).double()
    x = torch.randn(2, 3, 4, dtype=torch.double)
    actual = embedded(model, x, Positions(first, first, reordered=second))
    for b in range(2):
        for n in range(3):
            p, r = wave(n), wave(second[b, n].item())
            if join == "sum":
                more = [a + c for a, c in zip(p, r, strict=True)]
            else:
                w, v = (matrix.tolist() for matrix in model.maps)
                more = [math.tanh(sum(w[i][j] * p[j] + v[i][j] * r[j] for j in range(4))) for i in range(4)]
            torch.testing.assert_close(actual[b, n], x[b, n] + torch.tensor(more).double())


@pytest.mark.parametrize("vectors", [{}, {"kernel": 5}, {"kernel": 2, "causal": True}])
def test_the_convolution_is_a_sum_over_neighbouring_tokens(vectors):
    torch.manual_seed(0)
    model = build("convolution", **SIZES, **vectors).double()
    kernel = vectors.get("kernel", 3)
    weight, bias = model.convolution.weight, model.convolution.bias
    columns = [[0, 1, 2, 3, 4, 5], [2, 3, 5], [1]]  # where tokens stand; the rest is padding
    mask = torch.tensor([[int(n in row) for n in range(6)] for row in columns])
    x = torch.randn(3, 6, 4, dtype=torch.double)
    actual = embedded(model, x, Positions.from_mask(mask))
    for b, row in enumerate(columns):
        for n, column in enumerate(row):
            expected = x[b, column] + bias
            for i in range(kernel):
                neighbour = n + i - (kernel - 1 if model.spec.causal else kernel // 2)
                if 0 <= neighbour < len(row):
                    expected = expected + weight[:, :, i] @ x[b, row[neighbour]]
            torch.testing.assert_close(actual[b, column], expected)


def test_shuffling_permutes_the_tokens_of_each_sentence_in_training_only():
    torch.manual_seed(0)
    model = build("shuffled", **SIZES)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]]).expand(600, -1)
    positions, x = Positions.from_mask(mask), torch.zeros(600, 6, 4, dtype=torch.double)
    right = torch.tensor([wave(t) for t in range(4)])
    actual = embedded(model, x, positions)[:, 2:]
    order = (actual[:, :, None] - right).abs().amax(-1).argmin(-1)
    torch.testing.assert_close(actual, right[order].double(), rtol=0, atol=1e-6)
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(600, -1))
    kinds, counts = order.unique(dim=0, return_counts=True)
    assert len(kinds) == 24  # every permutation, 25 times each on the average
    assert counts.max() < 60
    once = embedded(model.eval(), x, positions)[:, 2:]
    torch.testing.assert_close(once, right.double().expand(600, -1, -1), rtol=0, atol=1e-6)
    shared = embedded(model.train(), x[:, :4], Positions.arange(4))
    assert not torch.equal(shared[0], shared[1]) or not torch.equal(shared[0], shared[2])


def test_frozen_positions_are_those_given_and_learn_nothing():
    model, vectors = build("frozen", **SIZES), torch.randn(9, 4)
    model.fill(vectors)
    x = torch.zeros(1, 9, 4, requires_grad=True)
    actual = embedded(model, x, Positions.arange(9))
    assert torch.equal(actual[0], vectors)
    model.table(0).weight.requires_grad_(True)  # as loaders of checkpoints do
    embedded(model, x, Positions.arange(9)).square().sum().backward()
    assert model.table(0).weight.grad is None
    assert not model.eval().table(0).weight.requires_grad
    with pytest.raises(PositionError, match=r"vectors are \(4, 9\); the table is \(9, 4\)"):
        model.fill(vectors.T)
    with pytest.raises(PositionError, match="ends at position 8; position 9 was requested"):
        model.prepare(Positions.arange(10))


def test_some_heads_read_second_positions():
    """Heads of an attention whose inputs are x + p, computed one by one."""
    torch.manual_seed(0)
    config = FloaterConfig(hidden_size=8, num_attention_heads=4, num_hidden_layers=1, dropout=0.0)
    attention = Attention(config, 0).double()
    model = build("xl_heads", dim=8, heads=4, layers=1, max_length=9, reordered=1)
    first, second = torch.tensor([[0.0, 1, 2]]).double(), torch.tensor([[2.0, 0, 1], [0, 2, 1]]).double()
    x = torch.randn(2, 3, 8, dtype=torch.double)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    actual, _ = attention(
        x, SharedInputs(model, Uncast(model.prepare(Positions(first, first, reordered=second))))
    )
    parts = []
    for head in range(4):
        p = second if head == 3 else first.expand(2, -1)
        angle = p[..., None] / 10000 ** (torch.arange(0, 8, 2) / 8)
        y = x + torch.stack([angle.sin(), angle.cos()], -1).flatten(2)
        rows = slice(2 * head, 2 * head + 2)
        q, k, v = (
            y @ linear.weight[rows].T + linear.bias[rows]
            for linear in (attention.query, attention.key, attention.value)
        )
        parts.append((q @ k.mT / math.sqrt(2)).softmax(-1) @ v)
    torch.testing.assert_close(actual, attention.output(torch.cat(parts, -1)))
    with pytest.raises(PositionError, match="reordered is 5; it must be from 0 to 4"):
        build("xl_heads", dim=8, heads=4, layers=1, max_length=9, reordered=5)
    with pytest.raises(PositionError, match="no reordered in the positions"):
        model.prepare(Positions.arange(3))


def test_heads_that_read_no_second_positions_need_none():
    at = torch.tensor([[0, 2, 1]])
    model = build("xl_heads", dim=8, heads=4, layers=1, max_length=9, reordered=0)
    state, expected = model.prepare(Positions(at, at)), model.prepare(Positions(at, at, reordered=at.flip(1)))
    projections = {"query": torch.nn.Linear(8, 8)}
    ours, theirs = (
        model.projection_bias("query", AttentionContext(each, 0, projections=projections))
        for each in (state, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
