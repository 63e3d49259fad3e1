"""Places, queries and keys that the tests of relative models share, and loops over pairs."""

import itertools
import math

import pytest
import torch

from floater import Positions
from floater.encodings import AttentionContext
from small_models import randomised

DIM, HEADS, LAYERS, LENGTH = 8, 2, 3, 16
WIDTH = DIM // HEADS
SIZES = {"dim": DIM, "heads": HEADS, "layers": LAYERS, "max_length": LENGTH}
POSITIONS = {
    "counting": Positions.arange(5),
    "cached": Positions.arange(2, offset=5),
    "one": Positions.arange(1, offset=3),
    "left padding": Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])),
    "cached left padding": Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]), queries=2),
    "packed": Positions(torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([[0, 1, 2, 0, 1]])),
}
TIMES = Positions.times(torch.tensor([[0.0, 0.5, 3.25, 7.0], [1.0, 1.5, 2.0, 9.75]], dtype=torch.float64))
WHOLE = pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
EVERYWHERE = pytest.mark.parametrize("positions", [*POSITIONS.values(), TIMES], ids=[*POSITIONS, "times"])


def build_encoding(name, **options):
    return randomised(name, **SIZES, **options)


def waves(*shape):
    """Return numbers from -1 to 1 without a visible order, for which the authors' code was run, too."""
    return torch.arange(math.prod(shape), dtype=torch.float).add(1).square().mul(0.1).sin().view(shape)


def queries_and_keys(positions, batch=2):
    generator = torch.Generator().manual_seed(1)
    lengths = positions.query.shape[1], positions.key.shape[1]
    return [
        torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=torch.double).requires_grad_()
        for n in lengths
    ]


def logits(model, positions, q, k, layer=0):
    """scale x q.k + bias, then the hook `logits`."""
    state = model.prepare(positions)
    out = q @ k.transpose(-1, -2) * model.scale(q.shape[-1])
    bias = model.bias(q, k, AttentionContext(state, layer))
    return model.logits(out if bias is None else out + bias, q, k, AttentionContext(state, layer))


def by_pairs(positions, q, k, score):
    """score(q_t, k_s, t, s, head) of every pair, one at a time; t and s are the positions."""
    shape = len(q), HEADS, q.shape[2], k.shape[2]
    query, key = (x.expand(len(q), -1).tolist() for x in (positions.query, positions.key))
    scores = [
        score(q[b, h, i], k[b, h, j], query[b][i], key[b][j], h)
        for b, h, i, j in itertools.product(*map(range, shape))
    ]
    return torch.stack(scores).view(shape)


def agree(actual, wanted, *inputs):
    """Values and gradients."""
    torch.testing.assert_close(actual, wanted)
    pull = torch.randn(actual.shape, dtype=actual.dtype, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        *(torch.autograd.grad((y * pull).sum(), inputs, allow_unused=True) for y in (actual, wanted)),
        strict=True,
    ):
        assert a is not None
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)
