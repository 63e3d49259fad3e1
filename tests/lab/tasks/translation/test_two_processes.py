"""Two processes train the run that one trains with twice the accumulation."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from .conftest import Files
from .small import SIZES, settings, train, write_config


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def samples(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("  translation ")]


@pytest.mark.slow
def test_two_processes_train_the_run_of_one(
    tmp_path: Path, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {
        # a model that is not tied has many things to say before it is trained
        "model": {"changes": SIZES | {"dropout": 0.0, "tie_word_embeddings": False}},
        "training": {
            "max_steps": 3,
            "save_steps": 3,
            "eval_steps": 3,
            "average_last": 1,
            "max_tokens": 300,
            "samples": 7,
        },
    }
    config = write_config(tmp_path, files, "two", **parts)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "floater", "train", str(config)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training pairs") == 1
    assert done.stderr.count(": validation loss ") == 1
    assert len(list((tmp_path / "two" / "tensorboard").iterdir())) == 1

    parts["training"]["gradient_accumulation_steps"] = 2
    train(settings(tmp_path, files, "one", **parts))
    assert samples(done.stderr) == samples(capsys.readouterr().err)
    assert len(set(samples(done.stderr))) > 3, "the test needs translations that differ"
    one, two = (read(tmp_path / name / "log.json") for name in ("one", "two"))
    assert [entry["step"] for entry in two] == [entry["step"] for entry in one]
    for expected, actual in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "eval_loss", "eval_bleu"):
            if name in expected:  # sums in another order
                assert actual[name] == pytest.approx(expected[name], rel=1e-4)
    assert read(tmp_path / "two" / "result.json")["bleu"] == read(tmp_path / "one" / "result.json")["bleu"]

    expected, actual = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, weight in expected.items():
        # Adam divides by the size of the gradient, so that rounding shows in elements with hardly any
        torch.testing.assert_close(actual[name], weight, rtol=0, atol=2e-3)
