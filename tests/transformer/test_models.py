"""Losses, gradients, precisions and training of the models."""

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import POSITIONS, VOCABULARY, build_model, config, tokens
from transformers import Trainer, TrainingArguments

from floater.transformer import (
    FloaterConfig,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterModel,
)
from small_models import small_config

HEADS = (FloaterForMaskedLM, FloaterForCausalLM, FloaterForConditionalGeneration)
EVERY = pytest.mark.parametrize("case", POSITIONS)


def labelled(cls):
    """A batch whose labels leave some tokens out."""
    ids, labels = tokens(2, 6), tokens(2, 6, seed=1)
    labels[0, :3] = labels[1, 4:] = -100
    return {"input_ids": ids, "labels": labels}


def by_hand(cls, logits, labels):
    """Mean of -log p over labels, each compared with the logits that predict it."""
    if cls is FloaterForCausalLM:
        logits, labels = logits[:, :-1], labels[:, 1:]
    p = logits.softmax(-1)
    losses = [
        -p[b, t, labels[b, t]].log()
        for b in range(labels.shape[0])
        for t in range(labels.shape[1])
        if labels[b, t] != -100
    ]
    return sum(losses) / len(losses), len(losses)


@pytest.mark.parametrize("cls", HEADS)
def test_the_loss_is_a_mean_over_labels_that_are_not_left_out(cls):
    model, batch = build_model(cls), labelled(cls)
    out = model(**batch)
    expected, count = by_hand(cls, out.logits, batch["labels"])
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(
        build_model(type("Own", (cls,), {}))(**batch).loss, expected
    )  # whatever its name
    over_more = model(**batch, num_items_in_batch=torch.tensor(3 * count)).loss
    torch.testing.assert_close(over_more, expected / 3)


def test_decoder_inputs_are_the_labels_shifted_right():
    model, batch = build_model(FloaterForConditionalGeneration), labelled(FloaterForConditionalGeneration)
    labels = batch["labels"]
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    for row, shifted in zip(labels.tolist(), inputs.tolist(), strict=True):
        assert shifted == [1] + [0 if token == -100 else token for token in row[:-1]]
    outputs = model(**batch, decoder_input_ids=inputs)
    assert torch.equal(outputs.logits, model(**batch).logits)


@pytest.mark.parametrize(("labels", "problem"), [(3, "single"), (1, "regression"), (3, "multi")])
def test_classification_reads_the_first_token_wherever_padding_is(labels, problem):
    model = build_model(FloaterForSequenceClassification, num_labels=labels)
    ids = tokens(2, 4)
    plain = model(ids).logits
    left, mask = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)
    left[:, 2:], mask[:, 2:] = ids, 1
    torch.testing.assert_close(model(left, mask).logits, plain, rtol=1e-4, atol=1e-5)
    first = model.classifier(model.model(ids).last_hidden_state[:, 0])
    torch.testing.assert_close(plain, first)
    target, expected = {
        "single": (torch.tensor([2, 0]), lambda y: F.cross_entropy(plain, y)),
        "regression": (torch.tensor([0.5, -1.0]), lambda y: F.mse_loss(plain[:, 0], y)),
        "multi": (torch.eye(3)[:2], lambda y: F.binary_cross_entropy_with_logits(plain, y)),
    }[problem]
    torch.testing.assert_close(model(ids, labels=target).loss, expected(target))


@pytest.mark.parametrize("cls", [FloaterModel, *HEADS, FloaterForSequenceClassification])
def test_embeddings_may_be_given_instead_of_ids(cls):
    model, ids = build_model(cls), tokens(2, 6)
    table = model.get_input_embeddings()
    target = {"decoder_input_ids": tokens(2, 4)} if cls is FloaterForConditionalGeneration else {}
    expected = model(ids, **target)[0]
    assert torch.equal(model(inputs_embeds=table(ids), **target)[0], expected)
    if target:
        embeds = table(target["decoder_input_ids"])
        assert torch.equal(model(ids, decoder_inputs_embeds=embeds)[0], expected)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(ids, inputs_embeds=table(ids), **target)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(**target)


@pytest.mark.parametrize("cls", [FloaterModel, *HEADS, FloaterForSequenceClassification])
@pytest.mark.parametrize("argument", ["positions_ids", "token_type_ids", "attention_masks", "head_mask"])
def test_an_argument_that_would_be_ignored_is_refused(cls, argument):
    with pytest.raises(TypeError, match=rf"does not take .*{argument}"):
        build_model(cls)(tokens(1, 3), labels=tokens(1, 3), **{argument: True})


def test_an_encoder_decoder_needs_a_target():
    with pytest.raises(ValueError, match="give decoder_input_ids, decoder_inputs_embeds or labels"):
        build_model(FloaterForConditionalGeneration)(tokens(1, 3))


