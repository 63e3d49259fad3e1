"""A whole training: what is written, averaged, logged and stopped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.translation.data import TokenPairs
from floater.lab.tasks.translation.decode import translate_and_count
from floater.lab.tasks.translation.settings import Decoding
from floater.lab.tasks.translation.validation import validate
from floater.lab.training import average, checkpoints
from floater.transformer.stacks import Decoder

from .conftest import Files
from .small import TASK, equal, evaluate, load_run, pairs, settings, train


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_the_final_model_is_the_mean_of_the_last_checkpoints(trained: Path) -> None:
    assert [path.name for path in checkpoints(trained)] == ["checkpoint-8", "checkpoint-12"]
    assert equal(weights(trained), average(checkpoints(trained)))
    assert not equal(weights(trained), average(checkpoints(trained)[-1:]))
    assert read(trained / "result.json")["averaged"] == ["checkpoint-8", "checkpoint-12"]


def test_the_final_model_translates_with_a_cache(
    trained: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_run(trained, "cpu")
    lengths: list[int] = []
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda self, x, *args: (lengths.append(x.shape[1]), forward(self, x, *args))[1]
    )
    translate_and_count(model, tokenizer, pairs(files["valid"]).source, TASK.settings_of(trained).decoding)
    assert len(lengths) > 1
    assert set(lengths) == {1}
    assert model.config.use_cache


def test_the_log_has_every_step_and_validation(trained: Path) -> None:
    log, result = read(trained / "log.json"), read(trained / "result.json")
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 13))
    assert losses[-1] < losses[0]
    validations = [entry for entry in log if "eval_bleu" in entry]
    assert [entry["step"] for entry in validations] == [2, 4, 6, 8, 10, 12]
    assert result["best_valid_bleu"] == max(entry["eval_bleu"] for entry in validations)
    assert (result["steps"], result["minutes"]) == (12, log[-1]["minutes"])
    assert [entry["minutes"] for entry in log] == sorted(entry["minutes"] for entry in log)
    assert log[-1]["minutes"] > 0


def test_the_result_holds_the_validation_of_the_final_model(trained: Path, files: Files) -> None:
    model, tokenizer = load_run(trained, "cpu")
    examples = TokenPairs.of(pairs(files["valid"]), tokenizer)
    actual = validate(model, tokenizer, examples, TASK.settings_of(trained).decoding, "de")
    assert read(trained / "result.json").items() >= actual.scores.items()
    _, cut = translate_and_count(
        model, tokenizer, pairs(files["valid"]).source, TASK.settings_of(trained).decoding
    )
    assert read(trained / "result.json")["cut_translations"] == cut


def test_a_validation_compares_texts_in_the_form_in_which_vocabularies_write(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_run(trained, "cpu")
    examples = TokenPairs.of(Pairs(["Spain"], ["fu\u0308r die sto\u0308renden Ko\u0308che"], 0), tokenizer)
    monkeypatch.setattr(
        "floater.lab.tasks.translation.validation.translate_and_count",
        lambda *_: (["für die störenden Köche"], 0),
    )
    actual = validate(model, tokenizer, examples, TASK.settings_of(trained).decoding, "de")
    assert actual.scores["bleu"] == 100
    assert actual.signatures["bleu"].endswith("|norm:nfc")


def test_a_validation_counts_translations_that_do_not_end_and_has_the_limit_of_the_tests(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = set[float]()

    def watched(
        model: Any, tokenizer: Any, lines: Any, decoding: Decoding, fields: Any
    ) -> tuple[list[str], int]:
        limits.add(decoding.max_ratio)
        return translate_and_count(model, tokenizer, lines, decoding, fields)

    monkeypatch.setattr("floater.lab.tasks.translation.validation.translate_and_count", watched)
    monkeypatch.setattr("floater.lab.tasks.translation.decode.MARGIN", 1)
    one = {"max_steps": 1, "eval_steps": 1, "save_steps": 1}
    run = train(settings(tmp_path, files, "run", training=one, decoding={"max_ratio": 0.5}))
    assert limits == {0.5}
    (validation,) = [entry for entry in read(run / "log.json") if "eval_bleu" in entry]
    assert validation["eval_cut_translations"] == len(pairs(files["valid"]).source)  # hardly trained


def test_tensorboard_has_the_losses(trained: Path) -> None:
    events = EventAccumulator(str(trained / "tensorboard")).Reload()
    actual = [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")]
    log = [(entry["step"], entry["loss"]) for entry in read(trained / "log.json") if "loss" in entry]
    assert actual == [(step, pytest.approx(loss)) for step, loss in log]  # float32 there
    assert "eval/bleu" in events.Tags()["scalars"]


def test_a_finished_run_is_not_touched(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "floater")
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert train(TASK.settings_of(trained)) == trained
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before
    assert "is finished" in caplog.text


def test_validation_does_not_change_the_training(tmp_path: Path, trained: Path, files: Files) -> None:
    never = train(settings(tmp_path, files, "never"))
    assert equal(weights(never), weights(trained))  # which was validated every second step
    assert not any("eval_bleu" in entry for entry in read(never / "log.json"))
    assert read(never / "result.json").keys().isdisjoint({"bleu", "loss"})


def test_epochs_count_validations_and_checkpoints(tmp_path: Path, files: Files) -> None:
    by_epoch = {"max_steps": None, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    by_epoch |= {"eval_steps": None, "save_steps": None}
    run = train(settings(tmp_path, files, "run", training=by_epoch))
    log, steps = read(run / "log.json"), read(run / "result.json")["steps"]
    validations = [entry for entry in log if "eval_bleu" in entry]
    assert [(entry["epoch"], entry["step"]) for entry in validations] == [(1, steps // 2), (2, steps)]
    assert [path.name for path in checkpoints(run)] == [f"checkpoint-{steps // 2}", f"checkpoint-{steps}"]


def test_bfloat16_has_nearly_the_losses_of_float32(tmp_path: Path, trained: Path, files: Files) -> None:
    run = train(settings(tmp_path, files, "run", training={"bf16": True, "max_steps": 3, "average_last": 1}))
    expected, actual = (
        [entry.get("loss") for entry in read(path / "log.json")][:3] for path in (trained, run)
    )
    assert actual != expected[:3]
    assert actual[0] == pytest.approx(expected[0], rel=2**-7)  # its eight digits


def scored(monkeypatch: pytest.MonkeyPatch, *bleu: float) -> None:
    """Let the validations of a training have these scores, in turn."""
    actual = (Measurement(scores={"loss": 1.0, "bleu": score}, lines=[""] * 7) for score in bleu)
    monkeypatch.setattr(TASK, "validate", lambda prepared: next(actual))


def test_patience_ends_a_training(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scored(monkeypatch, 1.0, 3.0, 2.0, 3.0, 9.0)
    patient = {"eval_steps": 2, "save_steps": 2, "early_stopping_patience": 2, "average_last": 1}
    run = train(settings(tmp_path, files, "run", training=patient))
    result = read(run / "result.json")
    assert (result["steps"], result["best_valid_bleu"], result["averaged"]) == (8, 3.0, ["checkpoint-8"])

    # killed after its last checkpoint: the run is at its end, and trains no further
    (run / "model").rename(tmp_path / "model")
    assert train(settings(tmp_path, files, "run", training=patient)) == run
    assert equal(weights(run), load_file(tmp_path / "model" / "model.safetensors"))
    assert read(run / "result.json")["steps"] == 8
    ended = "training.early_stopping_patience=2 ended the training there: no further step is trained"
    assert ended in caplog.messages, "one that is to train for longer says why it does not"


def test_a_score_ends_a_training(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    scored(monkeypatch, 1.0, 2.0, 3.0, 9.0)
    stopping = {"eval_steps": 2, "save_steps": 2, "stop_score": 3.0, "average_last": 0}
    run = train(settings(tmp_path, files, "run", training=stopping))
    result = read(run / "result.json")
    assert (result["steps"], result["best_valid_bleu"], result["averaged"]) == (6, 3.0, ["checkpoint-6"])


def test_without_an_average_the_best_validation_is_the_final_model(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, 1.0, 3.0, 2.0, 2.5, 2.0, 1.0)
    best = {"eval_steps": 2, "save_steps": 2, "average_last": 0, "save_total_limit": 2}
    run = train(settings(tmp_path, files, "run", training=best))
    assert [path.name for path in checkpoints(run)] == ["checkpoint-4", "checkpoint-12"]
    assert read(run / "result.json")["averaged"] == ["checkpoint-4"]
    assert equal(weights(run), average([run / "checkpoint-4"]))


def test_patience_that_ends_before_a_checkpoint_leaves_one(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, 3.0, 2.0, 1.0)
    patient = {"eval_steps": 1, "save_steps": 1000, "early_stopping_patience": 1, "average_last": 1}
    run = train(settings(tmp_path, files, "run", training=patient))
    assert read(run / "result.json")["averaged"] == ["checkpoint-2"]


def test_a_run_that_was_moved_after_its_last_checkpoint_is_finished(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, 1.0, 3.0, 2.0, 2.5, 2.0, 1.0, 1.0)
    best = {"eval_steps": 2, "save_steps": 2, "average_last": 0}
    run = train(settings(tmp_path, files, "run", training=best))
    wanted = weights(run)
    (run / "model").rename(tmp_path / "model")
    run.rename(tmp_path / "moved")
    again = train(settings(tmp_path, files, "moved", training=best))
    assert read(again / "result.json")["averaged"] == ["checkpoint-4"]
    assert equal(weights(again), wanted)


@pytest.mark.parametrize("log_every", [1, 50])
def test_a_training_that_diverges_says_so(tmp_path: Path, files: Files, log_every: int) -> None:
    wild = {
        "model": {"position": "sinusoidal"},
        "training": {"learning_rate": 1e30, "logging_steps": log_every},
    }
    for _ in range(2):  # it does not end otherwise when it is started again
        with pytest.raises(DataError, match=r"the loss is nan at step 3; .* lower training.learning_rate"):
            train(settings(tmp_path, files, "run", **wild))
        assert not (tmp_path / "run" / "model").exists()


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
@pytest.mark.parametrize("position", ["rnn_transformer", "convolution"])
def test_what_has_no_cache_translates_without_one(
    tmp_path: Path, files: Files, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floater.lab.tasks.translation.decode.MARGIN", 3)
    changes = {
        "model": {"position": position},
        "training": {"max_steps": 2, "save_steps": 2, "average_last": 1},
    }
    run = train(settings(tmp_path, files, "run", **changes))
    source, reference = files["test"]
    assert len(evaluate(run, source, reference=reference).lines) == 8


def test_a_batch_of_examples_has_any_number_of_tokens(tmp_path: Path, files: Files) -> None:
    few = {"max_steps": 1, "save_steps": 1, "average_last": 1}
    run = train(
        settings(tmp_path, files, "run", training={**few, "per_device_train_batch_size": 2, "max_tokens": 4})
    )
    assert read(run / "result.json")["steps"] == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"position": "tree"}}, "reads a tree"),
        (
            {"training": {"lr_scheduler_type": "linear", "warmup_steps": 50}},
            "warmup_steps is 50; it must be below the training's 12 steps",
        ),
        (
            {"training": {"max_tokens": 9}},
            r"a training pair, line \d+ of \S+, has \d+ tokens, more than training.max_tokens, 9",
        ),
        (
            {"model": {"position": "learned", "max_length": 9}},
            r"a training pair, line \d+ of \S+train\S+, has \d+ tokens, more than the learned positions of "
            r"model.max_length, 9",
        ),
        (
            {"model": {"position": "learned", "max_length": 4}},
            r"a training pair, .* more than the learned positions of model.max_length, 4",
        ),
        (
            {"model": {"position": "learned", "max_length": 9}, "data": {"max_tokens": 9}},
            r"a validation pair, line \d+ of \S+valid\S+, has \d+ tokens, more than the learned positions",
        ),
        ({"training": {"warm_start": "nothing"}}, "nothing holds no trained model"),
        ({"data": {"vocabulary": "nothing"}}, "nothing: no tokenizer can be read"),
        ({"data": {"valid_source": "nothing"}}, "nothing: cannot be read"),
    ],
)
def test_nothing_is_written_before_all_is_known_to_fit(
    tmp_path: Path, files: Files, parts: dict[str, Any], message: str
) -> None:
    with pytest.raises((DataError, PositionError), match=message):
        train(settings(tmp_path, files, "run", **parts))
    assert not (tmp_path / "run").exists()


def test_a_pair_too_long_is_found_in_its_file(tmp_path: Path, files: Files) -> None:
    """Pairs with an empty side, which are skipped, count among its lines."""
    source, target = tmp_path / "en", tmp_path / "de"
    source.write_text("a\n\nb\n" + "long " * 700 + "\nc\n")
    target.write_text("A\n\nB\nLang\nC\n")
    data = {
        "train_source": [str(files["train"][0]), str(source)],
        "train_target": [str(files["train"][1]), str(target)],
    }
    with pytest.raises(DataError, match=rf"a training pair, line 4 of {source}, has"):
        train(settings(tmp_path, files, "run", data=data))
