"""The measurements on a GPU, at toy sizes on whatever there is."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"))


@pytest.mark.slow
def test_toy_sizes_are_measured(gpu: dict, capsys: pytest.CaptureFixture[str]) -> None:
    gpu["main"](["--toy", "--encodings", "rotary,t5"])
    printed = capsys.readouterr().out
    for name, rows in (("solve_times", 2), ("step_times", 6), ("speeds", 4), ("flex_speeds", 2)):
        part = printed.split(f"\n{name}\n")[1].split("\n\n")[0]
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len(lines) == rows + 2
        assert len({line.count("|") for line in lines}) == 1
        assert all(re.search(r"\d", line) for line in lines[2:])


def test_rows_that_do_not_fit_are_named(gpu: dict, capsys: pytest.CaptureFixture[str]) -> None:
    gpu["main"](["--toy", "--minutes", "0", "--encodings", "alibi"])
    missing = capsys.readouterr().err.splitlines()
    assert "not measured: `alibi` at 16" in missing
    assert len(missing) == 2 + 6 + 2 + 2


def test_toy_sizes_are_not_stored(gpu: dict, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        gpu["main"](["--toy", "--csv", str(tmp_path)])
    assert "no results to store" in capsys.readouterr().err
