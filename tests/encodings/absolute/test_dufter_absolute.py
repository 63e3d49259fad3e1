"""Absolute position biases against a loop over pairs."""

import pytest
import torch

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext


def test_each_pair_of_positions_has_its_number():
    torch.manual_seed(0)
    model = build("dufter_absolute", dim=4, heads=2, layers=2, max_length=9)
    left = Positions.from_mask(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    for positions in (Positions.arange(3), Positions.arange(2, offset=4), left):
        state = model.prepare(positions)
        query, key = positions.query.tolist(), positions.key.tolist()
        for layer in range(2):
            actual = model.bias(torch.zeros(1), torch.zeros(1), AttentionContext(state, layer))
            assert actual.shape == (len(query), 2, len(query[0]), len(key[0]))
            for b in range(len(query)):
                for head in range(2):
                    table = model.table[layer, head].tolist()
                    assert actual[b, head].tolist() == [[table[t][s] for s in key[b]] for t in query[b]]


def test_positions_past_the_table_and_between_tokens_are_refused():
    model = build("dufter_absolute", dim=4, heads=2, layers=2, max_length=9)
    with pytest.raises(PositionError, match="ends at position 8; position 9 was requested"):
        model.prepare(Positions.arange(1, offset=9))
    with pytest.raises(PositionError, match="real positions need a model such as 'floater' or 'rotary'"):
        model.prepare(Positions.times(torch.tensor([[0.5]])))
    with pytest.raises(PositionError, match="position -1 was requested"):
        model.prepare(Positions(torch.tensor([[-1]]), torch.tensor([[0]])))
