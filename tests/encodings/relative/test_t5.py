"""T5's bias against transformers and against a loop over the buckets."""

import math

import pytest
import torch
from relative_cases import HEADS, SIZES, WHOLE, build_encoding, by_pairs, logits, queries_and_keys

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.t5 import T5, bucket


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (4, 5), (64, 1000)])
def test_buckets_are_those_of_transformers(both, buckets, far):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    delta = torch.arange(-1500, 1500)
    wanted = t5.T5Attention._relative_position_bucket(
        delta, bidirectional=both, num_buckets=buckets, max_distance=far
    )
    assert torch.equal(bucket(delta, buckets, far, both=both), wanted)


def test_one_bucket_of_both_sides_is_never_used():
    used = bucket(torch.arange(-1000, 1000), 32, 128, both=True).unique().tolist()
    assert used == [n for n in range(32) if n != 16]


@pytest.mark.parametrize("site", ["self", "decoder"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_is_that_of_transformers(site, causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=8, d_kv=4, num_heads=HEADS, is_decoder=causal)
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    model = build("t5", **SIZES, site=site, causal=causal)
    with torch.no_grad():
        model.table.weight.copy_(theirs.relative_attention_bias.weight)
    q = torch.zeros(1, HEADS, 40, 4)
    actual = model.bias(q, q, AttentionContext(model.prepare(Positions.arange(40)), 1))
    torch.testing.assert_close(actual, theirs.compute_bias(40, 40))


@pytest.mark.parametrize("name", ["t5", "tupe_r", "bert_r", "untied_cls"])
def test_a_causal_stack_uses_every_bucket(name):
    sizes = SIZES | {"max_length": 200}
    model = build(name, **sizes, causal=True)
    t5 = next(part for part in model.modules() if isinstance(part, T5))
    q = torch.zeros(1, HEADS, 200, 4)
    model.bias(
        q, q, AttentionContext(model.prepare(Positions.arange(200)), 0)
    ).tril().square().sum().backward()
    assert bool(t5.table.weight.grad.any(1).all())


def written_out(delta, both, buckets=32, far=128):
    start = 0
    if both:
        buckets //= 2
        start, back = (buckets, delta) if delta > 0 else (0, -delta)
    else:
        back = max(-delta, 0)
    near = buckets // 2
    if back < near:
        return start + back
    return start + min(
        buckets - 1, near + int(math.log(back / near) / math.log(far / near) * (buckets - near))
    )


@WHOLE
@pytest.mark.parametrize("directions", ["both", "past"])
@pytest.mark.parametrize("scaled", [False, True])
def test_logits_are_the_loop(positions, directions, scaled):
    model = build_encoding("t5", directions=directions, scaled=scaled)
    q, k = queries_and_keys(positions)
    scale = 0.5 if scaled else 1.0

    def score(q, k, t, s, head):
        return q @ k * scale + model.table.weight[written_out(s - t, directions == "both"), head]

    torch.testing.assert_close(logits(model, positions, q, k, 2), by_pairs(positions, q, k, score))


@torch.no_grad()
def test_a_real_distance_shares_the_bucket_of_the_next_whole_one_towards_zero():
    model = build_encoding("t5", directions="both")
    times = torch.tensor([[0.0, 0.6, 3.9, 50.3, 1e6]], dtype=torch.float64)
    actual = model.prepare(Positions.times(times))
    delta = times[:, None] - times[:, :, None]
    near = delta.abs() < 8
    whole = bucket(delta.trunc().long(), 32, 128, both=True)
    # a key less than one after the query is after it, where no whole distance is
    whole = torch.where((delta > 0) & (delta < 1), 16, whole)
    wanted = model.table(whole).movedim(-1, 1)
    torch.testing.assert_close(
        actual[near[:, None].expand_as(actual)], wanted[near[:, None].expand_as(wanted)]
    )
    assert torch.equal(actual[0, :, 0, 4], model.table.weight[31])
