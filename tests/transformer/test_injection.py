"""Places where positions enter: symmetries, equations 12 and 13 written out, a zero flow."""

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import POSITIONS, build_model, config, registered, tokens

from floater import Positions
from floater.encodings import PositionModel, StackSpec
from floater.encodings.absolute.floater import Floater
from floater.flow import sinusoid
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.attention import Attention, SharedInputs, Source
from floater.transformer.stacks import Decoder, Encoder
from floater.transformer.uncast import Uncast


@pytest.mark.parametrize("case", POSITIONS)
def test_only_without_position_is_the_encoder_permutation_equivariant(case):
    model, ids = build_model(FloaterModel, case), tokens(2, 7)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    straight = model(ids).last_hidden_state[:, order]
    permuted = model(ids[:, order]).last_hidden_state
    difference = float((straight - permuted).abs().max().detach())
    assert difference < 1e-5 if case == "none" else difference > 1e-2


class Shift(PositionModel):
    """One vector for each use, added to queries, keys and values after projection."""

    def prepare(self, positions):
        return self.vectors

    def projection_bias(self, name, context):
        return context.state[name][None]


def test_biases_on_projections_are_positions_at_the_input_equation_12():
    torch.manual_seed(0)
    length, dim = 6, 16
    attention = Attention(config("none"), 0).double()
    spec = StackSpec(dim=dim, heads=2, layers=1, max_length=16)
    shift, plain = Shift(spec), PositionModel(spec)
    x, p = torch.randn(3, length, dim).double(), torch.randn(length, dim).double()
    wave = sinusoid(torch.arange(length).double(), dim)
    shift.vectors = {
        name: (p - wave) @ getattr(attention, name).weight.T for name in ("query", "key", "value")
    }
    biased, _ = attention(x + wave, SharedInputs(shift, Uncast(shift.prepare(None))))
    moved, _ = attention(x + p, SharedInputs(plain, Uncast(None)))
    torch.testing.assert_close(biased, moved)


