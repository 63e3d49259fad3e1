"""Kill, corrupt, duplicate and deceive runs, fill their disks, and count lost runs, silent errors and
tracebacks.

It is a benchmark and not a test, as it takes an hour and publishes numbers: docs/reliability.md.
`python benchmarks/reliability.py --scale 0.1` runs a tenth of it. Every command is the real one, in a process
forked from this one, which has imported the library already; trials of a study start processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import math
import os
import platform
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
import yaml
from hypothesis import seed

from adversarial import campaign
from changed_data import DataRun
from commands import Command, Runs, Tally, small_study
from first_hour import HOUR, MISSING, RIGHT, WRONG
from first_hour_files import prepare
from floater.lab.tasks import task
from floater.pretrained.extending import biases
from hostile import corrupted, hostile_cases
from launchers import STREAMS, environment
from strangers import stranger_cases

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
STUDY_LIMIT = 3600.0  # seconds of a study, whose trials start a Python each, on a busy machine
Section = Callable[[int, Path, random.Random], Tally]
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
        command = runs.train(name).finish()
        tally.cases += 1
        if command.code == 2 and command.is_line:
            refused += 1
            shutil.rmtree(runs.folder / name)
        else:
            runs.judge(name, command, tally, what)
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


def adversarial_fields(count: int, folder: Path, chance: random.Random) -> Tally:
    """Solve fields with a pulse between a solver's steps: see `adversarial.py`."""
    tally = Tally(
        "Adversarial fields", "a pulse in time or in p of a steepness up to 10^5, a width down to 10^-4"
    )
    ends = campaign(count, chance.randrange(10**6))
    tally.cases, tally.silent = ends.total(), ends["silent"]
    tally.notes.append(", ".join(f"{number} {end}" for end, number in sorted(ends.items())))
    return tally


def hostile_files(count: int, folder: Path, chance: random.Random) -> Tally:
    """Read malicious files."""
    tally = Tally("Hostile files", "a file that would fill the memory, execute, or mean something else")
    runs, marker, refused = Runs(folder), folder / "executed", 0
    runs.stopped("template")
    memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 4 * 2**30
    for what, arguments in itertools.islice(hostile_cases(folder, runs.config, marker, chance), count):
        command = Command(arguments, {resource.RLIMIT_AS: memory}).finish()
        tally.cases += 1
        refused += command.code == 2
        tally.see(command, what)
        if marker.exists():
            tally.silent += 1
            tally.notes.append(f"{what}: executed")
            marker.rmdir()
        shutil.rmtree(folder / "mutated", ignore_errors=True)
    tally.notes.insert(0, f"{refused} were refused in a line, the others did no harm")
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


def strangers(count: int, folder: Path, chance: random.Random) -> Tally:
    """Read run and model directories of strangers."""
    tally = Tally(
        "Untrusted directories",
        "a run or model directory with code, pickles, links or values of wrong types",
    )
    runs, marker, refused = Runs(folder), folder / "executed", 0
    memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 4 * 2**30
    with contextlib.chdir(folder):
        for what, arguments in itertools.islice(stranger_cases(folder, runs.config, marker, chance), count):
            command = Command(arguments, {resource.RLIMIT_AS: memory}).finish()
            tally.cases += 1
            refused += command.code == 2
            tally.see(command, what)
            if marker.exists():
                tally.silent += 1
                tally.notes.append(f"{what}: executed")
                shutil.rmtree(marker)
            elif not command.code and arguments[0] == "extend" and not Path(arguments[-1]).is_dir():
                tally.silent += 1
                tally.notes.append(f"{what}: exit code 0 and no model")
    tally.notes.insert(0, f"{refused} were refused in a line, the others did no harm")
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
        tally.cases += 1
        if command.code == 2 and command.is_line:
            refused += 1
            shutil.rmtree(runs.folder / name, ignore_errors=True)
        else:
            runs.judge(name, command, tally, f"{variables}")
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


def properties(
    title: str, meaning: str, module: str, part: str
) -> Callable[[int, Path, random.Random], Tally]:
    """Return a section that checks properties of tests/fuzz with random examples.

    Args:
        title: name of the section.
        meaning: description of a case.
        module: name of the module of the tests.
        part: text in the names of the tests.
    """

    def section(count: int, folder: Path, chance: random.Random) -> Tally:
        tests = ROOT / "tests"
        sys.path += map(str, (tests, tests / "encodings"))
        fuzzing, examined = import_module("fuzz.fuzzing"), import_module(module)
        checks = [check for name, check in vars(examined).items() if name.startswith("test") and part in name]
        biases.STEPS = 2  # the random tables of a toy are no smooth biases
        tally, before = Tally(title, meaning), Counter(fuzzing.outcomes())
        while (counts := Counter(fuzzing.outcomes()) - before).total() < count:
            for check in checks:
                number = chance.randrange(2**32)
                try:
                    seed(number)(check)()
                except Exception as error:
                    tally.silent += isinstance(error, AssertionError)
                    tally.tracebacks += not isinstance(error, AssertionError)
                    tally.notes.append(
                        f"{check.__name__} --fuzz {number}: {' '.join(str(error).split())[:300]}"
                    )
        tally.cases = counts.total() + tally.silent + tally.tracebacks
        tally.notes.insert(0, f"{counts['right']} right, {counts['refused']} refused")
        return tally

    return section


