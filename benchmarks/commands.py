"""Commands in separate processes, small runs, and a tally of their outcomes: see reliability.py."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from floater.lab.cli import main as floater
from launchers import set_stream

LIMIT = 120.0  # seconds of a command
_WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from floater.lab.cli import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass
class Command:
    """A command in a separate process.

    Args:
        arguments: arguments of `floater`.
        limits: resource limits, as for `resource.setrlimit`; core dumps are off in any case.
        without: a package that is hidden from the process, which then starts a new Python.
        streams: states of standard streams by their number; see `launchers.STREAMS`.
        environment: changed environment variables.
        locks: the error of `flock`, as on a file system without locks; 0 for one that has them.
    """

    arguments: list[str]
    limits: dict[int, int] = field(default_factory=dict)
    without: str = ""
    streams: Mapping[int, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    locks: int = 0

    def __post_init__(self) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(writing)
        os.close(writing)
        self.began, self.output = time.monotonic(), b""
        self.reader = threading.Thread(target=self._read, args=(reading,))
        self.reader.start()

    def _be(self, writing: int) -> None:
        code = 70
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for kind, limit in self.limits.items():
                resource.setrlimit(kind, (limit, limit))
            os.environ.update(self.environment)
            for number, state in self.streams.items():
                set_stream(number, state)
            if self.locks:
                fcntl.flock = self._no_locks
            if self.without:
                os.execv(sys.executable, [sys.executable, "-c", _WITHOUT, self.without, *self.arguments])
            code = floater(self.arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 2
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def _no_locks(self, *_: object) -> None:
        raise OSError(self.locks, os.strerror(self.locks))

    def _read(self, reading: int) -> None:
        with open(reading, "rb") as file:
            self.output = file.read()

    def wait(self, seconds: float = LIMIT) -> bool:
        """Wait for its end for a number of seconds; return whether it has ended."""
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.reader.join()
                return True
            if time.monotonic() - self.began >= seconds:
                return False
            time.sleep(0.005)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")

    def finish(self, seconds: float = LIMIT) -> Command:
        """Wait for its end, or kill it when it takes too long."""
        if not self.wait(seconds):
            self.send(signal.SIGKILL)
            self.wait(math.inf)
            self.output += b"\ntook too long"
        return self

    @property
    def lines(self) -> list[str]:
        return [line for line in re.split(r"[\r\n]+", self.text) if line.strip()]

    @property
    def is_line(self) -> bool:
        """Return whether it ended with one line for the user; logs and bars may precede it."""
        return (
            self.lines[-1:] != [] and self.lines[-1].startswith("floater: ") and "Traceback" not in self.text
        )


@dataclass
class Tally:
    """The results of the cases of a part of the campaign.

    Args:
        name: name of the part.
        meaning: description of a case.
        cases: number of cases.
        lost: runs that did not end, or not with the weights of an undisturbed one.
        silent: wrong results with exit code 0.
        tracebacks: commands that ended with a traceback.
        notes: the first lines of errors, and numbers to report.
        told: runs whose final model is a mean without a damaged checkpoint, as their log states.
    """

    name: str
    meaning: str
    cases: int = 0
    lost: int = 0
    silent: int = 0
    tracebacks: int = 0
    notes: list[str] = field(default_factory=list)
    told: int = 0

    def see(self, command: Command, what: str) -> None:
        """Count a traceback, or an end without a line."""
        if "Traceback" in command.text or (command.code not in (0, -signal.SIGKILL) and not command.is_line):
            self.tracebacks += 1
            self.notes.append(f"{what}: exit code {command.code}: {' '.join(command.lines[-1:])[:300]}")


class Runs:
    """Small runs in a directory, which differ only in name, and the weights that they end with.

    Args:
        folder: an empty directory.
        position: the encoding.
    """

    def __init__(self, folder: Path, position: str = "sinusoidal") -> None:
        folder.mkdir(parents=True)
        self.folder, self.config = folder, folder / "run.yaml"
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
        steps = {"max_steps": 24, "save_steps": 4, "logging_steps": 2, "warmup_steps": 3, "max_tokens": 256}
        tree = {
            "task": "generated",
            "run": str(folder / "whole"),
            "data": {
                "problem": "reverse",
                "lengths": [3, 5],
                "train": 200,
                "valid": 8,
                "test": 4,
                "symbols": 9,
            },
            "model": {"position": position, "max_length": 96, "changes": sizes | {"dropout": 0.1}},
            "training": steps | {"learning_rate": 5e-3, "save_total_limit": 2, "average_last": 2},
        }
        self.config.write_text(yaml.safe_dump(tree))
        began = time.monotonic()
        whole = self.train("whole").finish()
        self.seconds = time.monotonic() - began
        if whole.code:
            raise RuntimeError(whole.text)
        self.weights = self.weights_of("whole")

    def train(self, name: str, **limits: Any) -> Command:
        return Command(["train", str(self.config), f"run={self.folder / name}"], **limits)

    def stopped(self, name: str) -> None:
        """Train a run that is killed once it has checkpoints of two steps."""
        command = self.train(name)
        while not (self.folder / name / "checkpoint-8").is_dir():
            if command.wait(0):
                raise RuntimeError(command.text)
            time.sleep(0.001)
        command.send(signal.SIGKILL)
        command.finish()

    def weights_of(self, name: str) -> bytes:
        return (self.folder / name / "model" / "model.safetensors").read_bytes()

    def is_refused(self, name: str, command: Command, tally: Tally, what: str) -> bool:
        """Count a run that is over, remove it, and return whether it was refused in one line."""
        tally.cases += 1
        if not (command.code == 2 and command.is_line):
            self.judge(name, command, tally, what)
            return False
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return True

    def judge(self, name: str, command: Command, tally: Tally, what: str) -> None:
        """Count a run that is over, and remove it."""
        tally.see(command, what)
        done = (self.folder / name / "model" / "model.safetensors").is_file()
        if not done or command.code:
            tally.lost += 1
            tally.notes.append(f"{what}: no model, exit code {command.code}: {command.text[-200:]!r}")
        elif self.weights_of(name) != self.weights and "the final model is a mean without" in command.text:
            tally.told += 1  # the checkpoint to resume from is damaged, and the one before it was deleted
        elif self.weights_of(name) != self.weights:
            tally.lost += 1
            tally.silent += 1
            tally.notes.append(f"{what}: other weights")
        shutil.rmtree(self.folder / name, ignore_errors=True)


def small_study(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a study of two trials, without its folder."""
    return {
        "task": "generated",
        "settings": settings,
        "models": {"none": {}, "sinusoidal": {}},
        "seeds": [1],
        "samples": 100,
        "figures": [],
        "tests": {"same": {}},
        "budget": {"cores": 1, "trial_memory": 2.0},
    }
