"""Early stopping: the rule that ends training before its last step."""

from collections.abc import Sequence


def stops(
    log: Sequence[dict[str, float]], patience: int, target: float | None, metric: str, greater: bool
) -> bool:
    """Return whether a validation in a log reached a score, or the last ones are no better than an earlier.

    Args:
        log: entries of the log.
        patience: number of validations; 0 for any number.
        target: score that ends the training; None for none.
        metric: name in the log of the score by which checkpoints are compared.
        greater: True if higher scores are better.

    Example:
        >>> log = [{"eval_bleu": 1.0}, {"eval_bleu": 3.0}, {"loss": 2.0}, {"eval_bleu": 3.0}]
        >>> [stops(log, patience, None, "eval_bleu", greater=True) for patience in (1, 2, 0)]
        [True, False, False]
        >>> [stops(log, 0, target, "eval_bleu", greater=True) for target in (3.0, 3.5)]
        [True, False]
    """
    scores = [entry[metric] for entry in log if metric in entry]
    best = (max if greater else min)(scores, default=0.0)
    if scores and target is not None and (best >= target if greater else best <= target):
        return True
    return bool(scores) and 0 < patience < len(scores) - scores.index(best)
