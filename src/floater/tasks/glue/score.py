"""What GLUE measures, and the files it takes predictions in."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics

from floater.tasks.corpora.glue import SCORE_RANGE, GlueTask


class ConstantScores(UserWarning):
    """Scores that do not vary correlate with nothing."""


def _correlation(kind: Callable[..., Any], gold: np.ndarray, found: np.ndarray) -> float:
    """A correlation; 0 where one side is constant, which has none."""
    if np.ptp(gold) == 0 or np.ptp(found) == 0:
        warnings.warn(ConstantScores("all scores are the same: no correlation, counted as 0"), stacklevel=2)
        return 0.0
    return float(kind(gold, found).statistic)


_MEASURES = {
    "accuracy": metrics.accuracy_score,
    "f1": metrics.f1_score,
    "matthews": metrics.matthews_corrcoef,
    "pearson": functools.partial(_correlation, stats.pearsonr),
    "spearman": functools.partial(_correlation, stats.spearmanr),
}


def predictions(outputs: Sequence[np.ndarray], task: GlueTask) -> np.ndarray:
    """Numbers of labels, or scores, from a model's logits (K,) of each example."""
    stacked = np.stack(outputs)
    return stacked.argmax(-1) if task.labels else stacked[:, 0] * SCORE_RANGE[1]


def measure(
    outputs: Sequence[np.ndarray], labels: Sequence[int] | Sequence[float], task: GlueTask
) -> dict[str, float]:
    """Loss and the task's metrics.

    Args:
        outputs: logits (K,) of each example; K = 1 for scores, divided by 5.
        labels: as many.
        task: whose metrics.

    Returns:
        The mean loss (nats, or squared error), and the metrics as percentages.

    Example:
        >>> from floater.tasks.corpora.glue import TASKS
        >>> outputs = [np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
        >>> measure(outputs, [1, 0, 0], TASKS["MRPC"])
        {'loss': 0.6466, 'accuracy': 66.67, 'f1': 66.67}
    """
    scores, gold = np.stack(outputs).astype(np.float64), np.asarray(labels)
    if task.labels:
        shifted = scores - scores.max(-1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(gold)), gold]
    else:
        losses = (scores[:, 0] - gold / SCORE_RANGE[1]) ** 2
    found = predictions(outputs, task)
    values = {name: round(100 * float(_MEASURES[name](gold, found)), 2) for name in task.metrics}
    return {"loss": round(float(losses.mean()), 4)} | values


def submission(found: np.ndarray, indices: Sequence[str], task: GlueTask) -> list[str]:
    """The lines of a file of predictions as the benchmark takes it: index and label, or score from 0 to 5.

    Scores beyond that range become its ends.

    Example:
        >>> from floater.tasks.corpora.glue import TASKS
        >>> submission(np.array([1, 0]), ["0", "1"], TASKS["RTE"])
        ['index\\tprediction', '0\\tnot_entailment', '1\\tentailment']
    """
    if task.labels:
        said = [task.labels[label] for label in found.tolist()]
    else:
        said = [f"{score:.3f}" for score in np.clip(found, *SCORE_RANGE).tolist()]
    return ["index\tprediction", *(f"{i}\t{what}" for i, what in zip(indices, said, strict=True))]
