"""Positions given to the models instead of those that the attention mask says."""

import math

import pytest
import torch
from accelerate.utils import send_to_device
from transformer_cases import build_model, tokens

from floater import PositionError, Positions
from floater.flow import sinusoid
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
    FloaterModel,
)

ENCODERS = (
    FloaterModel,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
)
EVERY = (*ENCODERS, FloaterForCausalLM, FloaterForConditionalGeneration)
TIMES = torch.tensor([[0.0, 0.5, 3.0, 7.25], [0.0, 2.0, 2.0, 9.5]])


def target(cls):
    return {"decoder_input_ids": tokens(2, 3, seed=1)} if cls is FloaterForConditionalGeneration else {}


@pytest.mark.parametrize("cls", EVERY)
def test_positions_of_the_mask_change_nothing(cls):
    model, ids, mask = build_model(cls), tokens(2, 5), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    expected = model(ids, mask, **target(cls))[0]
    placed = Positions.from_mask(mask)
    assert torch.equal(model(ids, mask, positions=placed, **target(cls))[0], expected)
    assert torch.equal(model(ids, positions=placed, **target(cls))[0], expected)
    unpadded = placed.but(key_valid=None)
    assert torch.equal(model(ids, mask, positions=unpadded, **target(cls))[0], expected)


@pytest.mark.parametrize("cls", EVERY)
def test_times_are_what_the_position_model_reads(cls):
    """Sinusoids at real times, added by hand to the embeddings of the same model without positions."""
    model, plain, ids = build_model(cls, "sinusoidal"), build_model(cls, "none"), tokens(2, 4)
    if cls is FloaterForConditionalGeneration:
        plain.decoder.load_state_dict(model.decoder.state_dict())
        plain.decoder.position = model.decoder.position
    embeds = plain.get_input_embeddings()(ids) + sinusoid(TIMES, 16) / math.sqrt(16)
    expected = plain(inputs_embeds=embeds, **target(cls))[0]
    actual = model(ids, positions=Positions.times(TIMES), **target(cls))[0]
    torch.testing.assert_close(actual, expected)
    assert not torch.allclose(actual, model(ids, **target(cls))[0], atol=1e-3)


@pytest.mark.parametrize("name", ["query", "query_time", "coordinates"])
def test_positions_that_are_no_longer_finite_are_refused(name):
    model, at = build_model(FloaterModel, "alibi"), torch.arange(3.0)[None]
    positions = Positions(at, at).but(query_time=at, key_time=at.clone(), coordinates=at[..., None].clone())
    getattr(positions, name)[0, 1] = math.nan  # in place, which no check sees
    with pytest.raises(ValueError, match=r"the positions' .* holds a NaN or an infinity"):
        model(tokens(1, 3), positions=positions)


@pytest.mark.parametrize("cls", [*ENCODERS, FloaterForConditionalGeneration])
def test_a_graph_reaches_the_position_model(cls):
    """Without an order of the tokens, a graph whose nodes are renumbered gives the renumbered outputs."""
    model, ids = build_model(cls, "structural"), tokens(1, 4)
    edges, order = [(0, 1), (1, 2), (1, 3)], torch.tensor([0, 3, 1, 2])
    rank = order.argsort().tolist()
    renumbered = [(rank[u], rank[v]) for u, v in edges]
    run = model.encode if cls is FloaterForConditionalGeneration else model
    expected = run(ids, positions=Positions.graph([edges]))[0]
    actual = run(ids[:, order], positions=Positions.graph([renumbered]))[0]
    if cls is FloaterForSequenceClassification:
        torch.testing.assert_close(actual, expected)
    else:
        torch.testing.assert_close(actual, expected[:, order])
    other = run(ids, positions=Positions.graph([[(0, 1), (0, 2), (0, 3)]]))[0]
    assert not torch.allclose(other, expected, atol=1e-3)
    with pytest.raises(PositionError, match=r"build the positions with Positions\.graph"):
        run(ids)


