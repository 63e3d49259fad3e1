"""Kill, corrupt, duplicate and deceive runs, fill their disks, and count lost runs, silent errors and
tracebacks.

It is a benchmark and not a test, as it takes an hour and publishes numbers (`--csv docs/reliability`).
`python benchmarks/reliability.py --scale 0.1` runs a tenth of it. Every command is the real one, in a process
forked from this one, which has imported the library already; trials of a study start processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from hypothesis import seed

from adversarial import campaign
from commands import Command, Runs, Tally
from disturbed_runs import (
    STUDY_LIMIT,
    changed_data,
    corruptions,
    double_starts,
    full_disks,
    kills,
    launchers,
    no_locks,
    streams,
    study_kills,
)
from first_hour import HOUR, MISSING, RIGHT, WRONG
from first_hour_files import prepare
from floater.lab.tasks import task
from floater.pretrained.extending import biases
from hostile import hostile_cases
from stored import add_csv, show
from strangers import stranger_cases

ROOT = Path(__file__).parents[1]
Section = Callable[[int, Path, random.Random], Tally]


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


def main() -> int:
    """Run the campaign, print its table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the whole campaign")
    parser.add_argument(
        "--studies", type=float, help="share of the kills of studies, the most expensive part"
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts of it")
    parser.add_argument("--seed", type=int, default=0)
    add_csv(parser)
    arguments = parser.parse_args()
    if arguments.csv and (arguments.scale < 1 or arguments.studies is not None):
        parser.error("--csv stores whole parts of the campaign: leave --scale and --studies out")
    torch.set_num_threads(1)
    task("generated")  # imported once, before the forks
    damaged = False

    def row(name: str) -> list[str]:
        nonlocal damaged
        count, part = PARTS[name]
        start = time.monotonic()
        dear = name == "studies" and arguments.studies is not None
        scaled = max(1, round(count * (arguments.studies if dear else arguments.scale)))
        tally = part(scaled, Path(folder, name), random.Random(arguments.seed))
        counts = tally.cases, tally.lost, tally.silent, tally.tracebacks
        damaged |= any(counts[1:])
        minutes = f"{(time.monotonic() - start) / 60:.1f}"
        return [tally.name, tally.meaning, *map(str, counts), "; ".join(tally.notes[:8]), minutes]

    columns = ["part", "each case", "cases", "lost", "silent", "tracebacks", "note", "minutes"]
    with tempfile.TemporaryDirectory() as folder:
        show(columns, map(row, arguments.only), arguments.csv, "campaign")
    return int(damaged)


if __name__ == "__main__":
    sys.exit(main())
