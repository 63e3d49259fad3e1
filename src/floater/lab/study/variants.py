"""Variants of position models, and their trials, one for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIALS, PLAN, COST = "trials", "plan.json", "cost.json"


@dataclass(frozen=True)
class Variant:
    """A position model at some blocks, whose trials differ only in the seed.

    Args:
        name: name of the model, followed by the labels on the study's axes, such as `blocks`, if it has any.
        model: name of the model in the study's configuration.
        position: name of the encoding in the catalogue; "" where the task trains a checkpoint, which has its
            positions already.
        options: options of the position model.
        seeds: seeds of its trainings.
        start: name of the variant from whose trials these start; None for a start from scratch.
        labels: labels on the axes that are compared, axis by axis.
        tuned: label on the axis that is tuned, the end of the name; None without such an axis.
    """

    name: str
    model: str
    position: str
    options: Mapping[str, Any]
    seeds: Sequence[int]
    start: str | None = None
    labels: tuple[str, ...] = ()
    tuned: str | None = None

    @property
    def key(self) -> str:
        """Return the name without the tuned label, by which the variant is compared."""
        return self.name if self.tuned is None else self.name.removesuffix(f"-{self.tuned}")

    @property
    def base_name(self) -> str:
        """Return the name without the labels on the axes."""
        return self.key.removesuffix("".join(f"-{label}" for label in self.labels))


@dataclass(frozen=True)
class Trial:
    """One training.

    Args:
        variant: the variant.
        seed: seed of the training.
        settings: settings of the run, of the task's class.
        folder: the study's folder.
    """

    variant: Variant
    seed: int
    settings: Any
    folder: Path

    @property
    def name(self) -> str:
        """Return the name of the variant and the seed."""
        return f"{self.variant.name}-{self.seed}"

    @property
    def run(self) -> Path:
        """Return its run directory."""
        return self.folder / TRIALS / self.name

    @property
    def config(self) -> Path:
        """Return the path of the configuration that trains it again with `floater train`."""
        return self.run.with_name(f"{self.name}.yaml")

    @property
    def log(self) -> Path:
        """Return the path of its log."""
        return self.run.with_name(f"{self.name}.log")

    @property
    def error(self) -> Path:
        """Return the path of its last error, if it failed."""
        return self.run.with_name(f"{self.name}.error")

    @property
    def after(self) -> str | None:
        """Return the trial that must be finished first."""
        return None if self.variant.start is None else f"{self.variant.start}-{self.seed}"


def last_error(trial: Trial) -> str:
    """Return the last error of a failed trial."""
    try:
        return trial.error.read_text(encoding="utf-8").strip()
    except OSError:
        return f"it ended without a message; see {trial.log}"
