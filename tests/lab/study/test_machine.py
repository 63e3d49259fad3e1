"""The memory of a process within the limits of its control groups."""

from __future__ import annotations

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
