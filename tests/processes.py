"""Processes that start at once: they are forked from one that has imported the library."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

# Seconds until a process that hangs prints its stack and ends.
_LIMIT = 600


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], said: Path, **variables: str) -> None:
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | variables)
    with said.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    raise SystemExit(function(*arguments))


def _start(function: Callable[..., Any], *arguments: Any, said: Path, **variables: str) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["floater.lab.tasks.translation"])
    process = context.Process(target=_run, args=(function, arguments, said), kwargs=variables)
    process.start()
    return process


def in_process(
    function: Callable[..., Any], *arguments: Any, said: Path, seconds: float | None = None, **variables: str
) -> int | None:
    """Call a function in a process of its own, which it may kill.

    Args:
        function: of a module, to be imported there; what it returns is the exit code.
        *arguments: of the function.
        said: file for what it prints on standard output and standard error.
        seconds: after which it is killed; None means that it is waited for.
        **variables: of its environment.

    Returns:
        The exit code, a signal's with a minus.
    """
    process = _start(function, *arguments, said=said, **variables)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode


def in_two_processes(function: Callable[..., Any], *arguments: Any, folder: Path) -> list[str]:
    """Call a function in two processes with the environment that torchrun gives them.

    Args:
        function: of a module, to be imported there; what it returns is the exit code.
        *arguments: of the function.
        folder: for files of what they print.

    Returns:
        What each process prints.

    Raises:
        AssertionError: with what they print, if one of them fails.
    """
    # The store lives here, as with torchrun: nobody else can take the port, and no process outlives it.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    both = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    files = [folder / f"process-{rank}.txt" for rank in ("0", "1")]
    processes = [
        _start(function, *arguments, said=file, **both, RANK=rank, LOCAL_RANK=rank)
        for rank, file in zip(("0", "1"), files, strict=True)
    ]
    for process in processes:
        process.join()
    printed = [file.read_text(encoding="utf-8") for file in files]
    codes = [process.exitcode for process in processes]
    assert codes == [0, 0], "\n".join([f"exit codes {codes}", *printed])
    return printed
