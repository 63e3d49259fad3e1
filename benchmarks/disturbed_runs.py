"""Runs that are killed, damaged, started twice or badly surrounded: sections of reliability.py."""

from __future__ import annotations

import errno
import math
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import yaml

from changed_data import DataRun
from commands import Command, Runs, Tally, small_study
from hostile import corrupted
from launchers import STREAMS, environment

STUDY_LIMIT = 3600.0  # seconds of a study, whose trials start a Python each, on a busy machine


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 138}


def kills(count: int, folder: Path, chance: random.Random) -> Tally:
    """Kill trainings: two thirds by SIGKILL, a third by the signals that request a checkpoint."""
    tally = Tally(
        "Kills of `train`", "SIGKILL, or a signal that requests a stop, at any time; then started again"
    )
    several = [Runs(folder / position, position) for position in ("sinusoidal", "learned", "floater")]
    while tally.cases < count:
        runs, name = chance.choice(several), f"killed-{tally.cases}"
        for _ in range(chance.randint(1, 4)):
            number = signal.SIGKILL if chance.random() < 2 / 3 else chance.choice([*SIGNALS])
            command = runs.train(name)
            if command.wait(chance.uniform(0, runs.seconds)):
                tally.see(command, f"{name} before its kill")
                continue
            command.send(number)
            command.finish()
            tally.cases += 1
            if number != signal.SIGKILL and command.code not in (0, SIGNALS[number], -number):
                tally.notes.append(f"{name}: exit code {command.code} after {signal.Signals(number).name}")
            if command.code > 0:
                tally.see(command, f"{name}, {signal.Signals(number).name}")
        runs.judge(name, runs.train(name).finish(), tally, name)
    return tally


def study_kills(count: int, folder: Path, chance: random.Random) -> Tally:
    """Kill studies of two trials."""
    tally = Tally("Kills of `study`", "SIGKILL at any time, trials included; then started again")
    folder.mkdir()
    base = yaml.safe_load(Runs(folder / "one").config.read_text())
    common = {key: base[key] for key in ("data", "training")} | {
        "model": base["model"] | {"position": "none"}
    }
    common["model"].pop("position")
    tree = small_study(common)
    config = folder / "study.yaml"

    def start(name: str) -> Command:
        config.write_text(yaml.safe_dump(tree | {"folder": str(folder / name)}))
        return Command(["study", str(config)])

    began = time.monotonic()
    first = start("whole").finish(STUDY_LIMIT)
    seconds = time.monotonic() - began
    if first.code:
        raise RuntimeError(first.text)
    scores = (folder / "whole" / "scores.csv").read_text()
    while tally.cases < count:
        name = f"killed-{tally.cases}"
        for _ in range(chance.randint(1, 3)):
            command = start(name)
            if command.wait(chance.uniform(0, seconds)):
                continue
            command.send(signal.SIGKILL)
            command.finish()
            tally.cases += 1
        command = start(name).finish(STUDY_LIMIT)
        tally.see(command, name)
        table = folder / name / "scores.csv"
        if not table.is_file() or command.code or table.read_text() != scores:
            tally.lost += 1
            tally.silent += not command.code
            tally.notes.append(f"{name}: another table, exit code {command.code}: {command.text[-200:]!r}")
        shutil.rmtree(folder / name, ignore_errors=True)
    tally.notes.insert(0, f"one undisturbed study takes {seconds:.0f} s")
    return tally


def corruptions(count: int, folder: Path, chance: random.Random) -> Tally:
    """Damage a file of a run that was killed."""
    tally = Tally("Corrupted directories", "a file of a killed run removed, cut or changed")
    runs, refused = Runs(folder), 0
    runs.stopped("template")
    for case in range(count):
        name = f"corrupted-{case}"
        shutil.copytree(runs.folder / "template", runs.folder / name)
        file = chance.choice(sorted(path for path in (runs.folder / name).rglob("*") if path.is_file()))
        what = f"{file.relative_to(runs.folder / name)}: {corrupted(file, chance)}"
        refused += runs.is_refused(name, runs.train(name).finish(), tally, what)
    whole = count - refused - tally.told
    tally.notes.insert(
        0,
        f"{whole} ended with the weights of an undisturbed run, {refused} were refused, and {tally.told} are "
        "a mean without the damaged checkpoint, as the log says",
    )
    return tally


def double_starts(count: int, folder: Path, chance: random.Random) -> Tally:
    """Start two trainings in one directory."""
    tally = Tally("Double starts", "two `train` in one directory, the second 0 to 1 s later")
    runs, refused = Runs(folder), 0
    for case in range(count):
        name = f"double-{case}"
        one = runs.train(name)
        one.wait(chance.choice([0.0, chance.random()]))
        other = runs.train(name).finish()
        if not hasattr(one, "code"):
            one.finish()
        for command in (one, other):
            tally.see(command, name)
        tally.cases += 1
        refused += "is in use by process" in one.text + other.text
        codes = sorted((one.code, other.code))
        runs.judge(name, one if not one.code else other, tally, f"{name}, exit codes {codes}")
    tally.notes.insert(0, f"{refused} second starts were refused, the others found a finished run")
    return tally


