"""The environment variables by which launchers configure a process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from floater.errors import DataError, first_line

_NAMES = {
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}
"""Variables of torchrun, and of MPI, that have the number of processes and those of this one."""
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
_SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}
"""Variables by which `accelerate launch` asks for weights or states that several processes share."""


def settle_processes(environment: MutableMapping[str, str]) -> None:
    """Make the variables of launchers complete, or remove them where there is one process.

    Several processes have the variables of torchrun afterwards, whichever launcher started them. Variables of
    SLURM are not read: `srun` with one task per node starts torchrun, and a shell of `salloc` is one process.

    Args:
        environment: environment of this process, which is changed.

    Raises:
        DataError: if a variable is not a number or contradicts another, or one that several processes need is
            missing; the message names it.

    Example:
        >>> environment = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "HOME": "/root"}
        >>> settle_processes(environment)
        >>> environment
        {'HOME': '/root'}
        >>> settle_processes({"WORLD_SIZE": "4", "RANK": "2"})
        Traceback (most recent call last):
        floater.errors.DataError: WORLD_SIZE is 4, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set; ...
    """
    origins = {
        name: next((each for each in (name, *others) if each in environment), None)
        for name, others in _NAMES.items()
    }
    numbers = {}
    for name, origin in origins.items():
        if origin is not None:
            text = environment[origin].strip()
            if not (text.isascii() and text.isdecimal()):
                raise DataError(f"{origin} is {text!r}; launchers set it to a whole number; unset it")
            numbers[name] = int(text)
    size = numbers.get("WORLD_SIZE", 1)
    if size < 1:
        raise DataError(f"{origins['WORLD_SIZE']} is {size}; it must be at least 1; unset it for one process")
    for name in ("RANK", "LOCAL_RANK"):
        if numbers.get(name, 0) >= size:
            number = f"is {size}" if origins["WORLD_SIZE"] else "is not set"
            raise DataError(
                f"{origins[name]} is {numbers[name]}, but {origins['WORLD_SIZE'] or 'WORLD_SIZE'} {number}; "
                "unset both for one process, or start several with torchrun"
            )
    missing = [name for name in _NAMES if name not in numbers]
    missing += [name for name in _MEETING if not environment.get(name)]
    if size > 1 and missing:
        are = "is" if len(missing) == 1 else "are"
        raise DataError(
            f"{origins['WORLD_SIZE']} is {size}, but {', '.join(missing)} {are} not set; unset it to use one "
            f"process, or start {size} with torchrun --nproc-per-node"
        )
    if size > 1:
        port = environment["MASTER_PORT"].strip()
        if not (port.isascii() and port.isdecimal() and int(port) < 2**16):
            raise DataError(f"MASTER_PORT is {port!r}; it must be the number of a port, at most {2**16 - 1}")
    if missing:
        for name, others in _NAMES.items():
            for each in (name, *others):
                environment.pop(each, None)
    else:
        environment.update({name: str(number) for name, number in numbers.items()})


def refuse_several(environment: Mapping[str, str], command: str) -> None:
    """Refuse a command of `floater` that is one process in one of several.

    Args:
        environment: environment of this process; variables that are not complete are left to
            `settle_processes`.
        command: name of the command.

    Raises:
        DataError: if there are several processes.

    Example:
        >>> both = {"MASTER_ADDR": "here", "MASTER_PORT": "29500"}
        >>> refuse_several({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"} | both, "study")
        Traceback (most recent call last):
        floater.errors.DataError: WORLD_SIZE is 2, but a study is one process; start it without ...
    """
    settled = dict(environment)
    try:
        settle_processes(settled)
    except DataError:
        return
    if (size := settled.get("WORLD_SIZE", "1")) != "1":
        one, hint = f"floater {command}", ""
        if command == "study":
            one, hint = "a study", f" and set budget.processes={size}"
        raise DataError(f"WORLD_SIZE is {size}, but {one} is one process; start it without torchrun{hint}")


def refuse_sharding(environment: Mapping[str, str]) -> None:
    """Refuse training whose weights or states of the optimizer are to be sharded.

    Checkpoints hold whole weights and states. Accelerate itself would ignore FSDP on a CPU and in a single
    process, and replace the optimizer and the schedule by those of a DeepSpeed configuration.

    Args:
        environment: environment of this process.

    Raises:
        DataError: if a variable of Accelerate asks for it; the message names it.

    Example:
        >>> refuse_sharding({"ACCELERATE_USE_FSDP": "true"})
        Traceback (most recent call last):
        floater.errors.DataError: ACCELERATE_USE_FSDP is 'true', but a training with FSDP is not ...
    """
    for name, what in _SHARDING.items():
        if (value := environment.get(name, "").strip()).lower() in ("1", "on", "t", "true", "y", "yes"):
            raise DataError(
                f"{name} is {value!r}, but a training with {what} is not supported; start its processes with "
                "torchrun or `accelerate launch --multi_gpu`: each has the whole model"
            )


@contextmanager
def variables_of_accelerate() -> Iterator[None]:
    """Name the variables of Accelerate where it refuses one of them.

    Raises:
        DataError: if the block ends with an error of Accelerate, and its variables are set.
    """
    try:
        yield
    except (ValueError, KeyError) as error:
        names = sorted(name for name in os.environ if name.startswith("ACCELERATE_"))
        modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
        if not names or not any(module.partition(".")[0] == "accelerate" for module in modules):
            raise
        raise DataError(
            f"accelerate: {first_line(error)}; correct or unset {', '.join(names)} of the environment"
        ) from error
