"""Rotary positions against complex rotations and two other implementations."""

import cmath
import math

import pytest
import torch
from relative_cases import HEADS, POSITIONS, SIZES, TIMES, WIDTH

from floater import Positions, build
from floater.encodings import AttentionContext


def rotated(x, at, pairs, base=10000.0):
    """One vector by complex multiplication."""
    half = len(x) // 2
    first = [2 * i if pairs == "interleaved" else i for i in range(half)]
    second = [2 * i + 1 if pairs == "interleaved" else i + half for i in range(half)]
    out = [0.0] * len(x)
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        turned = complex(x[a], x[b]) * cmath.exp(1j * at / base ** (2 * i / len(x)))
        out[a], out[b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("positions", [*POSITIONS.values(), TIMES])
@pytest.mark.parametrize("pairs", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_queries_and_keys_are_turned_and_values_are_not(positions, pairs, base):
    torch.manual_seed(0)
    model = build("rotary", **SIZES, pairs=pairs, base=base)
    x = torch.randn(2, positions.query.shape[1], HEADS, WIDTH, dtype=torch.double)
    q, k, v = model.qkv(x, 2 * x, 3 * x, AttentionContext(model.prepare(positions), 0))
    rows = positions.query.expand(2, -1).tolist()
    wanted = torch.tensor(
        [
            [[rotated(head, at, pairs, base) for head in token] for token, at in zip(*row, strict=True)]
            for row in zip(x.tolist(), rows, strict=True)
        ],
        dtype=torch.double,
    )
    # whole positions have angles of single precision
    tolerance = {} if positions is TIMES else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(q, wanted, **tolerance)
    torch.testing.assert_close(k, 2 * wanted, **tolerance)
    assert torch.equal(v, 3 * x)


def test_angles_are_exact_at_position_8000_under_autocast():
    model = build("rotary", **SIZES)
    x = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.bfloat16).expand(1, 1, HEADS, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(1, offset=8000)), 0))
    assert q.dtype == torch.bfloat16
    wanted = [math.cos(8000), math.sin(8000), math.cos(80), math.sin(80)]
    torch.testing.assert_close(q[0, 0, 0].float(), torch.tensor(wanted), rtol=0, atol=4e-3)


def test_roformer_of_transformers_gives_the_same():
    roformer = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    table = roformer.RoFormerSinusoidalPositionalEmbedding(32, WIDTH)
    table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
    q, k = torch.randn(2, 2, HEADS, 12, WIDTH).unbind()
    wanted = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(table((2, 12))[None, None], q, k)
    model = build("rotary", **SIZES)
    actual = model.qkv(
        q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(model.prepare(Positions.arange(12)), 0)
    )
    torch.testing.assert_close(actual[0].transpose(1, 2), wanted[0])
    torch.testing.assert_close(actual[1].transpose(1, 2), wanted[1])


def test_llama_of_transformers_gives_the_same_with_half_pairs():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    positions = POSITIONS["left padding"]
    angle = positions.query[..., None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    angle = torch.cat([angle, angle], -1)
    q, k = torch.randn(2, 2, HEADS, 5, WIDTH).unbind()
    wanted = llama.apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    model = build("rotary", **SIZES, pairs="half")
    actual = model.qkv(q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(model.prepare(positions), 0))
    torch.testing.assert_close(actual[0].transpose(1, 2), wanted[0])
    torch.testing.assert_close(actual[1].transpose(1, 2), wanted[1])


def test_rotary_embedding_torch_gives_the_same():
    package = pytest.importorskip("rotary_embedding_torch")
    q = torch.randn(2, HEADS, 12, WIDTH)
    wanted = package.RotaryEmbedding(dim=WIDTH).rotate_queries_or_keys(q, offset=3)
    model = build("rotary", **SIZES)
    x = q.transpose(1, 2)
    actual, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(12, offset=3)), 0))
    torch.testing.assert_close(actual.transpose(1, 2), wanted)


@torch.no_grad()
def test_the_precision_is_that_of_the_queries_not_of_the_positions():
    model = build("rotary", dim=8, heads=2, layers=1, max_length=16)
    x = torch.randn(1, 5, 2, 4, dtype=torch.double)
    whole, real = Positions.arange(5), Positions.times(torch.arange(5.0, dtype=torch.double)[None])
    exact = [model.qkv(x, x, x, AttentionContext(model.prepare(at), 0))[0] for at in (whole, real)]
    assert torch.equal(*exact)
    assert exact[0].dtype == torch.double
    rounded = model.qkv(x.float(), x.float(), x.float(), AttentionContext(model.prepare(real), 0))[0]
    torch.testing.assert_close(rounded.double(), exact[0], rtol=1e-6, atol=1e-6)  # float32
