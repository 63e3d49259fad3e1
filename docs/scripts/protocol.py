"""Write the tables of protocol.md from the scores and validation losses in docs/protocol/: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TypeVar

from far import spread, words
from tables import read as rows
from tables import table as markdown

from floater.lab.study.significance import holm, paired_t_p

Key = TypeVar("Key")
DOCS = Path(__file__).parents[1]
PAGE = DOCS / "protocol.md"
FLOW = "floater_relative"
LEARNED, UNLEARNED = (FLOW, "distance_mlp", "dynamic_bias"), ("t5", "kerple", "alibi")
"""The two sides of the second question."""
RATES, SEEDS = ("1e-3", "2e-3", "4e-3"), (21, 22, 23, 24, 25)
CHOOSING = SEEDS[0]
RIVALS = 9
"""Comparisons that Holm's correction counts."""
STEPS, MORE = 1500, 6000
"""Steps of the plan and of the longest training."""
BySeed = dict[int, float]
Trials = dict[tuple[str, str, int], dict[int, float]]
"""BLEU by the lower bound of the bin, by variant, rate and seed; the validation loss is at -1."""


def read(folder: Path) -> Trials:
    """Return the scores of `scores.csv` and the losses of `validation.csv` (model, seed, loss)."""
    trials: Trials = {}
    for row in rows(folder / "scores.csv"):
        if row["metric"] == "bleu" and row["test"] == "lengths" and row["low"]:
            trials.setdefault(_key(row), {})[int(row["low"])] = float(row["score"])
    for row in rows(folder / "validation.csv"):
        trials[_key(row)][-1] = float(row["loss"])
    return trials


def _key(row: dict[str, str]) -> tuple[str, str, int]:
    variant, rate, steps = re.fullmatch(r"(.+?)-(\de-\d)(-\d+)?", row["model"]).groups()  # type: ignore[union-attr]
    return variant + (steps or ""), rate, int(row["seed"])


def with_steps(trials: Trials, most: int = 0) -> Trials:
    """Return the trials of each variant with the most steps up to a number; 0 for those of the plan.

    >>> trials = {("none", "4e-3", 21): {}, ("none-3000", "4e-3", 21): {}, ("t5", "4e-3", 21): {}}
    >>> list(with_steps(trials)), list(with_steps(trials, 3000))
    ([('none', '4e-3', 21), ('t5', '4e-3', 21)], [('none-3000', '4e-3', 21), ('t5', '4e-3', 21)])
    """
    longest: dict[str, tuple[int, str]] = {}
    for name in {name for name, _, _ in trials}:
        kind, steps = kind_and_steps(name)
        if steps <= most:
            longest[kind] = max(longest.get(kind, (0, name)), (steps, name))
    names = {name for _, name in longest.values()}
    return {key: scores for key, scores in trials.items() if key[0] in names}


def chosen(trials: Trials) -> dict[str, str]:
    """Return the rate of each variant with the lowest validation loss of the seed that chooses.

    >>> chosen({("none", "1e-3", 21): {-1: 0.5}, ("none", "2e-3", 21): {-1: 0.4}})
    {'none': '2e-3'}
    """
    rates: dict[str, str] = {}
    for variant, rate, seed in trials:
        if seed == CHOOSING:
            best = rates.setdefault(variant, rate)
            if trials[variant, rate, seed][-1] < trials[variant, best, seed][-1]:
                rates[variant] = rate
    return rates


def table(trials: Trials) -> str:
    """Return means and deviations over the seeds, the furthest first."""
    bins = _bins(trials)

    def scores(name: str, *lows: int) -> list[float]:
        return [*_scores(trials, name, [*lows]).values()]

    lines = []
    for name in sorted(chosen(trials), key=lambda name: -mean(scores(name, bins[-1]))):
        line = {"self-attention": title(name), "loss": spread(scores(name, -1), 3)}
        line |= {f"{low}+": spread(scores(name, low), 1) for low in bins}
        lines.append(line | {"mean": spread(scores(name, *bins[1:]), 1)})
    return markdown(lines)


def against_rivals(trials: Trials) -> str:
    """Return the registered tests of the flow against its rivals, in the main score and in the second."""
    bins = _bins(trials)
    main, second = compared(trials, FLOW, bins[-1:]), compared(trials, FLOW, bins[1:])
    names = ("by", "p", "in the mean", "p of the mean")
    lines = [
        {"better than": title(name)} | dict(zip(names, (*main[name], *second[name]), strict=True))
        for name in sorted(main, key=lambda name: float(main[name][0].split()[0]))
    ]
    return markdown(lines)


def learned(trials: Trials) -> str:
    """Return by how much learned functions are better than buckets and formulas in the main score."""
    names = {name.split("-")[0]: name for name in chosen(trials)}
    tests = {name: compared(trials, name, _bins(trials)[-1:]) for name in LEARNED}
    cells = {
        rival: {f"`{name}`": "{}, p {}".format(*tests[name][names[rival]]) for name in LEARNED}
        for rival in UNLEARNED
    }
    return markdown([{"better than": title(names[rival])} | line for rival, line in cells.items()])


