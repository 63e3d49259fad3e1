"""Standard streams that are closed or whose reader goes away, and terminals that are closed."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from floater.lab.cli import main
from floater.lab.cli.streams import ClosedOutput, LastingStream, outliving_terminal, usable_streams

CONFIG = """\
run: {run}
task: generated
data: {{problem: copy, train: 40}}
model: {{preset: tiny, position: sinusoidal, max_length: 35}}
training: {{max_steps: 2, save_steps: 2, eval_steps: 2, warmup_steps: 1, average_last: 0}}
"""


def floater(*arguments: str, closed: Sequence[int] = (), unread: Sequence[int] = ()) -> int:
    """Run the command with streams that are closed, or pipes that nobody reads; return the exit code."""
    reader, writer = os.pipe()
    os.close(reader)

    def prepare() -> None:
        for number in unread:
            os.dup2(writer, number)
        for number in closed:
            os.close(number)

    process = subprocess.Popen([sys.executable, "-m", "floater", *arguments], preexec_fn=prepare)
    os.close(writer)
    return process.wait(300)


@pytest.mark.parametrize(
    ("closed", "unread"),
    [
        ((0, 1), (2,)),
        pytest.param((0, 2), (1,), marks=pytest.mark.slow),
        pytest.param((), (1, 2), marks=pytest.mark.slow),
        pytest.param((0, 1, 2), (), marks=pytest.mark.slow),
    ],
)
def test_a_training_is_finished_whatever_becomes_of_its_streams(
    tmp_path: Path, closed: tuple[int, ...], unread: tuple[int, ...]
) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.format(run=tmp_path / "run"))
    assert floater("train", str(tmp_path / "c.yaml"), closed=closed, unread=unread) == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", "run"}


def test_a_listing_that_nobody_reads_ends_as_other_tools_do() -> None:
    assert floater("configs", unread=[1]) == 128 + signal.SIGPIPE
    assert floater("configs", closed=[1]) == 0  # nobody asked for it


def test_a_mistake_is_told_by_the_exit_code_alone() -> None:
    assert floater("configs", "none", unread=[2]) == 2


def test_another_broken_pipe_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise BrokenPipeError

    for command in (["models"], ["init", "wmt14_base"]):
        monkeypatch.setattr(f"floater.lab.cli.commands.{command[0]}.run", broken)
        with pytest.raises(BrokenPipeError):
            main(command)


def test_text_that_cannot_be_written_is_lost_and_later_text_too(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as raw:
        stream = LastingStream(raw)
        print("read", file=stream, flush=True)
        assert os.read(reader, 9) == b"read\n"
        os.close(reader)
        for _ in range(3):
            print("lost" * 10**5, file=stream, flush=True)
        stream.writelines(["a", "b"])
        assert stream.encoding == raw.encoding


def test_a_full_disk_of_messages_ends_nothing() -> None:
    with open("/dev/full", "w") as raw:
        print("lost", file=LastingStream(raw), flush=True)


def test_streams_are_those_before_once_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    before = sys.stderr
    with usable_streams():
        assert isinstance(sys.stdout, ClosedOutput)
        print("lost", flush=True)
        sys.stdout.buffer.write(b"lost")
    assert (sys.stdout, sys.stderr) == (None, before)


@pytest.mark.parametrize(("encoding", "dash"), [("latin-1", b"\\u2013"), ("utf-8", "–".encode())])
def test_a_character_that_the_encoding_lacks_is_written_as_its_escape(
    monkeypatch: pytest.MonkeyPatch, encoding: str, dash: bytes
) -> None:
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    with usable_streams():
        print("1999–2001, Größe")
    output.flush()
    assert written.getvalue() == b"1999" + dash + f"2001, Größe{os.linesep}".encode(encoding)
    assert output.errors == "strict"


def test_a_closed_terminal_is_ignored_while_files_are_written() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with outliving_terminal():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == before


@pytest.mark.parametrize("command", ["translate", "predict"])
def test_work_whose_output_would_be_lost_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path
) -> None:
    from floater.lab.tasks import task

    of = task("translation" if command == "translate" else "glue")
    monkeypatch.setattr(f"floater.lab.cli.commands.{command}.task_of_run", lambda *_: (of, tmp_path))
    monkeypatch.setattr(sys, "stdout", None)
    assert main([command, str(tmp_path), "--source", "none"]) == 2
    assert capsys.readouterr().err == "floater: standard output is closed; name a file with --output FILE\n"


def test_a_translation_needs_an_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from floater.lab.tasks import task

    of = task("translation")
    monkeypatch.setattr(type(of), "translator", lambda *arguments, **more: list)
    monkeypatch.setattr("floater.lab.cli.commands.translate.task_of_run", lambda *_: (of, tmp_path))
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["translate", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "floater: standard input is closed; name the text with --source FILE\n"
