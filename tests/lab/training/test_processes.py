"""Several processes: the first may take long, each draws its own numbers, another number of them goes on."""

import logging
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from safetensors.torch import load_file

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.interruption import Interrupted
from floater.lab.settings import dump
from floater.lab.training.messages import show_messages
from floater.lab.training.processes import main_process_first
from helpers import At, train_with
from processes import in_process, in_two_processes

from .small_run import TASK, settings

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


class AtMessage(logging.Handler):
    """Sends this process SIGTERM, a while after it says that it waits."""

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" in record.getMessage():
            Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()


def wait_alone(run: Path) -> int:
    logging.getLogger("floater").addHandler(AtMessage())
    return train_alone(run)


def train_alone(run: Path) -> int:
    config = run.with_suffix(".yaml")
    config.write_text(dump(settings(run)), encoding="utf-8")
    return main(["train", str(config)])


def test_a_process_that_waits_for_others_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    alone = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    said = tmp_path / "said"
    code = in_process(wait_alone, tmp_path / "run", said=said, seconds=60, **alone)
    assert "waiting for WORLD_SIZE=2 processes at 127.0.0.1:0\n" in said.read_text(encoding="utf-8")
    assert code == -signal.SIGTERM


def test_a_port_in_use_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        first = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        said = tmp_path / "said"
        code = in_process(train_alone, tmp_path / "run", said=said, seconds=60, **first, MASTER_PORT=port)
    last = said.read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith(f"floater: the 2 processes cannot meet at 127.0.0.1:{port} (")
    assert "; set another MASTER_PORT, and a RANK of its own for each process" in last
    assert code == 2


def lose_second(run: Path) -> int:
    """Train until the second process is killed, and print how the first ends."""

    def end() -> None:
        if os.environ["RANK"] == "1":
            sys.stdout.flush()
            os._exit(0)  # like a killed process, it sends no message to the first

    try:
        train_with(TASK, fixed(run), At(6, end))
    except DataError as error:
        print(error)
    return 0


def test_a_process_whose_companion_has_ended_says_so(tmp_path: Path) -> None:
    first, _ = in_two_processes(lose_second, tmp_path / "run", folder=tmp_path)
    assert first.splitlines()[-1].startswith("another process of this training has ended (see its messages")
    assert (tmp_path / "run" / "checkpoint-4").is_dir()


def refused(run: Path) -> int:
    """Train with a warm-up that is too long, as on the command line, and print how it ends."""
    config = run.parent / f"{os.environ['RANK']}.yaml"
    config.write_text(dump(settings(run, warmup_steps=12, lr_scheduler_type="linear")), encoding="utf-8")
    try:
        code: Any = main(["train", str(config)])
    except SystemExit as error:
        code = error.code
    print(f"exit code {code}")
    return 0


def test_an_error_in_the_first_process_is_told_once(tmp_path: Path) -> None:
    first, second = in_two_processes(refused, tmp_path / "run", folder=tmp_path)
    lines = first.splitlines()[-2:]
    assert lines == [
        "floater: training.warmup_steps is 12; it must be below the training's 12 steps",
        "exit code 2",
    ]
    assert second.splitlines() == ["exit code 2"]


def test_one_process_does_not_wait() -> None:
    with main_process_first():
        assert PartialState().is_main_process


def fixed(run: Path, **training: Any) -> Any:
    """Return the settings of a run that is the same with one process or two."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = {"changes": sizes | {"dropout": 0.0}}
    return settings(run, model, **({"batches_per_step": 2} | training))


def stop(run: Path, alone: Path) -> int:
    """Train two runs to step 6, where a signal stops them, and print a random number of each process."""

    def end() -> None:
        print(f"draw {torch.rand(()).item()}")
        signal.raise_signal(signal.SIGUSR1)

    for each in (fixed(run), fixed(alone, batches_per_step=None)):
        try:
            train_with(TASK, each, At(6, end))
        except Interrupted as error:
            print(error.exit_code)
    return 0


def test_one_process_goes_on_where_two_have_stopped(tmp_path: Path) -> None:
    printed = in_two_processes(stop, tmp_path / "run", tmp_path / "other", folder=tmp_path)
    draws = [[line for line in text.splitlines() if line.startswith("draw ")] for text in printed]
    assert all(text.splitlines().count("138") == 2 for text in printed)  # a speed, too, may hold 138
    assert [len(each) for each in draws] == [2, 2]
    assert not {*draws[0]} & {*draws[1]}, "both processes draw the same numbers"
    with pytest.raises(DataError, match="is of 2 processes, and 1 would read other batches; start it with 2"):
        TASK.train(fixed(tmp_path / "other", batches_per_step=None))
    assert (tmp_path / "run" / "interrupted-6").is_dir()
    run, whole = TASK.train(fixed(tmp_path / "run")), TASK.train(fixed(tmp_path / "whole"))
    weights, expected = (load_file(each / "model" / "model.safetensors") for each in (run, whole))
    for name, weight in expected.items():  # sums in another order
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-4)


def go_on(run: Path) -> int:
    show_messages()
    TASK.train(fixed(run))
    return 0


def test_two_processes_that_go_on_where_one_has_stopped_say_so_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train_with(TASK, fixed(run), At(6, lambda: signal.raise_signal(signal.SIGUSR1)))
    first, second = in_two_processes(go_on, run, folder=tmp_path)
    assert "1 process wrote it; 2 continue with other random numbers" in first
    assert "wrote it" not in second
