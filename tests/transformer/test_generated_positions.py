"""Generation at positions of the caller, against forward passes over the whole text without a cache."""

import pytest
import torch
from transformer_cases import build_model, tokens

from floater import PositionError, Positions
from floater.positions import continue_positions
from floater.transformer import FloaterForCausalLM, FloaterForConditionalGeneration
from floater.transformer.reading import Reading

WRITTEN = 4
LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
CASES = {
    "ldpe": {"target_length": torch.tensor([9, 12])},
    "lrpe": {"target_length": torch.tensor([9, 12])},
    "language_specific": {"language": torch.tensor([[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]])},
    "xl": {"reordered": torch.tensor([[0, 0, 7, 5, 6], [3, 4, 5, 7, 6]])},
    "xl_heads": {"reordered": torch.tensor([[0, 0, 7, 5, 6], [3, 4, 5, 7, 6]])},
    "sinusoidal": {},
    "learned": {},
    "floater": {},
    "alibi": {},
    "rotary": {},
    "shaw": {},
    "cope": {},
    "seqpe": {},
    "rnn": {},
}
START = torch.tensor([[3, 3, 5, 6, 7], [3, 4, 5, 6, 7]])
"""Positions of the prompt, 3 and 5 at first, with padding on the left of the first row."""


def prompt(case):
    return Positions(START, START, LEFT.bool(), **CASES[case])


def whole(case, length):
    """Return the positions of prompt and output, written down without the function under test."""
    more = length - START.shape[1]
    at = torch.cat([START, torch.arange(8, 8 + more).expand(2, -1)], 1)
    fields = dict(CASES[case])
    if "language" in fields:
        fields["language"] = torch.cat([fields["language"], fields["language"][:, -1:].expand(2, more)], 1)
    if "reordered" in fields:
        fields["reordered"] = torch.cat([fields["reordered"], at[:, START.shape[1] :]], 1)
    return Positions(at, at, torch.cat([LEFT.bool(), torch.ones(2, more, dtype=torch.bool)], 1), **fields)


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_language_model_writes_at_given_positions(case, use_cache):
    model, ids = build_model(FloaterForCausalLM, case), tokens(2, 5)
    settings = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False}
    settings |= {"output_logits": True, "return_dict_in_generate": True, "use_cache": use_cache}
    out = model.generate(ids, attention_mask=LEFT, positions=prompt(case), **settings)
    for step, logits in enumerate(out.logits):
        text = out.sequences[:, : 5 + step]
        expected = model(text, positions=whole(case, 5 + step), use_cache=False).logits[:, -1]
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("case", ["ldpe", "language_specific", "xl", "rotary"])
def test_beams_and_samples_keep_the_positions_of_their_text(case):
    """A batch gives each text what it gets alone, without padding; sampled texts have their own logits."""
    model, ids = build_model(FloaterForCausalLM, case), tokens(2, 5)
    beams = {"max_new_tokens": WRITTEN, "num_beams": 3, "do_sample": False, "num_return_sequences": 2}
    both = model.generate(ids, attention_mask=LEFT, positions=prompt(case), **beams)
    for row, first in ((0, 2), (1, 0)):
        fields = {
            name: value[row : row + 1, first:] for name, value in CASES[case].items() if value.ndim == 2
        }
        fields |= {name: value[row : row + 1] for name, value in CASES[case].items() if value.ndim == 1}
        at = START[row : row + 1, first:]
        alone = model.generate(ids[row : row + 1, first:], positions=Positions(at, at, **fields), **beams)
        assert torch.equal(
            alone[:, 5 - first :], both[2 * row : 2 * row + 2, 5 : 5 + alone.shape[1] - 5 + first]
        )
    torch.manual_seed(0)
    sampled = model.generate(
        ids,
        attention_mask=LEFT,
        positions=prompt(case),
        do_sample=True,
        num_return_sequences=2,
        max_new_tokens=3,
        min_new_tokens=3,
        output_logits=True,
        return_dict_in_generate=True,
    )
    expected = model(sampled.sequences[:, :7], positions=whole(case, 7).repeat(2), use_cache=False).logits[
        :, -1
    ]
    torch.testing.assert_close(sampled.logits[2], expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_position_ids_of_generate_are_those_of_forward():
    model, ids = build_model(FloaterForCausalLM, "learned"), tokens(2, 5)
    at = torch.tensor([[-1, -1, 5, 6, 7], [3, 4, 5, 6, 7]])  # padding may have any
    settings = {"max_new_tokens": WRITTEN, "do_sample": False, "num_beams": 2}
    written = model.generate(ids, attention_mask=LEFT, position_ids=at, **settings)
    assert torch.equal(
        written, model.generate(ids, attention_mask=LEFT, positions=prompt("learned"), **settings)
    )
    assert not torch.equal(written, model.generate(ids, attention_mask=LEFT, **settings))
    counted = LEFT.cumsum(1) - 1
    assert torch.equal(
        model.generate(ids, attention_mask=LEFT, position_ids=counted, **settings),
        model.generate(ids, attention_mask=LEFT, **settings),
    )
    # ids of tokens that are still to be written: every second position
    further = torch.cat([at, torch.arange(9, 9 + 2 * WRITTEN, 2).expand(2, -1)], 1)
    settings |= {"num_beams": 1, "min_new_tokens": WRITTEN}
    written = model.generate(ids, attention_mask=LEFT, position_ids=further, **settings)
    mask = torch.cat([LEFT, torch.ones(2, WRITTEN - 1, dtype=torch.long)], 1)
    logits = model(written[:, :-1], mask, position_ids=further[:, : 4 + WRITTEN]).logits
    logits[..., 2] = -torch.inf  # min_new_tokens
    assert torch.equal(logits[:, 4:].argmax(-1), written[:, 5:])


@torch.no_grad()
@pytest.mark.parametrize("case", ["sinusoidal", "rotary", "xl"])
def test_a_conversation_goes_on_at_its_positions(case):
    """With a cache that the caller keeps; and a prompt that is read in chunks."""
    model, ids = build_model(FloaterForCausalLM, case), tokens(2, 5)
    settings = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True}
    settings["output_logits"] = True
    options = {"attention_mask": LEFT, "positions": prompt(case)}
    first = model.generate(ids, **options, **settings)
    mask = torch.cat([LEFT, torch.ones(2, 2, dtype=torch.long)], 1)
    again = model.generate(
        first.sequences,
        attention_mask=mask,
        positions=whole(case, 7),
        past_key_values=first.past_key_values,
        **settings,
    )
    expected = model(again.sequences[:, :8], positions=whole(case, 8), use_cache=False).logits[:, -1]
    torch.testing.assert_close(again.logits[1], expected, atol=2e-5, rtol=1e-4)
    chunks = model.generate(ids, **options, **settings, prefill_chunk_size=2)
    torch.testing.assert_close(chunks.logits[1], first.logits[1], atol=2e-5, rtol=1e-4)
    guesses = model.generate(ids[:1], positions=_row(prompt(case), 0), prompt_lookup_num_tokens=2, **settings)
    plain = model.generate(ids[:1], positions=_row(prompt(case), 0), **settings)
    assert torch.equal(guesses.sequences, plain.sequences)