@pytest.mark.parametrize("cls", HEADS)
def test_outputs_come_as_a_tuple_when_asked(cls):
    model, batch = build_model(cls), labelled(cls)
    loss, logits, *_ = model(**batch, return_dict=False)
    torch.testing.assert_close(loss, model(**batch).loss)
    model.config.return_dict = False
    assert torch.equal(model(**batch)[1], logits)


@pytest.mark.parametrize("cls", [FloaterForCausalLM, FloaterForConditionalGeneration])
def test_keys_and_values_are_kept_only_when_they_may_be_of_use(cls):
    model, ids = build_model(cls), tokens(1, 3)
    target = {"decoder_input_ids": ids} if cls is FloaterForConditionalGeneration else {}
    assert model(ids, **target).past_key_values is not None
    assert model(ids, labels=ids).past_key_values is None
    assert model(ids, **target, use_cache=False).past_key_values is None
    assert model.train()(ids, **target).past_key_values is None


@EVERY
def test_autocast_and_bfloat16_stay_close(case):
    model = build_model(FloaterForConditionalGeneration, case)
    batch = labelled(FloaterForConditionalGeneration)
    exact = model(**batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**batch)
    mixed.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    half = model.to(torch.bfloat16)(**batch)
    assert half.logits.dtype == torch.bfloat16
    assert half.loss.dtype == torch.float32
    for out in (mixed, half):  # eight bits through five blocks
        torch.testing.assert_close(out.logits.float(), exact.logits, rtol=0.1, atol=0.2)
        torch.testing.assert_close(out.loss.float(), exact.loss, rtol=0.05, atol=0)


@EVERY
@pytest.mark.parametrize("norm_first", [False, True])
def test_gradient_checkpointing_leaves_the_gradients(case, norm_first):
    batch, gradients = labelled(FloaterForConditionalGeneration), []
    for checkpointing in (False, True):
        model = build_model(FloaterForConditionalGeneration, case, norm_first=norm_first).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["t5", "kerple", "bert_r", "dape", "dynamic_bias", "tupe_a", "tupe_r", "seqpe"]
)
def test_blocks_in_checkpoints_share_a_bias_of_padded_texts(name):
    """The first block computes it; when its checkpoint runs again, it is there already."""
    ids = torch.randint(5, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    mask, gradients = torch.ones_like(ids), []
    mask[1, :4] = 0
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = FloaterForCausalLM(small_config(name)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)
        model(ids, attention_mask=mask, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["tupe_a", "t5"])
def test_a_bias_has_gradients_by_torch_func(name, kernel):
    ids = torch.randint(5, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    model = FloaterForCausalLM(small_config(name)).eval()
    model.set_attn_implementation(kernel)
    model(ids, labels=ids).loss.backward()

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (ids,), {"labels": ids}).loss

    gradients = torch.func.grad(loss)(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_that_blocks_cannot_share_a_state_with_is_refused():
    with pytest.raises(
        ValueError, match="use_reentrant is True; blocks share what the position model prepared"
    ):
        build_model(FloaterForCausalLM).gradient_checkpointing_enable({"use_reentrant": True})


def test_gradient_checkpointing_goes_without_a_cache():
    model = build_model(FloaterForCausalLM).train()
    ids = tokens(2, 5)
    expected = model(ids).logits.square().sum()
    model.gradient_checkpointing_enable()
    actual = model(ids, use_cache=True).logits.square().sum()
    torch.testing.assert_close(actual, expected)
    actual.backward()


@EVERY
@pytest.mark.parametrize("cls", [FloaterForConditionalGeneration, FloaterForCausalLM])
def test_a_batch_can_be_learned_by_heart(case, cls):
    torch.manual_seed(0)
    model = cls(config(case, decoder_layers=2, hidden_size=32, intermediate_size=64)).train()
    ids = tokens(4, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert losses[0] < 3 * torch.tensor(float(VOCABULARY)).log()


@pytest.mark.parametrize("cls", HEADS)
def test_accumulated_gradients_of_hugging_faces_trainer_are_those_of_the_whole_batch(cls, tmp_path):
    batch = labelled(cls)
    rows = [{name: value[i] for name, value in batch.items()} for i in range(2)]
    updates = []
    for size in (2, 1):
        model = build_model(cls)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=2 // size,
            max_steps=1,
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            optim="sgd",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=rows).train()
        updates.append({name: p.detach() - before[name] for name, p in model.named_parameters()})
    for name, update in updates[0].items():
        torch.testing.assert_close(updates[1][name], update, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "position", ["dynamic_bias", "floater_cde", "liere", "mtan", "rnn", "abacus", "fire", "pnat"]
)
def test_encodings_that_switch_off_autocast_or_look_at_values_run_without_values(position):
    """The device "meta" has no autocast."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    with torch.device("meta"):
        model = FloaterModel(FloaterConfig(vocab_size=11, training_length=16, position=position, **sizes))
    with torch.no_grad():
        out = model(input_ids=torch.ones(2, 9, dtype=torch.long, device="meta")).last_hidden_state
    assert (out.shape, out.device.type) == ((2, 9, 32), "meta")
