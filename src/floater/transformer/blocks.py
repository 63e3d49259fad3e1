"""The blocks of the Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import Cache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from floater.encodings import PositionModel
from floater.transformer.attention import Attention, CrossAttention
from floater.transformer.config import FloaterConfig
from floater.transformer.memory import Earlier


class FeedForward(nn.Module):
    """W2 s(W1 x + b1) + b2 (Liu et al. 2020, equation 4).

    Args:
        config: sizes, activation and dropout.
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        bias = config.resolved_recipe.bias
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., dim) to (..., dim)."""
        out: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return out


class Residual(nn.Module):
    """x + sublayer(x) with a norm after the sum, or with `norm_first` before the sub-layer.

    Args:
        config: size, dropout and `norm_first`.

    Example:
        >>> norm_first = Residual(FloaterConfig(norm_first=True, dropout=0.0))
        >>> import torch
        >>> x = torch.ones(1, 1, 512)
        >>> [int(norm_first(x, lambda h: h + 1, keep=keep)[0, 0, 0]) for keep in (True, False)]
        [2, 1]
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.norm = config.resolved_recipe.normalization(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], *, keep: bool = True) -> Tensor:
        """Map (batch, T, dim) to (batch, T, dim); without x itself in the sum unless `keep`."""
        out = self.dropout(sublayer(self.norm(x) if self.norm_first else x))
        if keep:
            out = x + out
        return out if self.norm_first else self.norm(out)  # type: ignore[no-any-return]


class EncoderBlock(GradientCheckpointingLayer):
    """Self-attention and feed-forward; causal in a language model.

    Args:
        config: sizes.
        layer: index of the block, from 0.
        causal: a token may attend to itself and earlier ones only.
    """

    def __init__(self, config: FloaterConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.attention = Attention(config, layer, causal=causal)
        self.feed_forward = FeedForward(config)
        self.attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        position: PositionModel,
        state: Any,
        key_valid: Tensor | None,
        past_key_values: Cache | None = None,  # by this name gradient checkpointing knows to leave it out
        layer: int | None = None,
        earlier: Earlier | None = None,
        sharpen: bool = False,
    ) -> Tensor:
        """Apply one block; see `Attention.forward` for the arguments."""
        layer = self.layer if layer is None else layer
        x = position.block(x, state, layer)
        if earlier is not None and self.attention_residual.norm_first:
            earlier = Earlier(self.attention_residual.norm(earlier.hidden), earlier.state)
        x = self.attention_residual(
            x,
            lambda h: self.attention(h, position, state, key_valid, past_key_values, layer, earlier, sharpen)[
                0
            ],
            keep=position.residual(layer),
        )
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out


class DecoderBlock(EncoderBlock):
    """Self-attention, attention to the source, feed-forward.

    Args:
        config: sizes.
        layer: index of the block, from 0.
        causal: a token may attend to itself and earlier ones only.
    """

    def __init__(self, config: FloaterConfig, layer: int, *, causal: bool = True) -> None:
        super().__init__(config, layer, causal=causal)
        self.cross_attention = CrossAttention(config, layer)
        self.cross_residual = Residual(config)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        source: Tensor,
        position: PositionModel,
        state: Any,
        source_position: PositionModel,
        source_state: Any,
        key_valid: Tensor | None,
        source_valid: Tensor | None,
        past_key_values: Cache | None = None,
        layer: int | None = None,
        sharpen: bool = False,
    ) -> Tensor:
        """Apply one block; see `Attention.forward` and `CrossAttention.forward` for the arguments."""
        layer = self.layer if layer is None else layer
        x = position.block(x, state, layer)
        x = self.attention_residual(
            x,
            lambda h: self.attention(h, position, state, key_valid, past_key_values, layer, sharpen=sharpen)[
                0
            ],
        )
        x = self.cross_residual(
            x,
            lambda h: self.cross_attention(
                h,
                source,
                position,
                state,
                source_position,
                source_state,
                source_valid,
                past_key_values,
                layer,
                sharpen,
            )[0],
        )
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out
