"""Decoding step by step, padding, and generation against one pass over everything."""

import pytest
import torch
from transformer_cases import POSITIONS, VOCABULARY, build_model, tokens
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from floater import FlowEncoder, PositionError
from floater._hf import CACHE
from floater.transformer import FloaterForCausalLM, FloaterForConditionalGeneration, FloaterForMaskedLM

EVERY = pytest.mark.parametrize("case", POSITIONS)
CHUNKS = (1, 3)
IMPLEMENTATION = pytest.mark.parametrize("implementation", ["sdpa", "eager"])
# One pass and many differ in the order of single-precision sums.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def steps(length, chunk):
    return [slice(i, min(i + chunk, length)) for i in range(0, length, chunk)]


@EVERY
@IMPLEMENTATION
@torch.no_grad()
def test_a_language_model_decodes_left_padded_text_in_chunks(case, implementation):
    model = build_model(FloaterForCausalLM, case, attn_implementation=implementation)
    ids = tokens(3, 10)
    mask = torch.tensor([[1] * 10, [0] * 2 + [1] * 8, [0] * 5 + [1] * 5])
    whole = model(ids, attention_mask=mask).logits
    for chunk in CHUNKS:
        cache, parts = DynamicCache(), []
        for step in steps(10, chunk):
            out = model(ids[:, step], attention_mask=mask[:, : step.stop], past_key_values=cache)
            parts.append(out.logits)
            assert out.past_key_values is cache
        stepped = torch.cat(parts, dim=1)
        torch.testing.assert_close(stepped[mask.bool()], whole[mask.bool()], **CLOSE)
    for row, n in zip(range(3), mask.sum(1).tolist(), strict=True):
        alone = model(ids[row : row + 1, -n:]).logits[0]
        torch.testing.assert_close(whole[row, -n:], alone, **CLOSE)


@EVERY
@IMPLEMENTATION
@torch.no_grad()
def test_an_encoder_decoder_decodes_in_chunks_and_ignores_padding(case, implementation):
    model = build_model(FloaterForConditionalGeneration, case, attn_implementation=implementation)
    source, target = tokens(3, 9), tokens(3, 7, seed=1)
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] * 2 + [0] * 7])
    whole = model(source, mask, target).logits
    encoded = model.encode(source, mask)
    for chunk in CHUNKS:
        cache, parts = EncoderDecoderCache(DynamicCache(), DynamicCache()), []
        for step in steps(7, chunk):
            out = model(
                attention_mask=mask,
                decoder_input_ids=target[:, step],
                encoder_outputs=encoded,
                past_key_values=cache,
            )
            parts.append(out.logits)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, **CLOSE)
    for row, n in zip(range(3), mask.sum(1).tolist(), strict=True):
        alone = model(source[row : row + 1, :n], decoder_input_ids=target[row : row + 1]).logits[0]
        torch.testing.assert_close(whole[row], alone, **CLOSE)


@EVERY
@torch.no_grad()
def test_padding_within_and_around_a_sentence_changes_nothing(case):
    model = build_model(FloaterForMaskedLM, case)
    ids = tokens(2, 4)
    expected = model(ids).logits
    for columns in ([0, 1, 2, 3], [2, 3, 4, 5], [1, 2, 4, 6]):
        padded, mask = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
        padded[:, columns], mask[:, columns] = ids, 1
        torch.testing.assert_close(model(padded, mask).logits[:, columns], expected, **CLOSE)


@EVERY
def test_a_language_model_does_not_see_later_tokens(case):
    model, ids = build_model(FloaterForCausalLM, case), tokens(1, 8)
    changed = ids.clone()
    changed[0, 5:] = tokens(1, 3, seed=2)
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5], **CLOSE)
    assert not torch.allclose(before[:, 5:], after[:, 5:], **CLOSE)


def generate(model, beams, **changes):
    ids = tokens(3, 8)
    left = not model.config.is_encoder_decoder
    mask = torch.tensor([[1] * 8, [1] * 6 + [0] * 2, [1] * 3 + [0] * 5])
    return model.generate(
        ids,
        attention_mask=mask.flip(1) if left else mask,
        num_beams=beams,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        **changes,
    )


@EVERY
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("cls", [FloaterForConditionalGeneration, FloaterForCausalLM])
def test_generation_with_and_without_a_cache_agree(case, beams, cls):
    model = build_model(cls, case)
    expected = generate(model, beams, use_cache=False)
    assert torch.equal(generate(model, beams), expected)
    assert torch.equal(generate(model, beams, cache_implementation="static"), expected)


def test_a_flow_with_kinks_generates_alike_with_and_without_a_cache():
    """Solved step by step, as collocation needs a smooth field."""
    model = build_model(FloaterForCausalLM, position_options={"activation": "relu"})
    assert torch.equal(generate(model, 1), generate(model, 1, use_cache=False))


@pytest.mark.parametrize("layers", [(1, 3), (3, 1)])
def test_encoder_and_decoder_may_differ_in_depth(layers):
    encoder, decoder = layers
    model = build_model(FloaterForConditionalGeneration, num_hidden_layers=encoder, decoder_layers=decoder)
    assert torch.equal(generate(model, 2), generate(model, 2, use_cache=False))


