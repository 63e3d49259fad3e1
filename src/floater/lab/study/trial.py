"""Run one trial of a study as `python -m floater.lab.study.trial`: train, score, record."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np

from floater.encodings.model import PositionModel, count_parameters
from floater.errors import DataError, first_line
from floater.lab.interruption import Interrupted, raising
from floater.lab.settings import read as read_yaml
from floater.lab.study.machine import hardware
from floater.lab.study.progress import entries
from floater.lab.study.torchrun import TRAIN, train_together
from floater.lab.study.variants import COST, PLAN, TRIALS
from floater.lab.tasks import registry
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.task import Task
from floater.lab.training.checkpoints import checkpoints, remove, step_of
from floater.lab.training.digests import changed, digests
from floater.lab.training.files import MANIFEST, discard, read_record, sync, write_json, write_whole
from floater.lab.training.lock import file_lock
from floater.lab.training.messages import show_messages
from floater.lab.training.run import ENCODED, MODEL, RunWithSettings

MEASURED, UNITS = "measured", "units"
PACKAGES = ("floater", "torch", "transformers", "tokenizers", "torchdiffeq", "sacrebleu", "numpy", "scipy")


def main(folder: str, name: str, part: str = "") -> int:
    """Run a trial until it ends or its standard input closes, as when the study that started it ends.

    `part` is `TRAIN` in each of several processes that train it together.
    """

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock would keep the interpreter from ending
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()
    show_messages()
    try:
        with raising():
            run = train_trial if part == TRAIN else attempt
            return run(Path(folder), name)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code


def attempt(folder: Path, name: str) -> int:
    """Run a trial to its end; if another process still runs it, as after a study was killed, wait for it.

    Returns:
        The exit code: 0, or 1 for a failed trial, whose error is then in `trials/NAME.error`.
    """
    with file_lock(folder / TRIALS / f"{name}.lock", f"trial {name}", patience=None):
        error_file(folder, name).unlink(missing_ok=True)
        return _recorded(run_trial, folder, name)


def train_trial(folder: Path, name: str) -> int:
    """Train a trial in this process and others of a launcher; return the exit code, as `attempt` does."""
    return _recorded(_train, folder, name)


def error_file(folder: Path, name: str) -> Path:
    """Return the file of a failed trial's error."""
    return folder / TRIALS / f"{name}.error"


def _recorded(run: Callable[[Path, str], Any], folder: Path, name: str) -> int:
    try:
        run(folder, name)
    except (Exception, SystemExit) as reason:
        traceback.print_exc()
        message = " ".join(str(reason).split())
        plain = isinstance(reason, ValueError) and message
        if not (file := error_file(folder, name)).is_file():  # other processes fail after the first, of it
            write_whole(file, message if plain else f"{type(reason).__name__}: {message}")
        return 1
    return 0


def _train(folder: Path, name: str) -> tuple[Task, Any, Mapping[str, Any], Path]:
    """Train a trial, or resume it; return its task, its settings, the study's plan and the run."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # those of saving a model, which the log would keep
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    torch.set_num_threads(plan["threads"])
    config = folder / TRIALS / f"{name}.yaml"
    task, settings = registry.from_config(read_yaml(config), str(config), trusted=True)
    return task, settings, plan, task.train(settings, encoded=folder / ENCODED, tests=plan["tests"])


def run_trial(folder: Path, name: str) -> None:
    """Train a trial, or resume it, and score it on the test sets of the study's plan."""
    processes = json.loads((folder / PLAN).read_text(encoding="utf-8")).get("processes", 1)
    if processes > 1 and not (folder / TRIALS / name / MODEL).is_dir():
        train_together(folder, name, processes, error_file(folder, name))
    task, settings, plan, run = _train(folder, name)
    if not is_trained(run):
        write_json(run / COST, _cost(run))
    for test, arguments in plan["tests"].items():
        if not is_measured(run, test, arguments):
            began = time.perf_counter()
            assert task.measure is not None
            measurement = task.measure(RunWithSettings(run, settings), **arguments)
            _write(run, test, arguments, measurement, time.perf_counter() - began)
    if not plan["keep_checkpoints"]:
        kept = settings.training.keep_steps
        remove(path for path in checkpoints(run) if step_of(path) not in kept)
    if not plan["keep_models"]:
        for weights in (run / MODEL).glob("*.safetensors"):
            weights.unlink()


