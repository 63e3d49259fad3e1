"""The disk space and the memory that training needs, by arithmetic, before it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn

from floater.errors import DataError
from floater.lab.training.run import MODEL
from floater.lab.training.settings import TrainingSettings

_FLOAT = 4  # bytes: weights, gradients and moments are float32, also with bf16
_MOMENTS = 2  # of Adam, for each trained weight


@dataclass(frozen=True)
class Needs:
    """Bytes that training needs besides its examples and activations.

    Args:
        model: weights of the models at the end: the final one, and the best if it is kept, too.
        checkpoint: a checkpoint, with Adam's moments.
        state: weights, gradients and moments in the memory of each process.
        checkpoints: maximum number of checkpoints on the disk, one that is being written included.

    Example:
        >>> needs = Needs.of(1000, 1000, TrainingSettings(save_total_limit=5))
        >>> needs.model, needs.checkpoint, needs.state, needs.checkpoints, needs.disk
        (4000, 12000, 16000, 6, 76000)
    """

    model: int
    checkpoint: int
    state: int
    checkpoints: int

    @classmethod
    def of(cls, parameters: int, trained: int, training: TrainingSettings) -> Needs:
        """Return the needs of a training run.

        Args:
            parameters: number of parameters.
            trained: number of those that are trained.
            training: settings of the training.
        """
        model, moments = _FLOAT * parameters, _FLOAT * _MOMENTS * trained
        return cls(
            model=model * (1 + training.keep_best),
            checkpoint=model + moments,
            state=model + moments + _FLOAT * trained,
            checkpoints=kept_checkpoints(training) + 1,
        )

    @property
    def disk(self) -> int:
        """Return the bytes on the disk at most: checkpoints and the final model."""
        return self.checkpoints * self.checkpoint + self.model


def kept_checkpoints(training: TrainingSettings) -> int:
    """Return the number of checkpoints of a finished training: the last, the best and those of keep_steps.

    Example:
        >>> kept_checkpoints(TrainingSettings(save_total_limit=1, average_last=0))
        2
    """
    best_and_last = 1 if training.average_last else 2
    kept = max(training.save_total_limit, best_and_last) + training.keep_best
    return kept + len(training.keep_steps)


def needs_of(model: nn.Module, training: TrainingSettings) -> Needs:
    """Return the needs of the training of a model, whose tensors may be on the device "meta"."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return Needs.of(sum(parameter.numel() for parameter in parameters), trained, training)


def check_room(run: Path, needs: Needs) -> str:
    """Return a line about the disk and the memory that a run needs, unless there is clearly too little.

    Args:
        run: directory of the run, which exists; what it holds already counts as free.
        needs: needs of its training.

    Raises:
        DataError: if the disk or the memory does not suffice.
    """
    disk = max(0, needs.disk - held(run))
    parts = f" (up to {needs.checkpoints} checkpoints of {size(needs.checkpoint)} and a model)"
    fewer = "keep fewer (training.save_total_limit, training.keep_steps), make room"
    free = free_for(
        disk, run, f"{run} will take {size(disk)}{parts}", f"{fewer}, or choose another disk (run=...)"
    )
    memory, where = _memory()
    if needs.state > memory:
        raise DataError(
            f"weights, gradients and moments take {size(needs.state)} of memory, and {where} has "
            f"{size(memory)}: take a smaller model, or another device"
        )
    return (
        f"will write up to {size(disk)} to {run} ({free}); {size(needs.state)} of memory for "
        "weights, gradients and moments, besides activations"
    )


def free_for(needed: int, folder: Path, what: str, hint: str) -> str:
    """Return the free space of a disk in words, unless it does not suffice.

    Args:
        needed: bytes to be written.
        folder: directory on the disk.
        what: beginning of the refusal: what takes how much.
        hint: its end: what to do.

    Raises:
        DataError: if there is less room than needed.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(f"{what}, and {size(free)} are free: {hint}")
    return f"{size(free)} are free"


def held(folder: Path) -> int:
    """Return the bytes of the checkpoints and the model that the directory of a run holds already."""
    paths = (*folder.glob("checkpoint-*/*"), *folder.glob(f"{MODEL}/*"))
    return sum(path.stat().st_size for path in paths if path.is_file())


def _memory() -> tuple[int, str]:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, "the GPU"
    return int(psutil.virtual_memory().total), "this machine"


def size(bytes: float) -> str:
    """Return a number of bytes in a unit of a suitable size.

    Example:
        >>> size(4000), size(1.9e9), size(3.9e12), size(12.3e9)
        ('0.004 MB', '1.9 GB', '3.9 TB', '12 GB')
    """
    unit, name = next((each for each in ((1e12, "TB"), (1e9, "GB")) if bytes >= each[0]), (1e6, "MB"))
    return f"{bytes / unit:.2g} {name}" if bytes < 99.5 * unit else f"{bytes / unit:,.0f} {name}"
