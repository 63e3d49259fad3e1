"""Write the tables of events.md from docs/events/*.csv: `make docs`.

The files are the `scores.csv` of the studies, which have the variants with the rate that was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from far import scores_by_seed, spread, words
from protocol import BySeed, holm_corrected, shown_p
from tables import table

from floater.lab.study.significance import welch_p

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "events.md"
FILE = DOCS / "events" / "scores.csv"
RIVALS = DOCS / "events" / "rivals.csv"
RATES = DOCS / "events" / "rates.csv"
ORDERS = DOCS / "events" / "orders.csv"
TESTS = {"as_trained": "in pieces as in training", "in_512": "in pieces of 512"}
METRICS = {
    "nll": ("nats", 3),
    "nll_time": ("nats of the time", 3),
    "nll_type": ("nats of the type", 3),
    "accuracy": ("accuracy, %", 2),
}
"""Heads of columns, and decimals."""
PAIRS = (
    ("floater_relative", "dynamic_bias"),
    ("floater", "sinusoidal"),
    ("floater_relative", "floater_relative-index"),
    ("sinusoidal", "sinusoidal-index"),
    ("floater_relative", "none"),
    ("floater", "none"),
    ("rotary-clock", "rotary"),
)
"""The registered comparisons."""
RIVAL_PAIRS = (("floater_relative", "distance_mlp"), ("floater_relative", "floater_relative-unclipped"))
"""Those with the rivals of the flow over distances."""
RATE_PAIRS = (("floater_relative", "distance_mlp"), ("floater_relative", "dynamic_bias"))
"""Those of the study with a higher rate."""
ORDER_PAIRS = (("floater_relative", "distance_mlp"), *PAIRS[:-1])
"""Those of the study of orders of a market, which has no clock."""


def scores(file: Path, test: str, metric: str) -> dict[str, BySeed]:
    """Return the scores of a test set by variant and seed, with the seeds that all variants have."""
    by_variant = {name: of for (name,), of in scores_by_seed(file, test, metric, r"(.+)-\de-\d").items()}
    seeds = set.intersection(*map(set, by_variant.values()))
    return {name: {seed: of[seed] for seed in sorted(seeds)} for name, of in by_variant.items()}


def by_variant(file: Path, unit: str = "days") -> str:
    """Return means and deviations over the seeds, the lowest negative log-likelihood first."""
    metrics = METRICS | {"mae": (f"error, {unit}", 3 if unit == "days" else 2)}
    of = {metric: scores(file, "as_trained", metric) for metric in metrics}
    longer = scores(file, "in_512", "nll")
    lines = []
    for name in sorted(of["nll"], key=lambda name: mean(of["nll"][name].values())):
        line = {"encoding": words(name)}
        for metric, (title, digits) in metrics.items():
            line[title] = spread([*of[metric][name].values()], digits)
        lines.append(line | {"nats in 512": spread([*longer[name].values()], 3)})
    return table(lines)


def compared(pairs: Sequence[tuple[str, str]], *files: Path) -> str:
    """Return by how many nats the first of each pair is better, and p of Welch's tests after Holm."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for test, title in TESTS.items():
        of = {
            name: [*by_seed.values()] for file in files for name, by_seed in scores(file, test, "nll").items()
        }
        ps = {pair: p for pair in pairs if (p := welch_p(of[pair[0]], of[pair[1]])) is not None}
        shown = {pair: shown_p(p) for pair, p in holm_corrected(ps, len(pairs)).items()}
        for one, other in pairs:
            line = lines.setdefault((one, other), {"encoding": words(one), "against": words(other)})
            line[f"better by, {title}"] = f"{mean(of[other]) - mean(of[one]):.3f}"
            line[f"p, {title}"] = shown.get((one, other), "")
    return table([*lines.values()])


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {
        "events": by_variant(FILE),
        "events tests": compared(PAIRS, FILE),
        "events rivals": by_variant(RIVALS),
        "events rivals tests": compared(RIVAL_PAIRS, FILE, RIVALS),
        "events rates": by_variant(RATES),
        "events rates tests": compared(RATE_PAIRS, RATES),
        "events orders": by_variant(ORDERS, "ms"),
        "events orders tests": compared(ORDER_PAIRS, ORDERS),
    }
