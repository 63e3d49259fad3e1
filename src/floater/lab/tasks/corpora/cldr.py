"""Built-in translation corpus: German, French and English surface text formatted from the CLDR.

The Unicode Common Locale Data Repository, shipped with `babel`, defines for each language the format of
dates, times, amounts of money, measures, names of places and languages, and lists of them. A sentence here is
one or more lists joined by semicolons; the same values formatted in two locales are a pair. Nothing is
downloaded. Word order differs: "March 5, 2026" is "5. März 2026", "$12.50" is "12,50 $", "3 days ago" is "vor
3 Tagen".

The text depends only on the arguments and on the CLDR release inside the installed `babel`. Every run of
white space, no-break (U+00A0), narrow no-break (U+202F) and thin (U+2009) spaces included, becomes one space.

Lengths count `tokens`, words and punctuation marks, so that the length bins of Liu et al. (2020), "Learning
to Encode Position for Transformer with Continuous Dynamical Model", section 4.3, need no trained vocabulary.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random

from floater.lab.tasks.corpora.cldr_items import CORE, ITEMS, Pair, Pools, load_babel, pools_of

__all__ = ["BINS", "Pair", "bin_name", "sample_pairs", "split", "tokens", "write"]

BINS: tuple[tuple[int, int | None], ...] = ((80, 100), (100, 120), (120, 140), (140, None))
"""Half-open ranges of source length in tokens: the length bins of Liu et al. (2020), section 4.3."""

_SEPARATOR = {"de": "; ", "en": "; ", "fr": " ; "}
_LONGEST_LIST = 6
_PATIENCE = 3000  # consecutive attempts without a new sentence before a length counts as exhausted


TOKEN = r"\w+|[^\w\s]"
"""Regular expression of a word or a punctuation mark."""


def tokens(text: str) -> list[str]:
    r"""Return words and punctuation marks of a text, by the regular expression ``\w+|[^\w\s]``.

    Example:
        >>> tokens("12,50 $ et l’Inde")
        ['12', ',', '50', '$', 'et', 'l', '’', 'Inde']
    """
    return re.findall(TOKEN, text)


def bin_name(low: int, high: int | None) -> str:
    """Return the name of a length bin in `split` and in file names.

    Example:
        >>> [bin_name(*limits) for limits in BINS]
        ['80_100', '100_120', '120_140', '140_up']
    """
    return f"{low}_{'up' if high is None else high}"


def split(
    *,
    source: str = "en",
    target: str = "de",
    seed: int = 0,
    train: int = 20_000,
    valid: int = 200,
    test: int = 200,
    mean_tokens: float = 25.0,
    longest: int = 250,
) -> dict[str, list[Pair]]:
    """Generate training, validation and test sentences under 80 tokens, and a test set per longer bin.

    All parts are made of the same items, so that the long bins differ only in length. No source sentence
    occurs twice, within a part or between parts. The test sets do not depend on the sizes of the other parts.

    Args:
        source: source language, "de", "en" or "fr".
        target: target language, another of these.
        seed: seed of the values and of the sentences.
        train: number of training pairs, of 3 to 79 source tokens.
        valid: number of validation pairs, of 3 to 79 source tokens.
        test: number of pairs of each test set.
        mean_tokens: mean source length of the parts under 80 tokens; see `draw`.
        longest: greatest source length in the last of `BINS`.

    Returns:
        A dict with "train", "valid", "test", and "test_" + `bin_name` for each of `BINS`, of uniformly
        distributed lengths.

    Raises:
        ImportError: if babel is missing.
        ValueError: if a language is none of these, or `draw` raises it.

    Example:
        >>> {name: len(part) for name, part in split(train=30, valid=20, test=10).items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'train': 30, 'valid': 20, 'test': 10,
         'test_80_100': 10, 'test_100_120': 10, 'test_120_140': 10, 'test_140_up': 10}
    """
    pools = pools_of(source, target, seed, ITEMS, CORE)
    seen: set[str] = set()

    def part(name: str, count: int, limits: tuple[int, int], mean: float | None) -> list[Pair]:
        return sample_pairs(pools, count, f"{seed}/{name}", limits, mean, seen)

    short = (3, BINS[0][0] - 1)
    tests = {"test": part("test", test, short, mean_tokens)}
    for low, high in BINS:
        name = f"test_{bin_name(low, high)}"
        tests[name] = part(name, test, (low, longest if high is None else high - 1), None)
    held_out = part("valid", valid, short, mean_tokens)
    return {"train": part("train", train, short, mean_tokens), "valid": held_out, **tests}


def write(
    directory: str | os.PathLike[str], parts: Mapping[str, Sequence[Pair]], *, source: str, target: str
) -> dict[str, tuple[Path, Path]]:
    """Write each part as two aligned UTF-8 text files, one sentence per line: `train.en` and `train.de`.

    Args:
        directory: output directory, created if it does not exist; files of the same name are replaced.
        parts: pairs by part, as returned by `split`.
        source: suffix of the source files.
        target: suffix of the target files.

    Returns:
        A dict of (source file, target file) by part.

    Raises:
        OSError: if the directory or a file cannot be written.
        ValueError: if the suffixes are the same, or a sentence contains a line break.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = write(folder, {"test": [("$3.00", "3,00 $")]}, source="en", target="de")
        ...     [path.name for path in paths["test"]]
        ['test.en', 'test.de']
    """
    if source == target:
        raise ValueError(f"source and target must differ, both are {source!r}")
    broken = [text for part in parts.values() for pair in part for text in pair if "\n" in text]
    if broken:
        raise ValueError(f"a sentence is one line, got {broken[0]!r}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: (folder / f"{name}.{source}", folder / f"{name}.{target}") for name in parts}
    for name, part in parts.items():
        for side, path in enumerate(paths[name]):
            path.unlink(missing_ok=True)  # a link is not written through
            path.write_text("".join(f"{pair[side]}\n" for pair in part), encoding="utf-8", newline="\n")
    return paths


def sample_pairs(
    pools: Pools, count: int, stream: str, limits: tuple[int, int], mean: float | None, seen: set[str]
) -> list[Pair]:
    """Generate distinct aligned sentences.

    Source lengths follow the distribution of maximum entropy on the range with the mean `mean`. Lists grow
    until the sampled length is reached or no sampled item fits, so a few sentences are one or two tokens
    shorter than their sampled length, but never outside the range. The first pairs do not depend on `count`.

    Args:
        pools: items of the sentences.
        count: number of pairs.
        stream: seed of the sentences.
        limits: least and greatest source length in `tokens`, both included.
        mean: mean source length; None for uniformly distributed lengths.
        seen: source sentences that are not to be generated, to which those generated are added.

    Raises:
        ValueError: if an argument is out of range, or `count` sentences of these lengths cannot be made.

    Example:
        >>> pools = pools_of("en", "de", 0, ["date", "relative"], CORE)
        >>> sample_pairs(pools, 2, "0/pairs", (3, 6), None, set())
        [('20 weeks ago', 'vor 20 Wochen'), ('2nd quarter 2018', '2. Quartal 2018')]
    """
    low, high = limits
    if count < 0:
        raise ValueError(f"count must be 0 or more, got {count}")
    if not 1 <= low <= high:
        raise ValueError(f"token lengths must satisfy 1 <= min <= max, got {low} to {high}")
    rng, lengths, weights = Random(stream), range(low, high + 1), _cumulative_weights(low, high, mean)
    pairs: list[Pair] = []
    failures = 0
    while len(pairs) < count:
        pair, length = _sentence(pools, rng, rng.choices(lengths, cum_weights=weights)[0])
        if low <= length and pair[0] not in seen:
            seen.add(pair[0])
            pairs.append(pair)
            failures = 0
        elif (failures := failures + 1) == _PATIENCE:
            raise ValueError(
                f"made only {len(pairs)} of {count} distinct sentences of {low} to {high} tokens; "
                "ask for fewer, a wider range or more kinds of item"
            )
    return pairs


def _sentence(pools: Pools, rng: Random, length: int) -> tuple[Pair, int]:
    """Generate a pair of `length` source tokens or a few less; return it and its number of source tokens."""
    here: list[str] = []
    there: list[str] = []
    room, misses = length, 0
    format_list = load_babel().lists.format_list
    while room > 0 and misses < _LONGEST_LIST:
        pool = rng.choice(pools.kinds)
        size = rng.randint(1, max(1, min(_LONGEST_LIST, room // 4)))
        chosen = rng.sample(pool, min(size, len(pool)))
        style = rng.choice(("standard", "or"))
        texts = [
            format_list(side, style, locale)
            for side, locale in zip(zip(*chosen, strict=True), pools.locales, strict=True)
        ]
        cost = len(tokens(texts[0])) + bool(here)
        if cost > room:
            misses += 1
        else:
            here.append(texts[0])
            there.append(texts[1])
            room -= cost
    separators = [_SEPARATOR[locale.language] for locale in pools.locales]
    return (separators[0].join(here), separators[1].join(there)), length - room


def _cumulative_weights(low: int, high: int, mean: float | None) -> list[float]:
    """Return cumulative weights exp(-rate (length - low)); bisection finds the rate for the mean length."""
    if mean is None:
        return list(accumulate(1.0 for _ in range(low, high + 1)))
    if not low < mean < high:
        raise ValueError(f"mean_tokens must lie between {low} and {high}, got {mean}")

    def weights(rate: float) -> list[float]:
        most = max(0.0, rate * (low - high))
        return [math.exp(-rate * (n - low) - most) for n in range(low, high + 1)]

    slow, fast = -20.0, 20.0
    for _ in range(60):
        rate = (slow + fast) / 2
        w = weights(rate)
        reached = sum(n * p for n, p in zip(range(low, high + 1), w, strict=True)) / sum(w)
        slow, fast = (rate, fast) if reached > mean else (slow, rate)
    return list(accumulate(weights((slow + fast) / 2)))
