"""The scores of each example of a study in one file, from which all its scores and p values follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from floater.lab.study.results import Results
from floater.lab.tasks.measurement import Array, Measurement

PER_EXAMPLE = "examples.npz"
_LENGTHS, _UNITS = "lengths", "units"


def write_examples(results: Results, file: Path) -> None:
    """Write the lengths, the units and the statistics of each example of all trials.

    Args:
        results: the study's results.
        file: a NumPy archive of arrays "variant/seed/test/lengths", (n,), "variant/seed/test/metric", (n, k),
            whose sums over examples give the metric, and, where examples are parts of units,
            "variant/seed/test/units", (n,).
    """
    arrays = {}
    for outcome in results.outcomes:
        for test, measurement in outcome.measured.items():
            name = f"{outcome.trial.variant.name}/{outcome.trial.seed}/{test}"
            arrays[f"{name}/{_LENGTHS}"] = measurement.lengths
            if len(measurement.units):
                arrays[f"{name}/{_UNITS}"] = measurement.units
            arrays |= {f"{name}/{metric}": rows for metric, rows in measurement.statistics.items()}
    np.savez_compressed(file, allow_pickle=False, **arrays)


def read_examples(file: Path) -> dict[tuple[str, int, str], Measurement]:
    """Return what `write_examples` wrote, by variant, seed and test set.

    Example:
        >>> read_examples(Path("runs/study/mine/examples.npz"))  # doctest: +SKIP
        {('rotary', 1, 'lengths'): Measurement(...)}
    """
    examples: dict[tuple[str, int, str], dict[str, Array]] = {}
    with np.load(file, allow_pickle=False) as arrays:
        for name, values in arrays.items():
            variant, seed, test, metric = name.split("/")
            examples.setdefault((variant, int(seed), test), {})[metric] = values
    none = np.zeros(0, dtype=np.int64)
    return {
        key: Measurement(arrays.pop(_LENGTHS), units=arrays.pop(_UNITS, none), statistics=arrays)
        for key, arrays in examples.items()
    }
