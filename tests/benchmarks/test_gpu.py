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
def test_toy_sizes_are_measured_and_said_to_be_no_results(gpu: dict, tmp_path: Path) -> None:
    gpu["main"](["--toy", "--encodings", "rotary,stick_breaking", "--page", str(tmp_path / "toy.md")])
    page = (tmp_path / "toy.md").read_text()
    assert "nothing was measured on CUDA" in page
    for title, rows in (("Solves", 2), ("Training steps", 6), ("Encodings", 4)):
        part = page.split(f"## {title}\n")[1].split("\n## ")[0]
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len(lines) == rows + 2
        assert len({line.count("|") for line in lines}) == 1
        assert all(re.search(r"\d", line) for line in lines[2:])


def test_the_page_says_that_nothing_was_measured(gpu: dict, tmp_path: Path) -> None:
    gpu["main"](["--unmeasured", "--page", str(tmp_path / "gpu.md")])
    assert (tmp_path / "gpu.md").read_text() == (ROOT / "docs" / "gpu.md").read_text()
    with pytest.raises(SystemExit):
        gpu["main"](["--toy"])
