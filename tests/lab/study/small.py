"""Studies that take seconds: the built-in corpus, small Transformers, a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from floater.lab.settings import make
from floater.lab.study import launch, run, trial
from floater.lab.study.local_launcher import Started
from floater.lab.study.settings import StudySettings
from floater.lab.study.variants import Trial

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
SMALL_MODEL = {"preset": "tiny", "max_length": 1024, "changes": SIZES}
"""A model that is no translation model, which has a decoder, too."""
ONE_STEP = {"max_steps": 1, "eval_steps": 1, "save_steps": 1, "save_total_limit": 1, "average_last": 0}


def settings(folder: Path, **changes: Any) -> StudySettings:
    """A study of two variants and two seeds; `changes` replace keys at the top."""
    tree: dict[str, Any] = {
        "folder": str(folder),
        "settings": {
            "data": {"vocabulary_size": 290},
            "model": {"preset": "tiny", "max_length": 1024, "changes": SIZES | {"decoder_layers": 1}},
            "training": {
                "learning_rate": 1e-2,
                "warmup_steps": 3,
                "max_tokens": 600,
                "max_steps": 4,
                "eval_steps": 4,
                "save_steps": 2,
                "logging_steps": 1,
                "save_total_limit": 2,
                "average_last": 2,
                "samples": 0,
            },
            "decoding": {"beam": 1, "max_ratio": 0.01},  # an untrained model does not end its sentences
        },
        "models": {"none": {}, "sinusoidal": {}},
        "seeds": [1, 2],
        "short_to_long": {"builtin": 40, "builtin_test": 3},
        "samples": 100,
    }
    return make(StudySettings, tree | changes, "small")


def scores(folder: Path) -> str:
    """Return the table of scores of a study."""
    return (folder / "scores.csv").read_text(encoding="utf-8")


class Inline:
    """A launcher that runs each trial at once, in this process."""

    slots = 1

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, chosen: Trial) -> Started:
        self.started.append(chosen.name)
        threads = torch.get_num_threads()  # a trial sets those of its process, which is this one
        try:
            return _Ended(trial.attempt(chosen.folder, chosen.name))
        finally:
            torch.set_num_threads(threads)


def run_inline(patch: pytest.MonkeyPatch, *, report: bool = True, files: bool = False) -> Inline:
    """Let studies run their trials in this process, and write reports only if these are looked at.

    The files of their figures, which take most of the time, only with `files`: the page has the same figures.
    """
    inline = Inline()
    patch.setattr(run, "choose_launcher", lambda *_: inline)
    patch.setattr(launch, "POLL", 0)
    if not report:
        patch.setattr(run, "write_report", lambda *_: None)
    elif not files:
        patch.setattr("floater.lab.study.figures.save", lambda *_: None)
    return inline


class _Ended:
    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def interrupt(self) -> None:
        raise AssertionError("it has ended")

    def stop(self) -> None:
        raise AssertionError("it has ended")
