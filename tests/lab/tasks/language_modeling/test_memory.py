"""Training with a memory: streams of rows, resumed runs, and a text that needs more than a row."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import TrainerCallback

from floater.lab.cli import main
from floater.lab.interruption import Interrupted
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from floater.lab.tasks.language_modeling.data import Streams, stream_batch
from floater.lab.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.lab.training import StreamSampler
from floater.transformer import FloaterConfig, FloaterForCausalLM
from floater.transformer.memory import Memory

from .small import settings, write_config, write_texts

TASK = task("language_modeling")
train, evaluate = TASK.train, TASK.evaluate
LONG = {"block": 8, "memory": 16, "documents": "file"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory")
    write_texts(path)
    return path


@pytest.fixture(scope="module", params=["transformer_xl", "shortformer"])
def run(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A finished run with a memory; read only."""
    return train(settings(folder, request.param, model={"position": request.param}, data=LONG))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(8, 12), st.integers(1, 5))
def test_streams_hold_every_token_once_and_predict_all_but_the_begins(
    lengths: list[int], block: int, streams: int
) -> None:
    draw = np.random.default_rng(0)
    documents = [[draw.integers(3, 60, size=n)] for n in lengths]
    actual = Streams(documents, block, streams, begin=1)
    rows = [actual[i] for i in range(len(actual))]
    text = np.concatenate([np.append(1, document[0]) for document in documents])
    assert np.concatenate([row["input_ids"] for row in rows]).tolist() == text.tolist()
    predicted = np.concatenate([row["labels"] for row in rows])
    assert predicted[predicted != -100].tolist() == text[text != 1].tolist()
    assert all(len(row["input_ids"]) <= block for row in rows)
    owners = np.concatenate([row["document_ids"] for row in rows])
    assert (np.diff(owners) == (text[1:] == 1)).all()
    assert actual.streams <= streams
    sampler = StreamSampler(actual.lengths, actual.streams)
    for before, after in zip(list(sampler)[:-1], list(sampler)[1:], strict=True):
        assert [i + 1 for i in before] == after
        # no row but the last of a stream is short, so that a memory lines up with what comes after it
        assert all(actual.lengths[i] == block for i in before)


def test_processes_share_the_streams() -> None:
    lengths = [8] * 12
    parts = [list(StreamSampler(lengths, 4, world_size=2, rank=rank)) for rank in range(2)]
    assert parts == [[[0, 6], [1, 7], [2, 8]], [[3, 9], [4, 10], [5, 11]]]
    with pytest.raises(ValueError, match="there are 1 streams for 2 processes"):
        StreamSampler(lengths, 1, world_size=2)
    with pytest.raises(ValueError, match="5 streams"):
        StreamSampler(lengths, 5)


def test_labels_are_padded_where_rows_are_shorter() -> None:
    streams = Streams([[np.arange(5, 18)]], 8, 1, begin=1)
    batch = stream_batch([streams[0], streams[1]], pad=0)
    assert batch["attention_mask"].sum(1).tolist() == [8, 6]
    assert batch["labels"][1].tolist() == [13, 14, 15, 16, 17, -100, -100, -100]


@pytest.mark.parametrize("position", ["transformer_xl", "t5", "alibi"])
def test_a_process_whose_streams_are_a_row_shorter_goes_on(position: str) -> None:
    streams = Streams([[np.arange(5, 25)]], 10, 2, begin=1)
    assert streams.lengths == [10, 0, 10, 1]
    config = FloaterConfig.preset("tiny", vocab_size=32, position=position)
    model, memory = FloaterForCausalLM(config), Memory(5)
    for row in StreamSampler(streams.lengths, streams.streams, world_size=2, rank=0):
        batch = stream_batch([streams[i] for i in row], pad=0)
        labels = batch.pop("labels")
        logits = model(**batch, memory=memory).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert loss == 0.0


def test_a_step_reads_what_came_before_and_its_loss_is_that_of_one_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float, float]] = []
    plain = LanguageModelTrainer.compute_loss

    def compute(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        held = self.memory.length
        loss = plain(self, model, dict(inputs), *args, **kwargs)
        rows.append(inputs)
        if len(rows) == 2:
            model.train(False)
            names = ("input_ids", "labels", "document_ids", "attention_mask")
            whole = {name: torch.cat([row[name] for row in rows], 1) for name in names}
            labels = whole.pop("labels")
            with torch.no_grad():
                logits = model(**whole, use_cache=False).logits[:, -rows[1]["labels"].shape[1] :]
            wanted = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, -logits.shape[1] :].flatten()
            )
            model.train(True)
            seen.append((held, loss.item(), wanted.item()))
        return loss

    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(LanguageModelTrainer, "compute_loss", compute)
    frozen = {
        "max_steps": 2,
        "learning_rate": 1e-12,
        "initial_learning_rate": 0.0,
        "save_steps": 2,
        "eval_steps": 2,
        "average_last": 1,
    }
    model = {"position": "transformer_xl", "changes": {"num_hidden_layers": 1, "dropout": 0.0} | SMALL}
    train(settings(folder, "frozen", model=model, data=LONG, training=frozen))
    ((held, loss, wanted),) = seen
    assert held == 8
    assert loss == pytest.approx(wanted, rel=1e-5)


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}


