"""Shared helpers of tests: processes of their own, and comparison of runs."""

import os
import signal
from pathlib import Path

import pytest
import torch

from helpers import equal_runs, kill, train_killed
from lab.training.small_run import TASK, settings
from processes import in_process, in_two_processes


def ended(code: int) -> int:
    print("it has ended")
    return code


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def add_ranks(fails: bool) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.tensor(torch.distributed.get_rank())
    torch.distributed.all_reduce(rank)
    print(int(rank) + 10)
    if fails:
        raise ValueError("not what was asked for")
    torch.distributed.destroy_process_group()


def test_a_process_ends_with_a_code_or_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    assert in_process(ended, 3, said=said) == 3
    assert said.read_text() == "it has ended\n"
    assert in_process(killed, said=said) == -signal.SIGKILL


def test_two_processes_meet_and_a_failure_is_shown(tmp_path: Path) -> None:
    assert in_two_processes(add_ranks, False, folder=tmp_path) == ["11\n", "11\n"]
    with pytest.raises(AssertionError, match="not what was asked for"):
        in_two_processes(add_ranks, True, folder=tmp_path)


def test_runs_of_two_seeds_differ_and_a_killed_one_has_no_result(tmp_path: Path) -> None:
    run = train_killed(TASK, settings(tmp_path / "run"))
    assert equal_runs(run, run)
    assert not equal_runs(run, TASK.train(settings(tmp_path / "other", seed=2)))
    killed = kill(TASK, settings(tmp_path / "killed"), 6)
    assert (killed / "checkpoint-4").is_dir()
    assert not (killed / "result.json").exists()