def by_steps(trials: Trials) -> str:
    """Return the losses and scores of the variants that were trained with several numbers of steps."""
    bins = _bins(trials)
    kinds = sorted((*kind_and_steps(name), name) for name in chosen(trials))
    longer = {kind for kind, steps, _ in kinds if steps}
    lines = []
    for kind, steps, name in kinds:
        if kind in longer:
            line = {"self-attention": words(kind), "steps": f"{steps or STEPS:,}"}
            line["loss"] = spread([*_scores(trials, name, [-1]).values()], 3)
            line |= {f"{low}+": spread([*_scores(trials, name, [low]).values()], 1) for low in bins}
            lines.append(line | {"mean": spread([*_scores(trials, name, bins[1:]).values()], 1)})
    return markdown(lines)


def title(name: str) -> str:
    """Return the name of a variant with its steps, where they are more than those of the plan.

    >>> title("floater_relative-unclipped"), title("t5-3000")
    ('`floater_relative` without a clip', '`t5`, 3,000 steps')
    """
    kind, steps = kind_and_steps(name)
    return words(kind) + (f", {steps:,} steps" if steps else "")


def kind_and_steps(name: str) -> tuple[str, int]:
    """Return a variant and its number of steps, 0 for that of the plan.

    >>> kind_and_steps("floater_relative-unclipped"), kind_and_steps("t5-3000")
    (('floater_relative-unclipped', 0), ('t5', 3000))
    """
    kind, steps = re.fullmatch(r"(.+?)(?:-(\d+))?", name).groups()  # type: ignore[union-attr]
    return kind, int(steps or 0)


def compared(trials: Trials, reference: str, lows: list[int]) -> dict[str, tuple[str, str]]:
    """Return by how much a variant is better than each rival with the same seeds, and Holm's p."""
    others = (name for name in chosen(trials) if name != reference)
    ours = _scores(trials, reference, lows)
    return paired_tests({name: (ours, _scores(trials, name, lows)) for name in others}, family=RIVALS)


def paired_tests(sides: Mapping[Key, tuple[BySeed, BySeed]], *, family: int) -> dict[Key, tuple[str, str]]:
    """Return mean and deviation of differences by seed, and p of a paired t-test after Holm's correction.

    >>> flow = {21: 90.0, 22: 91.0}
    >>> paired_tests({"alibi": (flow, {21: 80.0, 22: 80.0}), "none": (flow, {21: 70.0})}, family=2)
    {'alibi': ('10.5 ± 0.7', '0.061'), 'none': ('20.0', '')}
    """
    differences = {
        key: [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        for key, (ours, theirs) in sides.items()
        if ours.keys() & theirs.keys()
    }
    ps = {key: p for key, values in differences.items() if (p := paired_t_p(values)) is not None}
    shown = {key: shown_p(p) for key, p in holm_corrected(ps, family).items()}
    return {key: (spread(values, 1), shown.get(key, "")) for key, values in differences.items()}


def holm_corrected(ps: Mapping[Key, float], family: int) -> dict[Key, float]:
    """Return p values after Holm's correction over all registered comparisons, also those that are not run.

    >>> holm_corrected({"t5": 0.01, "none": 0.02}, family=9)
    {'t5': 0.09, 'none': 0.16}
    """
    every = [*ps.values(), *[1.0] * (family - len(ps))]
    return dict(zip(ps, holm(every), strict=False))


def shown_p(p: float) -> str:
    """Return a p value as the tables show it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _scores(trials: Trials, name: str, lows: list[int]) -> BySeed:
    """Return the mean over some bins, by seed, with the rate that was chosen."""
    rate = chosen(trials)[name]
    trained = {seed: trials[name, rate, seed] for seed in SEEDS if (name, rate, seed) in trials}
    return {seed: mean(scores[low] for low in lows) for seed, scores in trained.items()}


def _bins(trials: Trials) -> list[int]:
    return sorted({low for scores in trials.values() for low in scores if low >= 0})


def choice(trials: Trials) -> str:
    """Return the validation losses that chose the rates."""
    rates = chosen(trials)
    lines = []
    for name in rates:
        line = {"self-attention": words(name)}
        for rate in RATES:
            scores = trials.get((name, rate, CHOOSING))
            text = "" if scores is None else f"{scores[-1]:.3f}"
            line[rate] = f"**{text}**" if rate == rates[name] else text
        lines.append(line)
    return markdown(lines)


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    trials = read(DOCS / "protocol")
    planned = with_steps(trials)
    parts = {"rates": choice(planned), "scores": table(planned), "tests": against_rivals(planned)}
    if len(planned) < len(trials):
        longest = with_steps(trials, MORE)
        parts |= {"longer": against_rivals(longest), "learned": learned(longest), "steps": by_steps(trials)}
    return parts
