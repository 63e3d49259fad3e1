"""Rules by which a trained model reads long texts: spacing, grouped distances, temperature."""

import math
import re

import pytest
import torch
from transformer_cases import build_model, config, stirred_encoder, tokens
from transformers import DynamicCache, EncoderDecoderCache

from floater import FloaterConfig, PositionError, Positions, catalogue
from floater.encodings.measure import positions_for
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.reading import Reading, spaced
from floater.transformer.stacks import position_model
from floater.transformer.times import Times
from floater.transformer.uncast import Uncast

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
LENGTH = 4  # of training: what is read is longer
CASES = {
    "stretch": {"times": {"mode": "stretch", "max_scale": 2.0}},
    "float": {"times": {"mode": "float", "max_scale": 4.0}},
    "subset": {"times": {"mode": "subset", "max_scale": 8.0}},
    "interpolate": {"reading": {"interpolate": True}},
}
EVERY = pytest.mark.parametrize("case", CASES)
ENCODINGS = pytest.mark.parametrize("encoding", ["sinusoidal", "floater"])


def model(cls, case, encoding="sinusoidal", **changes):
    return build_model(cls, encoding, training_length=LENGTH, **CASES[case], **changes)


def read(reading, times, length, count, apart=False):
    (actual,) = spaced(reading, times, length, Positions.arange(count), apart=apart)
    return actual.key_time


@pytest.mark.parametrize(
    ("mode", "length", "expected"),
    [
        ("stretch", 20, lambda i: i),
        ("stretch", 64, lambda i: i / 2),
        ("shift", 32, lambda i: i),
        ("float", 16, lambda i: 2 * i),
        ("float", 64, lambda i: i / 2),
        ("float", None, lambda i: 4 * i),
        ("subset", 12, lambda i: (i * 32) // 12),
        (None, 32, lambda i: i / 4),
        (None, 8, lambda i: i),
    ],
)
def test_a_length_spaces_tokens_over_the_horizon(mode, length, expected):
    times = None if mode is None else Times(mode, length=8, max_scale=4.0)
    actual = read(Reading(length, interpolate=mode is None), times, 8, 6)
    torch.testing.assert_close(actual[0], expected(torch.arange(6)), check_dtype=False, rtol=0, atol=1e-12)
    whole = mode == "subset" or (mode, length) in {("stretch", 20), ("shift", 32), (None, 8)}
    assert actual.is_floating_point() != whole


@EVERY
@ENCODINGS
@torch.no_grad()
def test_a_text_is_read_alike_alone_padded_and_packed(case, encoding):
    causal, ids = model(FloaterForCausalLM, case, encoding), tokens(3, 12)
    for sides in ("left", "right"):
        sizes = (12, 9, 3)
        kept = [slice(12 - n, 12) if sides == "left" else slice(0, n) for n in sizes]
        mask = torch.zeros(3, 12, dtype=torch.long)
        for row, part in enumerate(kept):
            mask[row, part] = 1
        whole = causal(ids, mask, use_cache=False).logits
        for row, part in enumerate(kept):
            alone = causal(ids[row : row + 1, part], use_cache=False).logits[0]
            torch.testing.assert_close(whole[row, part], alone, **CLOSE)
    documents = torch.tensor([[0] * 9 + [1] * 3])
    packed = causal(ids[:1], document_ids=documents, use_cache=False).logits[0]
    for part in (slice(0, 9), slice(9, 12)):
        torch.testing.assert_close(packed[part], causal(ids[:1, part], use_cache=False).logits[0], **CLOSE)


@EVERY
@ENCODINGS
@pytest.mark.parametrize("length", [14, torch.tensor([12, 16, 20])], ids=["one", "each"])
@torch.no_grad()
def test_cached_steps_of_a_declared_length_are_one_pass(case, encoding, length):
    reading, ids = Reading(length, interpolate=case == "interpolate"), tokens(3, 12)
    causal = model(FloaterForCausalLM, case, encoding)
    mask = torch.tensor([[1] * 12, [0] * 2 + [1] * 10, [0] * 7 + [1] * 5])
    whole = causal(ids, mask, use_cache=False, reading=reading).logits
    cache, parts = DynamicCache(), []
    for begin in range(0, 12, 3):
        step = slice(begin, begin + 3)
        options = {"past_key_values": cache, "reading": reading}
        parts.append(causal(ids[:, step], mask[:, : step.stop], **options).logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], **CLOSE)
    seq = model(FloaterForConditionalGeneration, case, encoding)
    source, valid = tokens(3, 11, seed=1), mask[:, 1:]
    whole = seq(source, valid, ids, use_cache=False, reading=reading).logits
    encoded = seq.encode(source, valid, reading=reading)
    cache, parts = EncoderDecoderCache(DynamicCache(), DynamicCache()), []
    options = {"attention_mask": valid, "encoder_outputs": encoded, "past_key_values": cache}
    for begin in range(0, 12, 3):
        parts.append(seq(decoder_input_ids=ids[:, begin : begin + 3], reading=reading, **options).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, **CLOSE)


