"""Write the measured tables of the pages from the CSV files that store them: `make docs`.

The table of PAGE/NAME.csv stands on PAGE.md between two comments (`BEGIN`, `END`) with its name. Columns
that say where a row is from (`HIDDEN`) are not shown, and some files have a layout (`LAYOUTS`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

DOCS = Path(__file__).parents[1]
BEGIN, END = "<!-- {}: written by `make docs` -->", "<!-- end of {} -->"
HIDDEN = ("command", "commit", "minutes", "note")
Rows = Sequence[dict[str, str]]


def read(file: Path) -> Rows:
    """Return the rows of a table."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def parts(page: Path) -> dict[str, str]:
    """Return the text between the comments of a page by their name: a file, or a file and a layout of it."""
    pattern = BEGIN.format(r"(([\w-]+\.csv)(?: \w+)?)")
    names = re.findall(pattern, page.read_text(encoding="utf-8"))
    return {name: LAYOUTS.get(name, table)(read(page.with_suffix("") / file)) for name, file in names}


def table(rows: Rows) -> str:
    """Return rows as Markdown.

    >>> print(table([{"solver": "dopri5", "ms": "1,200", "commit": "28a23ed"}]))
    | solver | ms |
    |---|---:|
    | dopri5 | 1,200 |
    """
    columns = [name for name in rows[0] if name not in HIDDEN]
    sides = ["---" if any(is_text(row[name]) for row in rows) else "---:" for name in columns]
    lines = [columns, *([row[name].replace("|", r"\|") for name in columns] for row in rows)]
    bars = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([bars[0], f"|{'|'.join(sides)}|", *bars[1:]])


def is_text(cell: str) -> bool:
    """Return whether a cell has words: numbers are aligned on the right.

    >>> is_text("637, 59 x (55)"), is_text("0.019 of 2.92"), is_text("`alibi`"), is_text("1.05, kept")
    (False, False, True, True)
    """
    return bool(re.search(r"[A-Za-z]{3}|`", cell))


def judged(rows: Rows) -> str:
    """Return paired ratios with their goals, which the whole interval keeps or misses."""

    def verdict(row: dict[str, str]) -> str:
        low, high = map(float, row["95 % interval"].split(" to "))
        goal = float(row["goal"])
        return f"{row['goal']}, {'kept' if high <= goal else 'missed' if low > goal else 'open'}"

    return table([row | {"goal": verdict(row)} for row in rows])


def by_length(rows: Rows) -> str:
    """Return the speeds of encodings with a column for each length; those that miss their goal are bold."""
    lengths = sorted({row["length"] for row in rows}, key=lambda text: int(text.replace(",", "")))
    cells = {(row["encoding"], row["length"]): speed(row) for row in rows}
    names = sorted({row["encoding"] for row in rows})
    columns = [{length: cells.get((name, length), "") for length in lengths} for name in names]
    return table([{"encoding": name} | each for name, each in zip(names, columns, strict=True)])


def speed(row: dict[str, str]) -> str:
    """Return ratio, range and memory of an encoding.

    >>> speed({"ratio": "0.864", "range": "0.863 to 0.864", "goal": "0.9", "memory": "2.08"})
    '**0.864** (0.863 to 0.864) < 0.9, 2.08'
    """
    missed = row["goal"] and float(row["ratio"]) < float(row["goal"])
    text = f"**{row['ratio']}**" if missed else row["ratio"]
    text += f" ({row['range']})" if row["range"] else ""
    text += f" < {row['goal']}" if missed else ""
    return text + (f", {row['memory']}" if row["memory"] else "")


def by_speed(rows: Rows) -> str:
    """Return the encodings of each range of speed, the fastest first, each with its speed and much memory.

    >>> rows = [{"encoding": "t5", "speed": "0.16", "memory": "1.01"}]
    >>> print(by_speed([*rows, {"encoding": "rnn", "speed": "0.11", "memory": "1.30"}]))
    | speed | encodings: speed, and memory of 1.05 or more |
    |---:|---|
    | 0.1 to 0.2 | `t5` 0.16; `rnn` 0.11, 1.30 |
    """
    groups: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: -float(row["speed"])):
        low = min(9, int(10 * float(row["speed"]))) / 10
        title = f"{low:.1f} to {low + 0.1:.1f}" if low < 0.9 else "from 0.9 on"
        memory = f", {row['memory']}" if float(row["memory"]) >= 1.05 else ""
        groups.setdefault(title, []).append(f"`{row['encoding']}` {row['speed']}{memory}")
    head = "encodings: speed, and memory of 1.05 or more"
    return table([{"speed": title, head: "; ".join(group)} for title, group in groups.items()])


