"""The choice of a label for each variant, such as its learning rate, by the validation of the first seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from floater.lab.study.trial import is_trained
from floater.lab.study.variants import Trial, Variant, last_error
from floater.lab.tasks import Task
from floater.lab.training.files import read_record
from floater.lab.training.run import RESULT


@dataclass(frozen=True)
class Tried:
    """A label that was tried.

    Args:
        metric: name of the score.
        score: validation score of the final model; None for a trial that failed, or has not ended.
        greater: whether higher scores are better.
        loss: validation loss of the final model, which decides between equal scores.
        error: why there is no score, such as the error of a failed trial; empty for one that has not ended.
    """

    metric: str
    score: float | None = None
    greater: bool = False
    loss: float = math.inf
    error: str = ""

    @property
    def rank(self) -> tuple[float, float]:
        """Return what is lower for a better label."""
        if self.score is None or math.isnan(self.score):
            return math.inf, math.inf
        return -self.score if self.greater else self.score, self.loss


def tried(trials: Sequence[Trial], by: str, task: Task, retry: bool = False) -> dict[str, dict[str, Tried]]:
    """Return what the trials of each variant have reached, by its name without a label and the label.

    Args:
        trials: the trials of the first seed, with all labels.
        by: "score" or "loss", what decides.
        task: task of the trials.
        retry: whether failed trials will be run again, and have not ended.
    """
    variants: dict[str, dict[str, Tried]] = {}
    for trial in trials:
        loss = task.validation_loss or ""
        chooser = {"metric": loss, "greater": False} if by == "loss" else task.best(trial.settings)
        label = str(trial.variant.tuned)
        variants.setdefault(trial.variant.key, {})[label] = _read(trial, retry, loss, **chooser)
    return variants


def _read(trial: Trial, retry: bool, loss: str, metric: str, greater: bool) -> Tried:
    if is_trained(trial.run):
        result = read_record(trial.run / RESULT)
        if metric not in result:
            return Tried(metric, error=f"its validation has no {metric}")
        return Tried(metric, result[metric], greater, result.get(loss, math.inf))
    failed = trial.error.is_file() and not retry
    return Tried(metric, error=last_error(trial) if failed else "")


def best(labels: Mapping[str, Tried]) -> str | None:
    """Return the best label; None while a trial has not ended, or if all have failed.

    Of equal scores the one with the lower loss is better, then the first.

    Args:
        labels: what was tried.

    Example:
        >>> scores = {"1e-3": 90.0, "4e-3": 90.0}, {"1e-3": 0.3, "4e-3": 0.2}
        >>> labels = {name: Tried("exact", scores[0][name], True, scores[1][name]) for name in scores[0]}
        >>> best(labels), best(labels | {"1": Tried("exact")})
        ('4e-3', None)
    """
    if is_open(labels):
        return None
    label = min(labels, key=lambda name: labels[name].rank)
    return None if labels[label].rank[0] == math.inf else label


def is_open(labels: Mapping[str, Tried]) -> bool:
    """Return whether a trial has not ended that the choice among labels waits for."""
    return any(each.score is None and not each.error for each in labels.values())


def with_seeds(
    variants: Iterable[Variant], labels: Mapping[str, Mapping[str, Tried]] | None
) -> Iterator[Variant]:
    """Yield the variants with the seeds that they are trained with now.

    Until the best label of a variant is known, each label has the first seed; then the best label has all
    seeds, and the others are excluded.

    Args:
        variants: variants with all labels and all seeds, those of the same name one after the other.
        labels: what was tried, by the name of the variant without its label. None gives all labels the first
            seed and the first label the others, as many trials as there will be.
    """
    before = None
    for variant in variants:
        if variant.tuned is None:
            yield variant
            continue
        chosen = None if labels is None else best(labels[variant.key])
        if variant.tuned == chosen or (labels is None and variant.key != before):
            yield variant
        elif chosen is None:
            yield replace(variant, seeds=variant.seeds[:1])
        before = variant.key
