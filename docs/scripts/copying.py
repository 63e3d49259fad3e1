"""Write the tables of the comparisons on copying into protocol.md: `make docs`.

docs/protocol/copying.csv and copying_clip.csv are the `scores.csv` of the studies, which have the variants
with the rate that was chosen.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from far import exact_matches, spread, words
from protocol import FLOW, LEARNED, UNLEARNED, BySeed, paired_tests
from tables import table

DOCS = Path(__file__).parents[1]
PAGE, FILE = DOCS / "protocol.md", DOCS / "protocol" / "copying.csv"
CLIPPED = DOCS / "protocol" / "copying_clip.csv"
NAMES = r"(.+)-\de-\d"
"""Variant, before the rate."""
BINS = {0: "to 16", 17: "17–32", 33: "33–64"}
"""Lengths by their lower bound in the file; those beyond the trained ones have tests."""
MAIN = 33
RIVALS = 8
"""Comparisons that Holm's correction counts."""


def scores(file: Path, low: int) -> dict[str, BySeed]:
    """Return the exact matches of a bin by variant and seed, the best variant first."""
    by_variant = {name: by_seed for (name,), by_seed in exact_matches(file, low, NAMES).items()}
    return dict(sorted(by_variant.items(), key=lambda item: -mean(item[1].values())))


def compared(of: dict[str, BySeed], reference: str) -> dict[str, tuple[str, str]]:
    """Return by how much a variant is better than each other with the same seeds, and Holm's p."""
    sides = {name: (of[reference], theirs) for name, theirs in of.items() if name != reference}
    return paired_tests(sides, family=RIVALS)


def by_variant(file: Path) -> str:
    """Return exact matches by variant, the best at the longest texts first, with the tests of the flow."""
    of = {low: scores(file, low) for low in BINS}
    tests = {low: compared(of[low], FLOW) for low in BINS if low}
    lines = []
    for name in of[MAIN]:
        line = {"self-attention": words(name)}
        line |= {title: spread([*of[low][name].values()], 1) for low, title in BINS.items()}
        for low, each in tests.items():
            line[f"flow better by, {BINS[low]}"], line[f"p, {BINS[low]}"] = each.get(name, ("", ""))
        lines.append(line)
    return table(lines)


def learned(file: Path) -> str:
    """Return by how much learned functions are better than buckets and formulas in the first score."""
    of = scores(file, MAIN)
    tests = {name: compared(of, name) for name in LEARNED}
    return table(
        [
            {"better than": words(rival)}
            | {words(name): "{}, p {}".format(*tests[name][rival]) for name in LEARNED}
            for rival in UNLEARNED
        ]
    )


def clip(file: Path, clipped: Path) -> str:
    """Return what the clip gives to a function, and by how much the flow is better, the first score first.

    Args:
        file: scores of the functions without a clip, and of the flow.
        clipped: scores of `NAME_clipped`; others are repeats.
    """
    lines = []
    for low in sorted(low for low in BINS if low)[::-1]:
        plain = scores(file, low)
        named = ((name.rpartition("_")[::2], each) for name, each in scores(clipped, low).items())
        of = {name: each for (name, suffix), each in named if suffix == "clipped"}
        sides = {("clip", name): (each, plain[name]) for name, each in of.items()}
        sides |= {("flow", name): (plain[FLOW], each) for name, each in of.items()}
        tests = paired_tests(sides, family=len(sides))
        for name, each in of.items():
            line = {"symbols": BINS[low], "function": words(name)}
            line |= {"without the clip": spread([*plain[name].values()], 1)}
            line |= {"with it": spread([*each.values()], 1)}
            line["better with it by"], line["p, clip"] = tests["clip", name]
            line["flow better by"], line["p, flow"] = tests["flow", name]
            lines.append(line)
    return table(lines)


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {
        "copying": by_variant(FILE),
        "copying learned": learned(FILE),
        "copying clip": clip(FILE, CLIPPED),
    }
