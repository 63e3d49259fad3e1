"""Scores of a model on a set of examples, for validation, `floater evaluate` and studies."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from floater.errors import DataError

Array = np.ndarray[Any, Any]


def perplexity(loss: float) -> float:
    """Return exp of a loss in nats per token, infinite where it overflows a float.

    Example:
        >>> perplexity(0.0), perplexity(1e6)
        (1.0, inf)
    """
    return math.inf if loss > 700 else math.exp(loss)


@dataclass(frozen=True)
class Metric:
    """A score of a test set, computed from the sum of its examples' statistics.

    Args:
        label: name of the score in reports.
        greater: True if a greater score is better, False if a smaller one is, None if neither is.
        score: function from the summed statistics of examples, (k,), to their score.
        of: name of the metric whose statistics it reads, if it reads those of another metric.
    """

    label: str
    greater: bool | None
    score: Callable[[Array], float]
    of: str = ""


@dataclass(frozen=True)
class Measurement:
    """Scores of a model on a set of examples: for a log, for a report, and for each example.

    Args:
        lengths: length of each example, (n,), in the unit of the task.
        statistics: statistics of the examples, (n, k), by the name of a metric in `METRICS`; the first metric
            is the main metric of the task.
        position_nats: cross-entropy summed over all tokens at each position of their example; empty where the
            task has none.
        position_tokens: number of tokens at each position.
        lines: output of the model, line by line; empty where it writes nothing.
        notes: remarks for the reader, such as the number of truncated translations.
        signatures: description of the computation of each metric, by name.
        units: number of the unit that each example is a part of, (n,), as of its sequence; empty where each
            example is one. Units, which are independent of each other, are resampled as wholes.
        scores: rounded scores by name, for a log and the result of a run.
        bins: scores by length, a mapping for each bin, for other programs.
        report: readable text of the scores; by default a line for each score.
    """

    lengths: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    statistics: dict[str, Array] = field(default_factory=dict)
    position_nats: Array = field(default_factory=lambda: np.zeros(0))
    position_tokens: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    signatures: dict[str, str] = field(default_factory=dict)
    units: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    scores: dict[str, float] = field(default_factory=dict)
    bins: Sequence[dict[str, Any]] = ()
    report: str = ""

    def __str__(self) -> str:
        """Return the report.

        Example:
            >>> print(Measurement(scores={"loss": 0.25, "accuracy": 90.5}))
            loss 0.25
            accuracy 90.5
        """
        return self.report or "\n".join(f"{name} {value:g}" for name, value in self.scores.items())

    def with_gaps(self, scored: Sequence[bool]) -> Measurement:
        """Return the measurement with an empty line for each row of the source that was not scored.

        Args:
            scored: whether each row was scored.

        Example:
            >>> Measurement(lines=["pos", "neg"]).with_gaps([True, False, True]).lines
            ['pos', '', 'neg']
        """
        lines = iter(self.lines)
        return replace(self, lines=[next(lines) if row else "" for row in scored])

    @property
    def metrics(self) -> list[str]:
        """Return the names of all metrics that have a score.

        Example:
            >>> Measurement(np.array([3]), {"bleu": np.ones((1, 10))}).metrics
            ['bleu', 'length_ratio']
        """
        return [*self.statistics, *(name for name, m in METRICS.items() if m.of in self.statistics)]

    def score(self, metric: str, chosen: Array | None = None) -> float | None:
        """Compute the score of the chosen examples (a mask or indices), of all by default.

        The score is None if no example is chosen, if the statistics of a chosen example are NaN, because it
        could not be scored, or if the denominator is 0, for example because all references are empty.

        Example:
            >>> lengths, right = np.array([3, 9]), np.array([[1, 4], [3, 4]])
            >>> measurement = Measurement(lengths, {"accuracy": right})
            >>> [measurement.score("accuracy", lengths > least) for least in (0, 5, 9)]
            [50.0, 75.0, None]
        """
        rows = self.statistics[METRICS[metric].of or metric]
        rows = rows if chosen is None else rows[chosen]
        if not len(rows) or np.isnan(rows).any():
            return None
        score = METRICS[metric].score(rows.sum(0))
        return None if math.isnan(score) else score

    def count(self, chosen: Array) -> int:
        """Return the number of units with chosen examples, a mask; without units, that of the examples."""
        return len(np.unique(self.units[chosen])) if len(self.units) else int(chosen.sum())

    def by_unit(self, metric: str, chosen: Array) -> Array:
        """Return the statistics of a metric summed over the chosen examples of each unit, (units, k).

        Args:
            metric: a metric with statistics.
            chosen: mask of the examples, (n,).

        Example:
            >>> losses = np.array([[1.0, 2], [3.0, 1], [5.0, 2]])
            >>> parts = Measurement(np.array([1, 9, 1]), {"loss": losses}, units=np.array([7, 7, 8]))
            >>> parts.by_unit("loss", parts.lengths > 0).tolist()
            [[4.0, 3.0], [5.0, 2.0]]
        """
        rows = self.statistics[metric][chosen]
        return summed(self.units[chosen], *rows.T)[1][:, :-1] if len(self.units) else rows


def positions(nats: Sequence[Array]) -> tuple[Array, Array]:
    """Return the sum and the number of the losses of tokens at each position of their example.

    Args:
        nats: losses of the tokens of each example, in order.

    Example:
        >>> positions([np.array([1.0, 2.0]), np.array([3.0])])
        (array([4., 2.]), array([2, 1]))
    """
    longest = max(map(len, nats), default=0)
    sums, counts = np.zeros(longest), np.zeros(longest, dtype=np.int64)
    for row in nats:
        sums[: len(row)] += row
        counts[: len(row)] += 1
    return sums, counts


def summed(keys: Array, *values: Array) -> tuple[Array, Array]:
    """Sum the values of each key, in the order of the keys.

    Args:
        keys: integer keys, (n,).
        *values: values, (n,) each.

    Returns:
        The index of the first value of each key, (k,), and the sums of its values and their number, (k, v +
        1).

    Example:
        >>> first, sums = summed(np.array([5, 5, 7]), np.array([1.0, 2.0, 4.0]))
        >>> first.tolist(), sums.tolist()
        ([0, 2], [[3.0, 2.0], [4.0, 1.0]])
    """
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    sums = [np.bincount(inverse, weights=each) for each in values]
    return first, np.stack([*sums, counts.astype(float)], axis=1)


def accuracy(right: Array, what: str, name: str = "accuracy") -> tuple[float, str]:
    """Return the percentage of right answers, and a line of a report on it.

    Args:
        right: boolean for each answer, True if it is right.
        what: noun for the scored objects, in the plural.
        name: name of the score.

    Example:
        >>> accuracy(np.array([True, False, True, True]), "words")
        (75.0, 'accuracy 75.00 (3 of 4 words)')
    """
    percent = 100 * right.sum() / max(len(right), 1)
    return round(float(percent), 2), f"{name} {percent:.2f} ({right.sum():,} of {len(right):,} {what})"


def check_edges(edges: Sequence[int]) -> None:
    """Refuse bounds of bins that are not positive and strictly increasing.

    Raises:
        DataError: if the bounds are not strictly increasing, or the first is below 1.
    """
    if not all(isinstance(edge, int) for edge in edges) or list(edges) != sorted({0, *edges})[1:]:
        raise DataError(f"bins {list(edges)} must be increasing whole numbers of at least 1")


@functools.cache
def _sacrebleu(name: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return {"bleu": BLEU, "chrf": CHRF}[name]()


def _sacrebleu_score(name: str) -> Callable[[Array], float]:
    # sacrebleu's own bootstrap uses this method; there is no public equivalent
    return lambda sums: float(_sacrebleu(name)._compute_score_from_stats(sums).score)


def _ratio(sums: Array) -> float:
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def _percent(sums: Array) -> float:
    return 100 * _ratio(sums)


METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU", greater=True, score=_sacrebleu_score("bleu")),
    "chrf": Metric("chrF", greater=True, score=_sacrebleu_score("chrf")),
    "tokenised_bleu": Metric("tokenised BLEU", greater=True, score=_sacrebleu_score("bleu")),
    # The first statistics are sacrebleu's numbers of tokens in the hypotheses and in the references.
    "length_ratio": Metric("length ratio (BLEU's tokens)", greater=None, score=_ratio, of="bleu"),
    "nll": Metric("negative log-likelihood (nats)", greater=False, score=_ratio),
    "nll_time": Metric("negative log-likelihood of the times (nats)", greater=False, score=_ratio),
    "nll_type": Metric("negative log-likelihood of the types (nats)", greater=False, score=_ratio),
    "mae": Metric("mean absolute error", greater=False, score=_ratio),
    "rmse": Metric("root mean square error", greater=False, score=lambda sums: math.sqrt(_ratio(sums))),
    "loss": Metric("loss (nats/token)", greater=False, score=_ratio),
    "document_loss": Metric("loss (nats/document)", greater=False, score=_ratio),
    "excess": Metric("loss beyond that of the training length (nats/token)", greater=False, score=_ratio),
    "accuracy": Metric("accuracy (%)", greater=True, score=_percent),
    "exact": Metric("exact match (%)", greater=True, score=_percent),
    "f1": Metric("F1 (%)", greater=True, score=_percent),
    "tokens": Metric("teacher-forced token accuracy (%)", greater=True, score=_percent),
}
"""Statistics are a sum and a number: of losses, nats and tokens, documents, events or values; of errors,
their sum and how many there are; of percentages, right answers and all answers."""
