"""Sinusoidal, learned and recurrent position vectors against their equations written out."""

import math

import pytest
import torch

from floater import PositionError, Positions, build
from small_models import wave

DIM = 6
SIZES = {"dim": DIM, "heads": 2, "layers": 3, "max_length": 16}


def added(model, positions, layer):
    """Return the vectors that a model adds at a block: (batch or 1, T, dim)."""
    state = model.prepare(positions)
    x = torch.zeros(*positions.query.shape, model.spec.dim)
    return model.embed(x, state) + model.block(x, state, 0) if layer == 0 else model.block(x, state, layer)


POSITIONS = [
    Positions.arange(9),
    Positions.arange(2, offset=7),
    Positions.from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])),
]


@pytest.mark.parametrize("positions", POSITIONS)
def test_sinusoids_at_the_input_are_equation_6(positions):
    model = build("sinusoidal", **SIZES)
    expected = torch.tensor([[wave(i, DIM) for i in row] for row in positions.query.tolist()])
    torch.testing.assert_close(added(model, positions, 0), expected)
    assert not added(model, positions, 1).any()


@pytest.mark.parametrize("positions", POSITIONS)
def test_sinusoids_at_every_block_are_equation_7(positions):
    model = build("sinusoidal", **SIZES, blocks="all")
    for layer in range(3):
        expected = [
            [[a + b for a, b in zip(wave(i, DIM), wave(layer + 1, DIM), strict=True)] for i in row]
            for row in positions.query.tolist()
        ]
        torch.testing.assert_close(added(model, positions, layer), torch.tensor(expected))


def test_sinusoids_of_far_and_of_real_positions_are_exact():
    model = build("sinusoidal", **SIZES)
    times = [0.5, 15962.25, 1e6]
    actual = added(model, Positions.times(torch.tensor([times], dtype=torch.float64)), 0)
    torch.testing.assert_close(actual, torch.tensor([[wave(t, DIM) for t in times]]))


@pytest.mark.parametrize("blocks", ["input", "all", [1, 2]])
def test_learned_positions_are_rows_of_each_blocks_table(blocks):
    torch.manual_seed(0)
    model = build("learned", **SIZES, blocks=blocks)
    positions = Positions.from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    chosen = {"input": [0], "all": [0, 1, 2]}.get(blocks, blocks) if isinstance(blocks, str) else blocks
    assert sum(p.numel() for p in model.parameters()) == len(chosen) * 16 * DIM
    for layer in range(3):
        actual = added(model, positions, layer)
        for row, row_positions in zip(actual, positions.query.tolist(), strict=True):
            for vector, at in zip(row, row_positions, strict=True):
                expected = model.table(layer).weight[at] if layer in chosen else torch.zeros(DIM)
                assert torch.equal(vector, expected)


def test_learned_positions_end_at_the_table():
    model = build("learned", **SIZES)
    added(model, Positions.arange(16), 0)
    added(model, Positions.from_mask(torch.tensor([[1] * 16 + [0] * 4])), 0)  # padding is no position
    with pytest.raises(PositionError, match="ends at position 15; position 16 was requested"):
        model.prepare(Positions.arange(1, offset=16))


def recurred(model, block, length):
    """p_1, ..., p_length of one block by a loop over plain numbers (equation 14)."""
    p = model.start[model.blocks.index(block)].tolist()
    out = [p]
    for i in range(length - 1):
        z = [float(i)] if model.input == "scalar" else wave(i, DIM)
        for cell in model.cells:
            entering = p + z
            p = [
                math.tanh(b + sum(w * e for w, e in zip(row, entering, strict=True)))
                for row, b in zip(cell.weight.tolist(), cell.bias.tolist(), strict=True)
            ]
        out.append(p)
    return torch.tensor(out)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["scalar", "vector"])
@pytest.mark.parametrize("blocks", ["all", [0, 2]])
def test_the_recurrent_model_is_a_loop(kind, depth, blocks):
    torch.manual_seed(0)
    model = build("rnn", **SIZES, input=kind, depth=depth, blocks=blocks)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    positions = Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    for layer in model.blocks:
        expected = recurred(model, layer, 5)[positions.query]
        # single precision over a few steps
        torch.testing.assert_close(added(model, positions, layer), expected, rtol=1e-5, atol=1e-5)


def test_a_recurrence_over_too_many_positions_is_refused():
    with pytest.raises(PositionError, match="position 1048576 is too far: 'rnn' computes the vectors of at"):
        build("rnn", **SIZES).prepare(Positions.arange(1, offset=2**20))


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 263_168), ({"depth": 2}, 526_336), ({"input": "vector"}, 524_800)],
)
def test_the_recurrent_models_sizes_are_those_of_table_6(options, count):
    model = build("rnn", dim=512, heads=8, layers=6, max_length=256, **options)
    assert sum(p.numel() for p in model.cells.parameters()) == count
    assert model.start.shape == (6, 512)


def test_autocast_does_not_round_the_recurrence():
    torch.manual_seed(0)
    model = build("rnn", **SIZES, depth=2)
    plain, _ = model.prepare(Positions.arange(16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = model.prepare(Positions.arange(16))
    assert all(map(torch.equal, mixed, plain))


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rnn"])
def test_what_was_added_at_512_positions_begins_what_is_added_at_1024(name):
    model = build(name, **(SIZES | {"max_length": 1024}))
    short, long = (added(model, Positions.arange(n), 0) for n in (512, 1024))
    assert torch.equal(long[:, :512], short)
