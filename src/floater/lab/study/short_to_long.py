"""Short to long: train on short sentences, score longer ones (Liu et al. 2020, section 4.3, Figure 2)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floater.errors import DataError
from floater.lab.study.settings import ShortToLong
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import read_lines
from floater.lab.text.languages import lengths
from floater.lab.training.digests import changed, digests
from floater.lab.training.files import write_json

Pair = tuple[str, str]
Parts = dict[str, list[Pair]]
TEST = "lengths"
_DONE, _ONLY_TESTED = "cut.json", "only tested"


def cut(settings: ShortToLong, source: str, target: str) -> Parts:
    """Split pairs of sentences by the length of their source, see `floater.lab.text.languages.lengths`.

    Pairs with an empty side are excluded. Files whose sentences only test come first, so that with
    `settings.unique` none of their sentences trains.

    Args:
        settings: source of the pairs, and the split by length.
        source: source language, for the data sets that need it.
        target: target language.

    Returns:
        The parts by name: "train" and "valid" are pairs below the cut, "lengths" has those of "valid" (from
        the built-in corpus other short pairs) and all longer ones. From files there is also "only tested",
        the pairs of "lengths" that come from `test_source`.

    Raises:
        DataError: if a file cannot be read, files are not aligned, or a part is empty; if the built-in corpus
            has no such languages or lengths.

    Example:
        >>> parts = cut(ShortToLong(builtin=30, builtin_test=2), "en", "de")
        >>> {name: len(pairs) for name, pairs in parts.items()}
        {'train': 30, 'valid': 2, 'lengths': 10}
        >>> max(len(cldr.tokens(text)) for text, _ in parts["train"]) < 80
        True
    """
    if settings.builtin:
        try:
            parts = cldr.split(
                source=source,
                target=target,
                train=settings.builtin,
                valid=settings.builtin_test,
                test=settings.builtin_test,
                mean_tokens=settings.builtin_mean,
                seed=settings.seed,
            )
        except ValueError as error:
            raise DataError(f"short_to_long: the built-in corpus: {error}") from None
        scored = [pair for name, pairs in parts.items() if name.startswith("test") for pair in pairs]
        return {"train": parts["train"], "valid": parts["valid"], TEST: scored}

    seen: set[str] = set()
    tests = _new(_pairs(settings.test_source, settings.test_target, settings.skip), seen, settings.unique)
    tested = [pair for pair in tests if _length(settings, pair) >= settings.cut]
    longer, short = [*tested], list[Pair]()
    for pair in _new(_pool(settings, source, target), seen, settings.unique):
        (short if _length(settings, pair) < settings.cut else longer).append(pair)
    sources = list(dict.fromkeys(text for text, _ in short))
    held_out = round(settings.valid * len(sources))
    if not longer or not 0 < held_out < len(sources):
        raise DataError(
            f"short_to_long: {len(sources)} sentences below the cut at {settings.cut} tokens, of which "
            f"{held_out} are held out, and {len(longer)} longer ones; there must be some of each"
        )
    chosen = set(random.Random(settings.seed).sample(sources, held_out))
    valid = [pair for pair in short if pair[0] in chosen]
    return {
        "train": [pair for pair in short if pair[0] not in chosen],
        "valid": valid,
        TEST: valid + longer,
        _ONLY_TESTED: tested,
    }


def write(
    settings: ShortToLong, folder: Path, source: str, target: str, *, used: bool = True, train: bool = True
) -> tuple[dict[str, str], dict[str, Any]]:
    """Split the data and write the parts, unless they exist.

    Args:
        settings: source of the pairs, and the split by length.
        folder: folder to which two aligned files are written for each part.
        source: language code, the suffix of the source files.
        target: the suffix of the target files.
        used: whether a model was trained on the existing data; otherwise data that differ are replaced.
        train: whether models will train; otherwise the files that existing data were cut from are not read.

    Returns:
        The settings `data` of a translation run, and the arguments of `floater evaluate` for the test set.

    Raises:
        DataError: see `cut`; or if the folder holds data that were cut otherwise.
    """
    files = {
        name: (folder / f"{name}.{source}", folder / f"{name}.{target}") for name in ("train", "valid", TEST)
    }
    token = cldr.TOKEN if settings.builtin else settings.token
    record = json.loads(json.dumps(asdict(settings) | {"token": token, "languages": [source, target]}))
    done = folder / _DONE
    before = json.loads(done.read_text(encoding="utf-8")) if done.is_file() else {}
    differs = sorted(name for name in record if before.get(name) != record[name])
    other = changed(before.get("files", {}), record) if train else None
    if before and used and (differs or other):
        how = (
            f"another short_to_long.{differs[0]}, {before.get(differs[0])!r}"
            if differs
            else f"other contents of short_to_long.{other}"
        )
        raise DataError(f"{folder} holds data that were cut with {how}; choose another folder")
    if differs or other:
        done.unlink(missing_ok=True)
        parts = cut(settings, source, target)
        cldr.write(folder, {name: parts[name] for name in files}, source=source, target=target)
        counts = {name: len(pairs) for name, pairs in parts.items()}
        write_json(done, record | {"files": digests(record), "pairs": counts})
    data = {
        f"{part}_{side}": str(path)
        for part in ("train", "valid")
        for side, path in zip(("source", "target"), files[part], strict=True)
    }
    test = dict(zip(("source", "reference"), map(str, files[TEST]), strict=True))
    return data, test | {"token": token}


def share_below(settings: ShortToLong, folder: Path) -> str | None:
    """Describe the share of the pairs below the cut, and the paper's share, in a sentence for the report.

    The files that only test are excluded, since the data have only their long pairs.

    Args:
        settings: settings of the split.
        folder: the folder that `write` wrote to.

    Returns:
        The sentence; None for the built-in corpus, or if the folder has no counts.
    """
    done = folder / _DONE
    counts = json.loads(done.read_text(encoding="utf-8")).get("pairs") if done.is_file() else None
    if settings.builtin or not counts or (settings.test_source and _ONLY_TESTED not in counts):
        return None
    short = counts["train"] + counts["valid"]
    total = counts["train"] + counts[TEST] - counts.get(_ONLY_TESTED, 0)
    return (
        f"{short / total:.1%} of {total:,} pairs have fewer than {settings.cut} tokens in their source; of "
        "WMT14's English-German training sentences 98.6% have fewer than 80 (Liu et al. 2020, section 4.3)."
    )


def _length(settings: ShortToLong, pair: Pair) -> int:
    return lengths([pair[0]], settings.token)[0]


def _pool(settings: ShortToLong, source: str, target: str) -> Iterator[Pair]:
    if not settings.dataset:
        return _pairs(settings.source, settings.target, settings.skip)
    from floater.lab.tasks.corpora.text import hub_pairs

    pairs = hub_pairs(settings.dataset, settings.dataset_config, "train", source, target)
    return zip(pairs.source, pairs.target, strict=True)


def _pairs(sources: Sequence[str], targets: Sequence[str], skip: dict[str, int]) -> Iterator[Pair]:
    for pair in zip(sources, targets, strict=True):
        sides = [read_lines(path)[skip.get(path, 0) :] for path in pair]
        if len(sides[0]) != len(sides[1]):
            excluded = "".join(f", without {skip[path]} of {path}" for path in pair if path in skip)
            raise DataError(
                f"{' and '.join(pair)} are not aligned: {len(sides[0])} and {len(sides[1])} lines{excluded}"
            )
        yield from zip(*sides, strict=True)


def _new(pairs: Iterable[Pair], seen: set[str], unique: bool) -> Iterator[Pair]:
    """Yield the pairs with two non-empty sides, stripped of white space, whose source is new."""
    for source, target in pairs:
        pair = source.strip(), target.strip()
        if all(pair) and not (unique and pair[0] in seen):
            seen.add(pair[0])
            yield pair
