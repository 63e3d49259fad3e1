"""Significance tests of a difference in scores: over test examples and over seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from floater.lab.tasks.measurement import Array

SEED = 12345
"""Seed of the resampling, the same as sacrebleu's."""
_CHUNK = 50
_EQUAL = 1e-9
"""Largest distance of two differences that are equal up to rounding."""


@dataclass(frozen=True)
class Difference:
    """The difference of two variants in a score, with its p values.

    Args:
        mean: difference of the means over seeds, the variant's minus the reference's.
        p_examples: p value of the paired bootstrap over examples; None where there are no examples.
        p_seeds: p value of a t-test over seeds: Welch's, or the paired one if one variant started from the
            other; None with fewer than two seeds on a side.
    """

    mean: float
    p_examples: float | None
    p_seeds: float | None

    @property
    def p(self) -> float | None:
        """Return the larger of the two p values, as both nulls must be rejected; None where there is neither.

        Example:
            >>> Difference(1.0, p_examples=0.001, p_seeds=0.2).p, Difference(1.0, 0.01, None).p
            (0.2, 0.01)
        """
        return max((p for p in (self.p_examples, self.p_seeds) if p is not None), default=None)


def resampled(score: Callable[[Array], float], statistics: Sequence[Array], samples: int) -> Array:
    """Score a variant on resampled test sets: for each sample the mean over the variant's seeds.

    The examples are sampled as in sacrebleu, so that variants are paired with each other and with it.

    Args:
        score: function from summed statistics to a metric.
        statistics: statistics of each seed of the variant, (n, k), over the same examples.
        samples: the number of resamplings.

    Returns:
        (samples,).

    Example:
        >>> values = np.array([[1.0, 1], [0, 1], [1, 1]])
        >>> scores = resampled(lambda sums: sums[0] / sums[1], [values, values], samples=1000)
        >>> len(scores), bool(abs(scores.mean() - 2 / 3) < 0.05)
        (1000, True)
    """
    count, random = len(statistics[0]), np.random.default_rng(SEED)
    together = np.concatenate(statistics, axis=1).astype(float)
    scores: list[float] = []
    for start in range(0, samples, _CHUNK):
        drawn = random.choice(count, size=(min(_CHUNK, samples - start), count), replace=True)
        weights = np.stack([np.bincount(row, minlength=count) for row in drawn])
        scores += [score(sums) for sums in (weights @ together).reshape(-1, statistics[0].shape[1])]
    means: Array = np.reshape(scores, (samples, len(statistics))).mean(1)
    return means


def paired_p(ours: Array, theirs: Array, difference: float, examples: int) -> float:
    """Return the two-sided p of the paired bootstrap.

    Source: Koehn 2004, "Statistical significance tests for machine translation evaluation", with the
    resampled differences moved to a mean of zero (Riezler and Maxwell 2005, "On some pitfalls in automatic
    evaluation and significance testing for MT"). sacrebleu moves their absolute values instead, which makes
    its p about half as large. With few examples all samples are similar, and p would be too small.
    Therefore deviations are widened by the factor between the 95% intervals of Student's t and of the
    resampling (Hesterberg 2015, "What teachers should know about the bootstrap", on expanded percentiles),
    and p is at least that of all n examples favouring one side under the null, 2^(1 - n). So p is calibrated
    at 0.05; at 0.005 and ten examples it is still about half as large as it should be.

    Args:
        ours: resampled scores of a variant, from `resampled`; a sample whose score is NaN counts against a
            difference.
        theirs: resampled scores of the variant that it is compared with.
        difference: difference of the scores on the test set itself.
        examples: number of examples of the test set, n.

    Example:
        >>> scores = np.array([2.0, 3.0, 4.0]), np.array([1.0, 1.0, 1.0])
        >>> paired_p(*scores, difference=2.0, examples=100), paired_p(*scores, difference=2.0, examples=2)
        (0.25, 0.75)
    """
    if examples < 2:
        return 1.0
    drawn = ours - theirs
    deviations = _widening(examples) * np.abs(drawn - np.nanmean(drawn))
    within = deviations < abs(difference)  # not so where a sample has no score
    beyond = int(np.sum(~within))
    return max((beyond + 1) / (len(drawn) + 1), 2.0 ** (1 - examples))


@cache
def _widening(examples: int) -> float:
    """Return the ratio of a 95% interval of Student's t to that of a bootstrap of the mean of examples."""
    from scipy.stats import norm, t

    return float(math.sqrt(examples / (examples - 1)) * t.ppf(0.975, examples - 1) / norm.ppf(0.975))


def welch_p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the p of Welch's t-test that two variants have the same mean; None with fewer than two seeds.

    Example:
        >>> round(welch_p([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]), 4), welch_p([1.0], [2.0, 2.1])
        (0.0003, None)
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    if max(np.ptp(ours), np.ptp(theirs)) < _EQUAL:  # no variance: the test statistic is undefined
        return 1.0 if abs(ours[0] - theirs[0]) < _EQUAL else 0.0
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, of seeds that agree on one side
        return float(ttest_ind(ours, theirs, equal_var=False).pvalue)


def paired_t_p(differences: Sequence[float]) -> float | None:
    """Return the p of the paired t-test that differences, seed by seed, have mean zero; None below two.

    Example:
        >>> round(paired_t_p([1.0, 1.2, 0.8]), 4), paired_t_p([1.0])
        (0.0131, None)
    """
    if len(differences) < 2:
        return None
    if np.ptp(differences) < _EQUAL:  # no variance: the test statistic is undefined
        return 0.0 if abs(differences[0]) > _EQUAL else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Correct the p values of several tests for the family-wise error rate (Holm).

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        largest = max(largest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = largest
    return corrected
