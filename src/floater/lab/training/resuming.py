"""Checks of a checkpoint's states before they are loaded: an intact file may be that of another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from floater.errors import DataError
from floater.flow.collocation.plan import Plan, SolverState
from floater.lab.training.files import MANIFEST

OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def random_states(processes: int) -> list[str]:
    """Return the names of the files with the states of random generators that a number of processes write."""
    return ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]


def processes_of(checkpoint: Path) -> int:
    """Return the number of processes that wrote a checkpoint; 0 if it has not the files of all of them."""
    states = {path.name for path in checkpoint.glob("rng_state*.pth")}
    return len(states) if states == {*random_states(len(states))} else 0


def check_complete(checkpoint: Path, processes: int, scaler: bool) -> None:
    """Refuse a checkpoint without a file on which the steps that follow depend; the Trainer ignores it.

    Args:
        checkpoint: directory of the checkpoint.
        processes: number of processes that are to resume from it.
        scaler: whether losses are scaled, as in float16.

    Raises:
        DataError: a file is missing.
    """
    names = [TRAINER_STATE_NAME, OPTIMIZER, SCHEDULER, *random_states(processes), *[SCALER] * scaler]
    if (checkpoint / MANIFEST).exists():  # other Trainers write neither a manifest nor these
        names += [f"step_state_{rank}.pth" for rank in range(processes)]
    for name in names:
        if not (checkpoint / name).is_file():
            raise DataError(
                f"{checkpoint} has no {name}, without which training would not continue identically; remove "
                f"{checkpoint.name} to resume from the checkpoint before it"
            )


def check_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    """Refuse the saved state of another optimizer, as a fused kernel does not check shapes and types.

    Args:
        checkpoint: directory with ``optimizer.pt``.
        optimizer: optimizer that is to load the state.

    Raises:
        DataError: groups, names, shapes or types are not those of the optimizer's parameters.
    """
    file = checkpoint / OPTIMIZER
    saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    if not (isinstance(saved, dict) and _are(saved.get("param_groups"), dict)):
        raise _misfit(file, "it holds no state of an optimizer")
    groups, state = saved["param_groups"], saved.get("state")
    if [_count(group) for group in groups] != [len(group["params"]) for group in optimizer.param_groups]:
        raise _misfit(file, "its groups have other numbers of parameters")
    for mine, group in zip(optimizer.param_groups, groups, strict=True):
        for name in mine.keys() | group.keys():
            if not _alike(mine.get(name), group.get(name)):
                raise _misfit(file, f"{name} of a group is {group.get(name)!r}, not as {mine.get(name)!r}")
    indices = [index for group in groups for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_index = dict(zip(indices, parameters, strict=True))
    if len(by_index) != len(parameters) or not isinstance(state, dict) or state.keys() - by_index.keys():
        raise _misfit(file, "its parameters are not those of its groups")
    for index, values in state.items():
        if not isinstance(values, dict) or values.keys() != next(iter(state.values())).keys():
            raise _misfit(file, f"the state of parameter {index} has other names than that of the first")
        for name, value in values.items():
            _check_value(file, f"{name} of parameter {index}", value, by_index[index])


def _check_value(file: Path, name: str, value: Any, parameter: Tensor) -> None:
    if not isinstance(value, Tensor):
        if not (value is None or isinstance(value, int | float)):
            raise _misfit(file, f"{name} is a {type(value).__name__}")
        return
    scalar = value.ndim == 0
    shape, dtype = ((), torch.float32) if scalar else (parameter.shape, parameter.dtype)
    if value.shape != shape or value.dtype != dtype or value.layout != torch.strided:
        raise _misfit(file, f"{name} is {_kind(value)}, where its weight is {_kind(parameter)}")
    # an expanded tensor has the right shape, but too small a storage
    if value.untyped_storage().nbytes() < value.numel() * value.element_size():
        raise _misfit(file, f"{name} has less memory than {tuple(value.shape)} needs")


def check_scheduler(checkpoint: Path, scheduler: LRScheduler) -> None:
    """Refuse the saved state of another learning rate schedule.

    Args:
        checkpoint: directory with ``scheduler.pt``.
        scheduler: scheduler that is to load the state.

    Raises:
        DataError: names, types or the number of rates are not those of the schedule.
    """
    file = checkpoint / SCHEDULER
    saved, expected = torch.load(file, map_location="cpu", weights_only=True), scheduler.state_dict()
    if not isinstance(saved, dict) or saved.keys() != expected.keys():
        raise _misfit(file, "it holds no state of this schedule")
    for name, value in expected.items():
        if not _alike(value, saved[name]):
            raise _misfit(file, f"{name} is {saved[name]!r}, not as {value!r}")


def check_weights(checkpoint: Path, model: nn.Module) -> None:
    """Refuse saved weights whose types differ from the model's; `load_weights` checks shapes.

    Args:
        checkpoint: directory with ``model.safetensors``; without this file nothing is checked.
        model: model that is to load the weights.

    Raises:
        DataError: a tensor has another type than in the model.
    """
    file = checkpoint / SAFE_WEIGHTS_NAME
    if not file.is_file():
        return
    expected = model.state_dict()
    with safe_open(file, framework="pt") as weights:
        for name in expected.keys() & set(weights.keys()):
            dtype = weights.get_slice(name).get_dtype()
            if expected[name].is_floating_point() and _DTYPES.get(dtype) != expected[name].dtype:
                raise _misfit(file, f"{name} is {dtype}, not {expected[name].dtype}")


def check_trainer_state(checkpoint: Path, step: int, state: TrainerState) -> None:
    """Refuse a Trainer state of another step, or with a log from which a run cannot resume.

    Args:
        checkpoint: directory from which the state was read.
        step: step in the name of the checkpoint.
        state: state as it was read.

    Raises:
        DataError: a number is missing, or has another type.
    """
    log: Any = state.log_history
    best: Any = state.best_global_step
    if not isinstance(state.global_step, int) or state.global_step != step:
        raise _misfit(checkpoint, f"its state is that of step {state.global_step!r}")
    if not _are(log, dict) or not all(
        isinstance(entry.get(name), int | float) for entry in log for name in ("minutes", "step")
    ):
        raise _misfit(checkpoint, "its log has entries without minutes or step")
    for name in ("epoch", "total_flos", "num_input_tokens_seen"):
        if not isinstance(value := getattr(state, name), int | float):
            raise _misfit(checkpoint, f"its {name} is {value!r}")
    if not (best is None or isinstance(best, int)) or not isinstance(state.best_metric, float | int | None):
        raise _misfit(checkpoint, f"its best step is {best!r}, with {state.best_metric!r}")


def solver_states(file: Path, saved: Any, count: int) -> list[SolverState]:
    """Return the solver states of a checkpoint, which were saved as `dataclasses.asdict` returns them.

    Args:
        file: file from which they were read; named in messages.
        saved: saved value, a list with a dict for each flow.
        count: number of flows of the model.

    Returns:
        The states.

    Raises:
        DataError: the number of states is not ``count``, or a value has another name or type.
    """
    if not _are(saved, dict) or len(saved) != count:
        raise _misfit(file, f"it does not hold the states of {count} solvers")
    states = []
    for each in saved:
        plan = each.get("plan")
        if isinstance(plan, dict):
            plan = {"implicit": False, **plan}  # which earlier versions do not have
        if not _fits(plan, Plan([0.0])):
            raise _misfit(file, "a solver's state has other names or types")
        states.append(SolverState(str(each.get("problem")), plan and Plan(**plan)))
    return states


def _fits(saved: Any, like: Plan) -> bool:
    """Return whether a saved dict has the names and types of a dataclass, including elements of lists."""
    if saved is None:
        return True
    expected = asdict(like)
    if not isinstance(saved, dict) or saved.keys() != expected.keys():
        return False
    single = all(
        _alike(value, saved[name]) for name, value in expected.items() if not isinstance(value, list)
    )
    lists = [saved.get("forward", []), *saved.get("backward", {}).values()] if single else [None]
    return all(_are(each, int) for each in lists) and _are(saved.get("edges", [0.0]), float)


def _count(group: Mapping[str, Any]) -> int:
    """Return the number of parameters of a saved group; -1 if it has no list of them."""
    return len(group["params"]) if _are(group.get("params"), int) else -1


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _alike(expected: Any, saved: Any) -> bool:
    """Return whether a saved value has the type of the present one; lists need equal lengths.

    Lists of parameters are not compared.
    """
    if isinstance(expected, list | tuple):
        parameters = bool(expected) and isinstance(expected[0], Tensor)
        same = isinstance(saved, list | tuple) and len(expected) == len(saved)
        return parameters or (same and all(map(_alike, expected, saved)))
    number = int | float
    if isinstance(expected, number) and not isinstance(expected, bool):
        return isinstance(saved, number) and not isinstance(saved, bool)
    if isinstance(expected, Tensor):
        same = isinstance(saved, Tensor) and expected.shape == saved.shape
        return same and expected.dtype == saved.dtype
    return expected is None or type(expected) is type(saved)


def _kind(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _misfit(path: Path, why: str) -> DataError:
    return DataError(f"{path} does not fit the training: {why}")
