"""The machine of this process: its hardware, and the cores and memory within its control groups' limits."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import joblib
import psutil

GIB = 2**30


def available_cores() -> int:
    """Return the number of cores that this process may use, within its affinity and its group's quota.

    Example:
        >>> available_cores() >= 1
        True
    """
    return int(joblib.cpu_count())


def available_memory(
    groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float:
    """Return the main memory that this process may use, in GiB: less than the machine's in a container.

    A limit applies to all groups below it, so the smallest limit of the groups of this process counts.

    Args:
        groups: mount point of the control groups, version 1 or 2.
        membership: file that names the group of this process.

    Example:
        >>> 0 < available_memory() <= psutil.virtual_memory().total / GIB
        True
    """
    limits = [psutil.virtual_memory().total]
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, file = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        group = root / name.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (folder / file).is_file():
                text = (folder / file).read_text(encoding="utf-8").strip()
                limits += [int(text)] if text.isdecimal() else []  # "max" is none
    return float(min(limits) / GIB)


def own_memory(process: psutil.Process) -> float:
    """Return the main memory of a process in GiB, without the files that it maps.

    Where memory is short, the system takes back mapped files, such as encoded texts and CUDA's libraries.

    Raises:
        psutil.Error: if the process has ended, or may not be looked at.

    Example:
        >>> own_memory(psutil.Process()) > 0
        True
    """
    memory: int = process.memory_info().rss
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    except OSError:  # not Linux, or it has just ended
        status = ""
    files = re.search(r"^RssFile:\s*(\d+) kB$", status, re.MULTILINE)
    return (memory - (1024 * int(files[1]) if files else 0)) / GIB


def hardware() -> dict[str, Any]:
    """Return the model of the CPU, the cores and the memory available, the GPU, and PyTorch's BLAS.

    Example:
        >>> sorted(hardware())
        ['BLAS', 'CPU', 'GPU', 'cores', 'memory']
    """
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "CPU": model[1] if model else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "memory": f"{available_memory():.1f} GiB",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "BLAS": blas[1] if blas else None,
    }
