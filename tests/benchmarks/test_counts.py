"""The counts of `benchmarks/collocation.py` are those that the page of collocation shows."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "design" / "collocation"


def stored(name: str) -> list[dict[str, str]]:
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("weights", ["small", "default", "double"])
def test_intervals_and_evaluations_are_stored(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At width 128; rounding differs between processors and may cost an interval or an iteration."""
    pytest.importorskip("torchdiffeq")
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    import collocation
    from flow import WEIGHTS

    (row,) = (
        row
        for row in stored("evaluations")
        if (row["d"], row["initial weights"]) == ("128", WEIGHTS[weights])
    )
    _, _, *cells, _, _ = row.values()
    assert list(map(float, collocation.count(128, weights))) == pytest.approx(
        list(map(float, cells)), rel=0.1, abs=1
    )
