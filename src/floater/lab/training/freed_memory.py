"""Training on a CPU without returning the memory of each step to the system."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3); -1 as the value of the first disables trimming."""
_LARGEST_MMAP_THRESHOLD = 2**25
"""bytes, the largest that glibc accepts on machines of 64 bits"""


def keep_freed_memory() -> bool:
    """Let glibc keep the memory of freed tensors for the next ones; return whether it does.

    By default it returns memory to the system at the end of each step, and every page that the next step
    writes is a page fault. Tensors above 32 MiB are returned as before. Settings in the environment
    (`MALLOC_TRIM_THRESHOLD_`, `GLIBC_TUNABLES`) are left as they are; with another C library, or another
    allocator in its place, nothing changes.

    Example:
        >>> keep_freed_memory() in (True, False)
        True
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, -1))
