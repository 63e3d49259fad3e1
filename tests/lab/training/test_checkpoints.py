import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floater.lab.training import checkpoints, last_checkpoint
from floater.lab.training.checkpoints import (
    clear_staging,
    damaged_checkpoints,
    interrupted_checkpoints,
    keep_last,
    publish,
    remove,
    set_aside_damaged,
    staging,
)
from floater.lab.training.files import MANIFEST, damage

FILES = {"model": "weights", "state/rng": "numbers", "state/step": "count"}


def write(folder: Path, version: str = "") -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + version)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
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
            publish(staging(new), new)
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
    assert damage(left[1]) is None


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
    assert not (tmp_path / ".unfinished").exists()


def test_refuses_to_keep_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="count of checkpoints to keep is 0"):
        keep_last(tmp_path, 0)


def published(run: Path, name: str) -> Path:
    checkpoint = run / name
    write(staging(checkpoint))
    publish(staging(checkpoint), checkpoint)
    return checkpoint


def flipped(path: Path) -> None:
    """Change a bit in the middle of a file, and not its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is gone": (lambda path: (path / "state/rng").unlink(), "state/rng is missing"),
    "a part is cut": (lambda path: os.truncate(path / "model", 3), "model has another size"),
    "a bit has flipped": (lambda path: flipped(path / "state/step"), "state/step has changed"),
    "a part is a directory": (
        lambda path: ((path / "model").unlink(), (path / "model").mkdir()),
        "model is missing",
    ),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "manifest.json is missing"),
    "a cut manifest": (lambda path: os.truncate(path / MANIFEST, 9), "manifest.json is not JSON"),
    "an empty manifest": (lambda path: (path / MANIFEST).write_text("{}"), "manifest.json lists no files"),
    "a manifest of another kind": (
        lambda path: (path / MANIFEST).write_text('{"model": 3}'),
        "model has another size",
    ),
    "a deep manifest": (
        lambda path: (path / MANIFEST).write_text("[" * 10**5),
        "manifest.json is not JSON",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_checkpoint_that_is_not_whole_is_set_aside(tmp_path: Path, name: str) -> None:
    published(tmp_path, "checkpoint-2")
    broken = published(tmp_path, "checkpoint-4")
    assert set_aside_damaged(tmp_path) == {}
    break_, reason = DAMAGES[name]
    break_(broken)
    damages = set_aside_damaged(tmp_path)
    assert list(damages) == [broken]
    assert damages[broken].startswith(reason)
    assert checkpoints(tmp_path) == [tmp_path / "checkpoint-2"]
    assert damaged_checkpoints(tmp_path) == [tmp_path / "damaged-checkpoint-4"]


def test_resumes_from_the_later_of_a_scheduled_and_an_interrupted_checkpoint(tmp_path: Path) -> None:
    early = published(tmp_path, "interrupted-3")
    due = published(tmp_path, "checkpoint-4")
    assert last_checkpoint(tmp_path) == due
    late = published(tmp_path, "interrupted-5")
    assert last_checkpoint(tmp_path) == late
    assert checkpoints(tmp_path) == [due]
    assert interrupted_checkpoints(tmp_path) == [early, late]
