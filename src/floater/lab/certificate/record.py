"""The record of a certificate: results by measurement, and the statistics of each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from floater.lab.certificate.certified_model import Method
from floater.lab.tasks.measurement import Array

WINDOWS = "windows"


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval, whose ends are None where it cannot be estimated."""

    value: float
    low: float | None
    high: float | None


@dataclass
class Record:
    """The results of a certificate.

    Args:
        settings: settings of the measurements.
        results: results by the key of their measurement, "kind/method/length/trial".
    """

    settings: dict[str, Any]
    results: dict[str, dict[str, Any]]

    def results_of(
        self, kind: str, method: Method, length: int | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the trial and result of each measurement of a kind and a method, except for refused ones."""
        for key, result in self.results.items():
            a_kind, name, a_length, trial = key.split("/")
            if (
                (a_kind, name) == (kind, str(method))
                and length in (None, int(a_length))
                and "refused" not in result
            ):
                yield int(trial), result

    @property
    def common(self) -> set[int]:
        """Return the texts that every measured method has read: means over different texts do not compare."""
        texts: dict[str, set[int]] = {}
        for key, result in self.results.items():
            kind, name, _, trial = key.split("/")
            if kind in ("loss", WINDOWS) and "refused" not in result:
                texts.setdefault(f"{kind}/{name}", set()).add(int(trial))
        return set.intersection(*texts.values()) if texts else set()

    def refused(self, method: Method) -> str | None:
        """Return why a method was refused, if it was."""
        for key, result in self.results.items():
            if key.startswith(f"loss/{method}/") and "refused" in result:
                return str(result["refused"])
        return None

    @property
    def old(self) -> int:
        """Return the length before the extension."""
        return int(self.settings["model"]["old"])

    @property
    def length(self) -> int:
        """Return the length after the extension."""
        return int(self.settings["length"])

    @property
    def size(self) -> int:
        """Return the number of tokens of a block."""
        return self.old // 32

    def losses(
        self, method: Method, low: int, high: int, windows: bool = False
    ) -> dict[int, tuple[Array, Array]]:
        """Return the summed losses and numbers of tokens of the blocks of a range, by text.

        Args:
            method: the method.
            low: first position.
            high: last position + 1.
            windows: whether to return those of the unextended model in windows of the old length.
        """
        part = slice(low // self.size, -(-high // self.size))
        results = self.results_of(WINDOWS if windows else "loss", method)
        pairs = {t: (np.array(r["nats"][part]), np.array(r["tokens"][part])) for t, r in results}
        return {trial: pair for trial, pair in pairs.items() if pair[1].sum()}

    def loss(self, method: Method, low: int, high: int, windows: bool = False) -> float | None:
        """Return the mean loss of a range of positions over the `common` texts, in nats; None without any."""
        common = self.common
        pairs = [p for trial, p in self.losses(method, low, high, windows).items() if trial in common]
        if not pairs:
            return None
        return float(sum(nats.sum() for nats, _ in pairs) / sum(tokens.sum() for _, tokens in pairs))

    def difference(
        self, method: Method, other: Method, low: int, high: int, windows: bool = False
    ) -> Interval | None:
        """Return the difference in loss from another method on the same tokens, in nats per token.

        The interval is that of a paired t-test over blocks of tokens. It holds for these texts; for other
        texts, the differences between texts count as well.

        Args:
            method: the method.
            other: method that it is compared with.
            low: first position.
            high: last position + 1.
            windows: whether the other one is the unextended model in windows of the old length.
        """
        ours, theirs = self.losses(method, low, high), self.losses(other, low, high, windows)
        trials = sorted(ours.keys() & theirs.keys())
        if not trials:
            return None
        nats = np.concatenate([ours[t][0] - theirs[t][0] for t in trials])
        tokens = np.concatenate([np.minimum(ours[t][1], theirs[t][1]) for t in trials])
        nats, tokens = nats[tokens > 0], tokens[tokens > 0]
        mean = float(nats.sum() / tokens.sum())
        if len(nats) < 2:
            return Interval(mean, None, None)
        from scipy.stats import t as student

        # ratio estimator: blocks of masked models have different numbers of tokens
        errors = (nats - mean * tokens) / tokens.mean()
        half = float(student.ppf(0.975, len(nats) - 1) * errors.std(ddof=1) / len(nats) ** 0.5)
        return Interval(mean, mean - half, mean + half)

    def ranked(self, measured: Sequence[Method]) -> list[Method]:
        """Return methods by their loss beyond the old length, those without a result last."""
        if not self.results:
            return [*measured]
        losses = {str(method): self.loss(method, self.old, self.length) for method in measured}
        return sorted(measured, key=lambda m: (losses[str(m)] is None, losses[str(m)] or 0.0))

    def recall(self, method: Method, length: int, task: str | None = None) -> tuple[int, int]:
        """Return the number of correct answers of a task, or of all tasks, and the number of all answers."""
        hits = total = 0
        for kind in ("filler", "text", "words"):
            for _, result in self.results_of(kind, method, length):
                for name, (right, count) in result["hits"].items():
                    if task in (None, name):
                        hits, total = hits + right, total + count
        return hits, total


def wilson(hits: int, total: int) -> Interval:
    """Return a share with its Wilson interval.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Example:
        >>> [round(x, 3) for x in wilson(8, 10)]
        [0.8, 0.49, 0.943]
    """
    from scipy.stats import binomtest

    low, high = map(float, binomtest(hits, total).proportion_ci(method="wilson"))
    return Interval(hits / total, low, high)
