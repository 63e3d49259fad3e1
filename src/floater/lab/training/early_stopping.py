"""The rule by which a training stops before its last step."""

from collections.abc import Sequence


def exhausted(log: Sequence[dict[str, float]], patience: int, metric: str, greater: bool) -> bool:
    """Return whether the last validations in a log are no better than an earlier one.

    Args:
        log: entries of the log.
        patience: number of validations; 0 never stops the training.
        metric: name in the log of the score by which checkpoints are compared.
        greater: True if higher scores are better.

    Example:
        >>> log = [{"eval_bleu": 1.0}, {"eval_bleu": 3.0}, {"loss": 2.0}, {"eval_bleu": 3.0}]
        >>> [exhausted(log, patience, "eval_bleu", greater=True) for patience in (1, 2, 0)]
        [True, False, False]
    """
    scores = [entry[metric] for entry in log if metric in entry]
    best = (max if greater else min)(scores, default=0.0)
    return bool(scores) and 0 < patience < len(scores) - scores.index(best)