def test_classification_reads_the_first_token_of_the_positions():
    model, ids = build_model(FloaterForSequenceClassification, num_labels=3), tokens(2, 3)
    left = torch.cat([torch.zeros(2, 2, dtype=torch.long), ids], 1)
    placed = Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1]]))
    torch.testing.assert_close(model(left, positions=placed).logits, model(ids).logits)


def test_cached_decoding_takes_the_times_of_new_and_old_tokens():
    model, ids = build_model(FloaterForCausalLM, "sinusoidal"), tokens(2, 4)
    expected = model(ids, positions=Positions.times(TIMES), use_cache=False).logits
    cache, actual = None, []
    for t in range(4):
        step = Positions(query=TIMES[:, t : t + 1], key=TIMES[:, : t + 1])
        out = model(ids[:, t : t + 1], past_key_values=cache, positions=step, use_cache=True)
        actual.append(out.logits)
        cache = out.past_key_values
    torch.testing.assert_close(torch.cat(actual, 1), expected)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("case", ["floater", "structural"])
def test_generation_keeps_each_samples_positions(beams, case):
    model, ids = build_model(FloaterForConditionalGeneration, case), tokens(2, 4)
    parents = [[1, -1, 1, 1], [-1, 0, 1, 2]]
    if case == "floater":
        positions = Positions.times(TIMES)
        alone = [Positions.times(row[None]) for row in TIMES]
    else:
        positions = Positions.tree(parents)
        alone = [Positions.tree([row]) for row in parents]
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": beams, "do_sample": False}
    settings |= {"output_scores": True, "return_dict_in_generate": True}
    both = model.generate(ids, positions=positions, **settings)
    for i, single in enumerate(alone):
        one = model.generate(ids[i : i + 1], positions=single, **settings)
        assert torch.equal(one.sequences[0], both.sequences[i])
        torch.testing.assert_close(one.scores[0], both.scores[0][i * beams : (i + 1) * beams])
    if case == "floater":  # the others refuse
        plain = model.generate(ids, **settings)
        assert not torch.allclose(plain.scores[0], both.scores[0], atol=1e-3)


def test_a_target_length_is_for_the_decoder():
    model = build_model(FloaterForConditionalGeneration, "ldpe", position_options={"plain": True})
    ids, decoder_ids = tokens(2, 4), tokens(2, 3)
    outs = [
        model(ids, None, decoder_ids, positions=Positions.arange(4).but(target_length=torch.tensor([n])))
        for n in (3, 9)
    ]
    assert torch.equal(outs[0].encoder_last_hidden_state, outs[1].encoder_last_hidden_state)
    assert not torch.allclose(outs[0].logits, outs[1].logits, atol=1e-3)
    lengths = Positions.arange(4).but(target_length=torch.tensor([3, 9]))
    settings = {"max_new_tokens": 5, "num_beams": 2, "return_dict_in_generate": True, "output_scores": True}
    both = model.generate(ids, positions=lengths, **settings)
    one = model.generate(ids[1:], positions=lengths.but(target_length=lengths.target_length[1:]), **settings)
    torch.testing.assert_close(one.scores[0], both.scores[0][2:])


@pytest.mark.parametrize("cls", EVERY)
def test_positions_that_do_not_fit_are_refused(cls):
    model, ids = build_model(cls), tokens(2, 4)
    with pytest.raises(ValueError, match="are of 3 queries and 3 keys; there are 4 new and 0 cached tokens"):
        model(ids, positions=Positions.arange(3), **target(cls))
    with pytest.raises(ValueError, match="are of 3 samples; the batch has 2"):
        model(ids, positions=Positions.times(torch.rand(3, 4)), **target(cls))
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    for other in (torch.ones_like(mask), mask.flip(0)):
        with pytest.raises(ValueError, match="differ in what is padding"):
            model(ids, other, positions=Positions.from_mask(mask), **target(cls))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("position_ids", r"position_ids is \[\[1, .*1\]\]; it must be a tensor"),
        ("document_ids", "the document ids are a list; it must be a tensor"),
        ("attention_mask", "the attention mask is a list; it must be a tensor"),
    ],
)
def test_lists_are_refused(argument, message):
    with pytest.raises(ValueError, match=rf"{message} \((2|batch), 4\)"):
        build_model(FloaterForCausalLM)(tokens(2, 4), **{argument: [[1] * 4] * 2})


