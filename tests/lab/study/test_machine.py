"""The memory of a process within the limits of its control groups."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from floater.lab.study.machine import GIB, available_memory, own_memory

TOTAL = psutil.virtual_memory().total
MEMBERSHIPS = {
    "version 2": ("0::/slurm/job_7/step_0\n", "memory.max"),
    "version 1": ("3:cpuset:/\n9:memory:/slurm/job_7/step_0\n0::/\n", "memory/memory.limit_in_bytes"),
}


@pytest.mark.parametrize("version", MEMBERSHIPS)
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, TOTAL),
        ({"slurm/job_7": "1073741824"}, GIB),
        ({"slurm/job_7": "1073741824", "slurm/job_7/step_0": "max"}, GIB),
        ({"slurm/job_7": "1073741824", "slurm/job_7/step_0": "536870912", "": "2147483648"}, GIB // 2),
        ({"": "1073741824"}, GIB),  # the group's own place is not visible in a container
        ({"slurm/job_8": "1024"}, TOTAL),
        ({"slurm": "9223372036854771712"}, TOTAL),  # as version 1 writes that there is none
    ],
)
def test_the_least_limit_of_the_groups_above_counts(
    tmp_path: Path, version: str, limits: dict[str, str], expected: int
) -> None:
    lines, name = MEMBERSHIPS[version]
    (tmp_path / "membership").write_text(lines)
    root, file = (tmp_path / name).parent, Path(name).name
    for group, limit in limits.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / file).write_text(f"{limit}\n")
    assert available_memory(tmp_path, tmp_path / "membership") == expected / GIB


@pytest.mark.skipif(sys.platform != "linux", reason="of a process of Linux")
def test_mapped_files_are_not_memory_of_the_process(tmp_path: Path) -> None:
    this, size = psutil.Process(), 2**26
    (tmp_path / "mapped").write_bytes(bytes(size))
    before, resident = own_memory(this), this.memory_info().rss
    mapped = np.memmap(tmp_path / "mapped", mode="r")
    assert mapped.sum() == 0  # reads every page
    assert this.memory_info().rss - resident > 0.9 * size
    assert own_memory(this) - before < 0.2 * size / GIB
    held = np.ones(size, np.uint8)
    assert own_memory(this) - before > 0.9 * len(held) / GIB
