"""Tables of measurements: what is printed, and what is stored beside the pages."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = ["dim", "solver", "ms"]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(
        sys, "argv", ["benchmarks/flow.py", "--few", "--csv", "docs/performance", "--dims", "8"]
    )
    return SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "stored.py")))


def test_rows_are_printed_while_they_are_measured(
    stored: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows():
        yield ["128", "rk4", "20"]
        assert "| 128 | rk4 | 20 |" in capsys.readouterr().out
        yield ["128", "dopri5", "9"]

    stored.show(COLUMNS, rows())
    assert capsys.readouterr().out == "| 128 | dopri5 | 9 |\n"


def test_a_measurement_replaces_its_row_where_it_is(stored: SimpleNamespace, tmp_path: Path) -> None:
    """Other rows, and goals, stay; command and commit are those of the measurement."""
    old = {"command": "python benchmarks/flow.py", "commit": "28a23ed"}
    rows = [
        {"dim": dim, "solver": solver, "ms": "99", "goal": "50"} | old
        for dim in ("128", "512")
        for solver in ("rk4", "dopri5")
    ]
    stored.write(tmp_path / "solvers.csv", rows)
    stored.show(COLUMNS, [["128", "dopri5", "7"], ["1024", "rk4", "8"]], tmp_path, "solvers", keys=2)
    first, changed, *same, new = stored.read(tmp_path / "solvers.csv")
    assert [first, *same] == [rows[0], *rows[2:]]
    where = {"command": "python benchmarks/flow.py --few --dims 8", "commit": stored.commit()}
    assert changed == {"dim": "128", "solver": "dopri5", "ms": "7", "goal": "50"} | where
    assert new == {"dim": "1024", "solver": "rk4", "ms": "8", "goal": ""} | where


def test_a_table_with_other_columns_is_refused_before_anything_is_measured(
    stored: SimpleNamespace, tmp_path: Path
) -> None:
    stored.write(tmp_path / "solvers.csv", [{"dim": "128", "ms": "99"}])
    rows = ([str(1 / 0)] for _ in range(1))
    with pytest.raises(SystemExit, match=r"solvers\.csv has no column solver"):
        stored.show(COLUMNS, rows, tmp_path, "solvers")


def test_the_folder_of_the_tables_exists(stored: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    stored.add_csv(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--csv", "docs/performence"])
    assert "docs/performence is no folder" in capsys.readouterr().err
