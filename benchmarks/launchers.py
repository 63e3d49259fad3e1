"""Environments that launchers leave, and standard streams that are closed, full or not read."""

from __future__ import annotations

import os
import random
import sys

STREAMS = ("open", "closed", "no reader", "full")
"""States of a standard stream: closed by the parent process, a pipe without reader, a full disk."""

_COUNTS = """
    WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK PMI_SIZE PMI_RANK OMPI_COMM_WORLD_SIZE
    OMPI_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE SLURM_NTASKS SLURM_PROCID SLURM_LOCALID SLURM_JOB_ID SLURM_NNODES
"""
VARIABLES: dict[str, list[str]] = {
    **{name: ["0", "1", "2", "4", "-1", "", "one", "1.0", "99"] for name in _COUNTS.split()},
    "MASTER_ADDR": ["127.0.0.1", "localhost", "", "no-such-host.invalid"],
    "MASTER_PORT": ["29511", "0", "", "port", "99999"],
    "COLUMNS": ["", "0", "1", "10", "wide"],
    "TERM": ["", "dumb", "unknown"],
    "NO_COLOR": ["1"],
    "LANG": ["C", "POSIX", "no_SUCH.locale"],
    "HOME": ["/nonexistent"],
    "TMPDIR": ["/nonexistent"],
    "CUDA_VISIBLE_DEVICES": ["", "0", "-1", "none"],
    "ACCELERATE_USE_CPU": ["true", "false", "maybe"],
    "ACCELERATE_MIXED_PRECISION": ["no", "fp9"],
}
"""Values of environment variables, valid and invalid ones."""


def set_stream(number: int, state: str) -> None:
    """Put a standard stream of this process into a state of `STREAMS`."""
    if state == "no reader":
        reading, writing = os.pipe()
        os.dup2(writing, number)
        os.close(reading)
        os.close(writing)
    elif state == "full":
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, number)
        os.close(full)
    elif state == "closed":
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python finds it


def environment(chance: random.Random) -> dict[str, str]:
    """Choose some variables; with all that a process group needs, it is one of a single process."""
    names = chance.sample(sorted(VARIABLES), chance.randint(1, 6))
    return single({name: chance.choice(VARIABLES[name]) for name in names})


def single(variables: dict[str, str]) -> dict[str, str]:
    """Change a complete group of several processes, which would wait for the others, to one of one."""
    complete = {"MASTER_ADDR", "MASTER_PORT", "RANK"} <= variables.keys()
    return variables | ({"WORLD_SIZE": "1"} if complete else {})
