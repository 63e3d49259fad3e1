"""PNAT as a model: its parts put together by hand, no causal mask, and what it learns."""

import math

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import build_model, tokens
from transformers import AutoModelForSeq2SeqLM

from floater import PositionError, Positions
from floater.encodings.decoder.pnat import heuristic_order
from floater.transformer import (
    FloaterConfig,
    FloaterForConditionalGeneration,
    FloaterForNonAutoregressiveGeneration,
    encoder_decoder,
)
from floater.transformer.nonautoregressive import soft_copy
from small_models import small_config

MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
LABELS = torch.tensor([[5, 6, 7, 2], [5, 2, -100, -100], [8, 9, 2, -100]])
LENGTHS = torch.tensor([4, 2, 3])


def pnat(**changes):
    return build_model(FloaterForNonAutoregressiveGeneration, "pnat", **changes)


def test_decoder_inputs_are_soft_copies_of_the_source():
    source = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    actual = soft_copy(source, MASK.bool(), LENGTHS)
    assert actual.shape == (3, 4, 2)
    for row, kept, length, inputs in zip(source, MASK.bool(), LENGTHS.tolist(), actual, strict=True):
        real = row[kept]
        for t in range(length):
            weights = [math.exp(-((j - t * len(real) / length) ** 2) / 0.3) for j in range(len(real))]
            mean = sum(w * e for w, e in zip(weights, real, strict=True)) / sum(weights)
            torch.testing.assert_close(inputs[t], mean)


def by_hand(model, ids, length, target=None):
    """Logits of one text of `length` tokens, and its loss beside the tokens, step by step."""
    source = model.encode(ids[None])[0]
    count = torch.tensor([length])
    inputs, pointer = soft_copy(source, None, count), model.decoder.position.pointer
    if target is None:
        picks, beside = pointer(inputs, count)[0], None
    else:
        words = model.embedding.weight[target][None]
        picks = heuristic_order(inputs, words, torch.ones(1, length, dtype=torch.bool)).argsort(1)[0]
        beside = model.length.loss(source, None, count), pointer.loss(inputs, count, picks[None])
    y = inputs[:, picks]
    hidden = model.decoder(y, Positions.arange(length), source, Positions.arange(len(ids)))
    return model.lm_head(hidden)[0], beside


@torch.no_grad()
def test_padded_batches_are_the_steps_of_the_paper_text_by_text():
    model, ids = pnat(), tokens(3, 5)
    free = model(ids, MASK, target_length=LENGTHS)
    taught = model(ids, MASK, labels=LABELS)
    assert torch.equal(model(ids, MASK, target_ids=LABELS).logits, taught.logits)
    length_losses, order_losses, token_losses = [], [], []
    for row, length in enumerate(LENGTHS.tolist()):
        source_ids, target = ids[row, MASK[row].bool()], LABELS[row, :length]
        expected, _ = by_hand(model, source_ids, length)
        torch.testing.assert_close(free.logits[row, :length], expected)
        expected, (one, other) = by_hand(model, source_ids, length, target)
        torch.testing.assert_close(taught.logits[row, :length], expected)
        length_losses.append(one)
        order_losses.append(length * other)
        token_losses.append(F.cross_entropy(expected, target, reduction="sum"))
    auxiliary = sum(length_losses) / 3 + sum(order_losses) / 9
    torch.testing.assert_close(taught.auxiliary_loss, auxiliary)
    torch.testing.assert_close(taught.loss, sum(token_losses) / 9 + auxiliary)
    half = model(ids, MASK, labels=LABELS, num_items_in_batch=18)
    torch.testing.assert_close(half.loss, taught.loss / 2)


@torch.no_grad()
def test_generation_writes_the_likeliest_tokens_up_to_the_first_end():
    model, ids = pnat(), tokens(3, 5)
    with torch.no_grad():
        model.embedding.weight[2] *= 3  # the end token, so that some texts end early
    lengths = model.length(model.encode(ids, MASK)[0], MASK.bool())
    actual = model.generate(ids, MASK)
    assert torch.equal(actual, model.generate(ids, MASK, target_length=lengths))
    for row, length in enumerate(lengths.tolist()):
        logits, _ = by_hand(model, ids[row, MASK[row].bool()], length)
        logits[:, [0, 1]] = -torch.inf
        words = logits.argmax(-1).tolist()
        words = words[: words.index(2)] if 2 in words else words
        expected = [1, *words, 2]
        assert actual[row].tolist() == expected + [0] * (actual.shape[1] - len(expected))
    assert actual.shape[1] == int(lengths.max()) + 2