@EVERY
@torch.no_grad()
def test_what_would_move_times_under_cached_keys_is_refused(case):
    causal, cache = model(FloaterForCausalLM, case), DynamicCache()
    reach = {"stretch": 8}.get(case, LENGTH)
    causal(tokens(1, reach), past_key_values=cache)
    why = f"has {reach + 1} tokens, but no length was declared, .* limit is then {reach}; declare"
    with pytest.raises(PositionError, match=why):
        causal(tokens(1, 1), past_key_values=cache)
    with pytest.raises(PositionError, match=r"keys have times of length undeclared.*length 30"):
        causal(tokens(1, 1), past_key_values=cache, reading=Reading(30, interpolate=case == "interpolate"))
    with pytest.raises(PositionError, match="has 9 tokens, but its length was declared as 8; declare"):
        causal(tokens(1, 9), reading=Reading(8, interpolate=case == "interpolate"))
    seq = model(FloaterForConditionalGeneration, case)
    encoded = seq.encode(tokens(1, 3), reading=Reading(20, interpolate=case == "interpolate"))
    with pytest.raises(PositionError, match=r"length 20.*, and this pass would use length undeclared"):
        seq(encoder_outputs=encoded, decoder_input_ids=tokens(1, 3))


@EVERY
@torch.no_grad()
def test_a_beam_search_reads_each_row_at_its_own_length(case):
    seq, ids = model(FloaterForConditionalGeneration, case), tokens(2, 9)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    search = {"num_beams": 3, "max_new_tokens": 10, "min_new_tokens": 10, "num_return_sequences": 3}
    options = {"interpolate": case == "interpolate"}
    both = seq.generate(
        ids, attention_mask=mask, reading=Reading(torch.tensor([20, 12]), **options), **search
    )
    for row, (size, length) in enumerate([(9, 20), (5, 12)]):
        alone = seq.generate(ids[row : row + 1, :size], reading=Reading(length, **options), **search)
        assert torch.equal(both[3 * row : 3 * row + 3], alone)
    causal = model(FloaterForCausalLM, case)
    reading = Reading(12, **options)
    actual = causal.generate(ids, reading=reading, max_new_tokens=3, do_sample=False)
    again = causal.generate(ids, reading=reading, max_new_tokens=3, do_sample=False, use_cache=False)
    assert torch.equal(actual, again)
    with pytest.raises(PositionError, match="declared as 12"):
        causal.generate(ids, reading=reading, max_new_tokens=5, do_sample=False)


@pytest.mark.parametrize("real", [False, True])
def test_far_distances_are_grouped(real):
    """ALiBi's bias, written out."""
    bias = position_model(config("alibi"), 1, "self")
    at = torch.tensor([[0.0, 1.5, 7.0, 30.0]]) if real else torch.arange(12)[None]
    positions = Positions(at, at, group=(4, 3))
    (actual,) = bias.correlation(bias.prepare(positions), 0)
    for i, t in enumerate(at[0].tolist()):
        for j, s in enumerate(at[0].tolist()):
            d = abs(t - s)
            beyond = (d - 4) / 3 if real else (d - 4) // 3
            assert float(actual[0, i, j]) == pytest.approx(-(2**-4) * (d if d <= 4 else 4 + beyond))


