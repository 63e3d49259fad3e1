"""Write the tables of the nine problems into clock.md: `make docs`.

nine_problems.csv, forgetting_b0.csv and driven_flow.csv in docs/clock are the `scores.csv` of studies, which
have the variants with the rate that was chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import ge
from pathlib import Path
from statistics import mean

from far import exact_matches, spread, words
from protocol import holm_corrected, shown_p
from tables import table

from floater.lab.study.significance import welch_p

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "clock.md"
CLOCK, WITH_CLOCK, WITHOUT = "rotary-clock", "floater_relative-clock", "floater_relative"
FORGETTING, AT_ZERO = "forgetting", "forgetting-b0"
"""The two starts of its gates: that of x-transformers and that of the authors."""
PROBLEMS = "parity", "dyck", "flip_flop", "counting", "s3", "s5", "recall", "reverse", "sort"
BINS = {0: "to 20", 21: "21 to 40", 41: "41 to 80"}
"""Numbers of units by their lower bound in the file."""
MAIN, LEVEL = 21, 0.05
DIVIDED = "parity", "s3", "recall", "reverse"
"""Problems whose scores are shown by seed, as some encodings learn them with some seeds only."""
WIDE = 20
"""Points between the lowest and the highest seed of an encoding from which on they are shown."""
UNLEARNED = 0.5
"""The highest mean of a problem that the tables of scores omit, as no encoding learns it."""
COMPARISONS = 12 * len(PROBLEMS)
"""Those of `rotary-clock` and the twelve other encodings."""
FLOWS, RIVALS = ("floater_cde", "floater_cde-free"), ("path", CLOCK)
AIMED = CLOCK, WITH_CLOCK, FLOWS[0]
"""The encodings that the goals were set for."""
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
    problems = [problem for problem in PROBLEMS if means[problem] and max(means[problem]) > UNLEARNED]
    best = {problem: max(means[problem]) for problem in problems if len(means[problem]) > 1}
    lines = []
    for name in dict.fromkeys(name for name, _ in of):
        line = {"encoding": words(name)}
        for problem in problems:
            values = of.get((name, problem), [])
            text = spread(values, 1) if values else ""
            line[problem] = f"**{text}**" if values and mean(values) == best.get(problem) else text
        lines.append(line)
    return table(lines)


def by_seed(of: Scores) -> str:
    """Return the scores of each seed in order where they differ widely, a row for each such encoding."""
    lines = []
    for name in dict.fromkeys(name for name, _ in of):
        each = {problem: of.get((name, problem), [0.0]) for problem in DIVIDED}
        shown = {
            problem: ", ".join(f"{score:.0f}" for score in values) if max(values) - min(values) > WIDE else ""
            for problem, values in each.items()
        }
        lines += [{"encoding": words(name), **shown}] * any(shown.values())
    return table(lines)


def against_others(of: Scores, p: Mapping[str, Mapping[Key, float]]) -> str:
    """Return by how much an encoding is better than others, and p, on each problem where one is below 1.

    Args:
        of: the scores.
        p: for each encoding that of its tests, by the other encoding and the problem.
    """
    lines = []
    for one, problem in ((one, problem) for one in p for problem in PROBLEMS):
        line = {"encoding": words(one), "problem": problem, "better than": "", "worse than": ""}
        for (other, _), value in sorted((key, value) for key, value in p[one].items() if key[1] == problem):
            difference = mean(of[one, problem]) - mean(of[other, problem])
            side = "better than" if difference > 0 else "worse than"
            if value < 1:
                text = f"{words(other)} by {abs(difference):.1f}, p {shown_p(value)}"
                line[side] += f"; {text}" if line[side] else text
        lines += [line] * bool(line["better than"] or line["worse than"])
    return table(lines)


def goal(of: Scores) -> str:
    """Return for each problem the best encoding, and whether `rotary-clock` is significantly worse."""
    p = main_test(of)
    lines = []
    for problem in problems_of(of, CLOCK):
        means = {name: mean(values) for (name, which), values in of.items() if which == problem}
        best = [name for name in means if means[name] == max(means.values())]
        names = "all" if len(best) == len(means) > 1 else ", ".join(map(words, best))
        line = {"problem": problem, "best": names, "its score": f"{means[best[0]]:.1f}"}
        line[words(CLOCK)] = f"{means[CLOCK]:.1f}"
        tested = [p[name, problem] for name in best if (name, problem) in p]
        met = CLOCK in best or (tested and min(tested) >= LEVEL)
        line["significantly worse"] = "no" if met else "yes" if tested else "not tested"
        lines.append(line)
    return table(lines)


def two(of: Scores, one: str, other: str) -> str:
    """Return the scores of two encodings on each problem, and p of their difference."""
    pairs = {problem: ((one, problem), (other, problem)) for problem in problems_of(of, one, other)}
    p = corrected(of, pairs.values(), family=len(PROBLEMS))
    lines = [
        {
            "problem": problem,
            **{words(name): spread(of[name, problem], 1) for name in (one, other)},
            "p": shown_p(p[pair]) if pair in p else "",
        }
        for problem, pair in pairs.items()
    ]
    return table(lines)


def with_start_at_zero(of: Scores) -> Scores:
    """Return the scores with `forgetting` from b = 0 in the place of that from b = 5.

    >>> with_start_at_zero({("forgetting", "s3"): [1.0], ("forgetting-b0", "s3"): [3.0]})
    {('forgetting-b0', 's3'): [3.0]}
    """
    return {key: values for key, values in of.items() if key[0] != FORGETTING}


def goals(of: Mapping[int, Scores]) -> str:
    """Return for each goal the means of the encodings that it was set for, and all that meet it.

    Args:
        of: by the lower bound of the bin.
    """
    wanted = {
        "parity: 100, 99 and 95 % at 1, 2 and 4 times": ("parity", {0: 100.0, 21: 99.0, 41: 95.0}),
        "recall: 95 and 60 % at 1 and 4 times": ("recall", {0: 95.0, 41: 60.0}),
        "sort at 2 times: not below `none`": ("sort", {MAIN: mean(of[MAIN]["none", "sort"])}),
    }
    lines = []
    for goal, (problem, least) in wanted.items():
        names = [name for name, which in of[MAIN] if which == problem]
        means = {name: [mean(of[low][name, problem]) for low in least] for name in names}
        meets = {name for name, each in means.items() if all(map(ge, each, least.values()))}
        shown = {words(name): " / ".join(f"{score:.1f}" for score in means[name]) for name in AIMED}
        shown |= {words(name): f"**{shown[words(name)]}**" for name in meets & {*AIMED}}
        others = ", ".join(words(name) for name in means if name in meets and name != "none")
        lines.append({"goal": goal, **shown, "met by": others or "none of them"})
    return table(lines)


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    file, flow = DOCS / "clock" / "nine_problems.csv", DOCS / "clock" / "driven_flow.csv"
    at_zero = DOCS / "clock" / "forgetting_b0.csv"
    of = {low: scores([file], low) for low in BINS}
    parts = {f"nine problems {title}": by_problem(of[low]) for low, title in BINS.items()}
    parts |= {
        "nine problems by seed": by_seed(of[MAIN]),
        "nine problems tests": against_others(of[MAIN], {CLOCK: main_test(of[MAIN])}),
        "nine problems goal": goal(of[MAIN]),
        "nine problems flow": two(of[MAIN], WITH_CLOCK, WITHOUT),
    }
    both = scores([file, at_zero], MAIN)
    tests = main_test(with_start_at_zero(both))
    parts["forgetting"] = two(both, AT_ZERO, FORGETTING)
    parts["forgetting tests"] = against_others(
        both, {CLOCK: {k: p for k, p in tests.items() if k[0] == AT_ZERO}}
    )
    parts["goals"] = goals({low: scores([file, flow], low) for low in BINS})
    of = {low: scores([flow, file], low, [*FLOWS, *RIVALS], FLOWS[0]) for low in BINS if low >= MAIN}
    parts |= {f"driven flow {BINS[low]}": by_problem(each) for low, each in of.items()}
    parts["driven flow by seed"] = by_seed(of[MAIN])
    parts["driven flow tests"] = against_others(of[MAIN], flow_tests(of[MAIN]))
    return parts