@torch.no_grad()
@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("case", ["rotary", "floater", "cope"])
def test_the_first_blocks_draft_what_all_of_them_write(case, share_layers):
    changes = {"num_hidden_layers": 3, "share_layers": share_layers}
    model, ids = build_model(FloaterForCausalLM, case, **changes), tokens(1, 5)
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    drafted = model.generate(ids, assistant_early_exit=1, **settings)
    assert torch.equal(drafted, model.generate(ids, **settings))


def _row(positions, row):
    changed = {
        name: value[row : row + 1]
        for name in ("query", "key", "key_valid", "language", "reordered")
        if (value := getattr(positions, name)) is not None
    }
    return positions.but(**changed)


@torch.no_grad()
def test_a_prompt_of_embeddings_has_positions():
    model, ids = build_model(FloaterForCausalLM, "rotary"), tokens(1, 4)
    at, settings = torch.tensor([[7, 8, 9, 10]]), {"max_new_tokens": WRITTEN, "do_sample": False}
    embeds = model.get_input_embeddings()(ids)
    written = model.generate(inputs_embeds=embeds, position_ids=at, **settings)
    assert torch.equal(written, model.generate(ids, position_ids=at, **settings)[:, 4:])


@torch.no_grad()
def test_packed_documents_are_continued():
    """The last document of a row goes on, at its own positions, as it does alone."""
    model, ids = build_model(FloaterForCausalLM, "sinusoidal"), tokens(1, 5)
    settings = {"max_new_tokens": WRITTEN, "do_sample": False}
    written = model.generate(ids, positions=Positions.packed([[3, 2]]), **settings)
    assert torch.equal(written[:, 5:], model.generate(ids[:, 3:], **settings)[:, 2:])


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("case", ["ldpe", "lrpe", "language_specific", "xl", "learned", "floater", "rotary"])
def test_an_encoder_decoder_writes_at_given_positions(case, beams):
    options = {"position_options": {"plain": True}} if case in ("ldpe", "lrpe") else {}
    model, ids = build_model(FloaterForConditionalGeneration, case, **options), tokens(2, 5)
    source = prompt(case)
    settings = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "num_beams": beams}
    settings |= {"output_logits": True, "return_dict_in_generate": True, "attention_mask": LEFT}
    ids_at = {"positions": source, "decoder_position_ids": torch.tensor([[6]])}
    out = model.generate(ids, **ids_at, **settings)
    assert out.sequences.shape == (2, 1 + WRITTEN)
    if beams == 1:
        for step, logits in enumerate(out.logits):
            expected = model(
                ids,
                decoder_input_ids=out.sequences[:, : 1 + step],
                positions=source,
                decoder_position_ids=torch.arange(6, 7 + step),
                use_cache=False,
            ).logits[:, -1]
            torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)
    else:
        plain = model.generate(ids, **ids_at, **settings, use_cache=False)
        assert torch.equal(out.sequences, plain.sequences)
    begin = torch.tensor([[0]])
    counted = model.generate(ids, **ids_at | {"decoder_position_ids": begin}, **settings)
    usual = model.generate(ids, positions=source, **settings)
    assert torch.equal(counted.logits[0], usual.logits[0])


