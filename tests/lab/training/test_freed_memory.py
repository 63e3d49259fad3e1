import platform
import resource
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

FAULTS = """
import resource, sys, torch
from floater.lab.training import keep_freed_memory

assert keep_freed_memory() == (sys.argv[1] == "kept")
for step in range(6):
    if step == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [torch.ones(2**20) for _ in range(64)]  # 256 MiB, in tensors of 4 MiB
    del step
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(monkeypatch: pytest.MonkeyPatch, what: str, **variables: str) -> int:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return int(subprocess.check_output([sys.executable, "-c", FAULTS, what]))


@glibc
def test_later_steps_write_to_the_memory_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 2**28 // resource.getpagesize()
    assert _faults(monkeypatch, "kept") < pages


@glibc
def test_settings_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 2**28 // resource.getpagesize()
    # every tensor is returned to the system: five steps are five times all pages
    assert _faults(monkeypatch, "left", MALLOC_MMAP_THRESHOLD_="65536") > 4 * pages
