"""Cross entropy with label smoothing, averaged over tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.transformer.outputs import IGNORED, per_item, with_auxiliary

LossFunction = Callable[..., Tensor]
"""The `compute_loss_func` of a Trainer: of outputs, labels and `num_items_in_batch`, their loss."""


def smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float, num_items: Tensor | int | None = None
) -> Tensor:
    """Sum the label-smoothed cross entropy over tokens and divide it by the number of items.

    The target distribution of a token with label y over K classes is (1 - smoothing) [k = y] +
    smoothing / K. Labels of -100 are ignored.

    Source: Szegedy et al. 2016, section 7; used by Vaswani et al. 2017, section 5.4.

    Args:
        logits: logits, (..., K); half precision is summed in float32.
        labels: labels, (...), each in [0, K) or -100.
        smoothing: share of the uniform distribution, in [0, 1].
        num_items: divisor of the sum: the number of labels that are not -100 in the whole batch of
            one update, over all accumulated parts and processes. None for the number in ``labels``.

    Returns:
        The loss in nats per token, a scalar; 0 if there are no items.

    Raises:
        ValueError: ``smoothing`` is not in [0, 1], the shapes do not match, or ``num_items`` is None
            and every label is -100.

    Example:
        >>> logits = torch.zeros(1, 2, 8)
        >>> labels = torch.tensor([[3, -100]])
        >>> round(smoothed_cross_entropy(logits, labels, 0.1).item(), 4)  # the log of 8
        2.0794
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing}; it must be from 0 to 1")
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}; logits of {tuple(logits.shape)} "
            f"need {tuple(logits.shape[:-1])}"
        )
    if num_items is None:
        num_items = labels.ne(IGNORED).sum()
        if not num_items:
            raise ValueError(f"every label is {IGNORED}: there is no token to average over")
    total = F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)),
        labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return per_item(total, num_items)


def smoothed_loss(smoothing: float) -> LossFunction:
    """Return ``smoothed_cross_entropy`` as a Trainer's ``compute_loss_func``.

    Labels must be aligned with the logits, as those of an encoder-decoder are, and the outputs must
    have ``logits``, as an attribute or as a key.

    Args:
        smoothing: share of the uniform distribution, in [0, 1].

    Example:
        >>> loss = smoothed_loss(0.0)
        >>> loss({"logits": torch.zeros(1, 2)}, torch.tensor([1]), num_items_in_batch=2).item()
        0.3465735912322998
    """

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        return smoothed_cross_entropy(logits, labels, smoothing, num_items_in_batch)

    return loss


def with_auxiliary_loss(loss: LossFunction) -> LossFunction:
    """Return a loss function that adds the auxiliary loss in a model's outputs: of lengths and orders.

    Args:
        loss: loss function of the outputs and labels.

    Example:
        >>> loss = with_auxiliary_loss(smoothed_loss(0.0))
        >>> outputs = {"logits": torch.zeros(1, 2), "auxiliary_loss": torch.tensor(1.0)}
        >>> round(loss(outputs, torch.tensor([1]), num_items_in_batch=2).item(), 4)  # log(2) / 2 + 1 / 2
        0.8466
    """

    def whole(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        found = loss(outputs, labels, num_items_in_batch)
        cost = outputs.get("auxiliary_loss") if isinstance(outputs, dict) else None
        return with_auxiliary(found, cost, labels, num_items_in_batch)

    return whole