def test_a_run_with_a_memory_learns_and_says_what_it_found(run: Path, folder: Path) -> None:
    log = json.loads((run / "log.json").read_text())
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    result = json.loads((run / "result.json").read_text())
    actual = evaluate(run, str(folder / "valid.txt"))
    assert actual.scores == {name: result[name] for name in ("loss", "perplexity", "tokens")}
    # as much as there is, in segments or in one
    long = evaluate(run, str(folder / "valid.txt"), window=16, memory=1000)
    one = evaluate(run, str(folder / "valid.txt"), window=1000, memory=0)
    assert long.nats == pytest.approx(one.nats, rel=1e-4)
    assert long.tokens == one.tokens == actual.tokens


def test_a_resumed_run_with_a_memory_ends_as_a_whole_one(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "resumed"))
    for name in ("model", "checkpoint-8", "checkpoint-12"):
        shutil.rmtree(other / name)
    train(replace(load(LanguageModelingSettings, other / "config.yaml"), run=str(other)))
    resumed, weights = (load_file(path / "model" / "model.safetensors") for path in (other, run))
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())


class Stop(TrainerCallback):
    """Ask a training to stop after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 6:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_with_a_memory_that_is_stopped_ends_as_a_whole_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(load(LanguageModelingSettings, run / "config.yaml"), run=str(tmp_path / "stopped"))
    start = LanguageModelTrainer.train

    def stopped(self: LanguageModelTrainer, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(Stop())
        return start(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelTrainer, "train", stopped)
        with pytest.raises(Interrupted, match="interrupted-6"):
            train(asked)
    resumed, weights = (load_file(path / "model" / "model.safetensors") for path in (train(asked), run))
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())


def test_a_last_batch_without_a_token_to_predict_ends_no_training(folder: Path, tmp_path: Path) -> None:
    """49 tokens in two streams: the fourth row of one is empty, that of the other is the last token alone."""
    (tmp_path / "short.txt").write_text("a" * 46)
    data = LONG | {"train": str(tmp_path / "short.txt"), "vocabulary_size": 259}
    steps = {"max_tokens": 16, "max_steps": 5, "eval_steps": 5, "save_steps": 5, "average_last": 1}
    run = train(settings(folder, "short", model={"position": "transformer_xl"}, data=data, training=steps))
    losses = [entry["loss"] for entry in json.loads((run / "log.json").read_text()) if "loss" in entry]
    assert losses[3] == 0
    assert all(loss > 0 for i, loss in enumerate(losses) if i != 3)


def test_a_batch_has_as_many_streams_as_examples(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default as many as fit into max_tokens."""
    few = {"max_steps": 1, "eval_steps": 1, "save_steps": 1, "average_last": 1}
    config = write_config(folder, "streams", model={"position": "transformer_xl"}, data=LONG, training=few)
    for overrides, streams in (
        (["training.max_tokens=24"], 3),
        (["training.per_device_train_batch_size=5"], 5),
    ):
        assert main(["train", str(config), f"run={tmp_path / str(streams)}", *overrides]) == 0
        assert f"rows of {streams} streams" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.position=sinusoidal"], "Sinusoidal adds positions to the inputs of blocks"),
        (["objective=masked"], "only a causal model has one"),
        (["data.memory=-1"], "memory is -1; it must be at least 0"),
        (["evaluation.stride=4"], "evaluation.stride is 4; with a memory there is none"),
        (
            ["model.position=dufter_relative"],
            "'dufter_relative' has 32 positions, but data.block and memory is 40",
        ),
        (
            ["training.lr_scheduler_type=linear", "training.warmup_steps=12"],
            "warmup_steps is 12; it must be below the training's 12 steps",
        ),
    ],
)
def test_what_does_not_go_with_a_memory_is_refused(
    overrides: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(folder, "bad", model={"position": "transformer_xl"}, data=LONG | {"memory": 32})
    assert main(["train", str(config), *overrides]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "bad").exists()


def test_the_command_line_takes_a_memory(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["evaluate", str(run), "--source", str(folder / "valid.txt")]
    assert main([*source, "--window", "8", "--memory", "24"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main([*source, "--stride", "4"]) == 2  # the run has one
    assert "stride is 4; with a memory of" in capsys.readouterr().err
    assert main([*source, "--window", "8", "--memory", "24", "--stride", "4"]) == 2
    assert "stride is 4; with a memory of 24 tokens there is none" in capsys.readouterr().err
