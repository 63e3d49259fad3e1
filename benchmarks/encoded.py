"""Memory and time of encoded translation pairs: in lists of Python, flat in memory, and in mapped files.

Each line is measured in a separate process. Private memory is that which each process of a run holds for
itself; mapped files are held once for all of them. Prints a Markdown table; `--csv docs/fullsize` stores it.

    python benchmarks/encoded.py
    python benchmarks/encoded.py --source train.en --target train.de --pairs 500000
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import Pairs, read_lines, read_pairs
from floater.lab.tasks.stored import stored
from floater.lab.tasks.translation.data import TokenPairs
from floater.lab.text.bpe import load_bpe, train_bpe
from stored import add_csv, show

WAYS = {
    "lists": "texts and arrays in lists",
    "flat": "texts in lists, tokens flat",
    "first": "mapped files: the process that writes them",
    "mapped": "mapped files: every other process and trial",
}


def private() -> int:
    """Return the bytes of this process that no other shares and no file holds."""
    gc.collect()
    return int(psutil.Process().memory_full_info().uss)


def measure(way: str, folder: Path) -> dict[str, float]:
    """Return private bytes and seconds from text files to encoded pairs."""
    tokenizer = load_bpe(folder / "vocabulary")
    tokenizer(["warm up"])
    before, began = private(), time.perf_counter()
    files = folder / "source", folder / "target"
    kept: list[Any] = []
    if way in ("lists", "flat"):
        kept.append(read_pairs(*files))
        kept.append(TokenPairs.of(kept[0], tokenizer))
        if way == "lists":
            kept[1] = [(source.copy(), target.copy()) for source, target in sides(kept[1])]
    else:
        kept.append(stored(folder / "encoded", "text", (Pairs,), lambda: read_pairs(*files)))
        kinds = (Pairs, TokenPairs)
        kept.append(stored(folder / "encoded", "tokens", kinds, lambda: TokenPairs.of(kept[0], tokenizer)))
    seconds = time.perf_counter() - began
    return {"bytes": private() - before, "seconds": seconds}


def sides(examples: TokenPairs) -> Any:
    """Return the token ids of both sides of each pair."""
    return zip(examples.sources, examples.targets, strict=True)


def main() -> None:
    """Write the pairs, measure every way in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source")
    parser.add_argument("--target")
    parser.add_argument("--pairs", type=int, default=500_000, help="number of pairs; the text is repeated")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    add_csv(parser)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], Path(arguments.one[1]))))
        return
    if arguments.source:
        pairs = list(zip(read_lines(arguments.source), read_lines(arguments.target), strict=True))
    else:
        pairs = cldr.split(train=20_000)["train"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_bpe(itertools.chain(*pairs), arguments.vocabulary_size).save_pretrained(folder / "vocabulary")
        for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            with (folder / side).open("w", encoding="utf-8") as file:
                repeated = itertools.islice(itertools.cycle(texts), arguments.pairs)
                file.writelines(f"{text}\n" for text in repeated)
        size = sum((folder / side).stat().st_size for side in ("source", "target"))
        sentences = 2 * arguments.pairs
        print(f"{sentences:,} sentences of {size / sentences:.0f} bytes\n")

        def row(way: str) -> list[str]:
            command = [sys.executable, __file__, "--one", way, name]
            result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            return [WAYS[way], f"{result['bytes'] / sentences:,.0f}", f"{result['seconds']:.1f}"]

        columns = ["examples", "private bytes per sentence", "seconds"]
        show(columns, map(row, WAYS), arguments.csv, "memory")


if __name__ == "__main__":
    main()
