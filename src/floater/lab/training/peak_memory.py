"""The memory of a process."""

import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_memory() -> int:
    """Return the peak memory of this process in MiB: of the GPU if there is one, else main memory."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20)
    if _STATUS.is_file():  # on Linux, ru_maxrss of a new process includes the peak of its parent
        fields = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="utf-8").splitlines())
        if "VmHWM" in fields:
            return round(int(fields["VmHWM"].split()[0]) / 2**10)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return round(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def reset_peak_memory() -> None:
    """Let `peak_memory` count from now on, where the system can: on a GPU, and on Linux."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")  # proc(5): 5 resets the peak of the resident set
