"""`--fuzz SEED`: random examples in place of the fixed ones, for `--minutes`, and a table of the outcomes."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import seed

TESTS = Path(__file__).parents[1]
# what tests and measurements share, and the cases of another folder
sys.path += [str(TESTS.parent / "benchmarks"), str(TESTS / "encodings")]

from .fuzzing import COUNTS  # noqa: E402


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Check all properties with one seed after the other until the time is over, at least with the first."""
    first, minutes = (session.config.getoption(name) for name in ("fuzz", "minutes"))
    if first is None or session.config.option.collectonly or session.testsfailed:
        return None
    end = time.monotonic() + 60 * minutes
    items: list[Any] = [item for item in session.items if hasattr(getattr(item, "obj", None), "area")]
    for number in itertools.count(first):
        for item, following in zip(items, [*items[1:], items[0]], strict=True):
            if number > first and time.monotonic() > end:
                return True
            seed(number)(item.obj)
            item.user_properties = [("seed", number)]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldstop or session.shouldfail:
                raise session.Interrupted(session.shouldstop or session.shouldfail)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Any, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    area = getattr(getattr(item, "obj", None), "area", None)
    if area is not None and report.failed and call.excinfo is not None:
        for error in _each(call.excinfo.value):
            COUNTS[area]["silent" if isinstance(error, AssertionError) else "tracebacks"] += 1
        number = dict(item.user_properties).get("seed")
        again = f" --fuzz {number}" if number is not None else ""
        report.sections.append(("to repeat it", f"pytest '{item.nodeid}'{again}"))
    return report


def _each(error: BaseException) -> list[BaseException]:
    """Return the errors of a group: hypothesis reports several failures at once."""
    if isinstance(error, BaseExceptionGroup):
        return [each for inner in error.exceptions for each in _each(inner)]
    return [error]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("fuzz") is None:
        return
    columns = ("right", "refused", "silent", "tracebacks")
    terminalreporter.write_line("\n| what | checks | " + " | ".join(columns) + " |\n|---|" + "---|" * 5)
    for area, counts in sorted(COUNTS.items()):
        cells = area, counts.total(), *(counts[column] for column in columns)
        terminalreporter.write_line(f"| {' | '.join(map(str, cells))} |")
