"""The tables of "How far does it go?" and of the protocol are those of the stored scores."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import far
import protocol

EXAMPLES = sorted(far.HERE.glob("*/*.npz"))


@pytest.mark.parametrize("name", far.TABLES)
def test_a_table_is_that_of_the_scores(name: str) -> None:
    assert far.table(far.TABLES[name]) in far.PAGE.read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda path: path.stem)
def test_scores_follow_from_the_stored_examples(examples: Path) -> None:
    assert far.check(examples.with_suffix(".csv")) == []


def test_a_score_that_does_not_follow_from_the_examples_is_named(tmp_path: Path) -> None:
    arrays = {"none/1/lengths/lengths": np.array([3, 90]), "none/1/lengths/exact": np.array([[1, 1], [0, 1]])}
    np.savez(tmp_path / "study.npz", **arrays)
    line = {"model": "none", "seed": 1, "test": "lengths", "metric": "exact", "low": 0, "high": 80}
    for score, wrong in ((100.0, 0), (50.0, 1)):
        with (tmp_path / "study.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*line, "score"])
            writer.writeheader()
            writer.writerow({**line, "score": score})
        assert len(far.check(tmp_path / "study.csv")) == wrong


def test_the_registered_test_is_paired_by_seed_and_corrected() -> None:
    """Against scipy's paired test, with Holm's factor of the smaller of two p values."""
    from scipy.stats import ttest_rel

    flow, mlp, alibi = [88.0, 87.0, 90.0, 86.0, 89.0], [87.0, 88.5, 88.0, 86.5, 87.0], [60.0, 64, 59, 61, 66]
    trials = {
        (name, rate, seed): {-1: loss, 0: 99.0, 80: 2 * score, 140: score}
        for name, scores in (("floater_relative", flow), ("distance_mlp", mlp), ("alibi", alibi))
        for rate, loss in (("1e-3", 1.0), ("2e-3", 0.5))
        for seed, score in zip(protocol.SEEDS, scores, strict=True)
    }
    assert set(protocol.chosen(trials).values()) == {"2e-3"}
    rows = {line.split("|")[1].strip(): line for line in protocol.table(trials).splitlines()[2:]}
    differences = [x - y for x, y in zip(flow, mlp, strict=True)]
    p, cells = f"{ttest_rel(flow, mlp).pvalue:.3f}", rows["`distance_mlp`"].split(" | ")
    assert cells[-4:-2] == [far.spread(differences, 1), p]
    assert cells[-2:] == [far.spread([1.5 * x for x in differences], 1), f"{p} |"]  # the mean of 80+ and 140+
    trials = {key: value for key, value in trials.items() if key[0] != "alibi"}
    trials |= {
        ("t5", "2e-3", seed): {-1: 0.5, 0: 99.0, 80: 2 * score, 140: score - 1}
        for seed, score in zip(protocol.SEEDS, mlp, strict=True)
    }
    row = next(line for line in protocol.table(trials).splitlines() if "`t5`" in line)
    assert f"| {2 * ttest_rel(flow, [x - 1 for x in mlp]).pvalue:.3f} |" in row


def test_longer_trainings_take_the_place_of_shorter_ones() -> None:
    """Beside the others, in the same tests; the registered table has those of the plan alone."""
    scores = {-1: 0.5, 0: 99.0, 80: 90.0, 140: 80.0}
    names = ("floater_relative", "alibi", "alibi-3000", "alibi-6000", "t5", "t5-3000")
    trials = {(name, "2e-3", seed): dict(scores) for name in names for seed in protocol.SEEDS}
    kinds = [{name for name, _, _ in protocol.with_steps(trials, most)} for most in (0, 3000, protocol.MORE)]
    assert kinds == [
        {"floater_relative", "alibi", "t5"},
        {"floater_relative", "alibi-3000", "t5-3000"},
        {"floater_relative", "alibi-6000", "t5-3000"},
    ]
    assert "`alibi`, 6,000 steps" in protocol.table(protocol.with_steps(trials, protocol.MORE))