@torch.no_grad()
def test_source_ids_and_a_targets_length_reach_the_encoder_decoder():
    model, ids = build_model(FloaterForConditionalGeneration, "ldpe"), tokens(2, 5)
    target = Positions(torch.tensor([[0]]), torch.tensor([[0]]), target_length=torch.tensor([4, 6]))
    settings = {"max_new_tokens": WRITTEN, "do_sample": False, "num_beams": 2}
    settings |= {"output_scores": True, "return_dict_in_generate": True}
    ids_at = {"position_ids": START, "attention_mask": LEFT}
    out = model.generate(ids, decoder_positions=target, **ids_at, **settings)
    same = model.generate(
        ids, target_length=torch.tensor([4, 6]), positions=Positions(START, START, LEFT.bool()), **settings
    )
    assert torch.equal(out.scores[0], same.scores[0])
    with pytest.raises(ValueError, match="decoder_positions have documents"):
        model(ids, decoder_input_ids=tokens(2, 3), decoder_positions=Positions.packed([[2, 1]]))


def test_positions_that_do_not_go_on_are_refused():
    model, ids = build_model(FloaterForCausalLM, "sinusoidal"), tokens(2, 4)
    times = Positions.times(torch.rand(1, 4))
    with pytest.raises(ValueError, match=r"of 4 tokens are real numbers, .* where token 4 is"):
        model.generate(ids, positions=times, max_new_tokens=2)
    longer = Positions.times(torch.arange(6)[None] / 2)
    settings = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False}
    written = model.generate(ids, positions=longer, **settings)
    assert written.shape == (2, 6)
    for structured in (Positions.tree([[-1, 0, 0, 1]]), Positions.tree([[-1, 0, 0, 1, 1, 2]])):
        with pytest.raises(ValueError, match="generated tokens are in no structure"):
            model.generate(ids, positions=structured, max_new_tokens=2)
    with pytest.raises(ValueError, match="have coordinates"):
        model.generate(ids, positions=Positions.grid(2, 2), max_new_tokens=2)
    with pytest.raises(ValueError, match="give positions or position_ids, not both"):
        model.generate(ids, positions=times, position_ids=torch.arange(4), max_new_tokens=2)
    with pytest.raises(ValueError, match="the positions are of 3 tokens; the prompt has 4"):
        model.generate(ids, positions=Positions.packed([[3]]), max_new_tokens=2)
    with pytest.raises(ValueError, match="whole numbers"):
        model.generate(ids, position_ids=torch.rand(1, 4), max_new_tokens=2)
    for call in (model, model.generate):
        with pytest.raises(
            TypeError,
            match="positions is a Tensor; it must be a Positions; numbers of tokens are position_ids",
        ):
            call(ids, positions=torch.arange(4))
    with pytest.raises(ValueError, match="position_ids is 3; it must be a tensor"):
        model.generate(ids, position_ids=3, max_new_tokens=2)
    step = Positions.arange(1, offset=3)
    with pytest.raises(ValueError, match="queries from token 3 on; token 0 is one, too"):
        model.generate(ids, positions=step, max_new_tokens=2)
    with pytest.raises(PositionError, match="ends at position 31; position 32 was requested"):
        build_model(FloaterForCausalLM, "learned").generate(
            ids, position_ids=torch.arange(29, 33), max_new_tokens=2
        )


def test_a_reading_rule_goes_with_positions():
    model, ids = build_model(FloaterForCausalLM, "sinusoidal"), tokens(1, 4)
    at = torch.tensor([[40, 41, 42, 43]])
    settings = {"max_new_tokens": 3, "do_sample": False, "reading": Reading(128, interpolate=True)}
    out = model.generate(ids, position_ids=at, use_cache=False, **settings)
    assert torch.equal(out, model.generate(ids, position_ids=at, **settings))


def test_continued_positions_keep_what_is_known_of_the_text():
    key = torch.arange(3)[None]
    positions = Positions(
        key,
        key,
        torch.tensor([[True, True, False]]),
        special=torch.tensor([[True, False, False]]),
        segment=torch.tensor([[0, 1, 9]]),
        document=torch.tensor([[4, 4, 9]]),
        target_length=torch.tensor([7]),
        group=(4, 2),
    )
    longer = continue_positions(positions, 5, 2)
    assert longer.query.tolist() == [[2, 3]]  # after token 1, the last one that is none of the padding
    assert longer.key.tolist() == [[0, 1, 2, 2, 3]]
    assert longer.key_valid.tolist() == [[True, True, False, True, True]]
    assert longer.special.tolist() == [[True, False, False, False, False]]
    assert longer.segment.tolist() == [[0, 1, 9, 1, 1]]
    assert longer.document.tolist() == [[4, 4, 9, 4, 4]]
    assert longer.target_length.tolist() == [7]
    assert longer.group == (4, 2)
    assert continue_positions(Positions.arange(3), 5, 1).below == 5
