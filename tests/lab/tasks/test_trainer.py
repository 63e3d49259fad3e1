"""Memory of the process in the log of a run."""

import resource
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from floater.lab.training.peak_memory import peak_memory


@pytest.mark.skipif(
    sys.platform != "linux" or torch.cuda.is_available(), reason="of the main memory of a process of Linux"
)
def test_memory_is_that_of_this_process_and_not_of_the_one_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel lets a process begin with the maximum of the one that started it."""
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2**40))
    assert psutil.Process().memory_info().rss / 2**20 - 1 < peak_memory() < 2**20
