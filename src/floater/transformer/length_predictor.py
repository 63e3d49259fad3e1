"""Prediction of the length of a translation from the encoded source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.transformer.config import FloaterConfig

REACH = 20


class LengthPredictor(nn.Module):
    """p(l - s | source): a classifier of the difference in length, on the mean of the encoder's output.

    Bao et al. 2019 predict the length from a pooled encoding (their program sums the outputs of all blocks
    first). Oka et al. 2020 fine-tune a BERT of its own for it; Dufter et al. 2022, section 4.4, have the
    Transformer itself predict it, as here. Both lengths count the end of the text. There is a class for each
    difference from -20 to 20; a target beyond counts as the outermost class.

    Args:
        config: the configuration, whose width it has.

    Example:
        >>> predictor = LengthPredictor(FloaterConfig(hidden_size=8, num_attention_heads=2))
        >>> _ = predictor.offset.weight.data.zero_(), predictor.offset.bias.data.copy_(torch.arange(41) == 23)
        >>> predictor(torch.zeros(2, 5, 8), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool())
        tensor([8, 5])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.offset = nn.Linear(config.hidden_size, 2 * REACH + 1)

    @torch.no_grad()
    def forward(self, source: Tensor, valid: Tensor | None) -> Tensor:
        """Return the likeliest length of each target, at least 1.

        Args:
            source: (batch, S, dim), the encoder's output.
            valid: (batch or 1, S) bool, False where the source is padding; None when all are tokens.

        Returns:
            (batch,) int64.
        """
        logits, length = self._logits(source, valid)
        return (length + logits.argmax(1) - REACH).clamp(min=1)

    def loss(self, source: Tensor, valid: Tensor | None, target_length: Tensor) -> Tensor:
        """Return nats per text, a scalar, for the true lengths (batch or 1,)."""
        logits, length = self._logits(source, valid)
        offset = (target_length.expand(len(source)) - length).clamp(-REACH, REACH)
        return F.cross_entropy(logits.float(), offset + REACH)

    def _logits(self, source: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        if valid is None:
            valid = source.new_ones(1, source.shape[1], dtype=torch.bool)
        length = valid.sum(1)  # half precision does not count to 257
        mean = (source * valid[..., None]).sum(1) / length.clamp(min=1)[:, None]
        return self.offset(mean), length.expand(len(source))


def check_lengths(lengths: Any) -> None:
    """Refuse lengths of targets that are no whole numbers, one for each text.

    Raises:
        ValueError: if they are not.

    Example:
        >>> check_lengths(5)
        Traceback (most recent call last):
        ValueError: target_length is 5; it must be a tensor of one whole number for each text
    """
    whole = isinstance(lengths, Tensor) and not (lengths.is_floating_point() or lengths.dtype == torch.bool)
    if not whole or lengths.ndim != 1:
        raise ValueError(
            f"target_length is {lengths!r}; it must be a tensor of one whole number for each text"
        )
