"""Write the tables of certificate.md from the stored certificates: `make docs`.

Means are over as many of a certificate's texts as each method has read: a row has their number.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from certificates import read
from tables import table

from floater.lab.certificate.certified_model import Method
from floater.lab.certificate.record import Record, wilson
from floater.lab.certificate.summary import PLAIN, short_change

PAGE = Path(__file__).parents[1] / "certificate.md"
NEEDLES = "passkey", "tracking", "multi-key", "multi-value", "multi-query", "completion"
IN_WINDOWS = "unextended, in windows"
Row = dict[str, str]


def _first(record: Record, texts: int) -> Record:
    """Return a record of the first texts alone."""
    results = {key: result for key, result in record.results.items() if int(key.split("/")[3]) < texts}
    return Record(record.settings, results)


def _texts(record: Record, method: Method, windows: bool = False) -> int:
    return len(record.losses(method, 0, record.length, windows))


@cache
def rows(name: str) -> list[Row]:
    """Return what a stored certificate says, a row for each number with its interval."""
    whole, methods = read(name)
    measured = [PLAIN, *(method for method in methods if _texts(whole, method))]
    bins = _bins(whole)
    lines: list[Row] = []
    for texts in sorted({_texts(whole, method) for method in measured} | {_texts(whole, PLAIN, True)}):
        record = _first(whole, texts)
        readers = [method for method in measured if _texts(whole, method) >= texts]
        for method, windows in [(PLAIN, True), *((method, False) for method in readers)]:
            label = "windows" if windows else str(method)
            alone = Record(record.settings, {k: r for k, r in record.results.items() if _about(k, label)})
            for low, high in bins:
                loss = alone.loss(method, low, high, windows)
                if loss is not None:
                    lines.append(_row("loss", label, texts, low, loss))
        for method in readers:
            for other, windows in [(PLAIN, True), *((other, False) for other in readers if other != method)]:
                label = "windows" if windows else str(other)
                difference = record.difference(method, other, record.old, record.length, windows)
                if difference is not None:
                    row = _row("difference", str(method), texts, record.old, difference.value)
                    ends = {"from": str(difference.low), "to": str(difference.high)}
                    lines.append(row | ends | {"against": label})
            change = short_change(record, method)
            if change is not None:
                row = _row("short", str(method), texts, 0, 100 * change)
                lines.append(row | {"times": str(1 + change)})
    for method in measured:
        for length in (whole.old // 2, whole.length):
            hits, total = whole.recall(method, length)
            if total:
                texts = len({key.split("/")[3] for key in whole.results if _asked(key, method, length)})
                row = _row("needles", str(method), texts, length, 100 * hits / total)
                lines.append(row | {"hits": str(hits), "total": str(total)})
    return lines


def _asked(key: str, method: Method, length: int) -> bool:
    kind, label, tokens, _ = key.split("/")
    return kind not in ("loss", "windows") and (label, int(tokens)) == (str(method), length)


def _about(key: str, label: str) -> bool:
    kind, method, *_ = key.split("/")
    return kind == "windows" if label == "windows" else (kind, method) == ("loss", label)


def _bins(record: Record) -> list[tuple[int, int]]:
    """Return ranges of positions: halves of the old length, or wholes where there would be many."""
    width = record.old // 2 if record.length <= 2 * record.old else record.old
    return [(low, low + width) for low in range(0, record.length - width + 1, width)]


def _row(kind: str, method: str, texts: int, low: int, value: float) -> Row:
    row = {"kind": kind, "method": method, "texts": str(texts), "low": str(low), "value": str(value)}
    return row | dict.fromkeys(("against", "from", "to", "times", "hits", "total"), "")


def losses(name: str) -> str:
    """Return the loss by position and the difference from parts, more texts first, then the best."""
    record, _ = read(name)
    bins, several = _bins(record), record.settings["model"]["kind"] == "causal"
    parts = IN_WINDOWS if several else f"in parts of {record.old}"
    last = "minus windows" if several else f"minus parts, from {record.old} on"
    lines = []
    loss = {
        (int(r["texts"]), r["method"], int(r["low"])): float(r["value"])
        for r in rows(name)
        if r["kind"] == "loss"
    }
    keys = {(texts, method) for texts, method, low in loss if low >= record.old}
    order = sorted(
        keys, key=lambda key: (-key[0], key[1] != "windows", _beyond(name, *key), loss[(*key, record.old)])
    )
    for texts, method in order:
        label = parts if method == "windows" else re.sub(r" (\S+)", r", `\1`", method)
        line = {"method": label, "texts": str(texts)} if several else {"read": label}
        for low, high in bins:
            mean = loss.get((texts, method, low))
            if several and method == "windows" and low < record.old:  # it reads as without windows
                mean = None
            line[f"{low:,}–{high - 1:,}"] = "" if mean is None else f"{mean:.3f}"
        lines.append(line | {last: _difference(name, method, texts)})
    return table(lines)


def _against_windows(name: str, method: str, texts: int) -> Row | None:
    wanted = {"kind": "difference", "method": method, "texts": str(texts), "against": "windows"}
    return next((row for row in rows(name) if wanted.items() <= row.items()), None)


def _beyond(name: str, texts: int, method: str) -> float:
    row = _against_windows(name, method, texts)
    return float(row["value"]) if row else 0.0


def _difference(name: str, method: str, texts: int) -> str:
    row = _against_windows(name, method, texts)
    if row is None:
        return ""
    value, low, high = (float(row[key]) for key in ("value", "from", "to"))
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def needles(name: str) -> str:
    """Return the correct answers by task, with the Wilson intervals of all tasks."""
    record, methods = read(name)
    lines = []
    for method in (PLAIN, *methods):
        for length in (record.old // 2, record.length):
            hits, total = record.recall(method, length)
            if total:
                share, low, high = (round(100 * each) for each in wilson(hits, total) if each is not None)
                line = {"method, tokens": f"{method}, {length:,}"}
                line["all"] = f"{hits} of {total}, {share} % ({low} to {high})"
                for task in NEEDLES:
                    right, count = record.recall(method, length, task)
                    line[task] = f"{right}/{count}" if count else ""
                lines.append(line)
    return table(lines)


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {
        "smollm2": losses("smollm2"),
        "needles": needles("smollm2"),
        "smollm2_16k": losses("smollm2_16k"),
        "smollm2_32k": losses("smollm2_32k"),
        "rxnmapper": losses("rxnmapper"),
        "antiberty": losses("antiberty"),
    }
