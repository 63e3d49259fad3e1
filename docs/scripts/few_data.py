"""Write the table of the study with few data into protocol.md from docs/protocol/few_data.csv: `make docs`.

The file is the `scores.csv` of the study, which has the variants with the rate that was chosen.
"""

from __future__ import annotations

from pathlib import Path

from far import exact_matches, spread
from protocol import FLOW, paired_tests
from tables import table

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "protocol.md"
BINS = {0: "to 16", 17: "17–32"}
"""Lengths by their lower bound in the file; each has its own tests."""
COMPARISONS = 18
"""Those of a bin: six rivals of the flow with each of three numbers of examples."""
NAMES = r"(.+)-(\d+)-\de-\d"
"""Variant and number of examples, before the rate."""


def few_data(file: Path) -> str:
    """Return exact matches by variant and number of examples, with the registered tests."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for low, title in BINS.items():
        by_variant = exact_matches(file, low, NAMES)
        rivals = {key: by_variant[key] for key in by_variant if key[0] != FLOW}
        sides = {key: (by_variant.get((FLOW, key[1]), {}), theirs) for key, theirs in rivals.items()}
        tests = paired_tests(sides, family=COMPARISONS)
        for (name, examples), by_seed in by_variant.items():
            line = lines.setdefault((name, examples), {"examples": examples, "encoding": f"`{name}`"})
            line[title] = spread([*by_seed.values()], 1)
            line[f"flow better by, {title}"], line[f"p, {title}"] = tests.get((name, examples), ("", ""))
    return table([lines[key] for key in sorted(lines, key=lambda key: (int(key[1]), *key))])


def written() -> dict[str, str]:
    """Return the table of the page by its name."""
    return {"few data": few_data(DOCS / "protocol" / "few_data.csv")}
