"""The blocks of the Transformer and the stacks made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from floater.encodings import PositionModel, build
from floater.encodings.model import Site
from floater.positions import Positions
from floater.transformer.attention import Attention, CrossAttention
from floater.transformer.config import FloaterConfig


class FeedForward(nn.Module):
    """W2 s(W1 x + b1) + b2 (Liu et al. 2020, equation 4)."""

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return out


class Residual(nn.Module):
    """x + sublayer(x) with a layer norm after the sum, or before the sub-layer."""

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        out: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return out


class EncoderBlock(GradientCheckpointingLayer):
    """Self-attention and feed-forward; causal in a language model."""

    def __init__(self, config: FloaterConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.attention = Attention(config, layer, causal=causal)
        self.feed_forward = FeedForward(config)
        self.attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Tensor, position: PositionModel, state: Any, key_valid: Tensor | None, cache: Cache | None = None
    ) -> Tensor:
        x = position.block(x, state, self.layer)
        x = self.attention_residual(x, lambda h: self.attention(h, position, state, key_valid, cache)[0])
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out


class DecoderBlock(EncoderBlock):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, config: FloaterConfig, layer: int) -> None:
        super().__init__(config, layer, causal=True)
        self.cross_attention = CrossAttention(config, layer)
        self.cross_residual = Residual(config)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        source: Tensor,
        position: PositionModel,
        state: Any,
        memory: PositionModel,
        memory_state: Any,
        key_valid: Tensor | None,
        source_valid: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        x = position.block(x, state, self.layer)
        x = self.attention_residual(x, lambda h: self.attention(h, position, state, key_valid, cache)[0])
        x = self.cross_residual(
            x,
            lambda h: self.cross_attention(
                h, source, position, state, memory, memory_state, source_valid, cache
            )[0],
        )
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out


def position_model(config: FloaterConfig, layers: int, site: Site) -> PositionModel:
    """The position model that a configuration names, for one stack of blocks."""
    return build(
        config.position,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        layers=layers,
        max_length=config.training_length,
        site=site,
        **(config.position_options or {}),
    )


class Encoder(nn.Module):
    """A stack of blocks over one sequence: an encoder, or with `causal` the decoder of a language model.

    Args:
        config: sizes.
        causal: a token may attend to itself and earlier ones only.
    """

    main_input_name = "input_ids"  # Hugging Face's generate asks the encoder of an encoder-decoder

    def __init__(self, config: FloaterConfig, *, causal: bool = False) -> None:
        super().__init__()
        self.position = position_model(config, config.num_hidden_layers, "self")
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(config, layer, causal=causal) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size) if config.norm_first else nn.Identity()

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        """Encode embeddings x (batch, T, dim) that stand at `positions`; returns (batch, T, dim)."""
        state = self.position.prepare(positions)
        x = self.dropout(self.position.embed(x, state))
        for block in self.blocks:
            x = block(x, self.position, state, positions.key_valid, cache)
        out: Tensor = self.norm(x)
        return out


class Decoder(nn.Module):
    """The decoder of an encoder-decoder. Position acts in its self-attention and, where the position model
    says so, in the queries (target positions) and keys and values (source positions) of cross-attention."""

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.position = position_model(config, config.decoder_layers, "decoder")
        self.memory = position_model(config, config.decoder_layers, "memory")
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.hidden_size) if config.norm_first else nn.Identity()

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        source: Tensor,
        source_positions: Positions,
        cache: Cache | None = None,
    ) -> Tensor:
        """Decode target embeddings x (batch, T, dim) given the encoder's output; returns (batch, T, dim)."""
        state = self.position.prepare(positions)
        memory_state = self.memory.prepare(source_positions)
        x = self.dropout(self.position.embed(x, state))
        for block in self.blocks:
            x = block(
                x,
                source,
                self.position,
                state,
                self.memory,
                memory_state,
                positions.key_valid,
                source_positions.key_valid,
                cache,
            )
        out: Tensor = self.norm(x)
        return out


def place(mask: Tensor | None, length: int, earlier: int, device: torch.device) -> Positions:
    """Where `length` tokens stand that come after `earlier` cached ones.

    Args:
        mask: (batch, earlier + length), non-zero where there is a token; None when all are tokens.
        length: number of new tokens.
        earlier: number of cached tokens.
        device: of the result when there is no mask.

    Raises:
        ValueError: if the mask does not cover the cached and the new tokens.
    """
    if mask is None:
        return Positions.arange(length, offset=earlier, device=device)
    if mask.shape[-1] != earlier + length:
        raise ValueError(
            f"the attention mask covers {mask.shape[-1]} tokens; there are {earlier} cached and {length} new ones"
        )
    return Positions.from_mask(mask, queries=length)