def test_positions_of_a_whole_text_are_refused_with_a_cache():
    model, ids = build_model(FloaterForCausalLM), tokens(1, 4)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="are of 4 queries and 4 keys; there are 1 new and 4 cached tokens"):
        model(ids[:, :1], past_key_values=cache, positions=Positions.arange(4))


def test_a_trees_padding_is_that_of_the_batch():
    """A batch of trees equals each alone, without an attention mask."""
    model = build_model(FloaterForTokenClassification, "tree", position_options={"binary": True})
    ids, parents = tokens(2, 4), [[1, -1, 1, 2], [-1, 0]]
    both = model(ids, positions=Positions.tree(parents)).logits
    short = model(ids[1:, :2], positions=Positions.tree(parents[1:])).logits
    torch.testing.assert_close(both[1:, :2], short)


def test_documents_share_a_row_and_keep_their_times():
    model, ids = build_model(FloaterForTokenClassification, "sinusoidal"), tokens(1, 4)
    packed = model(ids, document_ids=torch.tensor([[0, 0, 1, 1]]), positions=Positions.times(TIMES[:1]))
    for part in (slice(0, 2), slice(2, 4)):
        alone = model(ids[:, part], positions=Positions.times(TIMES[:1, part]))
        torch.testing.assert_close(packed.logits[:, part], alone.logits)


def test_a_graph_is_moved_and_repeated_with_its_words():
    positions = Positions.tree([[-1, 0], [1, -1]], words=[[0, 0, 1], [1, 0]])
    twice = positions.repeat(2).structure
    assert twice.parents.tolist() == [[-1, 0], [-1, 0], [1, -1], [1, -1]]
    assert twice.words.tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, -1], [1, 0, -1]]
    assert twice.edges.shape == (4, 2, 2)
    # as the Trainer moves a batch
    moved = send_to_device({"positions": positions}, torch.device("meta"))["positions"].structure
    assert {part.device.type for part in (moved.edges, moved.valid, moved.parents, moved.words)} == {"meta"}
    assert positions.batch == 2
    assert Positions.arange(3).batch == 1


@torch.no_grad()
@pytest.mark.parametrize("name", ["xl", "xl_heads", "language_specific"])
def test_models_of_the_source_alone_translate(name):
    model = build_model(FloaterForConditionalGeneration, name)
    ids, at = tokens(2, 6), torch.arange(6)[None]
    positions = Positions(at, at, reordered=torch.tensor([[1, 0, 2, 4, 3, 5], [5, 4, 3, 2, 1, 0]]))
    positions = positions.but(language=torch.tensor([[0] * 6, [1] * 6]))
    written = model.generate(ids, positions=positions, max_new_tokens=5, do_sample=False)
    for row in range(2):
        single = positions.but(
            reordered=positions.reordered[row : row + 1],
            language=positions.language[row : row + 1],
        )
        steps = torch.tensor([[1]])
        for _ in range(5):
            logits = model(ids[row : row + 1], decoder_input_ids=steps, positions=single).logits
            steps = torch.cat([steps, logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(steps[0], written[row, : steps.shape[1]])
    other = positions.but(reordered=at, language=positions.language.flip(0))
    decoded = {"decoder_input_ids": tokens(2, 4, seed=1)}
    change = model(ids, positions=positions, **decoded).logits - model(ids, positions=other, **decoded).logits
    assert float(change.abs().max()) > 1e-4
    with pytest.raises(PositionError, match="in the positions"):
        model(ids, **decoded)
