"""The length predictor, and encoder-decoders whose position model must know the target's length."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import build_model, tokens

from floater import Positions
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration, encoder_decoder
from floater.transformer.length_predictor import REACH, LengthPredictor

MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
LABELS = torch.tensor([[5, 6, 7, 2], [5, 2, -100, -100], [8, 9, 2, -100]])


def predictor():
    torch.manual_seed(0)
    return LengthPredictor(FloaterConfig(hidden_size=8, num_attention_heads=2))


@torch.no_grad()
def test_lengths_and_loss_are_those_of_a_loop_over_texts():
    model, source = predictor(), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    model.offset.bias.normal_()
    truth, losses, lengths = [4, 3 - REACH - 5, 2 + REACH + 5], [], []
    for row, kept, true in zip(source, MASK.bool(), truth, strict=True):
        mean = sum(row[kept]) / int(kept.sum())
        p = (model.offset.weight @ mean + model.offset.bias).softmax(0)
        lengths.append(max(1, int(kept.sum()) + int(p.argmax()) - REACH))
        offset = min(max(true - int(kept.sum()), -REACH), REACH)
        losses.append(-p[offset + REACH].log())
    assert model(source, MASK.bool()).tolist() == lengths
    actual = model.loss(source, MASK.bool(), torch.tensor(truth))
    torch.testing.assert_close(actual, torch.stack(losses).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_counts_every_token(dtype):
    model = predictor().to(dtype)
    model.offset.weight.zero_()
    model.offset.bias.copy_(torch.arange(2 * REACH + 1) == REACH)  # as long as the source
    for length in (200, 257, 301, 2049):
        source = torch.zeros(2, length, 8, dtype=dtype)
        for valid in (None, torch.ones(1, length, dtype=torch.bool)):
            assert model(source, valid).tolist() == [length, length]


def test_it_learns_lengths_that_the_source_tells():
    torch.manual_seed(0)
    model = predictor()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    source = torch.randn(64, 5, 8)
    truth = 5 + (3 * source.mean(1)[:, 0]).round().long()  # a step from class to class, linear in the mean
    for _ in range(300):
        model.loss(source, None, truth).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (model(source, None) == truth).float().mean() > 0.9
    assert len(truth.unique()) > 3


def length_aware(**changes):
    return build_model(FloaterForConditionalGeneration, "noisy_length", **changes)


def out(model, **options):
    ids = tokens(3, 5)
    return model(ids, MASK, decoder_input_ids=tokens(3, 4, seed=1), use_cache=False, **options)


@torch.no_grad()
def test_the_length_is_the_one_given_that_of_the_labels_or_the_predicted():
    model = length_aware()
    source = model.encode(tokens(3, 5), MASK)[0]
    predicted, counted = model.length(source, MASK.bool()), torch.tensor([4, 2, 3])
    assert not torch.equal(predicted, counted)
    placed = Positions.from_mask(MASK).but(target_length=counted)
    expected = out(model, target_length=counted).logits
    assert torch.equal(out(model, labels=LABELS).logits, expected)
    assert torch.equal(out(model, positions=placed).logits, expected)
    assert torch.equal(out(model, target_length=counted, positions=placed).logits, expected)
    assert torch.equal(out(model).logits, out(model, target_length=predicted).logits)
    assert not torch.allclose(out(model).logits, expected, atol=1e-3)


@torch.no_grad()
def test_the_loss_is_that_of_the_tokens_and_of_the_length():
    model = length_aware()
    actual, source = out(model, labels=LABELS), model.encode(tokens(3, 5), MASK)[0]
    token_loss = F.cross_entropy(actual.logits.flatten(0, 1), LABELS.flatten())
    length_loss = model.length.loss(source, MASK.bool(), torch.tensor([4, 2, 3]))
    torch.testing.assert_close(actual.auxiliary_loss, length_loss)
    torch.testing.assert_close(actual.loss, token_loss + length_loss)
    half = out(model, labels=LABELS, num_items_in_batch=18)  # of an update twice as large
    torch.testing.assert_close(half.loss, (token_loss + length_loss) / 2)
    assert out(model, target_length=torch.tensor([4, 2, 3])).auxiliary_loss is None  # nothing is learned


def test_training_without_labels_learns_the_length_of_the_inputs_for_it():
    model = length_aware().train()
    inputs = model.training_inputs(LABELS)
    assert inputs["target_length"].tolist() == [4, 2, 3]
    model(tokens(3, 5), MASK, **inputs).auxiliary_loss.backward()
    assert bool(model.length.offset.weight.grad.any())
    assert "target_length" not in build_model(FloaterForConditionalGeneration, "none").training_inputs(LABELS)


def test_a_row_without_labels_has_the_length_of_one_with_and_without_a_loss_inside():
    model, labels = length_aware().train(), LABELS.clone()
    labels[1] = -100
    inside = model(tokens(3, 5), MASK, labels=labels).auxiliary_loss
    outside = model(tokens(3, 5), MASK, **model.training_inputs(labels)).auxiliary_loss
    torch.testing.assert_close(outside, inside)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_generation_counts_down_from_the_predicted_length(beams):
    model, ids = length_aware(), tokens(3, 5)
    predicted = model.length(model.encode(ids, MASK)[0], MASK.bool())
    settings = {
        "max_new_tokens": 4,
        "num_beams": beams,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    free = model.generate(ids, attention_mask=MASK, **settings)
    told = model.generate(ids, attention_mask=MASK, target_length=predicted, **settings)
    other = model.generate(ids, attention_mask=MASK, target_length=predicted + 9, **settings)
    assert torch.equal(free.sequences, told.sequences)
    torch.testing.assert_close(free.scores, told.scores)
    assert not torch.allclose(free.scores[0], other.scores[0], atol=1e-3)
    every = model.generate(ids, attention_mask=MASK, target_length=predicted[:1], **settings)
    same = model.generate(ids, attention_mask=MASK, target_length=predicted[:1].expand(3), **settings)
    assert torch.equal(every.sequences, same.sequences)
    one = model.generate(ids[2:, :2], **settings)  # alone and without padding
    torch.testing.assert_close(one.scores[0], free.scores[0][2 * beams :])


@pytest.mark.parametrize("lengths", [3, [3, 3, 3], torch.tensor(3), torch.tensor([3.5])])
def test_lengths_are_whole_numbers(lengths):
    model = build_model(FloaterForConditionalGeneration, "lrpe")
    for call in (partial(out, model), partial(model.generate, tokens(3, 5))):
        with pytest.raises(ValueError, match=r"target_length is .* one whole number for each text"):
            call(target_length=lengths)


def test_only_who_reads_a_length_takes_one():
    model = build_model(FloaterForConditionalGeneration, "sinusoidal")
    assert model.length is None
    with pytest.raises(TypeError, match="position model 'sinusoidal' does not take target_length"):
        out(model, target_length=torch.tensor([3, 3, 3]))


@pytest.mark.parametrize("name", ["ldpe", "lrpe", "noisy_length", "pnat"])
def test_the_encoder_of_an_encoder_decoder_is_plain(name):
    torch.manual_seed(0)
    model = encoder_decoder(FloaterConfig.preset("tiny", vocab_size=37, position=name)).eval()
    torch.manual_seed(0)
    plain = encoder_decoder(FloaterConfig.preset("tiny", vocab_size=37, position="sinusoidal")).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(model.encode(tokens(3, 5), MASK)[0], plain.encode(tokens(3, 5), MASK)[0])
    assert model.config.position_options == {}
