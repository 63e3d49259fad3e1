"""Properties of this folder: fixed examples in the tests, random ones with --fuzz, and counts of outcomes."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

from floater import PositionError
from floater.errors import DataError
from floater.flow import FlowError
from floater.lab.settings import SettingsError
from floater.pretrained import ExtendError, PlugError

REFUSALS = (PositionError, FlowError, PlugError, ExtendError, DataError, SettingsError)
COUNTS: defaultdict[str, Counter[str]] = defaultdict(Counter)
"""By the title of the area: how many checks were right, and how many were refused."""


class Silent(AssertionError):
    """A wrong result that came without an error."""


class Refused(DataError):
    """A refusal of the command line, with exit code 2 and one line."""


def outcomes() -> Counter[str]:
    """Return the counts of all areas together."""
    return sum(COUNTS.values(), Counter())


def checked(area: str, examples: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for properties, below `given`.

    A refusal by a typed error of one line is an outcome, as is a result; any other error fails the test.
    The examples are the same in each run, unless `hypothesis.seed` decorates the test (`--fuzz`).

    Args:
        area: title of the row of the counts.
        examples: number of examples.
    """

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            outcome = "right"
            try:
                test(*args, **kwargs)
            except REFUSALS as error:
                outcome = "refused"
                if len(lines := str(error).splitlines()) != 1:
                    raise AssertionError(f"{len(lines)} lines: {error}") from error
            COUNTS[area][outcome] += 1

        counted.area = area  # type: ignore[attr-defined]
        return settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            print_blob=False,  # --fuzz prints a command
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,  # many compositions do not have the property of a test
            ],
        )(counted)

    return decorate
