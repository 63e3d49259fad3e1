"""Composite attention against a loop over queries and keys."""

import math

import pytest
import torch
from torch import nn

from floater import Positions, build
from floater.encodings import AttentionContext

SIZES = {"dim": 6, "heads": 2, "layers": 2, "max_length": 16}


def model(**options):
    torch.manual_seed(0)
    built = build("chang", **SIZES, window=2, **options).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter)
    return built


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize(
    "positions",
    [
        Positions.arange(6),
        Positions.arange(2, offset=4),
        Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])),
    ],
)
def test_each_distance_has_a_number_and_a_vector(positions, keys):
    built = model(keys=keys)
    length, slots = positions.query.shape[1], positions.key.shape[1]
    q, k = (torch.randn(2, 2, n, 3, dtype=torch.double) for n in (length, slots))
    state = built.prepare(positions)
    fixed, query_part = built.fixed.tolist(), built.query.tolist()
    key_part = built.key.tolist() if keys else None
    query, key = positions.query.expand(2, -1).tolist(), positions.key.expand(2, -1).tolist()
    for layer in range(2):
        actual = built.bias(q, k, AttentionContext(state, layer))
        for b in range(2):
            for head in range(2):
                for t in range(length):
                    for s in range(slots):
                        column = 2 + max(-2, min(2, key[b][s] - query[b][t]))
                        expected = fixed[layer][head][column]
                        for i in range(3):
                            expected += q[b, head, t, i].item() * query_part[layer][i][column] / math.sqrt(3)
                            if keys:
                                turned = key_part[layer][i][4 - column]  # by t - s, as released
                                expected += k[b, head, s, i].item() * turned / math.sqrt(3)
                        assert actual[b, head, t, s].item() == pytest.approx(expected)


def test_it_does_not_see_where_the_sentence_starts():
    built, q = model(keys=True), torch.randn(1, 2, 5, 3, dtype=torch.double)
    here, there = (
        built.bias(q, q, AttentionContext(built.prepare(Positions(row, row)), 0))
        for row in (torch.arange(5)[None], torch.arange(100, 105)[None])
    )
    assert torch.equal(here, there)


def test_the_fixed_part_starts_at_zero_and_learns():
    built = build("chang", **SIZES)
    assert not built.fixed.any()
    q = torch.randn(1, 2, 5, 3)
    built.bias(q, q, AttentionContext(built.prepare(Positions.arange(5)), 1)).square().sum().backward()
    assert all(bool(parameter.grad[1].any()) for parameter in built.parameters())


def test_vectors_start_as_in_the_released_code():
    built = build("chang", dim=512, heads=8, layers=4, max_length=16, window=8, keys=True)
    theirs = nn.init.kaiming_uniform_(torch.empty(64, 17), a=math.sqrt(5))  # mlpc-ucsd/BERT_Convolutions
    for table in (built.query, built.key):
        for block in table.detach():
            assert float(block.std()) == pytest.approx(float(theirs.std()), rel=0.1)