def first_hour(count: int, folder: Path, chance: random.Random) -> Tally:
    """Run the commands of a new user: right ones, each building on those before, then wrong ones."""
    tally = Tally("A new user's hour", "correct commands work, wrong ones end with one error line")
    folder.mkdir()
    prepare(folder)
    share = count / HOUR
    with contextlib.chdir(folder):
        for line in RIGHT[: round(share * len(RIGHT))]:
            command = Command(shlex.split(line)).finish(STUDY_LIMIT)
            tally.cases += 1
            tally.see(command, line)
            if command.code:
                tally.lost += 1
                tally.notes.append(f"{line}: exit code {command.code}: {command.lines[-1:]}")
        wrong = [(line, "") for line in WRONG] + [*MISSING.items()]
        for line, package in wrong[: round(share * len(wrong))]:
            command = Command(shlex.split(line), without=package).finish()
            tally.cases += 1
            tally.see(command, line)
            tally.silent += command.code == 0
            if command.code and (command.code != 2 or len(command.lines) > 2):
                tally.lost += 1
                tally.notes.append(f"{line}: exit code {command.code}, {len(command.lines)} lines")
    tally.notes.insert(
        0,
        f"{len(wrong)} of {HOUR} are wrong; lost counts right ones that fail, and wrong ones that do not end "
        "with exit code 2 and one line, after at most one line of the log",
    )
    return tally


PARTS: dict[str, tuple[int, Section]] = {
    "kills": (100, kills),
    "studies": (30, study_kills),
    "corrupted": (50, corruptions),
    "double": (30, double_starts),
    "full": (16, full_disks),
    "fields": (1000, adversarial_fields),
    "hostile": (100, hostile_files),
    "data": (60, changed_data),
    "strangers": (300, strangers),
    "locks": (30, no_locks),
    "launchers": (40, launchers),
    "streams": (40, streams),
    "caches": (
        400,
        properties(
            "Caches",
            "a plugged or extended model: chunks, and rows exchanged, chosen, repeated or cut",
            "fuzz.test_families",
            "cache",
        ),
    ),
    "compositions": (
        2000,
        properties(
            "Compositions",
            "an encoding or a composition with random options: padding, documents, caches, shifts, precision",
            "fuzz.test_encodings",
            "",
        ),
    ),
    "hour": (HOUR, first_hour),
}


def page(tallies: list[Tally], arguments: argparse.Namespace, seconds: float) -> str:
    """Return the page of the campaign."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
        return done.stdout

    commit = git("rev-parse", "--short", "HEAD").strip() + "+" * bool(
        git("status", "--porcelain", "-uno", "src")
    )
    rows = ["| what | a case | cases | lost | silent | tracebacks |", "|---|---|---|---|---|---|"]
    for each in tallies:
        cells = each.name, each.meaning, each.cases, each.lost, each.silent, each.tracebacks
        rows.append(f"| {' | '.join(map(str, cells))} |")
    notes = [f"- {tally.name}: {note}" for tally in tallies for note in tally.notes[:8]]
    whole = arguments.scale >= 1
    part = "" if whole else "\nThis one is a part of the campaign, which takes an hour or two."
    command = shlex.join(sys.argv[1:])
    machine = f"{os.cpu_count()} cores ({platform.machine()}) that others used, too"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return "\n".join(
        [
            "# Reliability\n",
            "A campaign that kills small runs, corrupts their files, starts them twice, fills their disk",
            'and changes their data, and counts the damage. "Lost" is a run that does not end with the',
            'weights of an undisturbed run, bit for bit; "silent" is a wrong result, or code that was',
            'executed, with exit code 0; "tracebacks" are commands that end with a traceback, or without',
            f"a line that says what to do.{part}\n",
            *rows,
            "",
            *notes,
            "",
            f"Command: `python benchmarks/reliability.py {command}` (all: `make reliability`), at commit",
            f"{commit}, in {seconds / 60:.0f} minutes on one of {machine}; {versions}.",
            "",
        ]
    )


def main() -> int:
    """Run the campaign and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the whole campaign")
    parser.add_argument(
        "--studies", type=float, help="share of the kills of studies, the most expensive part"
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task("generated")  # imported once, before the forks
    began, tallies = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            count, part = PARTS[name]
            start = time.monotonic()
            dear = name == "studies" and arguments.studies is not None
            scaled = max(1, round(count * (arguments.studies if dear else arguments.scale)))
            tally = part(scaled, Path(folder, name), random.Random(arguments.seed))
            tallies.append(tally)
            counted = f"{tally.cases} cases, {tally.lost} lost, {tally.silent} silent"
            print(
                f"{tally.name}: {counted}, {tally.tracebacks} tracebacks in {time.monotonic() - start:.0f} s",
                *tally.notes,
                sep="\n  ",
                flush=True,
            )
    arguments.output.write_text(page(tallies, arguments, time.monotonic() - began), encoding="utf-8")
    return int(any(tally.lost or tally.silent or tally.tracebacks for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
