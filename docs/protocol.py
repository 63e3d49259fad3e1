"""Write the tables of protocol.md from the scores and validation losses in docs/protocol/: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

from far import spread
from tables import read as rows
from tables import table as markdown
from tables import write_parts

from floater.lab.study.significance import holm, paired_t_p

HERE = Path(__file__).parent
PAGE = HERE / "protocol.md"
FLOW = "floater_relative"
RATES, SEEDS = ("1e-3", "2e-3", "4e-3"), (21, 22, 23, 24, 25)
CHOOSING = SEEDS[0]
MORE = 6000
"""Steps of the longest training."""
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
    steps = {name: int((re.findall(r"-(\d+)$", name) or [0])[0]) for name, _, _ in trials}
    kinds = {name: name.removesuffix(f"-{number}") for name, number in steps.items()}
    longest = {
        kind: max((name for name in steps if kinds[name] == kind and steps[name] <= most), key=steps.get)  # type: ignore[arg-type]
        for kind in kinds.values()
    }
    return {key: scores for key, scores in trials.items() if key[0] in longest.values()}


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
    """Return means and deviations over the seeds, the furthest first, with the registered tests."""
    rates = chosen(trials)
    seeds = {name: [s for s in SEEDS if (name, rate, s) in trials] for name, rate in rates.items()}
    bins = sorted({low for scores in trials.values() for low in scores if low >= 0})
    further = bins[1:]

    def scores(name: str, lows: list[int], of: list[int]) -> list[float]:
        return [mean(trials[name, rates[name], seed][low] for low in lows) for seed in of]

    def compared(lows: list[int]) -> dict[str, tuple[str, str]]:
        """Return by how much the flow is better than each rival with the same seeds, and Holm's p."""
        differences = {}
        for name in rates:
            shared = [seed for seed in seeds[name] if seed in seeds[FLOW]]
            ours, theirs = scores(FLOW, lows, shared), scores(name, lows, shared)
            differences[name] = [x - y for x, y in zip(ours, theirs, strict=True)]
        del differences[FLOW]
        ps = {name: p for name, values in differences.items() if (p := paired_t_p(values)) is not None}
        corrected = dict(zip(ps, holm([*ps.values()]), strict=True))
        p = {name: _p(corrected[name]) if name in corrected else "" for name in differences}
        return {name: (spread(values, 1), p[name]) for name, values in differences.items()}

    main, second = compared(bins[-1:]), compared(further)
    lines = []
    for name in sorted(rates, key=lambda name: -mean(scores(name, bins[-1:], seeds[name]))):
        kind, _, steps = re.fullmatch(r"(.+?)(-(\d+))?", name).groups()  # type: ignore[union-attr]
        line = {"self-attention": f"`{kind}`, {int(steps):,} steps" if steps else f"`{name}`"}
        line |= {"rate": rates[name], "loss": spread(scores(name, [-1], seeds[name]), 3)}
        line |= {f"{low}+": spread(scores(name, [low], seeds[name]), 1) for low in bins}
        line |= {"mean": spread(scores(name, further, seeds[name]), 1), "seeds": str(len(seeds[name]))}
        line["flow better by"], line["p"] = main.get(name, ("", ""))
        line["in the mean"], line["p of the mean"] = second.get(name, ("", ""))
        lines.append(line)
    return markdown(lines)


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def choice(trials: Trials) -> str:
    """Return the validation losses that chose the rates."""
    rates = chosen(trials)
    lines = []
    for name in rates:
        line = {"self-attention": f"`{name}`"}
        for rate in RATES:
            scores = trials.get((name, rate, CHOOSING))
            text = "" if scores is None else f"{scores[-1]:.3f}"
            line[rate] = f"**{text}**" if rate == rates[name] else text
        lines.append(line)
    return markdown(lines)


def main() -> None:
    """Write the tables into the page, once there are scores."""
    if not (HERE / "protocol").is_dir():
        return
    trials = read(HERE / "protocol")
    planned = with_steps(trials)
    parts = {"rates": choice(planned), "scores": table(planned)}
    if len(planned) < len(trials):
        parts["longer"] = table(with_steps(trials, MORE))
    write_parts(PAGE, parts)


if __name__ == "__main__":
    main()
