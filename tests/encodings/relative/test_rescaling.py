"""Rescaled rotary frequencies against those of Transformers, alone and inside Llama."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.rescaling import rescaled

SIZES = {"dim": 64, "heads": 2, "layers": 1, "max_length": 128}  # heads of 32
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0 + 0.01 * i for i in range(16)],
    "long_factor": [1.0 + 0.5 * i for i in range(16)],
}
PARTIAL = "partial_rotary_factor"
PROPORTIONAL = {"rope_type": "proportional", PARTIAL: 0.25}
RULES = [
    LLAMA3,
    {**LLAMA3, "factor": 2.0, "low_freq_factor": 2.5, "high_freq_factor": 3.0},
    PROPORTIONAL,
    {**PROPORTIONAL, "partial_rotary_factor": 0.7, "factor": 3.0},
    LINEAR,
    YARN,
    {**YARN, "factor": 1.0},
    {**YARN, "factor": 16.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5},
    {**YARN, "truncate": False},
    {**YARN, "original_max_position_embeddings": 32},
]


def llama(scaling, base=10000.0):
    full = {"original_max_position_embeddings": 128, **scaling, "rope_theta": base}
    return LlamaConfig(
        vocab_size=11,
        hidden_size=64,
        intermediate_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=128,
        rope_parameters=full,
        attn_implementation="eager",
    )


@pytest.mark.parametrize("scaling", RULES)
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_frequencies_and_factor_are_those_of_transformers(scaling, base):
    wanted, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](llama(scaling, base), "cpu")
    actual, ours = rescaled(32, base, 128, scaling)
    torch.testing.assert_close(actual.float(), wanted, rtol=1e-6, atol=1e-9)
    assert ours == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("length", [64, 128, 129, 500])
@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.3}, {"factor": 1.0}])
def test_longrope_is_that_of_transformers_at_the_declared_length(length, more):
    scaling = LONG | more
    wanted, factor = ROPE_INIT_FUNCTIONS["longrope"](llama(scaling), "cpu", seq_len=length)
    actual, ours = rescaled(32, 10000.0, 128, scaling | {"length": max(length, 128)})
    torch.testing.assert_close(actual.float(), wanted, rtol=1e-6, atol=1e-9)
    assert ours == pytest.approx(factor, rel=1e-6)
    if not more:
        assert torch.equal(
            rescaled(32, 10000.0, 128, scaling)[0], rescaled(32, 10000.0, 128, scaling | {"length": 512})[0]
        )


@pytest.mark.parametrize("scaling", [LINEAR, YARN, LLAMA3])
@pytest.mark.parametrize("partial", [0.25, 0.5])
def test_rules_scale_what_rotates(scaling, partial):
    wanted, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        llama({**scaling, "partial_rotary_factor": partial}), "cpu"
    )
    actual, _ = build("rotary", **SIZES, scaling=scaling, partial=partial).frequencies(torch.device("cpu"))
    torch.testing.assert_close(actual.float(), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_what_does_not_rotate_stays(pairs):
    model = build("rotary", **SIZES, partial=0.25, pairs=pairs)
    whole = build("rotary", **(SIZES | {"dim": 16}), pairs=pairs)
    x = torch.randn(2, 9, 2, 32)
    actual, _, v = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(9)), 0))
    part = x[..., :8]
    wanted, _, _ = whole.qkv(part, part, part, AttentionContext(whole.prepare(Positions.arange(9)), 0))
    assert torch.equal(actual[..., :8], wanted)
    assert torch.equal(actual[..., 8:], x[..., 8:])
    assert v is x


@pytest.mark.parametrize(
    ("partial", "message"),
    [
        (0.0, "partial is 0.0; it must be above 0 and at most 1"),
        (1.5, "partial is 1.5"),
        (0.1, "head_dim is 32 times partial 0.1 is 3; rotary positions need an even one"),
        (0.01, "head_dim is 32 times partial 0.01 is 0"),
    ],
)
def test_parts_of_heads_that_cannot_rotate(partial, message):
    with pytest.raises(PositionError, match=message):
        build("rotary", **SIZES, partial=partial)


@pytest.mark.parametrize(("factor", "length"), [(2.0, 256), (4.0, 200), (3.0, 128)])
def test_dynamic_scaling_is_that_of_transformers_at_the_declared_length(factor, length):
    scaling = {"rope_type": "dynamic", "factor": factor}
    wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](llama(scaling), "cpu", seq_len=length)
    actual, ours = rescaled(32, 10000.0, 128, {**scaling, "length": length})
    torch.testing.assert_close(actual.float(), wanted, rtol=1e-6, atol=1e-9)
    assert ours == 1.0
    whole, _ = rescaled(32, 10000.0, 128, {**scaling, "length": factor * 128})
    assert torch.equal(rescaled(32, 10000.0, 128, scaling)[0], whole)


def test_no_call_changes_a_dynamic_scale():
    """Keys that are cached at length 3 are those of a text of length 300."""
    model = build("rotary", **SIZES, scaling={"rope_type": "dynamic", "factor": 2.0})
    x = torch.randn(1, 300, 2, 32)
    _, whole, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(300)), 0))
    _, early, _ = model.qkv(*[x[:, :3]] * 3, AttentionContext(model.prepare(Positions.arange(3)), 0))
    torch.testing.assert_close(whole[:, :3], early)


@pytest.mark.parametrize("scaling", [LINEAR, YARN, LLAMA3, PROPORTIONAL])
@torch.no_grad()
def test_llama_attends_the_same(scaling):
    torch.manual_seed(0)
    other = LlamaModel(llama(scaling)).eval()
    ids, kept = torch.randint(11, (2, 40)), {}
    block = other.layers[0]
    block.input_layernorm.register_forward_hook(lambda _, __, out: kept.update(x=out))
    wanted = other(ids, output_attentions=True).attentions[0]
    q, k, v = (
        getattr(block.self_attn, name)(kept["x"]).unflatten(-1, (2, 32))
        for name in ("q_proj", "k_proj", "v_proj")
    )
    model = build("rotary", **SIZES, scaling=scaling, pairs="half")
    q, k, _ = model.qkv(q, k, v, AttentionContext(model.prepare(Positions.arange(40)), 0))
    logits = torch.einsum("bthi,bshi->bhts", q, k) * model.scale(32)
    later = torch.ones(40, 40).triu(1).bool()
    torch.testing.assert_close(logits.masked_fill(later, -torch.inf).softmax(-1), wanted)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("yarn", "scaling is 'yarn'; it must be None or a mapping with rope_type, one of 'linear'"),
        ({"factor": 2.0}, "it must be None or a mapping with rope_type, one of 'linear', 'dynamic'"),
        (
            {"rope_type": "ntk", "factor": 2.0},
            "rope_type is 'ntk'; it must be one of 'linear', 'dynamic', 'yarn'",
        ),
        ({"rope_type": "yarn"}, "scaling has no 'factor', which rope_type 'yarn' needs"),
        ({"rope_type": "linear", "factor": 0.5}, "factor of scaling is 0.5; it must be at least 1"),
        ({**LINEAR, "beta_fast": 32}, "scaling has 'beta_fast'; rope_type 'linear' takes factor and"),
        ({**YARN, "beta_slow": 64}, "beta_fast is 32.0; it must be above beta_slow, 64"),
        (
            {"rope_type": "llama3", "factor": 8.0},
            "scaling has no 'low_freq_factor', which rope_type 'llama3' needs",
        ),
        (
            {**LLAMA3, "low_freq_factor": 4.0},
            "high_freq_factor is 4.0; it must be above low_freq_factor, 4.0",
        ),
        (
            {**LONG, "long_factor": [1.0]},
            r"long_factor of scaling is \[1.0\]; it must be 16 positive numbers",
        ),
        ({**LONG, "short_factor": 2.0}, "short_factor of scaling is 2.0; it must be 16 positive numbers"),
        ({**LONG, "length": 5}, "length of scaling is 5; it must be at least the training length 128"),
        (
            {**PROPORTIONAL, "partial_rotary_factor": 1.1},
            "partial_rotary_factor is 1.1; it must be between 0 and 1",
        ),
        ({"rope_type": "dynamic", "factor": 2.0, "length": 100}, "length of scaling is 100; .* length 128"),
    ],
)
def test_what_is_refused(scaling, message):
    with pytest.raises(PositionError, match=message):
        build("rotary", **SIZES, scaling=scaling)
    with pytest.raises(PositionError, match="head_dim is 2; dynamic scaling needs at least 4"):
        build("rotary", **(SIZES | {"dim": 4}), scaling={"rope_type": "dynamic", "factor": 2.0})


@pytest.mark.parametrize("name", ["rotary", "self_extend"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0, True, "32", None])
@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (LINEAR, "factor"),
        (LINEAR, "original_max_position_embeddings"),
        (YARN, "attention_factor"),
        (YARN, "beta_fast"),
        (YARN, "beta_slow"),
        (LONG, "attention_factor"),
        (LONG, "length"),
        (LLAMA3, "low_freq_factor"),
        (LLAMA3, "high_freq_factor"),
        (PROPORTIONAL, PARTIAL),
        ({"rope_type": "dynamic", "factor": 2.0}, "length"),
    ],
)
def test_scalars_are_finite_numbers(name, rule, key, value):
    if (value is None and key in ("attention_factor", "length")) or (key, value) == (PARTIAL, 0):
        build(name, **SIZES, scaling={**rule, key: value})
        return
    with pytest.raises(PositionError) as error:
        build(name, **SIZES, scaling={**rule, key: value})
    assert key in str(error.value)
    assert repr(value) in str(error.value)


def test_other_values_of_scaling():
    with pytest.raises(PositionError, match="truncate of scaling is 'no'; it must be one of True, False"):
        build("rotary", **SIZES, scaling={**YARN, "truncate": "no"})
    with pytest.raises(PositionError, match=r"embeddings of scaling is 2\.5; it must be a whole number"):
        build("rotary", **SIZES, scaling={**YARN, "original_max_position_embeddings": 2.5})
    with pytest.raises(PositionError, match="it must be 16 positive numbers"):
        build("rotary", **SIZES, scaling={**LONG, "long_factor": [math.inf] * 16})
    one = {**LONG, "original_max_position_embeddings": 1}
    with pytest.raises(PositionError, match="training length is 1; longrope without attention_factor needs"):
        build("rotary", **SIZES, scaling=one)
    assert build("rotary", **SIZES, scaling={**one, "attention_factor": 1.5}).frequencies(None)[1] == 1.5
