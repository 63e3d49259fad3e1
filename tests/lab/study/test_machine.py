"""The memory of a process within the limits of its control groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from floater.lab.study.machine import GIB, available_memory

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


MAPPING = """
import sys
import numpy as np, psutil
from floater.lab.study.machine import GIB, own_memory
this = psutil.Process()
before, resident = own_memory(this), this.memory_info().rss
mapped = np.memmap(sys.argv[1], mode="r")
assert mapped.sum() == 0  # reads every page
print(this.memory_info().rss - resident, GIB * (own_memory(this) - before))
held = np.ones(len(mapped), np.uint8)
print(GIB * (own_memory(this) - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of a process of Linux")
def test_mapped_files_are_not_memory_of_the_process(tmp_path: Path) -> None:
    """In a separate process, as the kernel may reclaim idle pages of the test runner."""
    size = 2**26
    (tmp_path / "mapped").write_bytes(bytes(size))
    command = [sys.executable, "-c", MAPPING, tmp_path / "mapped"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    resident, mapped, held = map(float, printed.split())
    assert resident > 0.9 * size
    assert mapped < 0.2 * size
    assert held > 0.9 * size
