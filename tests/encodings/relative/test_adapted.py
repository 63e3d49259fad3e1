"""DAPE, FoPE, Self-Extend and dynamic bias against their equations written out and against x-transformers."""

import math

import pytest
import torch
from relative_cases import (
    DIM,
    EVERYWHERE,
    HEADS,
    SIZES,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)

from floater import Positions, build
from floater.encodings import AttentionContext

theirs = pytest.importorskip("x_transformers.x_transformers")


@EVERYWHERE
def test_dape_corrects_the_logits_of_all_heads(positions):
    model, layer = build_encoding("dape", model="alibi", width=5), 1
    q, k = queries_and_keys(positions)
    content = by_pairs(positions, q, k, lambda q, k, t, s, head: q @ k / WIDTH**0.5)
    bias = by_pairs(
        positions,
        q,
        k,
        lambda q, k, t, s, head: torch.tensor(-abs(s - t) * 2.0 ** (-4 * (head + 1))).double(),
    )
    both = torch.cat([content, bias], 1).permute(0, 2, 3, 1)
    hidden = both @ model.weight[layer].T + model.hidden_bias[layer]
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    wanted = content + bias + (hidden @ model.out[layer].T).permute(0, 3, 1, 2)
    agree(logits(model, positions, q, k, layer), wanted, model.weight, model.hidden_bias, model.out)


def test_dape_divides_the_dot_products_beside_t5s_bias():
    """Its paper's do; T5's own are not divided."""
    model = build("dape", **SIZES, model="t5")
    assert model.scale(WIDTH) == model.inner.scale(WIDTH) == WIDTH**-0.5


@torch.no_grad()
def test_fope_turns_by_fourier_series():
    torch.manual_seed(0)
    model = build("fope", dim=32, heads=2, layers=2, max_length=64).double()
    assert model.sine.shape == (2, 2, 3, 3)  # periods of 6.3, 19.9 and 62.8 tokens of eight pairs
    x, at = torch.randn(1, 3, 2, 16, dtype=torch.double), Positions.times(torch.tensor([[0.0, 1.5, 200.0]]))
    q, k, _ = model.qkv(x, 2 * x, x, AttentionContext(model.prepare(at), 1))
    torch.testing.assert_close(k, 2 * q)
    for t, position_ in enumerate(at.query[0].tolist()):
        for head in range(2):
            for pair in range(8):
                sin = cos = 1.0
                if pair < 3:
                    waves = [position_ * 10000 ** (-m / 8) for m in range(3)]
                    sin = sum(model.sine[1, head, m, pair] * math.sin(wave) for m, wave in enumerate(waves))
                    cos = sum(model.cosine[1, head, m, pair] * math.cos(wave) for m, wave in enumerate(waves))
                a, b = x[0, t, head, pair], x[0, t, head, pair + 8]
                torch.testing.assert_close(q[0, t, head, pair], a * cos - b * sin)
                torch.testing.assert_close(q[0, t, head, pair + 8], a * sin + b * cos)


@torch.no_grad()
def test_fope_starts_near_the_identity():
    torch.manual_seed(0)
    model = build("fope", dim=1024, heads=2, layers=1, max_length=2048)
    waves, series = model.sine.shape[-2:]
    assert (waves, series) == (161, 128)  # of 256 pairs, at most half
    noise = model.sine[0].clone()
    noise[:, torch.arange(0, waves, 2), torch.arange(81)] -= 1
    assert float(noise.std()) == pytest.approx(0.3 * (2 / ((waves + 2) * series)) ** 0.5, rel=0.02)


def shortened(form, t, s, w, g):
    """The distance t - s at which a far key is read."""
    side = math.copysign(1, t - s)
    if form == "floor":
        return t // g - s // g + side * (w - w / g)
    return side * (w + (abs(t - s) - w) / g if form == "leaky" else w)


@EVERYWHERE
@pytest.mark.parametrize("pairs", ["interleaved", "half"])
@pytest.mark.parametrize("form", ["floor", "leaky", "rectified"])
def test_far_keys_are_read_at_shorter_distances(form, pairs, positions):
    """A rotary product at the distance that the form gives."""
    w, g = 2, 3
    options = {} if form == "rectified" else {"group": g}
    model = build_encoding("self_extend", form=form, window=w, pairs=pairs, **options)
    rotary = build_encoding("rotary", pairs=pairs)
    q, k = queries_and_keys(positions)

    def score(q, k, t, s, head):
        far = t - s if abs(t - s) < w else shortened(form, t, s, w, g)
        at = Positions.times(torch.tensor([[0.0, float(far)]], dtype=torch.double))
        pair = torch.stack([k, q])[None, :, None].expand(1, 2, HEADS, WIDTH)
        turned, _, _ = rotary.qkv(pair, pair, pair, AttentionContext(rotary.prepare(at), 0))
        return turned[0, 1, head] @ turned[0, 0, head] / WIDTH**0.5

    # queries and keys are the last tokens of one text: rotate them where they stand
    state = model.prepare(Positions(positions.key, positions.key))
    slots, length = k.shape[2], q.shape[2]
    whole = torch.cat([q.new_zeros(*q.shape[:2], slots - length, WIDTH), q], 2)
    qs, ks, _ = model.qkv(whole.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(state, 0))
    qs, ks = qs.transpose(1, 2)[:, :, slots - length :], ks.transpose(1, 2)
    actual = model.logits(qs @ ks.mT, qs, ks, AttentionContext(model.prepare(positions), 0))
    torch.testing.assert_close(actual, by_pairs(positions, q, k, score))


def test_a_wide_window_is_rotary():
    model, rotary = build_encoding("self_extend", window=100), build_encoding("rotary")
    x = torch.randn(1, 12, HEADS, WIDTH, dtype=torch.double)
    q, k, _ = (
        part.transpose(1, 2)
        for part in model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(12)), 0))
    )
    wanted = [
        y.transpose(1, 2)
        for y in rotary.qkv(x, x, x, AttentionContext(rotary.prepare(Positions.arange(12)), 0))
    ]
    actual = model.logits(q @ k.mT, q, k, AttentionContext(model.prepare(Positions.arange(12)), 0))
    torch.testing.assert_close(actual, wanted[0] @ wanted[1].mT / 2)


@pytest.mark.parametrize(("length", "slots"), [(40, 40), (3, 40)])
@pytest.mark.parametrize("log_distance", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_dynamic_bias_is_that_of_x_transformers(depth, log_distance, length, slots):
    torch.manual_seed(0)
    other = theirs.DynamicPositionBias(8, heads=HEADS, depth=depth, log_distance=log_distance)
    model = build("dynamic_bias", **SIZES, width=8, depth=depth, log_distance=log_distance)
    with torch.no_grad():
        for ours, published in zip(model.layers, other.mlp, strict=False):
            ours.load_state_dict(published[0].state_dict())
        model.out.weight.copy_(other.mlp[-1].weight)
        other.mlp[-1].bias.zero_()
    actual = model.prepare(Positions.arange(length, offset=slots - length)).matrix[0]
    torch.testing.assert_close(actual, other(length, slots), rtol=1e-5, atol=1e-6)
    at = Positions.arange(length, offset=slots - length)
    timed = model.prepare(Positions(at.query.double(), at.key.double()))[0]
    torch.testing.assert_close(timed.float(), actual, rtol=1e-5, atol=1e-6)
    assert build("dynamic_bias", **SIZES).out.in_features == DIM // 4