@pytest.mark.parametrize("name", [name for name in catalogue() if catalogue()[name].autoregressive])
@torch.no_grad()
def test_grouping_changes_biases_of_distances_and_is_refused_elsewhere(name):
    encoder = stirred_encoder(name)
    x, at = torch.randn(1, 30, 16, dtype=torch.double), positions_for(encoder.position, 30)
    rule = Reading(group=(3, 5))
    if not encoder.position.reads_distances:
        shown = "rotary + clock" if name == "clock" else name
        with pytest.raises(PositionError, match=re.escape(f"'{shown}' has no bias of them")):
            encoder(x, at, reading=rule)
        return
    actual = encoder(x, at, reading=rule)
    assert not torch.allclose(actual, encoder(x, at))
    left = torch.tensor([[1] * 30, [0] * 10 + [1] * 20])  # not one row of positions, so gathered, not skewed
    both = encoder(torch.cat([x, x]), Positions.from_mask(left), reading=rule)
    torch.testing.assert_close(both[:1], actual)


def naive(attention, x, mask):
    q, k, v = (
        linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
        for linear in (attention.query, attention.key, attention.value)
    )
    seen = mask.expand(len(x), 1, 6, 6).sum(-1, keepdim=True)
    factor = (seen.log() / math.log(3)).clamp(min=1)
    logits = (q @ k.mT / 8**0.5 * factor).masked_fill(~mask, -torch.inf)
    return attention.output((logits.softmax(-1) @ v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_temperature_counts_the_keys_that_a_query_sees(implementation, causal):
    torch.manual_seed(0)
    attention = Attention(
        config("none", training_length=3, attn_implementation=implementation), 0, causal=causal
    ).eval()
    assert attention.config._attn_implementation == implementation
    none, x = position_model(config("none"), 1, "self"), torch.randn(2, 6, 16)
    valid = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]).bool()
    document = torch.tensor([[0, 0, 0, 0, 0, 1], [0] * 6])
    same = document[:, :, None] == document[:, None]
    order = torch.ones(6, 6).bool().tril() if causal else torch.ones(6, 6).bool()
    for inputs in (None, valid, valid[:, None] & same):
        mask = order[None, None]
        if inputs is not None:
            mask = mask & (inputs[:, None, None] if inputs.ndim == 2 else inputs[:, None])
        actual, _ = attention(x, SharedInputs(none, Uncast(None), inputs, sharpen=True))
        rows = mask.any(-1).expand(2, 1, 6)[:, 0]
        torch.testing.assert_close(actual[rows], naive(attention, x, mask)[rows], **CLOSE)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_a_learned_temperature_starts_as_the_plain_transformer_at_the_training_length(implementation):
    plain = build_model(FloaterForMaskedLM, "t5", training_length=6, attn_implementation=implementation)
    learned = build_model(
        FloaterForMaskedLM,
        "t5",
        training_length=6,
        attn_implementation=implementation,
        attention_temperature="learned",
    )
    actual = learned.load_state_dict(plain.state_dict(), strict=False)
    assert len(actual.missing_keys) == 2
    torch.testing.assert_close(learned(tokens(2, 6)).logits, plain(tokens(2, 6)).logits, **CLOSE)
    assert not torch.allclose(learned(tokens(2, 9)).logits, plain(tokens(2, 9)).logits, atol=1e-3)


