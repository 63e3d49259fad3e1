"""Study scores of solvers of generated tasks, against `evaluate`."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from floater.flow import FlowInaccurate, solve
from floater.lab.tasks import task
from floater.lab.tasks.generated.data import encode, generate, vocabulary
from floater.lab.tasks.generated.score import score
from floater.lab.tasks.generated.settings import Data
from floater.transformer import FloaterConfig, FloaterForCausalLM

from .small import settings

TASK = task("generated")
train, evaluate, measure = TASK.train, TASK.evaluate, TASK.measure


@pytest.mark.parametrize("problem", ["reverse", "listops"])
def test_it_has_the_scores_of_evaluate_in_each_bin(tmp_path: Path, problem: str) -> None:
    data = {"problem": problem, "lengths": [3, 5] if problem == "reverse" else [4, 8]}
    run = train(settings(tmp_path, data=data))
    edges = (6, 12, 24) if problem == "reverse" else (9, 17, 33)
    actual = measure(run, edges)
    rows = [line.split() for line in str(evaluate(run, bins=edges)).splitlines()[1:-1]]
    assert len(rows) == 4
    for name, examples, exact, tokens in rows:
        low, high = map(int, name.split("-"))
        chosen = (actual.lengths >= low) & (actual.lengths <= high)
        assert chosen.sum() == int(examples)
        scores = [actual.score(metric, chosen) for metric in ("exact", "tokens")]
        assert scores == pytest.approx([float(exact), float(tokens)], abs=0.006)  # rounded there
    assert actual.position_tokens.sum() == actual.statistics["loss"][:, 1].sum()
    assert {*actual.metrics} == {*TASK.metrics}


def test_a_loss_that_is_not_a_number_is_not_reported_as_zero() -> None:
    data = Data("copy")
    tokenizer = vocabulary(data)
    model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=len(tokenizer)))
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    actual = score(model, encode(generate(data, "test", 3, (1, 4)), tokenizer, classifies=False)).scores
    assert math.isnan(actual["loss"])
    assert actual["exact"] == 0.0


def test_bins_that_are_refused_have_no_scores_and_a_note(tmp_path: Path) -> None:
    run = train(settings(tmp_path, model={"position": "learned", "max_length": 30}))
    actual = measure(run, (6, 12, 24))
    reached = actual.lengths < 12
    assert actual.score("exact", reached) is not None
    assert actual.score("exact", actual.lengths >= 24) is None
    assert actual.score("exact") is None
    assert any(note.startswith("lengths 24 to 40 are refused: ") for note in actual.notes)


def test_bins_where_the_flow_misses_its_tolerance_are_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(settings(tmp_path, model={"position": "floater"}))

    def short(field: Any, start: Any, times: Any, **options: Any) -> Any:
        if len(times) > 20:
            raise FlowInaccurate(2.0, 7.0)
        return solve(field, start, times, **options)

    monkeypatch.setattr("floater.flow.encoder.solve", short)
    edges = (6, 12, 24)
    actual = measure(run, edges)
    assert actual.score("exact", actual.lengths < 6) is not None
    assert actual.score("exact", actual.lengths >= 24) is None
    assert any("24 to 40 are refused: collocation missed its tolerance" in note for note in actual.notes)
    assert "collocation missed" in str(evaluate(run, bins=edges)).splitlines()[-2]
