"""The command as a process: packages that are missing, pipes, full disks and interruptions."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floater.errors import install
from floater.lab.cli import main

PROGRAM = [sys.executable, "-m", "floater"]


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
from floater.lab.cli import main
sys.exit(main(sys.argv[2:]))
"""


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    done = without("docstring_parser", "train", "mine.yaml", "run=new")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "docstring_parser" in done.stderr
    assert done.stderr.endswith(f"{install('lab')}\n")


def test_models_are_shown_without_the_packages_for_training() -> None:
    extra = "accelerate,babel,datasets,docstring_parser,matplotlib,sacrebleu,sacremoses,tensorboard"
    done = without(extra, "models", "floater")
    assert (done.returncode, done.stderr) == (0, "")
    assert "floater" in done.stdout


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "configs"], stdout=writer, stderr=subprocess.PIPE, timeout=600, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_output_on_a_full_disk_is_an_error_of_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "configs"], stdout=full, stderr=subprocess.PIPE, timeout=600, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"floater: No space left on device\n")


def test_an_interrupted_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    for command, message in {
        "models": "start it again",
        "train x": "resume from its last checkpoint",
    }.items():
        name, *words = command.split()
        monkeypatch.setattr(f"floater.lab.cli.commands.{name}.run", interrupted)
        assert main([name, *words]) == 130
        assert message in capsys.readouterr().err


def test_an_interruption_that_an_import_turns_into_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where torch drops it while it imports NumPy."""

    def imports(*arguments: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr("floater.lab.cli.commands.models.run", imports)
    assert main(["models"]) == 130
    said = capsys.readouterr().err
    assert said.startswith("floater: stopped by SIGINT")
    assert said.count("\n") == 1


def test_a_mistake_of_the_program_is_not_called_one_of_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("this is a bug")

    monkeypatch.setattr("floater.lab.cli.commands.models.run", broken)
    with pytest.raises(ValueError, match="this is a bug"):
        main(["models"])
