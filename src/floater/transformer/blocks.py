"""The blocks of the Transformer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers import Cache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from floater._hf import one_cache
from floater.transformer.attention import Attention, CrossAttention, SharedInputs, Source
from floater.transformer.config import FloaterConfig
from floater.transformer.memory import Earlier

_FUSED = dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate"), "gelu_pytorch_tanh")
"""Activations that Transformers computes in about eight steps, and the name of the same function in one."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by its Hugging Face name, fused where PyTorch has it.

    Example:
        >>> activation("gelu_new")
        GELUTanh()
    """
    function: Callable[[Tensor], Tensor] = ACT2FN[_FUSED.get(name, name)]
    return function


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
        self.activation = activation(config.activation_function)
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


class Block(GradientCheckpointingLayer):
    """Self-attention, in a decoder attention to the source, and feed-forward.

    Args:
        config: sizes.
        layer: index of the block, from 0.
        causal: a token may attend to itself and earlier ones only.
        cross: whether there is attention to a source.
    """

    def __init__(
        self, config: FloaterConfig, layer: int, *, causal: bool = False, cross: bool = False
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention = Attention(config, layer, causal=causal)
        self.feed_forward = FeedForward(config)
        self.attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)
        if cross:
            self.cross_attention = CrossAttention(config, layer)
            self.cross_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        shared: SharedInputs,
        past_key_values: Cache | None = None,  # by its names gradient checkpointing knows to leave it out
        layer: int | None = None,
        earlier: Earlier | None = None,
        source: Source | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Apply the block to (batch, T, dim).

        `source` is for a block with `cross`. The other arguments are those of `Attention.forward`.
        """
        layer, position = self.layer if layer is None else layer, shared.position
        cache = one_cache(past_key_values, cache)
        if earlier is not None and self.attention_residual.norm_first:
            earlier = Earlier(self.attention_residual.norm(earlier.hidden), earlier.state)

        def attend(x: Tensor) -> Tensor:
            out, _ = self.attention(x, shared, cache, layer, earlier)
            return out  # type: ignore[no-any-return]

        def attend_to_source(x: Tensor) -> Tensor:
            out, _ = self.cross_attention(x, source, shared, cache, layer)
            return out  # type: ignore[no-any-return]

        x = position.block(x, shared.state.value, layer)
        x = self.attention_residual(x, attend, keep=position.residual(layer))
        if source is not None:
            x = self.cross_residual(x, attend_to_source)
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out
