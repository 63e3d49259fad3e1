"""Losses, and the output of an encoder-decoder: that of Hugging Face, with an auxiliary loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import modeling_outputs as theirs

IGNORED = -100
"""The label that losses ignore, as in Hugging Face."""


def per_item(total: Tensor, items: Tensor | int) -> Tensor:
    """Divide a sum over items by their number; 0 where there is no item, as in a batch without a label.

    Example:
        >>> import torch
        >>> [per_item(torch.tensor(float(n)), n).item() for n in (3, 0)]
        [1.0, 0.0]
    """
    return total / (items.clamp(min=1) if isinstance(items, Tensor) else max(items, 1))


def with_auxiliary(
    loss: Tensor, auxiliary: Tensor | None, labels: Tensor, items: Tensor | int | None
) -> Tensor:
    """Return a loss with a batch's share of the auxiliary loss.

    Args:
        loss: mean over `items` labels.
        auxiliary: auxiliary loss of the batch: nats per text of a predicted length, or nats per token of a
            predicted order; None for none.
        labels: labels of the batch, -100 ignored.
        items: labels of all batches of an update; None means those of this batch.

    Example:
        >>> import torch
        >>> labels = torch.tensor([3, -100])
        >>> with_auxiliary(torch.tensor(1.0), torch.tensor(0.5), labels, 2).item()  # half of the labels
        1.25
    """
    if auxiliary is None:
        return loss
    return loss + (auxiliary if items is None else per_item(auxiliary * (labels != IGNORED).sum(), items))


@dataclass
class Seq2SeqLM(theirs.Seq2SeqLMOutput):
    """`auxiliary_loss` is for `with_auxiliary`: nats per text of a predicted length, per token of a predicted
    order."""

    auxiliary_loss: Tensor | None = None
