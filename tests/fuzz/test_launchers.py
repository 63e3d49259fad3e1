"""Environments of launchers, and standard streams that are closed, full or not read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchers import STREAMS, VARIABLES, single

from .fuzzing import Refused, Silent, checked
from .launched import is_refusal, launch, same_weights, tree_of, write


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    ended = launch(folder, "train", write(tree_of(folder / "run"), folder / "run.yaml"))
    assert ended.code == 0, ended.text
    return folder / "run"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def trained(folder: Path, whole: Path, **options: Any) -> bool:
    """Train the run anew in another environment; return whether it was refused."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    ended = launch(folder, "train", write(tree_of(folder / "run"), folder / "run.yaml"), **options)
    if is_refusal(ended):
        return True
    same_weights(folder / "run", whole)
    return False


@given(st.data())
@checked("Launchers' environments", 2)
def test_an_environment_is_served_or_refused(whole: Path, folder: Path, data: Any) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(VARIABLES)), min_size=1, max_size=6, unique=True))
    variables = single({name: data.draw(st.sampled_from(VARIABLES[name]), label=name) for name in names})
    if trained(folder, whole, **variables):
        raise Refused("refused")


@given(
    st.sampled_from(["models", "train", "evaluate"]),
    st.tuples(*[st.sampled_from(STREAMS)] * 3),
)
@checked("Standard streams", 2)
def test_streams_that_are_closed_full_or_not_read_lose_nothing(
    whole: Path, folder: Path, name: str, states: tuple[str, str, str]
) -> None:
    """A training that ends with 0 has its model, whatever its streams are; lost results are no success."""
    streams = dict(enumerate(states))
    if name == "train":
        shutil.rmtree(folder / "run", ignore_errors=True)
        arguments = [write(tree_of(folder / "run"), folder / "run.yaml")]
    else:
        arguments = {"models": ["alibi"], "evaluate": [str(whole / "model")]}[name]
    ended = launch(folder, name, *arguments, streams=streams)
    if ended.code == 0 and name == "train":
        same_weights(folder / "run", whole)
    elif ended.code == 0 and states[1] == "full":
        raise Silent(f"{name} ends with exit code 0, and its results are lost on a full disk")
    elif ended.code not in (0, 1, 2, 141):  # 1: an end without its message; 141: SIGPIPE
        raise RuntimeError(f"{name} ends with exit code {ended.code}: {ended.lines[-2:]}")
