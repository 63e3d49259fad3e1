"""The demo in miniature."""

import functools
from pathlib import Path

import pytest

from floater.lab.cli import main
from floater.lab.study import demo

from .small import SIZES, run_inline


@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_demo_is_a_study_by_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    small = functools.partial(demo.settings, train=30, test=1, steps=2)

    def smaller(folder: Path) -> object:
        settings = small(folder)
        settings.settings["model"]["changes"] |= SIZES
        if fails:
            settings.settings["training"]["max_tokens"] = 1
        return settings

    monkeypatch.setattr(demo, "settings", smaller)
    run_inline(monkeypatch)
    monkeypatch.setattr("floater.lab.tasks.translation.decode.MARGIN", 3)
    assert main(["demo", "--run", str(tmp_path)]) == (1 if fails else 0)
    if fails:
        return
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("model "))
    for part in ("BLEU < 80", "BLEU 80–99", "BLEU 100–119", "BLEU 120–139", "BLEU ≥ 140", "minutes"):
        assert f"  {part}" in head
    after = lines[lines.index(head) + 1 :]
    names = ["dynamic_bias-cross", "floater_relative-cross", "floater", "sinusoidal"]
    assert [line.split(" ")[0] for line in after[:4]] == names
    assert after[4] == ""
    assert "".join(after[5:]).startswith("What to expect: floater, the encoding of the paper")
    assert (tmp_path / "report.html").is_file()
