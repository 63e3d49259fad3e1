"""The configurations that come with the library, and what one may say."""

import logging
import shlex
from pathlib import Path

import pytest

from floater.encodings import PositionError
from floater.lab.settings import dump, load
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from floater.lab.tasks.settings import Model

ROOT = Path(__file__).parents[4]
CONFIGS = sorted((ROOT / "configs" / "language_modeling").glob("*.yaml"))


def test_configurations_come_with_the_library() -> None:
    assert [path.stem for path in CONFIGS] == ["causal", "masked", "memory", "tupe"]
    configs = [load(LanguageModelingSettings, path) for path in CONFIGS]
    assert [(actual.objective, actual.data.memory) for actual in configs] == [
        ("causal", 0),
        ("masked", 0),
        ("causal", 64),
        ("masked", 0),
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_first_line_of_a_configuration_is_its_command(path: Path, tmp_path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    hash_, program, command, named, *overrides = shlex.split(first)
    assert (hash_, program, command, named) == ("#", "floater", "train", str(path.relative_to(ROOT)))
    settings = load(LanguageModelingSettings, path, overrides)
    assert settings == load(LanguageModelingSettings, path)
    (tmp_path / "config.yaml").write_text(dump(settings), encoding="utf-8")
    assert load(LanguageModelingSettings, tmp_path / "config.yaml") == settings


def test_a_length_that_is_refused_is_all_that_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with pytest.raises(PositionError, match=r"'learned' has 8 positions, but data\.block is 32"):
        Model(position="learned", max_length=8).check_reach(32, "data.block is 32")
    assert not caplog.records
