"""The classifier on every token."""

import pytest
import torch
from transformer_cases import build_model, config, tokens
from transformers import AutoModelForTokenClassification

from floater.transformer import FloaterForTokenClassification


def labelled():
    labels = torch.tensor([[3, -100, 0, 4], [-100, 1, 1, -100]])
    return build_model(FloaterForTokenClassification, num_labels=5), tokens(2, 4), labels


def test_the_loss_is_a_mean_over_labels_that_are_not_left_out():
    model, ids, labels = labelled()
    out = model(ids, labels=labels)
    assert out.logits.shape == (2, 4, 5)
    p = out.logits.softmax(-1)
    losses = [-p[b, t, labels[b, t]].log() for b in range(2) for t in range(4) if labels[b, t] >= 0]
    assert len(losses) == 5
    torch.testing.assert_close(out.loss, sum(losses) / 5)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=10).loss, sum(losses) / 10)
    loss, logits = model(ids, labels=labels, return_dict=False)
    assert torch.equal(logits, out.logits)
    assert torch.equal(loss, out.loss)


def test_logits_are_those_of_the_hidden_states_wherever_padding_is():
    model, ids, _ = labelled()
    plain = model(ids).logits
    torch.testing.assert_close(plain, model.classifier(model.model(ids).last_hidden_state))
    left = torch.cat([torch.zeros(2, 2, dtype=torch.long), ids], 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]]).expand(2, -1)
    torch.testing.assert_close(model(left, mask).logits[:, 2:], plain)


def test_the_loss_of_half_precision_is_float32_and_its_gradients_are_finite():
    model, ids, labels = labelled()
    exact = model(ids, labels=labels).loss
    out = model.to(torch.bfloat16)(ids, labels=labels)
    assert (out.logits.dtype, out.loss.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.loss, exact, rtol=0.05, atol=0)
    out.loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_it_comes_back_from_safetensors_with_its_labels(tmp_path):
    names = dict(enumerate(["ADJ", "NOUN", "VERB"]))
    model = build_model(FloaterForTokenClassification, id2label=names)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    for auto in (FloaterForTokenClassification, AutoModelForTokenClassification):
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is FloaterForTokenClassification
        assert loaded.config.id2label == names
        assert torch.equal(loaded(tokens(2, 4)).logits, model(tokens(2, 4)).logits)


def test_a_causal_configuration_is_refused():
    with pytest.raises(ValueError, match="needs is_decoder=False"):
        FloaterForTokenClassification(config(is_decoder=True))