@torch.no_grad()
def test_early_tokens_see_late_ones():
    model, ids = pnat(), tokens(1, 5)
    source = model.encode(ids)[0]
    y = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
    changed = y.clone()
    changed[:, 3] += 1
    a, b = (model.decoder(z, Positions.arange(4), source, Positions.arange(5)) for z in (y, changed))
    assert bool(((a - b).abs().amax(-1) > 1e-4).all())


def test_every_parameter_learns():
    model = pnat().train()
    model(tokens(3, 5), MASK, labels=LABELS).loss.backward()
    for name, parameter in model.named_parameters():
        assert bool(parameter.grad.any()), name
        assert bool(parameter.grad.isfinite().all()), name


def test_it_learns_to_translate_into_another_order():
    """Words of a source, two and two exchanged, each with a word of its own: length, order and tokens."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 32, "intermediate_size": 64}
    layers = {"num_hidden_layers": 1, "decoder_layers": 1, "norm_first": True, "training_length": 512}
    model = FloaterForNonAutoregressiveGeneration(small_config("pnat", **sizes, **layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    end = torch.full((32, 1), 2)

    def pairs():
        words = torch.randint(4, 14, (32, 4))
        return torch.cat([words, end], 1), torch.cat([words[:, [1, 0, 3, 2]] + 10, end], 1)

    for _ in range(200):
        source, target = pairs()
        loss = model(source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    source, target = pairs()
    actual = model.eval().generate(source)
    assert actual.shape == (32, 7)
    assert float((actual[:, 1:6] == target).float().mean()) > 0.8  # 0.28 if only the end is known


def test_a_saved_model_is_the_same(tmp_path):
    model, ids = pnat(), tokens(2, 5)
    model.save_pretrained(tmp_path)
    other = FloaterForNonAutoregressiveGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(other.generate(ids), model.generate(ids))
    with pytest.raises(PositionError, match="'pnat' needs a decoder that is non-autoregressive"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_the_kind_of_decoder_follows_from_the_position_model():
    for name, kind in (
        ("pnat", FloaterForNonAutoregressiveGeneration),
        ("floater", FloaterForConditionalGeneration),
    ):
        assert type(encoder_decoder(FloaterConfig.preset("tiny", vocab_size=9, position=name))) is kind
    with pytest.raises(PositionError, match="'sinusoidal' needs a decoder that is autoregressive"):
        build_model(FloaterForNonAutoregressiveGeneration, "sinusoidal")
    with pytest.raises(PositionError, match="plain is False"):
        pnat(position_options={"plain": False})
    with pytest.raises(PositionError, match="unknown position model 'pnt'"):
        encoder_decoder(FloaterConfig.preset("tiny", vocab_size=9, position="pnt"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": LABELS.flip(1)}, ValueError, r"targets are \(3, 4\); .* -100 only on the right"),
        ({"labels": LABELS, "target_length": LENGTHS + 1}, ValueError, "the longest 5 tokens"),
        ({"target_length": LENGTHS[:2]}, ValueError, r"target_length is \(2,\); it must be \(3,\)"),
        ({"target_length": LENGTHS - 2}, ValueError, r"target_length is \[2, 0, 1\]; .* at least 1"),
        ({"labels": torch.full((3, 2), -100)}, ValueError, "each must have a token or more"),
        ({"decoder_input_ids": LABELS}, TypeError, "does not take decoder_input_ids"),
        ({"past_key_values": ()}, TypeError, "does not take past_key_values"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        pnat()(tokens(3, 5), MASK, **options)


def test_generation_refuses_a_search_and_ambiguous_ends():
    with pytest.raises(TypeError, match="does not take num_beams"):
        pnat().generate(tokens(1, 5), num_beams=4)
    with pytest.raises(ValueError, match=r"eos_token_id \[2, 3\].*each must be one token"):
        pnat(eos_token_id=[2, 3]).generate(tokens(1, 5))
