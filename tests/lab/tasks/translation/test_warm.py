"""Stage 2 begins where stage 1 ended (Liu et al. 2020, B.2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.errors import DataError
from floater.lab.tasks.translation import TranslationSettings
from floater.lab.tasks.translation.data import TokenPairs, collate
from floater.lab.tasks.translation.validation import token_losses
from floater.lab.text.bpe import train_bpe
from floater.lab.training import TokenBatchSampler, smoothed_cross_entropy
from floater.lab.training.warm_start import warm_started
from floater.pretrained.extending.continuation import fit_flow
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration

from .conftest import Files
from .small import SIZES, TASK, load_run, pairs, settings, train

NO_DROPOUT = {"changes": SIZES | {"dropout": 0.0}}


@pytest.fixture(scope="module")
def stage1(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    folder = tmp_path_factory.mktemp("stage1")
    model = NO_DROPOUT | {"position": "sinusoidal"}
    return train(settings(folder, files, "stage1", model=model, training={"average_last": 1}))


def config(stage1: Path, position: str, **options: Any) -> FloaterConfig:
    trained = load_run(stage1, "cpu")[0].config
    assert isinstance(trained, FloaterConfig)
    changes = {"position": position, "position_options": options}
    return FloaterConfig(**(trained.to_dict() | changes))


def test_a_zero_flow_leaves_the_loss_of_stage_1_unchanged(stage1: Path, files: Files) -> None:
    trained, tokenizer = load_run(stage1, "cpu")
    started = warm_started(config(stage1, "floater", start="zero"), trained, "stage 1")
    batch = collate([TokenPairs.of(pairs(files["valid"]), tokenizer)[i] for i in range(7)], pad=0)
    for training in (False, True):
        expected, actual = (model.train(training)(**batch) for model in (trained, started))
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.loss, expected.loss)
    small = warm_started(config(stage1, "floater", start="small"), trained, "stage 1").eval()
    assert not torch.equal(small(**batch).loss, trained.eval()(**batch).loss)


def test_the_first_step_of_stage_2_has_the_loss_of_the_last_model_of_stage_1(
    tmp_path: Path, stage1: Path, files: Files
) -> None:
    stage2 = settings(
        tmp_path,
        files,
        "stage2",
        model=NO_DROPOUT | {"position_options": {"start": "zero"}},
        training={"warm_start": str(stage1), "max_steps": 1, "average_last": 1},
    )
    run = train(stage2)
    trained, tokenizer = load_run(stage1, "cpu")
    assert load_run(run)[1].get_vocab() == tokenizer.get_vocab()

    examples = TokenPairs.of(pairs(files["train"]), tokenizer)
    sampler = TokenBatchSampler(examples.lengths, 600, seed=1, shuffle=True)
    first = collate([examples[i] for i in next(iter(sampler))], pad=0)
    with torch.no_grad():
        loss = smoothed_cross_entropy(trained(**first).logits, first["labels"], 0.1)
    log = (run / "log.json").read_text(encoding="utf-8")
    assert f'"loss": {loss.item()!r},' in log

    flow = [name for name in load_run(run)[0].state_dict() if ".flows." in name]
    assert any(load_run(run)[0].state_dict()[name].any() for name in flow), "the flow has begun to learn"


def test_the_same_model_goes_on(stage1: Path, files: Files) -> None:
    trained, tokenizer = load_run(stage1, "cpu")
    again = warm_started(config(stage1, "sinusoidal"), trained, "stage 1")
    valid = pairs(files["valid"])
    losses = (np.concatenate(token_losses(model, tokenizer, valid)) for model in (again, trained))
    np.testing.assert_array_equal(*losses)


def test_a_clock_leaves_the_outputs_of_the_encoding_that_it_drives(stage1: Path) -> None:
    torch.manual_seed(0)
    plain = FloaterForConditionalGeneration(config(stage1, "rotary", pairs="half")).eval()
    driven = config(stage1, "rotary", pairs="half", clock={"per": "pair"})
    ids = torch.arange(3, 13).view(2, 5)
    outputs = [
        model.eval()(ids, decoder_input_ids=ids.flip(1)).logits
        for model in (plain, warm_started(driven, plain, "stage 1"))
    ]
    assert torch.equal(*outputs)
    for other in (config(stage1, "rotary", clock={}), config(stage1, "alibi", clock={})):
        with pytest.raises(DataError, match="stage 1 has"):
            warm_started(other, plain, "stage 1")


def test_a_driven_flow_starts_as_rotary(stage1: Path) -> None:
    torch.manual_seed(0)
    plain = FloaterForConditionalGeneration(config(stage1, "rotary", base=500.0)).eval()
    driven = warm_started(config(stage1, "floater_cde", base=500.0), plain, "stage 1").eval()
    ids = torch.arange(3, 13).view(2, 5)
    outputs = [model(ids, decoder_input_ids=ids.flip(1)).logits for model in (plain, driven)]
    torch.testing.assert_close(*outputs)
    again = warm_started(config(stage1, "floater_cde", base=500.0, std=0.02), driven, "stage 1").eval()
    assert torch.equal(again(ids, decoder_input_ids=ids.flip(1)).logits, outputs[1])
    for options, message in (
        ({}, "stage 1 has the position option base 500.0, not 10000.0"),
        ({"base": 500.0, "positions": False}, "'rotary', which 'floater_cde' cannot continue"),
    ):
        with pytest.raises(DataError, match=message):
            warm_started(config(stage1, "floater_cde", **options), plain, "stage 1")


def test_models_that_do_not_continue_each_other_are_refused(stage1: Path, trained: Path) -> None:
    plain, flow = load_run(stage1, "cpu")[0], load_run(trained, "cpu")[0]
    for position in ("learned", "none", "rnn"):
        with pytest.raises(DataError, match=f"'sinusoidal', which '{position}' cannot continue"):
            warm_started(config(stage1, position), plain, "stage 1")
    with pytest.raises(DataError, match="'sinusoidal', which 'floater' cannot continue"):
        warm_started(config(stage1, "floater", injection="add"), plain, "stage 1")
    with pytest.raises(DataError, match="'floater', which 'sinusoidal' cannot continue"):
        warm_started(config(trained, "sinusoidal"), flow, "stage 1")
    with pytest.raises(DataError, match=r"has the position option delta 0.1, not 0.2"):
        warm_started(config(trained, "floater", delta=0.2), flow, "stage 1")
    warm_started(config(trained, "floater", refresh_every=2, injection="qkv"), flow, "stage 1")
    for name, value in (("num_attention_heads", 4), ("activation_function", "gelu"), ("attention", "linear")):
        other = FloaterConfig(**(config(stage1, "floater").to_dict() | {name: value}))
        with pytest.raises(DataError, match=f"stage 1 has {name} .*, not {value!r}"):
            warm_started(other, plain, "stage 1")
    untied = config(stage1, "sinusoidal").to_dict() | {"tie_word_embeddings": False}
    two = warm_started(FloaterConfig(**untied), plain, "stage 1")
    with pytest.raises(DataError, match="stage 1 has tie_word_embeddings False"):
        warm_started(config(stage1, "floater"), two, "stage 1")
    wide = FloaterConfig(**(config(stage1, "floater").to_dict() | {"intermediate_size": 65}))
    with pytest.raises(
        DataError, match=r"does not fit: encoder.blocks.0.feed_forward.inner.weight is \(64, 32\)"
    ):
        warm_started(wide, plain, "stage 1")


def table_config(length: int, **changes: Any) -> FloaterConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
    return FloaterConfig(**sizes, decoder_layers=1, vocab_size=20, training_length=length, **changes)


ADDED = {"name": "floater", "injection": "add", "start": "zero"}


def test_a_flow_is_added_to_trained_tables() -> None:
    before = FloaterForConditionalGeneration(table_config(16, position="learned")).eval()
    ids = torch.randint(3, 20, (2, 16))
    for length in (16, 24):
        after = warm_started(table_config(length, position=["learned", ADDED]), before, "stage 1").eval()
        with torch.no_grad():
            expected, actual = (model(ids, decoder_input_ids=ids).logits for model in (before, after))
            assert torch.equal(actual, expected)
            after(torch.randint(3, 20, (2, length)), decoder_input_ids=ids)
    old, new = before.encoder.position.table(0).weight, after.encoder.position.parts[0].table(0).weight
    assert torch.equal(new[:16], old)
    torch.testing.assert_close(new[16:], fit_flow(old.detach())(torch.arange(16.0, 24.0).double()).float())
    with pytest.raises(DataError, match=r"tables.0.weight is \(16, 16\) there and \(8, 16\) here"):
        warm_started(table_config(8, position=["learned", ADDED]), before, "stage 1")


@pytest.mark.parametrize(
    "parts", [["rotary", ADDED], ["learned", "floater"], ["learned", "learned"], ["learned", ADDED, "alibi"]]
)
def test_other_compositions_do_not_continue_tables(parts: list[Any]) -> None:
    before = FloaterForConditionalGeneration(table_config(16, position="learned"))
    with pytest.raises(DataError, match="'learned', which 'compose' cannot continue; valid: that model and"):
        warm_started(table_config(16, position=parts), before, "stage 1")
    options = {"name": "learned", "blocks": "all"}
    with pytest.raises(DataError, match="has the position option blocks 'input', not 'all'"):
        warm_started(table_config(16, position=[options, ADDED]), before, "stage 1")


def test_a_decoder_of_another_encoding_goes_on_with_the_same_one_only() -> None:
    apart = {"position": "learned", "decoder_position": "floater"}
    before = FloaterForConditionalGeneration(table_config(16, **apart))
    after = warm_started(table_config(16, **apart), before, "stage 1")
    assert torch.equal(
        after.decoder.blocks[0].attention.query.weight, before.decoder.blocks[0].attention.query.weight
    )
    for changes, message in (
        ({"position": "learned"}, "'floater' in its decoder, which 'learned' cannot continue"),
        ({"position": ["learned", ADDED]}, "'learned' in its encoder, which 'compose' cannot continue"),
        (apart | {"decoder_position_options": {"delta": 0.5}}, "position option delta 0.1, not 0.5"),
    ):
        with pytest.raises(DataError, match=message):
            warm_started(table_config(16, **changes), before, "stage 1")


def test_a_warm_start_has_its_own_vocabulary(tmp_path: Path, stage1: Path, files: Files) -> None:
    def asked(vocabulary: Path) -> TranslationSettings:
        data = {"vocabulary": str(vocabulary)}
        return settings(tmp_path, files, "stage2", data=data, training={"warm_start": str(stage1)})

    vocabulary_before = load_run(stage1, "cpu")[1].get_vocab()
    actual = TASK.processor(asked(stage1), tmp_path / "stage2", pairs(files["train"]))
    assert actual.get_vocab() == vocabulary_before
    train_bpe(["another text"], 280).save_pretrained(tmp_path / "other")
    with pytest.raises(DataError, match=r"data.vocabulary, .*other, is not that of training.warm_start"):
        TASK.processor(asked(tmp_path / "other"), tmp_path / "stage2", pairs(files["train"]))


@pytest.mark.parametrize("size", [299, 300])
def test_another_size_of_the_vocabulary_than_that_of_the_warm_start_is_said(
    size: int, tmp_path: Path, stage1: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"data": {"vocabulary_size": size}, "training": {"warm_start": str(stage1)}}
    TASK.processor(settings(tmp_path, files, "stage2", **parts), tmp_path / "stage2", pairs(files["train"]))
    assert ("data.vocabulary_size 299 is not read" in caplog.text) == (size == 299)