def full_disks(count: int, folder: Path, chance: random.Random) -> Tally:
    """Limit the size of files."""
    tally = Tally("Full disks", "no file may grow past a random size (RLIMIT_FSIZE); then started again")
    runs = Runs(folder)
    largest = max(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    for case in range(count):
        name, size = f"full-{case}", int(chance.uniform(10, math.sqrt(largest)) ** 2)
        command = runs.train(name, limits={resource.RLIMIT_FSIZE: size}).finish()
        tally.see(command, f"{name}, {size} bytes")
        tally.cases += 1
        runs.judge(name, runs.train(name).finish(), tally, name)
    return tally


def changed_data(count: int, folder: Path, chance: random.Random) -> Tally:
    """Change the data of a run that was killed, and start it again, then with other data accepted."""
    tally = Tally(
        "Data changed",
        "a file of a killed run's data replaced, reordered, halved or misaligned; then started again",
    )
    runs = [
        DataRun(folder / name, name)
        for name in ("translation", "language_modeling", "events", "documents", "image_classification")
    ]
    refused = accepted = 0
    while tally.cases < count:
        run, name = chance.choice(runs), f"changed-{tally.cases}"
        run.begin(name)
        change, is_other = run.change(chance)
        what = f"{run.task}, {change}"
        command = run.train(name).finish()
        tally.cases += 1
        tally.see(command, what)
        if is_other and command.code == 0:
            tally.silent += 1
            tally.notes.append(f"{what}: continued without a message")
        elif is_other:
            refused += 1
            accepting = run.train(name, "--accept-changed-data").finish()
            tally.see(accepting, f"{what}, accepted")
            # data that are too few, or none, are refused for that
            accepted += accepting.code == 0
        elif command.code:
            tally.lost += 1
            tally.notes.append(f"{what}: refused: {command.lines[-1:]}")
        shutil.rmtree(run.folder / name, ignore_errors=True)
    tally.notes.insert(
        0,
        f"{refused} were refused in a line that names the file, of which {accepted} continued with "
        f"--accept-changed-data; the {tally.cases - refused} others had the same content as before",
    )
    return tally


def no_locks(count: int, folder: Path, chance: random.Random) -> Tally:
    """Kill and double trainings on a file system without locks."""
    tally = Tally(
        "File systems without locks",
        "`flock` fails with ENOSYS, ENOLCK or EOPNOTSUPP; killed or started twice",
    )
    runs, refused = Runs(folder), 0
    while tally.cases < count:
        name, error = f"lockless-{tally.cases}", chance.choice([errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
        what = f"{name}, {errno.errorcode[error]}"
        one = runs.train(name, locks=error)
        double = chance.random() < 0.5
        over = one.wait(chance.uniform(0, runs.seconds))
        tally.cases += 1
        if double:
            other = runs.train(name, locks=error).finish()
            tally.see(other, f"{what}, second")
            if not over:
                one.finish()
            refused += "in use by" in one.text + other.text
            runs.judge(name, one if not one.code else other, tally, f"{what}, started twice")
            continue
        if not over:
            one.send(signal.SIGKILL)
            one.finish()
        runs.judge(name, runs.train(name, locks=error).finish(), tally, f"{what}, killed")
    tally.notes.insert(0, f"{refused} second starts were refused, the others found a finished run")
    return tally


def launchers(count: int, folder: Path, chance: random.Random) -> Tally:
    """Train in environments that launchers leave."""
    tally = Tally("Launchers", "incomplete or wrong environment variables of launchers")
    runs, refused = Runs(folder), 0
    for case in range(count):
        name, variables = f"launched-{case}", environment(chance)
        command = runs.train(name, environment=variables).finish()
        refused += runs.is_refused(name, command, tally, f"{variables}")
    tally.notes.insert(0, f"{refused} were refused in a line, the others trained the same weights")
    return tally


def streams(count: int, folder: Path, chance: random.Random) -> Tally:
    """Run commands whose standard streams are closed, full or not read."""
    tally = Tally("Standard streams", "closed, full or without a reader: each of the three, at random")
    runs, ended = Runs(folder), 0
    for case in range(count):
        name = f"streams-{case}"
        states = {number: chance.choice(STREAMS) for number in range(3)}
        trains = chance.random() < 0.7
        arguments = ["train", str(runs.config), f"run={runs.folder / name}"]
        others = ["models", "alibi"], ["evaluate", str(folder / "whole")], ["configs"]
        command = Command(arguments if trains else chance.choice(others), streams=states).finish()
        what = f"{' '.join(command.arguments[:2])} with {list(states.values())}"
        tally.cases += 1
        if "Traceback" in command.text:
            tally.tracebacks += 1
            tally.notes.append(f"{what}: {command.lines[-1:]}")
        if trains and not command.code:
            ended += 1
            runs.judge(name, command, tally, what)
        elif trains:  # it may end, with another code than 0; then it goes on
            runs.judge(name, runs.train(name).finish(), tally, f"{what}, started again")
        elif not command.code and states[1] == "full":
            tally.silent += 1
            tally.notes.append(f"{what}: exit code 0, and the results are lost")
    tally.notes.insert(0, f"{ended} runs ended as if the streams were open, the others when started again")
    return tally