def is_finished(run: Path, tests: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a run is trained, and scored on all test sets in their present state."""
    return is_trained(run) and all(is_measured(run, test, arguments) for test, arguments in tests.items())


def is_trained(run: Path) -> bool:
    """Return whether a run has its final model, and a record of the costs of that model's training."""
    if not ((run / MODEL).is_dir() and (run / COST).is_file()):
        return False
    record = read_record(run / COST)
    return changed(record.get("files", {}), _weights(run)) is None


def is_measured(run: Path, test: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the run's present model is scored on the present state of a test set."""
    path = run / MEASURED / f"{test}.json"
    if not (path.is_file() and path.with_suffix(".npz").is_file()):
        return False
    record = read_record(path)
    now = {**arguments, **_weights(run)}
    return record.get("test") == arguments and changed(record.get("files", {}), now) is None


def _weights(run: Path) -> dict[str, Any]:
    """Return the file that identifies the run's model: training for longer replaces both."""
    return {f"{MODEL}/{MANIFEST}": str(run / MODEL / MANIFEST)}


def read(run: Path, test: str) -> Measurement:
    """Read the scores that `run_trial` wrote for a test set."""
    record = read_record(run / MEASURED / f"{test}.json")
    file = run / MEASURED / f"{test}.npz"
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return Measurement(
                lengths=arrays["lengths"],
                statistics={name: arrays[f"statistics.{name}"] for name in record["metrics"]},
                position_nats=arrays["position_nats"],
                position_tokens=arrays["position_tokens"],
                units=arrays.get(UNITS, np.zeros(0, dtype=np.int64)),
                notes=record["notes"],
                signatures=record["signatures"],
            )
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        why = first_line(error) if is_zipfile(file) else "it is no NumPy archive"
        raise DataError(
            f"{file} holds no scores that can be read: {why}; remove it, and the study scores the model again"
        ) from error


def _write(
    run: Path, test: str, arguments: Mapping[str, Any], measurement: Measurement, seconds: float
) -> None:
    folder = run / MEASURED
    folder.mkdir(exist_ok=True)
    (folder / f"{test}.json").unlink(missing_ok=True)  # it vouches for the arrays
    arrays = {f"statistics.{name}": values for name, values in measurement.statistics.items()}
    arrays |= {"lengths": measurement.lengths, UNITS: measurement.units}
    arrays |= {"position_nats": measurement.position_nats, "position_tokens": measurement.position_tokens}
    hidden = folder / f".{test}.npz"
    discard(hidden)
    np.savez_compressed(hidden, allow_pickle=False, **arrays)
    sync(hidden)
    os.replace(hidden, folder / f"{test}.npz")
    if measurement.lines:
        write_whole(folder / f"{test}.txt", "".join(f"{line}\n" for line in measurement.lines))
    record = {
        "test": arguments,
        "files": digests({**arguments, **_weights(run)}),
        "metrics": list(measurement.statistics),
        "notes": list(measurement.notes),
        "signatures": measurement.signatures,
        "seconds": round(seconds, 1),
    }
    write_json(folder / f"{test}.json", record)


def _cost(run: Path) -> dict[str, Any]:
    """Return the cost of the training and its machine, for the report."""
    import torch
    from safetensors import safe_open

    from floater.lab.study.analyses.subject import load_subject, position_models
    from floater.lab.training.optimizer import count_position_parameters

    with safe_open(run / MODEL / "model.safetensors", framework="pt") as weights:
        shapes = [weights.get_slice(key).get_shape() for key in weights.keys()]  # noqa: SIM118
    model, machine = load_subject(run / MODEL).model, hardware()
    stacks = position_models(model)
    one = {"position_parameters_of_a_stack": _shared(stacks["encoder"])} if "encoder" in stacks else {}
    return one | {
        "parameters": int(sum(np.prod(shape, dtype=np.int64) for shape in shapes)),
        "position_parameters": count_position_parameters(model),
        "memory_mib": max((entry.get("memory_mib", 0) for entry in entries(run)), default=0),
        "device": machine["GPU"] or machine["CPU"],
        "hardware": machine,
        "threads": torch.get_num_threads(),
        "files": digests(_weights(run)),
        **software(),
    }


def _shared(position: PositionModel) -> int:
    """Return the parameters of a stack's position model without the starting vectors of its blocks.

    Liu et al. 2020 count those of the dynamics in Table 6.
    """
    starts = sum(p.numel() for name, p in position.named_parameters() if name.rpartition(".")[2] == "start")
    return count_parameters(position) - starts


def software() -> dict[str, Any]:
    """Return the versions of Python and the packages, and the commit, of this process."""
    return {
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of the checkout of the library; "+" marks changed files."""
    library = Path(__file__).parents[2]

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(library), *arguments], capture_output=True, text=True)

    try:
        if git("ls-files", "--error-unmatch", __file__).returncode:
            return None  # installed, perhaps within the checkout of another project
        head, changes = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "-uno", ".")
    except OSError:
        return None
    return head.stdout.strip() + "+" * bool(changes.stdout)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
