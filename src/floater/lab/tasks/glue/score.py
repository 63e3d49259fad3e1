"""Metrics of GLUE, and its submission files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn import metrics
from torch.nn import functional as F

from floater.lab.tasks.corpora.glue import SCORE_RANGE, GlueTask


def _correlation(kind: Callable[..., Any], gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return a correlation, or 0 if one side is constant, for which scipy emits a warning."""
    return float(np.nan_to_num(kind(gold, predicted).statistic))


_MEASURES = {
    "accuracy": metrics.accuracy_score,
    "f1": metrics.f1_score,
    "matthews": metrics.matthews_corrcoef,
    "pearson": functools.partial(_correlation, stats.pearsonr),
    "spearman": functools.partial(_correlation, stats.spearmanr),
}


def predictions(outputs: Sequence[np.ndarray], task: GlueTask) -> np.ndarray:
    """Return the label number, or the score, of each example, given a model's logits (K,)."""
    stacked = np.stack(outputs)
    return stacked.argmax(-1) if task.labels else stacked[:, 0] * SCORE_RANGE[1]


def measure(
    outputs: Sequence[np.ndarray], labels: Sequence[int] | Sequence[float], task: GlueTask
) -> dict[str, float]:
    """Compute the loss and the task's metrics.

    Args:
        outputs: logits (K,) of each example; K = 1 for scores, which are divided by 5.
        labels: label, or score, of each example.
        task: task that defines the metrics.

    Returns:
        The mean loss (nats, or squared error), and the metrics as percentages.

    Example:
        >>> from floater.lab.tasks.corpora.glue import TASKS
        >>> outputs = [np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
        >>> measure(outputs, [1, 0, 0], TASKS["MRPC"])
        {'loss': 0.6466, 'accuracy': 66.67, 'f1': 66.67}
    """
    scores, gold = torch.from_numpy(np.stack(outputs)).double(), torch.tensor(labels)
    loss = F.cross_entropy(scores, gold) if task.labels else F.mse_loss(scores[:, 0], gold / SCORE_RANGE[1])
    predicted = predictions(outputs, task)
    values = {name: round(100 * float(_MEASURES[name](gold.numpy(), predicted)), 2) for name in task.metrics}
    return {"loss": round(float(loss), 4)} | values


def submission(predicted: np.ndarray, indices: Sequence[str], task: GlueTask) -> list[str]:
    """Return the lines of a submission file: index and label, or score from 0 to 5.

    Scores outside that range are clipped to it.

    Example:
        >>> from floater.lab.tasks.corpora.glue import TASKS
        >>> submission(np.array([1, 0]), ["0", "1"], TASKS["RTE"])
        ['index\\tprediction', '0\\tnot_entailment', '1\\tentailment']
    """
    scores = [f"{score:.3f}" for score in np.clip(predicted, *SCORE_RANGE)]
    answers = [task.labels[label] for label in predicted] if task.labels else scores
    return ["index\tprediction", *(f"{i}\t{what}" for i, what in zip(indices, answers, strict=True))]