def by_shape(rows: Rows) -> str:
    """Return the times of solvers with a column for each; the first is the one that the others are over."""
    keys, errors = ("dim", "length", "rtol"), ("error p", "error of the gradient")
    shapes: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows:
        shapes.setdefault(tuple(row[key] for key in keys), {})[row["solver"]] = row
    lines = []
    for shape, by_solver in shapes.items():
        line = dict(zip(keys, shape, strict=True))
        line |= {name: against(row) for name, row in by_solver.items()}
        for error in errors:
            first, *others = (row[error] for row in by_solver.values())
            if first:
                line[error] = first + (f" ({'; '.join(others)})" if all(others) else "")
        lines.append(line)
    columns = dict.fromkeys(name for line in lines for name in line)
    return table([{name: line.get(name, "") for name in columns} for line in lines])


def against(row: dict[str, str]) -> str:
    """Return the time of a solver, its ratio to collocation, and its goal; a ratio that misses it is bold.

    >>> against({"median ms": "13,513", "x collocation": "46", "goal": "60"})
    '13,513, **46 x** (60)'
    """
    ratio, goal = row["x collocation"], row["goal"]
    text = f"{ratio} x" if ratio else ""
    text = f"**{text}**" if goal and float(ratio) < float(goal) else text
    return ", ".join(filter(None, [row["median ms"], text])) + (f" ({goal})" if goal else "")


def notes(rows: Rows) -> str:
    """Return the notes of the parts of a campaign as a list."""
    return "\n".join(f"- {row['part']}: {row['note']}" for row in rows if row["note"])


def runs(rows: Rows) -> str:
    """Return the commands of a campaign, with the parts and the minutes of each."""
    commands: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        commands.setdefault((row["command"], row["commit"]), []).append(row)
    return table(
        [
            {
                "parts": ", ".join(row["part"] for row in group),
                "run by": f"`{command}`",
                "at commit": commit,
                "in minutes": f"{sum(float(row['minutes'] or 0) for row in group):.0f}",
            }
            for (command, commit), group in commands.items()
        ]
    )


def by_position(rows: Rows) -> str:
    """Return means of losses between positions, from those of 32 positions each."""
    ends = (0, 64, 128, 256, 512)
    lines = []
    for name in dict.fromkeys(row["encoding"] for row in rows):
        points = [(float(row["position"]), float(row["nats"])) for row in rows if row["encoding"] == name]
        line = {"encoding": f"`{name}`"}
        for low, high in pairwise(ends):
            title = f"{low + 1}–{high}" + " (trained)" * (low == 0)
            line[title] = f"{fmean(nats for position, nats in points if low < position < high):.2f}"
        lines.append(line)
    return table(lines)


def by_task(rows: Rows) -> str:
    """Return means and deviations over seeds, with a column for each task and rate of a study's variants."""
    columns: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        encoding, task, rate = row["model"].split("-", 2)
        columns.setdefault(encoding, {}).setdefault(f"{task}, {rate}", []).append(float(row["score"]))
    return table(
        [
            {"encoding": f"`{encoding}`"}
            | {name: f"{fmean(each):.1f} ± {stdev(each):.1f}" for name, each in cells.items()}
            for encoding, cells in columns.items()
        ]
    )


def operators(rows: Rows) -> str:
    """Return the operators of extended models at both lengths, equal methods in one line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for old, new in zip(rows[::2], rows[1::2], strict=True):
        if old["what"] != new["what"]:
            raise ValueError(
                f"{old['what']} is followed by {new['what']}, not by its own count at the new length"
            )
        model, method = old["what"].split(" ", 1)
        key = model, f"{int(old['original']):,}", old["sequence"], new["sequence"], new["products"]
        groups.setdefault(key, []).append(method)
    titles = (
        "operators, original",
        "extended, 256 tokens",
        "extended, 1,024 tokens",
        "products at 1,024, ratio",
    )
    return table(
        [
            {"model, method": f"{model} {'; '.join(methods)}"} | dict(zip(titles, cells, strict=True))
            for (model, *cells), methods in groups.items()
        ]
    )


LAYOUTS: dict[str, Callable[[Rows], str]] = {
    "steps.csv": judged,
    "variants.csv": judged,
    "pretrained.csv": judged,
    "encodings.csv": by_length,
    "speeds.csv": by_speed,
    "solvers.csv": by_shape,
    "doubled.csv": by_shape,
    "rivals.csv": by_shape,
    "losses.csv": by_position,
    "tupe_glue_small.csv": by_task,
    "operators.csv": operators,
    "campaign.csv notes": notes,
    "campaign.csv runs": runs,
}


def write_parts(page: Path, parts: dict[str, str]) -> None:
    """Write parts of a page between the comments with their names."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = BEGIN.format(name), END.format(name)
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        text = re.sub(pattern, lambda _: f"{begin}\n\n{part}\n\n{end}", text, flags=re.DOTALL)  # noqa: B023
    page.write_text(text, encoding="utf-8")
