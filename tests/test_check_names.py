"""The check of names in `make lint`."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "check_names.py"
BAD = """
import math as known

def of_query(place, *own, **given):
    class _Taken: ...
    for found in (made := [1]):
        place.places = found
"""
GOOD = """
import library
result = library.found(library.given, place=library.own)  # names of others, and found in a comment
"""


def check(path: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
    return done.returncode, [
        line.partition(": rename ")[2].split("'")[1] for line in done.stdout.splitlines()
    ]


def test_every_place_that_defines_a_banned_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    code, names = check(tmp_path)
    assert code == 1
    assert sorted(names) == [
        "_Taken",
        "found",
        "given",
        "known",
        "made",
        "of_query",
        "own",
        "place",
        "places",
    ]


def test_uses_of_other_libraries_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    assert check(tmp_path / "good.py") == (0, [])
