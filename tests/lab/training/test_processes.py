"""The first process may take longer than a collective waits."""

import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState

from floater.lab.training.processes import main_process_first
from processes import in_two_processes

PATIENCE = 2  # seconds, of the collectives of the processes


def encode_slowly(cache: Path) -> int:
    """Write a file in the first process, after a while, and read it in the second."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    state = PartialState(cpu=True)
    assert state.num_processes == 2
    with main_process_first():
        if state.is_main_process:
            time.sleep(2 * PATIENCE)
            cache.write_text("encoded", encoding="utf-8")
        print(cache.read_text(encoding="utf-8"))
    dist.destroy_process_group()
    return 0


def test_the_others_wait_longer_than_a_collective(tmp_path: Path) -> None:
    printed = in_two_processes(encode_slowly, tmp_path / "cache", folder=tmp_path)
    assert all("encoded" in text for text in printed)


def test_one_process_does_not_wait() -> None:
    with main_process_first():
        assert PartialState().is_main_process
