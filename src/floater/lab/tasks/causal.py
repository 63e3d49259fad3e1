"""Loss of causal models, and the check that a model is causal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floater.errors import DataError
from floater.lab.training import smoothed_cross_entropy
from floater.positions import Positions
from floater.transformer import FloaterForCausalLM


def causal_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Return the cross-entropy of logits and the labels one token later, as a loss function of a Trainer.

    Args:
        outputs: outputs of a causal model, with `logits` (batch, T, vocabulary).
        labels: token ids, (batch, T), -100 where ignored; the first token of each row is never predicted.
        num_items_in_batch: divisor of the summed loss; None for the number of labels.
    """
    return smoothed_cross_entropy(outputs.logits[:, :-1], labels[:, 1:], 0.0, num_items_in_batch)


@torch.no_grad()
def check_causal(model: FloaterForCausalLM) -> None:
    """Refuse a model in which a token attends to later tokens.

    Args:
        model: causal language model, in evaluation mode.

    Raises:
        DataError: if the outputs of a token depend on later tokens.
    """
    target_length = torch.tensor([8], device=model.device)

    def logits(length: int) -> Tensor:
        positions = Positions.arange(length, device=model.device)
        index = positions.query
        positions = positions.but(language=index * 0, reordered=index, target_length=target_length)
        ids = index % model.config.vocab_size
        out: Tensor = model(ids, positions=positions, use_cache=False).logits
        return out[:, :4]

    whole, earlier = logits(8), logits(4)
    if not torch.allclose(whole, earlier, rtol=1e-3, atol=1e-3):
        raise DataError(
            f"the position model '{model.config.position}' lets tokens attend to later ones; a causal "
            "language model needs another one, or other options of it (model.position_options)"
        )