@pytest.mark.parametrize("cls", [FloaterForMaskedLM, FloaterForCausalLM, FloaterForConditionalGeneration])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_zero_flow_leaves_the_outputs_bit_for_bit(cls, autocast, implementation):
    torch.manual_seed(0)
    plain = cls(config("sinusoidal", attn_implementation=implementation)).eval()
    for share in ("blocks", "none"):
        options = {"start": "zero", "share": share}
        flow = cls(config("floater", position_options=options, attn_implementation=implementation)).eval()
        loaded = flow.load_state_dict(plain.state_dict(), strict=False)
        assert not loaded.unexpected_keys
        assert all(".position." in name or ".cross_position." in name for name in loaded.missing_keys)
        inputs = {"input_ids": tokens(2, 9), "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4])}
        if cls is FloaterForConditionalGeneration:
            inputs["decoder_input_ids"] = tokens(2, 6, seed=1)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            assert torch.equal(flow(**inputs).logits, plain(**inputs).logits)


USES = ("self query", "self key", "self value", "cross query", "source key", "source value")


def heads(x):
    """(batch, T, 16) -> (batch, 2, T, 8)."""
    return torch.stack(x.split(8, dim=-1), dim=1)


def attended(module, q, k, v, keys_seen):
    """softmax(q k^T / sqrt(8)) v over the keys seen, joined and projected."""
    logits = heads(q) @ heads(k).transpose(-1, -2) / 8**0.5
    weights = torch.where(keys_seen, logits, torch.tensor(-1e30, dtype=logits.dtype)).softmax(-1)
    return module.output(torch.cat((weights @ heads(v)).unbind(1), dim=-1))


def written_out(decoder, x, source, source_valid, bias):
    """A post-norm decoder of one block, all biases given: equations 1 to 4, 12 and 13."""
    block, length = decoder.blocks[0], x.shape[1]
    a, c = block.attention, block.cross_attention
    x = x + sinusoid(torch.arange(length).double(), 16)
    causal = torch.arange(length) <= torch.arange(length)[:, None]
    q, k, v = (
        m(x) + bias[use] for m, use in zip((a.query, a.key, a.value), USES[:3], strict=True)
    )  # fmt: skip
    x = block.attention_residual.norm(x + attended(a, q, k, v, causal))
    q, k, v = c.query(x) + bias[USES[3]], c.key(source) + bias[USES[4]], c.value(source) + bias[USES[5]]
    x = block.cross_residual.norm(x + attended(c, q, k, v, source_valid[:, None, None, :]))
    inner = F.relu(block.feed_forward.inner(x))
    return block.feed_forward_residual.norm(x + block.feed_forward.outer(inner))


@pytest.mark.parametrize("use", [*USES, "all at once"])
def test_each_bias_of_the_decoder_enters_where_equations_12_and_13_say(use):
    torch.manual_seed(0)
    decoder = Decoder(config("floater", decoder_layers=1)).double().eval()
    decoder.position.flows[0].start.data.zero_()
    decoder.cross_position.flows[0].start.data.zero_()
    for model in (decoder.position, decoder.cross_position):
        torch.nn.init.zeros_(model.flows[0].field.outer.weight)
    target, source = 4, 6  # different lengths: a bias at the wrong positions would not even fit
    starts = {
        name: (model.flows[0], model.flows[0].names.index(names.split()[-1].replace("query", kind)))
        for name, model, names, kind in (
            (USES[0], decoder.position, USES[0], "query"),
            (USES[1], decoder.position, USES[1], "query"),
            (USES[2], decoder.position, USES[2], "query"),
            (USES[3], decoder.position, USES[3], "cross_query"),
            (USES[4], decoder.cross_position, USES[4], "query"),
            (USES[5], decoder.cross_position, USES[5], "query"),
        )
    }
    chosen = USES if use == "all at once" else (use,)
    for name in chosen:
        flow, index = starts[name]
        with torch.no_grad():
            torch.nn.init.normal_(flow.start[0, index])
    for model in {starts[name][0] for name in chosen}:  # and let them change along the positions
        torch.nn.init.normal_(model.field.outer.weight, std=0.3)
    bias = {
        name: flow(torch.arange(source if "source" in name else target)[None]).at(0, flow.names[index])
        for name, (flow, index) in starts.items()
    }
    x, memory = torch.randn(2, target, 16).double(), torch.randn(2, source, 16).double()
    valid = torch.tensor([[1] * 6, [1] * 4 + [0] * 2]).bool()
    actual = decoder(x, Positions.arange(target), memory, Positions.from_mask(valid))
    torch.testing.assert_close(actual, written_out(decoder, x, memory, valid, bias))


class Marks(PositionModel):
    """Writes down where and at which positions it was called; changes what enters by known amounts."""

    sites = ("self", "decoder", "cross")

    def prepare(self, positions):
        return positions.query

    def embed(self, x, state):
        return x + 1

    def block(self, x, state, layer):
        return x * (layer + 2)

    def projection_bias(self, name, context):
        if name != "cross_query" and self.spec.site != "cross":
            return None
        return {"cross_query": 1, "key": 2, "value": -1}[name] * context.state[..., None].expand(-1, -1, 16)


def test_embed_acts_at_the_input_and_block_at_each_block_residual_included():
    with registered("marks", Marks):
        torch.manual_seed(0)
        encoder = Encoder(config("marks")).double().eval()
    x = torch.randn(2, 5, 16).double()
    actual = encoder(x, Positions.arange(5))
    y, plain = x + 1, PositionModel(encoder.position.spec)
    for layer, block in enumerate(encoder.blocks):
        y = block(y * (layer + 2), SharedInputs(plain, Uncast(None)))
    torch.testing.assert_close(actual, y)


def test_the_hooks_of_cross_attention_see_target_and_source_positions():
    with registered("marks", Marks):
        torch.manual_seed(0)
        decoder = Decoder(config("marks")).double().eval()
    cross = decoder.blocks[1].cross_attention
    x, source = torch.randn(2, 3, 16).double(), torch.randn(2, 4, 16).double()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    target, memory = Positions.arange(3, offset=2), Positions.from_mask(mask)
    states = decoder.position.prepare(target), Uncast(decoder.cross_position.prepare(memory))
    encoded = Source(source, decoder.cross_position, states[1], memory.key_valid)
    actual, _ = cross(x, encoded, SharedInputs(decoder.position, Uncast(states[0])))
    i = torch.tensor([[2], [3], [4]])
    j = torch.tensor([[[0], [0], [1], [2]], [[0], [1], [2], [3]]])
    q, k, v = cross.query(x) + i, cross.key(source) + 2 * j, cross.value(source) - j
    torch.testing.assert_close(actual, attended(cross, q, k, v, mask.bool()[:, None, None, :]))


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_norm_stands_after_the_sum_or_before_the_sublayer(norm_first):
    torch.manual_seed(0)
    encoder = Encoder(config("none", num_hidden_layers=1, norm_first=norm_first)).double().eval()
    block = encoder.blocks[0]
    with torch.no_grad():
        for norm in (block.attention_residual.norm, block.feed_forward_residual.norm):
            torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 4, 16).double()
    everything = torch.ones(4, 4, dtype=torch.bool)
    a, f = block.attention, block.feed_forward

    def attention(y):
        return attended(a, a.query(y), a.key(y), a.value(y), everything)

    def feed_forward(y):
        return f.outer(F.relu(f.inner(y)))

    one, two = block.attention_residual.norm, block.feed_forward_residual.norm
    if norm_first:
        y = x + attention(one(x))
        y = F.layer_norm(y + feed_forward(two(y)), (16,))  # a last norm, still at its initial values
    else:
        y = one(x + attention(x))
        y = two(y + feed_forward(y))
    torch.testing.assert_close(encoder(x, Positions.arange(4)), y)


def test_the_flow_of_cross_attention_belongs_to_injection_qkv_only():
    model = FloaterForConditionalGeneration(config("floater, added"))
    assert isinstance(model.decoder.cross_position, Floater)
    assert not list(model.decoder.cross_position.parameters())
