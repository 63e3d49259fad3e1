"""Encodings that x-transformers also has, and whole encoders with the same weights."""

import pytest
import torch
from torch import nn

from floater import FloaterConfig, Positions, build
from floater.encodings import AttentionContext
from floater.transformer import FloaterModel

theirs = pytest.importorskip("x_transformers")
parts = pytest.importorskip("x_transformers.x_transformers")

DIM, HEADS, WIDTH = 32, 4, 8
SIZES = {"dim": DIM, "heads": HEADS, "layers": 2, "max_length": 64}


def added(model, positions):
    """Compute the bias of a model in its first block."""
    return model.correlation(model.prepare(positions), 0)


@pytest.mark.parametrize("start", [0, 7])
def test_rotary_turns_the_same_pairs(start):
    rotary = parts.RotaryEmbedding(WIDTH)
    q, k = torch.randn(2, 2, HEADS, 12, WIDTH).unbind()
    at = torch.arange(start, start + 12)
    angles, scale = rotary(at)
    model = build("rotary", **SIZES)
    state = model.prepare(Positions(at[None], at[None]))
    actual = model.qkv(q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(state, 0))
    for ours, x in zip(actual[:2], (q, k), strict=True):
        wanted = parts.apply_rotary_pos_emb(x, angles, scale)
        torch.testing.assert_close(ours.transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "slots"), [(40, 40), (3, 40)])
def test_t5_has_the_same_bias(causal, length, slots):
    other = parts.RelativePositionBias(1.0, causal=causal, heads=HEADS)
    model = build("t5", **SIZES, directions="past" if causal else "both")
    with torch.no_grad():
        model.table.weight.copy_(other.relative_attention_bias.weight)
    actual = added(model, Positions.arange(length, offset=slots - length))[0]
    torch.testing.assert_close(actual, other(length, slots))


@pytest.mark.parametrize("heads", [4, 6, 8, 12])
def test_alibi_has_the_same_slopes_and_sides(heads):
    other = parts.AlibiPositionalBias(heads=heads)
    model = build("alibi", dim=8 * heads, heads=heads, layers=1, max_length=64)
    torch.testing.assert_close(added(model, Positions.arange(9))[0], other(9, 9))
    torch.testing.assert_close(added(model, Positions.arange(2, offset=7))[0], other(9, 9)[:, -2:])
    times = torch.tensor([[0.0, 0.5, 3.25], [1.0, 2.0, 9.75]])
    torch.testing.assert_close(added(model, Positions.times(times)), other.forward_custom_pos(times))


def test_sinusoids_hold_the_same_waves():
    other = parts.ScaledSinusoidalEmbedding(DIM)
    nn.init.ones_(other.scale)
    wanted = other(torch.zeros(1, 20, DIM))
    model = build("sinusoidal", **SIZES)
    actual = model.embed(torch.zeros(1, 20, DIM), model.prepare(Positions.arange(20)))[0]
    torch.testing.assert_close(torch.cat([actual[:, ::2], actual[:, 1::2]], 1), wanted, rtol=1e-5, atol=1e-5)


SCHEMES = {
    "none": {"use_abs_pos_emb": False},
    "learned": {},
    "rotary": {"use_abs_pos_emb": False, "rotary_pos_emb": True, "rotary_emb_dim": WIDTH},
    "t5": {"use_abs_pos_emb": False, "rel_pos_bias": True},
    "alibi": {"use_abs_pos_emb": False, "alibi_pos_bias": True},
}


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_a_whole_encoder_gives_the_same(name):
    """Pre-norm blocks of the same weights: attention without biases, GELU, layer norms."""
    torch.manual_seed(0)
    scheme = dict(SCHEMES[name])
    layers = {key: scheme.pop(key) for key in list(scheme) if key != "use_abs_pos_emb"}
    other = theirs.TransformerWrapper(
        num_tokens=50,
        max_seq_len=64,
        attn_layers=theirs.Encoder(dim=DIM, depth=2, heads=HEADS, attn_dim_head=WIDTH, ff_mult=2, **layers),
        **scheme,
    ).eval()
    config = FloaterConfig(
        vocab_size=50,
        hidden_size=DIM,
        intermediate_size=2 * DIM,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        training_length=64,
        norm_first=True,
        activation_function="gelu",
        position=name,
        position_options={"scaled": True} if name == "t5" else {},
        dropout=0.0,
    )
    model = FloaterModel(config).eval()
    model.embedding.weight.copy_(other.token_emb.emb.weight / DIM**0.5)
    encoder, blocks = model.encoder, other.attn_layers.layers
    if name == "learned":
        encoder.position.table(0).weight.copy_(other.pos_emb.emb.weight * other.pos_emb.scale)
    if name == "t5":
        bias = other.attn_layers.rel_pos
        encoder.position.table.weight.copy_(bias.relative_attention_bias.weight * bias.scale)
    for layer, block in enumerate(encoder.blocks):
        (norm_a, *_), attention, _ = blocks[2 * layer]
        (norm_f, *_), feed_forward, _ = blocks[2 * layer + 1]
        ours = block.attention
        for linear, published in (
            (ours.query, attention.to_q),
            (ours.key, attention.to_k),
            (ours.value, attention.to_v),
            (ours.output, attention.to_out),
        ):
            linear.weight.copy_(published.weight)
            nn.init.zeros_(linear.bias)
        linears = [module for module in feed_forward.modules() if isinstance(module, nn.Linear)]
        for linear, published in zip(
            (block.feed_forward.inner, block.feed_forward.outer), linears, strict=True
        ):
            linear.load_state_dict(published.state_dict())
        for residual, norm in ((block.attention_residual, norm_a), (block.feed_forward_residual, norm_f)):
            residual.norm.weight.copy_(scale_of(norm))
    encoder.norm.weight.copy_(scale_of(other.attn_layers.final_norm))
    ids = torch.randint(0, 50, (2, 20))
    wanted = other(ids, return_embeddings=True)
    torch.testing.assert_close(model(ids).last_hidden_state, wanted, rtol=1e-4, atol=1e-4)


def scale_of(norm):
    """The factor of a layer norm of x-transformers, which keeps it less one where it decays."""
    return norm.gamma + float(getattr(norm, "unit_offset", False))
