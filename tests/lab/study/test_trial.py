"""Records of a trial: its scores, and the costs of its training."""

import os
from pathlib import Path

import numpy as np
import pytest

from floater.lab.study import tables, trial
from floater.lab.study.trial import _cost as cost
from floater.lab.tasks.measurement import Measurement
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterForConditionalGeneration


@pytest.mark.parametrize(("periods", "counted"), [("component", 64), ("word", 500), ("both", 64 * 500)])
def test_position_parameters_are_those_of_the_model(tmp_path: Path, periods: str, counted: int) -> None:
    """As of those that have some for each word of the vocabulary."""
    options = {"periods": periods}
    config = FloaterConfig.preset("tiny", vocab_size=500, position="complex", position_options=options)
    model = FloaterForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    actual = cost(tmp_path)
    assert actual["position_parameters"] == counted
    assert actual["parameters"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("position", "stack"), [("rnn", 2 * 128 * 128 + 128), ("sinusoidal", 0)])
def test_a_stack_is_counted_without_its_starting_vectors(tmp_path: Path, position: str, stack: int) -> None:
    """As in Table 6 of Liu et al. 2020: an RNN over vectors has two matrices and a bias."""
    options = {"input": "vector", "blocks": "all"} if position == "rnn" else {}
    config = FloaterConfig.preset("tiny", vocab_size=50, position=position, position_options=options)
    FloaterForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    actual = cost(tmp_path)
    assert actual["position_parameters_of_a_stack"] == stack
    starts = 2 * 2 * 128 if stack else 0  # of two blocks in each stack
    assert actual["position_parameters"] == 2 * stack + starts
    shown = f"{2 * stack + starts:,} ({stack:,})" if stack else "0"
    assert tables._positions(actual).text == shown


def test_scores_are_on_the_disk_before_the_record_that_vouches_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    trial._write(tmp_path, "news", {}, Measurement(np.array([3]), {"exact": np.ones((1, 2))}), 1.0)
    arrays, record = (tmp_path / trial.MEASURED / f"news.{suffix}" for suffix in ("npz", "json"))
    assert synced == [arrays.stat().st_ino, record.stat().st_ino]
    assert trial.read(tmp_path, "news").score("exact") == 100.0
