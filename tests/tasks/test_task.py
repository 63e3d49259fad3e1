"""Properties of every task and of its settings."""

import pytest

from floater.settings import SettingsError, undocumented
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
