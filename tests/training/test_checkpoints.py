import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floater.training import checkpoints, last_checkpoint
from floater.training.checkpoints import clear_staging, keep_last, publish, remove, staging

FILES = {"model": "weights", "state/rng": "numbers", "state/step": "count"}


def write(folder: Path, version: str = "") -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + version)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def is_whole(folder: Path) -> bool:
    return any(contents(folder) == {k: v + version for k, v in FILES.items()} for version in ("", "2"))


def killed_at(event: int, work: Callable[[], None]) -> bool:
    """Do work in a process killed at a given one of its accesses to files; whether it was killed."""
    child = os.fork()
    if child == 0:
        left = event

        def hook(name: str, _: tuple[Any, ...]) -> None:
            nonlocal left
            if name == "open" or name.startswith(("os.", "shutil.")):
                left -= 1
                if left == -1:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_killed_at_any_moment_every_checkpoint_is_whole(tmp_path: Path) -> None:
    for event in range(1000):
        run = tmp_path / str(event)
        for step in (2, 4, 6):
            write(run / f"checkpoint-{step}")

        def save(run: Path = run) -> None:
            clear_staging(run)
            new = run / "checkpoint-6"
            write(staging(new), "2")
            publish(new)
            keep_last(run, 1, always=[run / "checkpoint-2"])

        killed = killed_at(event, save)
        left = checkpoints(run)
        assert left[0].name == "checkpoint-2"
        assert all(is_whole(path) for path in left), event
        clear_staging(run)
        assert sorted(run.iterdir()) == sorted(left)
        if not killed:
            break
    assert event > 30  # the loop went through the whole save
    assert [path.name for path in left] == ["checkpoint-2", "checkpoint-6"]
    assert contents(left[1]) == {name: text + "2" for name, text in FILES.items()}


def test_lists_by_step_and_only_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-100", "checkpoint-x", "a-checkpoint-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-200").write_text("a file")
    write(staging(tmp_path / "checkpoint-300"))
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-100",
    ]
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    assert last_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("count", "always", "left"),
    [
        (1, [], [9]),
        (2, [], [7, 9]),
        (2, [1], [1, 9]),
        (1, [1], [1, 9]),
        (9, [], [1, 3, 7, 9]),
        (3, [9], [3, 7, 9]),
    ],
)
def test_keeps_the_last_and_the_best(tmp_path: Path, count: int, always: list[int], left: list[int]) -> None:
    for step in (1, 3, 7, 9):
        write(tmp_path / f"checkpoint-{step}")
    keep_last(tmp_path, count, always=[tmp_path / f"checkpoint-{step}" for step in always])
    assert checkpoints(tmp_path) == [tmp_path / f"checkpoint-{step}" for step in left]


def test_removes_after_an_interrupted_removal(tmp_path: Path) -> None:
    write(tmp_path / ".unfinished" / "removed-checkpoint-1")
    write(tmp_path / "checkpoint-1")
    remove([tmp_path / "checkpoint-1"])
    assert not list((tmp_path / ".unfinished").iterdir())


def test_refuses_to_keep_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="count of checkpoints to keep is 0"):
        keep_last(tmp_path, 0)
