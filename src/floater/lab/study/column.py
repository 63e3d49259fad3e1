"""The columns of a study's tables: test set, metric, range of lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from floater.lab.study import short_to_long
from floater.lab.tasks.measurement import METRICS, Array

VALIDATION = "validation"


@dataclass(frozen=True)
class Column:
    """Key of a score: test set, metric and range of lengths.

    Args:
        test: a test set, or `VALIDATION` for the run's own scores at its end.
        metric: a name of `METRICS`, or of the run's result.
        low: least length of the examples; None, with `high`, for all examples.
        high: exclusive upper bound of the length; None for no bound.
        rises: whether a higher score is better, for a metric that is not in `METRICS`; by default its name
            decides.
    """

    test: str
    metric: str
    low: int | None = None
    high: int | None = None
    rises: bool | None = None

    @property
    def label(self) -> str:
        """Return the label for readers.

        Example:
            >>> Column("lengths", "bleu", 80, 100).label, Column("news", "chrf", 140).label
            ('BLEU 80–99', 'chrF news ≥ 140')
        """
        where = "" if self.test == short_to_long.TEST else f" {self.test}"
        return f"{self.metric_label}{where} {self.bin_label}".strip()

    @property
    def metric_label(self) -> str:
        """Return the label of the metric alone."""
        if self.test == VALIDATION and self.metric == "loss":  # per token or, as of STS-B, per example
            return self.metric
        return METRICS[self.metric].label if self.metric in METRICS else self.metric

    @property
    def bin_label(self) -> str:
        """Return the label of the lengths alone; empty for all."""
        if self.low is None:
            return ""
        if self.high is None:
            return f"≥ {self.low}"
        return f"< {self.high}" if self.low == 0 else f"{self.low}–{self.high - 1}"

    @property
    def greater(self) -> bool | None:
        """Return whether higher is better; None where neither is."""
        if self.metric in METRICS:
            return METRICS[self.metric].greater
        if self.rises is not None:
            return self.rises
        return not any(word in self.metric for word in ("loss", "perplexity", "nll"))

    def chosen(self, lengths: Array) -> Array:
        """Return the mask of the lengths in the bin."""
        high = np.inf if self.high is None else self.high
        return (lengths >= (self.low or 0)) & (lengths < high)