@EVERY
@torch.no_grad()
def test_only_learned_tables_end_at_the_training_length(case):
    model = build_model(FloaterForConditionalGeneration, case, training_length=8)
    source = tokens(1, 6)

    def run():
        return model.generate(source, max_new_tokens=20, min_new_tokens=20, do_sample=False)

    if case == "learned":
        with pytest.raises(PositionError, match="position 8 was requested"):
            run()
    else:
        out = run()
        assert out.shape == (1, 21)
        again = model(source, decoder_input_ids=out[:, :-1], use_cache=False).logits[0].clone()
        again[:, model.config.eos_token_id] = -torch.inf  # as min_new_tokens asks
        assert torch.equal(again.argmax(-1), out[0, 1:])


@pytest.mark.parametrize("cls", [FloaterForConditionalGeneration, FloaterForCausalLM])
def test_generation_solves_each_flow_once_and_leaves_no_store_behind(cls, monkeypatch):
    import floater.flow.encoder as module

    model = build_model(cls)
    flows = [m for m in model.modules() if isinstance(m, FlowEncoder)]
    solve, times = module.solve, []

    def counted(field, start, at, **options):
        times.append(len(at))
        return solve(field, start, at, **options)

    monkeypatch.setattr(module, "solve", counted)
    model.generate(tokens(2, 8), max_new_tokens=30, min_new_tokens=30, num_beams=2, do_sample=False)
    assert len(flows) <= len(times) <= 2 * len(flows)  # the first position, and a look ahead at the others
    assert not any(flow._baked for flow in flows)
    before = len(times)
    with torch.no_grad():
        model(tokens(2, 8), **({"decoder_input_ids": tokens(2, 4)} if len(flows) > 1 else {}))
    assert len(times) == before + len(flows)


@pytest.mark.parametrize(("case", "part"), [("seqpe", "blocks.0"), ("rnn", "cells.0")])
def test_generation_computes_the_vector_of_a_position_once(case, part):
    """Each step reads the vectors of all tokens, of which only the last is new; training keeps none."""
    model, rows = build_model(FloaterForCausalLM, case), []
    module = model.model.encoder.position.get_submodule(part)
    module.register_forward_hook(lambda module, arguments, output: rows.append(len(output)))
    model.generate(tokens(2, 8), max_new_tokens=30, min_new_tokens=30, do_sample=False)
    computed = sum(rows) // (len(model.model.encoder.position.blocks) if case == "rnn" else 1)
    assert computed <= 1 + 64 + 8, "the first one, and a look ahead at the others"
    rows.clear()
    for _ in range(2):
        model.train()(tokens(2, 8)).logits.sum().backward()
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :] != []


def test_a_flow_that_is_baked_already_stays_baked():
    model = build_model(FloaterForCausalLM)
    (flow,) = (m for m in model.modules() if isinstance(m, FlowEncoder))
    flow.bake(16)
    generate(model, 1)
    assert flow._baked


def test_reference_decoding_by_hand():
    """Greedy generation picks the largest logit of a full pass, token by token."""
    model, source = build_model(FloaterForConditionalGeneration), tokens(1, 5)
    target = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.no_grad():
        for _ in range(8):
            logits = model(source, decoder_input_ids=target, use_cache=False).logits[:, -1]
            logits[:, model.config.eos_token_id] = -torch.inf
            target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
    actual = model.generate(source, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert torch.equal(actual, target)
    assert int(target.max()) < VOCABULARY


@EVERY
@torch.no_grad()
def test_a_static_cache_serves_one_text_after_another(case):
    """Steps of several tokens, padding on the left; the slots still hold a longer text's keys."""
    model = build_model(FloaterForCausalLM, case)
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(tokens(2, 13, seed=1), past_key_values=cache)
    cache.reset()
    ids, mask = tokens(2, 9), torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    whole = model(ids, attention_mask=mask).logits
    parts = [
        model(ids[:, step], attention_mask=mask[:, : step.stop], past_key_values=cache).logits
        for step in steps(9, 4)
    ]
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], **CLOSE)


def test_a_mask_that_does_not_cover_the_cached_tokens_is_refused():
    model, cache = build_model(FloaterForCausalLM), DynamicCache()
    model(tokens(2, 4), past_key_values=cache)
    with pytest.raises(
        ValueError, match=r"the attention mask is \(2, 1\); it must be \(batch, 5\): 4 cached and 1 new"
    ):
        model(tokens(2, 1), attention_mask=torch.ones(2, 1), past_key_values=cache)


@pytest.mark.parametrize("cls", [FloaterForCausalLM, FloaterForConditionalGeneration])
@torch.no_grad()
def test_a_cache_has_two_names_of_which_one_is_to_be_used(cls):
    """Transformers 5.24 renamed `past_key_values` to `cache`."""
    model, ids = build_model(cls, "rotary"), tokens(2, 6)

    def read(step, **cache):
        texts = {"decoder_input_ids": ids[:, step]} if cls is FloaterForConditionalGeneration else {}
        return model(ids if texts else ids[:, step], **texts, **cache, use_cache=True)

    whole = read(slice(0, 6)).logits
    for name in ("past_key_values", "cache"):
        first = read(slice(0, 4))
        rest = read(slice(4, 6), **{name: first[CACHE]}).logits
        torch.testing.assert_close(torch.cat([first.logits, rest], 1), whole, **CLOSE)
    with pytest.raises(TypeError, match="past_key_values and cache are two names of one argument; give one"):
        read(slice(4, 6), past_key_values=first[CACHE], cache=first[CACHE])