@pytest.mark.parametrize("trained", [True, False])
@torch.no_grad()
def test_temperature_and_groups_decode_with_a_cache(trained):
    changes = {"reading": {"group": [2, 3], "temperature": not trained}}
    changes |= {"attention_temperature": "log"} if trained else {}
    for encoding in ("t5", "alibi", "shaw"):
        causal = build_model(FloaterForCausalLM, encoding, training_length=3, **changes)
        ids, mask = tokens(2, 12), torch.tensor([[1] * 12, [0] * 4 + [1] * 8])
        whole = causal(ids, mask, use_cache=False).logits
        cache = DynamicCache()
        parts = [causal(ids[:, i : i + 1], mask[:, : i + 1], past_key_values=cache).logits for i in range(12)]
        torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], **CLOSE)
        plain = build_model(FloaterForCausalLM, encoding, training_length=3)
        assert not torch.allclose(whole, plain(ids, mask, use_cache=False).logits, atol=1e-3)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"stretch": 2}, "reading has no 'stretch'; valid: length, interpolate, group, temperature"),
        ({"length": 0}, "reading.length is 0; it must be at least 1 token"),
        ({"group": [4, 0]}, "it must be w and G, whole numbers of at least 1"),
        ({"temperature": "hot"}, "reading.temperature is 'hot'; it must be one of True, False"),
    ],
)
def test_wrong_values_are_refused(inputs, why):
    with pytest.raises(PositionError, match=why):
        FloaterConfig(reading=inputs)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("length=300,length=400", "reading.length is given twice"),
        ("length=2026-13-01", "reading.length is '2026-13-01'; it must be at least 1 token"),
        ("length", "reading.length has no value; write length=VALUE"),
        ("interpolate=", "reading.interpolate has no value; write interpolate=VALUE"),
    ],
)
def test_a_text_that_is_no_rule_is_refused(text, why):
    with pytest.raises(PositionError, match=re.escape(why)):
        Reading.of(text)


def test_a_composition_is_refused_by_the_names_of_its_parts():
    both = FloaterConfig.preset("tiny", vocab_size=64, position=["rotary", {"name": "alibi"}])
    with pytest.raises(PositionError, match=r"'rotary \+ alibi' has no bias of them"):
        FloaterModel(both).eval()(tokens(1, 3), reading=Reading(group=(4, 2)))


def test_a_rule_that_would_change_nothing_is_refused():
    for encoding, inputs, changes, why in (
        ("sinusoidal", {"length": 9}, {}, "no token is spaced by it"),
        (
            "alibi",
            {"length": 9},
            {"times": {"mode": "stretch", "relative": True}},
            "reads true distances",
        ),
        ("t5", {"interpolate": True}, {}, "'t5' reads none"),
        ("learned", {"interpolate": True}, {}, "interpolate puts tokens .* 'learned' is defined at whole"),
        (
            "compose",
            {"interpolate": True},
            {"position_options": {"models": ["learned", "rotary"]}},
            "'learned . rotary' is defined at whole times only",
        ),
        ("rotary", {"group": [4, 2]}, {}, "'rotary' has no bias of them"),
        ("none", {"temperature": True}, {"attention": "linear"}, "attention is 'linear' and has none"),
        (
            "none",
            {"temperature": True},
            {"attention_temperature": "log"},
            "'log' already",
        ),
    ):
        with pytest.raises(PositionError, match=why):
            FloaterModel(config(encoding, reading=inputs, **changes))
        with pytest.raises(PositionError, match=why):
            build_model(FloaterModel, encoding, **changes)(tokens(1, 3), reading=Reading.of(inputs))
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        build_model(FloaterModel, "t5").train()(tokens(1, 3), reading=Reading(group=(2, 2)))


@torch.no_grad()
def test_whole_distances_go_with_interpolated_times():
    options = {"training_length": 4, "position_options": {"models": ["sinusoidal", "shaw"]}}
    plain = build_model(FloaterModel, "compose", **options)
    model = build_model(FloaterModel, "compose", reading={"interpolate": True}, **options)
    ids = tokens(1, 4)
    assert torch.equal(model(ids)[0], plain(ids)[0])
    ids = tokens(1, 8)
    assert not torch.allclose(model(ids)[0], plain(ids)[0])


def test_the_default_rule_is_saved_with_the_model(tmp_path):
    causal = build_model(FloaterForCausalLM, "t5", reading={"group": [2, 3]}, attention_temperature="learned")
    causal.save_pretrained(tmp_path)
    loaded = FloaterForCausalLM.from_pretrained(tmp_path)
    assert Reading.of(loaded.config.reading).group == (2, 3)
    assert torch.equal(loaded(tokens(2, 9)).logits, causal(tokens(2, 9)).logits)
    assert not torch.equal(loaded(tokens(2, 9), reading=Reading()).logits, causal(tokens(2, 9)).logits)
