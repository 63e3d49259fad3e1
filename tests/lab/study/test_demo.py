"""The demo in miniature."""

import functools
import re
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
        settings.settings["model"]["changes"] |= SIZES | {"decoder_layers": 1}
        if fails:
            settings.settings["training"]["max_tokens"] = 1
        return settings

    monkeypatch.setattr(demo, "settings", smaller)
    run_inline(monkeypatch, files=True)
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


def test_the_descriptions_have_the_number_of_its_models_and_its_minutes() -> None:
    """And the title of its report, the help of its command, and the pages that name it."""
    root = Path(__file__).parents[3]
    number = {3: "three", 4: "four", 5: "five"}[len(demo.MODELS)]
    (minutes,) = re.findall(r"about (\d+) minutes", " ".join((demo.demo.__doc__ or "").split()))
    described = {
        "README.md": rf"make demo\b.*train {number} position encodings .*: {minutes} minutes on two cores",
        "docs/start.md": rf"`make demo` trains {number} translation models .*: {minutes} minutes on two",
        "docs/reference/cli.md": rf"`floater demo` \| trains {number} encodings",
        "src/floater/lab/cli/commands/demo.py": rf"^...Train {number} position .*: {minutes} minutes on two",
        "src/floater/lab/study/demo.py": rf"^...`floater demo`: {number} position encodings",
    }
    for page, words in described.items():
        assert re.search(words, (root / page).read_text(encoding="utf-8")), f"{page}: {words}"
    assert demo.settings(Path("demo")).title.startswith(number.capitalize())
