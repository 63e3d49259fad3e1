"""Properties of every task and of its settings."""

from pathlib import Path

import pytest

from floater import PositionError
from floater.settings import SettingsError, make, undocumented
from floater.tasks import registry, task


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_every_setting_is_explained(name: str) -> None:
    assert undocumented(task(name).Settings) == []


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_settings_name_their_task(name: str) -> None:
    """A configuration may leave it out only where it is the default of all."""
    assert task(name).name == name
    assert task(name).Settings.__dataclass_fields__["task"].default == name


def test_a_task_that_is_not_there_is_named_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="here: unknown task 'tagger'; did you mean 'tagging'"):
        task("tagger", "here")


@pytest.mark.parametrize("name", [{}, [], 3, None])
def test_a_task_that_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(SettingsError, match=r"here: unknown task .*; there are: translation"):
        task(name, "here")


@pytest.mark.parametrize("name", ["translation", "language_modeling", "events", "documents"])
def test_a_task_without_trees_refuses_an_encoding_of_them_before_data_are_read(
    name: str, tmp_path: Path
) -> None:
    """There are no data in the directory."""
    pair = {"train_source": "a", "train_target": "b", "valid_source": "c", "valid_target": "d"}
    data = {"translation": pair, "language_modeling": {"train": "a", "valid": "b"}}.get(name, {"train": "a"})
    tree = {"run": str(tmp_path / "run"), "data": data, "model": {"preset": "tiny", "position": "tree"}}
    settings = make(task(name).Settings, tree | {"training": {"max_tokens": 4096}}, "mine.yaml")
    with pytest.raises(PositionError, match="'tree' reads a tree, and there is none"):
        task(name).check(settings)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("documents", {"train": "a"}),
        ("events", {"train": "a"}),
        ("generated", {"problem": "copy"}),
        ("image_classification", {}),
        ("tagging", {"train": "a", "valid": "b"}),
    ],
)
def test_every_task_takes_a_list_of_position_encodings(name: str, data: dict[str, str]) -> None:
    model = {"preset": "tiny", "position": ["sinusoidal", "alibi"]}
    made = make(task(name).Settings, {"run": "run", "data": data, "model": model}, "mine.yaml")
    assert made.model.position == "compose"
