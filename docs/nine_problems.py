"""Write the tables of the nine problems into clock.md: `make docs`.

nine_problems.csv and driven_flow.csv in docs/clock are the `scores.csv` of two studies, which have the
variants with the rate that was chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import mean

from far import exact_matches, spread
from protocol import holm_corrected, shown_p
from tables import table, write_parts

from floater.lab.study.significance import welch_p

HERE = Path(__file__).parent
CLOCK, WITH_CLOCK, WITHOUT = "rotary-clock", "floater_relative-clock", "floater_relative"
PROBLEMS = "parity", "dyck", "flip_flop", "counting", "s3", "s5", "recall", "reverse", "sort"
BINS = {0: "to 20", 21: "21 to 40", 41: "41 to 80"}
"""Numbers of units by their lower bound in the file."""
MAIN, LEVEL = 21, 0.05
DIVIDED = "parity", "s3", "recall", "reverse"
"""Problems whose scores are shown by seed, as some encodings learn them with some seeds only."""
COMPARISONS = 12 * len(PROBLEMS)
"""Those of `rotary-clock` and the twelve other encodings."""
FLOWS, RIVALS = ("floater_cde", "floater_cde-free"), ("path", CLOCK)
Key = tuple[str, str]
Scores = dict[Key, list[float]]
"""Exact matches of the seeds, by encoding and problem."""


def scores(
    files: Iterable[Path], low: int, names: Collection[str] = (), seeds_of: str | None = None
) -> Scores:
    """Return the scores of a bin of lengths, of all encodings with the same seeds.

    Args:
        files: `scores.csv` of studies.
        low: lower bound of the bin.
        names: encodings; all if empty.
        seeds_of: encoding whose seeds are used; any other is omitted on a problem for which it lacks one.
            None for the seeds that all encodings have.
    """
    by_variant: dict[Key, dict[int, float]] = {}
    for file in files:
        by_variant |= exact_matches(file, low, rf"(.+)-({'|'.join(PROBLEMS)})-\de-\d")
    by_variant = {key: each for key, each in by_variant.items() if not names or key[0] in names}
    seeds = set.intersection(*(set(each) for key, each in by_variant.items() if seeds_of in (None, key[0])))
    return {
        key: [each[seed] for seed in sorted(seeds)]
        for key, each in by_variant.items()
        if each.keys() >= seeds
    }


def problems_of(of: Scores, *names: str) -> list[str]:
    """Return the problems that have scores of all these encodings."""
    return [problem for problem in PROBLEMS if {(name, problem) for name in names} <= of.keys()]


def corrected(of: Scores, pairs: Iterable[tuple[Key, Key]], *, family: int) -> dict[tuple[Key, Key], float]:
    """Return p of Welch's tests of those pairs that were run, after Holm's correction.

    >>> of = {("a", "s3"): [1.0, 1.0], ("b", "s3"): [1.0, 1.0], ("c", "s3"): [0.0, 0.0]}
    >>> [*corrected(of, [(("a", "s3"), ("b", "s3")), (("a", "s3"), ("c", "s3"))], family=2).values()]
    [1.0, 0.0]
    """
    tested = ((pair, welch_p(*(of[key] for key in pair))) for pair in pairs if of.keys() >= {*pair})
    return holm_corrected({pair: p for pair, p in tested if p is not None}, family)


def main_test(of: Scores) -> dict[Key, float]:
    """Return p of `rotary-clock` and each other encoding on each problem."""
    pairs = (((CLOCK, key[1]), key) for key in of if key[0] != CLOCK)
    return {other: p for (_, other), p in corrected(of, pairs, family=COMPARISONS).items()}


def flow_tests(of: Scores) -> dict[str, dict[Key, float]]:
    """Return p of each rival on each problem, for each variant of the flow; all are corrected together."""
    pairs = [((flow, key[1]), key) for flow in FLOWS for key in of if key[0] in RIVALS]
    ps = corrected(of, pairs, family=len(FLOWS) * len(RIVALS) * len(PROBLEMS))
    return {flow: {other: p for (one, other), p in ps.items() if one[0] == flow} for flow in FLOWS}


def by_problem(of: Scores) -> str:
    """Return means and deviations, a row for each encoding; the best mean of a problem, if any, is bold."""
    means = {problem: {mean(of[key]) for key in of if key[1] == problem} for problem in PROBLEMS}
    problems = [problem for problem in PROBLEMS if means[problem]]
    best = {problem: max(means[problem]) for problem in problems if len(means[problem]) > 1}
    lines = []
    for name in dict.fromkeys(name for name, _ in of):
        line = {"encoding": f"`{name}`"}
        for problem in problems:
            values = of.get((name, problem), [])
            text = spread(values, 1) if values else ""
            line[problem] = f"**{text}**" if values and mean(values) == best.get(problem) else text
        lines.append(line)
    return table(lines)


def by_seed(of: Scores) -> str:
    """Return the scores of each seed in order, a row for each encoding."""
    lines = []
    for name in dict.fromkeys(name for name, _ in of):
        each = {problem: of.get((name, problem), []) for problem in DIVIDED}
        shown = {problem: ", ".join(f"{score:.1f}" for score in values) for problem, values in each.items()}
        lines.append({"encoding": f"`{name}`", **shown})
    return table(lines)


def against_others(of: Scores, one: str, p: Mapping[Key, float]) -> str:
    """Return by how much an encoding is better than each other one on each problem, and p."""
    lines = []
    for name in dict.fromkeys(name for name, _ in of if name != one):
        line = {"better than": f"`{name}`"}
        for problem in problems_of(of, one):
            theirs = of.get((name, problem))
            difference = f"{mean(of[one, problem]) - mean(theirs):.1f}" if theirs else ""
            line[problem] = difference + (f", p {shown_p(p[name, problem])}" if (name, problem) in p else "")
        lines.append(line)
    return table(lines)


def goal(of: Scores) -> str:
    """Return for each problem the best encoding, and whether `rotary-clock` is significantly worse."""
    p = main_test(of)
    lines = []
    for problem in problems_of(of, CLOCK):
        means = {name: mean(values) for (name, which), values in of.items() if which == problem}
        best = [name for name in means if means[name] == max(means.values())]
        names = "all" if len(best) == len(means) > 1 else ", ".join(f"`{name}`" for name in best)
        line = {"problem": problem, "best": names, "its score": f"{means[best[0]]:.1f}"}
        line[f"`{CLOCK}`"] = f"{means[CLOCK]:.1f}"
        tested = [p[name, problem] for name in best if (name, problem) in p]
        met = CLOCK in best or (tested and min(tested) >= LEVEL)
        line["significantly worse"] = "no" if met else "yes" if tested else "not tested"
        lines.append(line)
    return table(lines)


def with_and_without(of: Scores) -> str:
    """Return the scores of `floater_relative` with the clock and without it."""
    problems = problems_of(of, WITH_CLOCK, WITHOUT)
    pairs = (((WITH_CLOCK, problem), (WITHOUT, problem)) for problem in problems)
    p = corrected(of, pairs, family=len(PROBLEMS))
    lines = [
        {
            "problem": problem,
            **{f"`{name}`": spread(of[name, problem], 1) for name in (WITH_CLOCK, WITHOUT)},
            "p": shown_p(p[pair]) if (pair := ((WITH_CLOCK, problem), (WITHOUT, problem))) in p else "",
        }
        for problem in problems
    ]
    return table(lines)


def main() -> None:
    """Write the tables into the page, once there are scores."""
    file = HERE / "clock" / "nine_problems.csv"
    if not file.is_file():
        return
    of = {low: scores([file], low) for low in BINS}
    parts = {f"nine problems {title}": by_problem(of[low]) for low, title in BINS.items()}
    parts |= {
        "nine problems by seed": by_seed(of[MAIN]),
        "nine problems tests": against_others(of[MAIN], CLOCK, main_test(of[MAIN])),
        "nine problems goal": goal(of[MAIN]),
        "nine problems flow": with_and_without(of[MAIN]),
    }
    flow = HERE / "clock" / "driven_flow.csv"
    if flow.is_file():
        of = {low: scores([flow, file], low, [*FLOWS, *RIVALS], FLOWS[0]) for low in BINS}
        parts |= {f"driven flow {title}": by_problem(of[low]) for low, title in BINS.items()}
        parts["driven flow by seed"] = by_seed(of[MAIN])
        for name, p in flow_tests(of[MAIN]).items():
            rivals = {key: values for key, values in of[MAIN].items() if key[0] in (name, *RIVALS)}
            parts[f"driven flow tests of {name}"] = against_others(rivals, name, p)
    write_parts(HERE / "clock.md", parts)


if __name__ == "__main__":
    main()
