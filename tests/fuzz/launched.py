"""Commands in processes with other environments and standard streams, and small runs that they act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from floater.lab.cli import main
from launchers import set_stream
from processes import in_process

from .fuzzing import Silent

LIMIT = 240.0  # seconds until a command is taken for stuck


@dataclass(frozen=True)
class Ended:
    """A command that is over: its exit code, and what it printed on open streams."""

    code: int | None
    text: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.replace("\r", "\n").splitlines() if line.strip()]


def command(arguments: list[str], streams: Mapping[int, str]) -> int:
    """Run the command line with standard streams in other states."""
    for number, state in streams.items():
        set_stream(number, state)
    return main(arguments)


def launch(
    folder: Path, *arguments: str, streams: Mapping[int, str] | None = None, **variables: str
) -> Ended:
    """Run a command in a process, and check that it ends in time and without a traceback.

    Raises:
        RuntimeError: if it is stuck, or prints a traceback.
    """
    said = folder / "said.txt"
    code = in_process(command, list(arguments), streams or {}, said=said, seconds=LIMIT, **variables)
    ended = Ended(code, said.read_text(errors="replace"))
    if code == -9:
        raise RuntimeError(f"{arguments} is stuck: {ended.lines[-3:]}")
    if "Traceback" in ended.text:
        raise RuntimeError(f"{arguments} ends with code {code} and a traceback: {ended.text[-2000:]}")
    return ended


def is_refusal(ended: Ended) -> bool:
    """Return whether a command refused with exit code 2 and one line, after lines of its log.

    Raises:
        RuntimeError: if it failed in another way.
    """
    if ended.code == 0:
        return False
    if ended.code != 2 or not ended.lines or not ended.lines[-1].startswith("floater: "):
        raise RuntimeError(f"exit code {ended.code} without a line: {ended.lines[-3:]}")
    return True


def tree_of(run: Path) -> dict[str, Any]:
    """Return the configuration of a run of six steps that takes a second."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    return {
        "task": "generated",
        "run": str(run),
        "data": {"problem": "reverse", "lengths": [3, 5], "train": 60, "valid": 4, "test": 4, "symbols": 9},
        "model": {"position": "floater", "max_length": 96, "changes": sizes},
        "training": {
            "max_steps": 6,
            "save_steps": 3,
            "warmup_steps": 3,
            "max_tokens": 256,
            "average_last": 2,
        },
    }


def write(tree: dict[str, Any], path: Path) -> str:
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def same_weights(run: Path, whole: Path, what: str = "") -> None:
    """Check that a run has the weights of one that nothing happened to.

    Raises:
        Silent: if it has none, or others.
    """
    if not (run / "model").is_dir() or weights(run) != weights(whole):
        names = sorted(path.name for path in run.glob("*"))
        raise Silent(f"{what}: exit code 0, and the model is not that of a whole run, in {names}")
