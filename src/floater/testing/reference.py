"""The reference Transformer around an encoding, for the checks: this module needs Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from floater.positions import Positions
from floater.testing.inputs import SIZES
from floater.transformer import FloaterConfig, FloaterModel
from floater.transformer.attention import SharedInputs
from floater.transformer.stacks import Decoder, Encoder
from floater.transformer.uncast import Uncast


def config(name: str, options: Mapping[str, Any], **changes: Any) -> FloaterConfig:
    """Return the configuration of a small Transformer, with the same recipe for all encodings.

    Args:
        name: name of the encoding.
        options: its options.
        **changes: other fields.
    """
    return FloaterConfig(
        position=name,
        position_options=dict(options),
        vocab_size=SIZES["vocabulary"],
        hidden_size=SIZES["dim"],
        intermediate_size=24,
        num_attention_heads=SIZES["heads"],
        num_hidden_layers=SIZES["layers"],
        training_length=SIZES["max_length"],
        dropout=0.0,
        recipe="transformer",
        **changes,
    )


def encoder(name: str, options: Mapping[str, Any], *, causal: bool = False) -> Encoder:
    """Return a stack of blocks around an encoding.

    Example:
        >>> encoder("alibi", {}).position.spec.layers
        2
    """
    return Encoder(config(name, options), causal=causal)


def decoder(name: str, options: Mapping[str, Any]) -> Decoder:
    """Return a decoder whose self-attention and cross-attention have the encoding.

    Example:
        >>> decoder("alibi", {}).position.spec.site
        'decoder'
    """
    return Decoder(config(name, options, is_encoder_decoder=True, decoder_layers=SIZES["layers"]))


def model(name: str, options: Mapping[str, Any]) -> FloaterModel:
    """Return a Hugging Face model with the encoding in its encoder.

    Example:
        >>> model("alibi", {}).config.position
        'alibi'
    """
    return FloaterModel(config(name, options))


def cache() -> DynamicCache:
    """Return an empty cache for a causal stack.

    Example:
        >>> len(cache())
        0
    """
    return DynamicCache()


def attend(stack: Encoder, x: Tensor, state: Any, positions: Positions, layer: int) -> Tensor:
    """Return the output of the attention of one block, (batch, T, dim).

    Example:
        >>> import torch
        >>> stack, positions = encoder("alibi", {}), Positions.arange(3)
        >>> attend(stack, torch.zeros(1, 3, 16), stack.position.prepare(positions), positions, 0).shape
        torch.Size([1, 3, 16])
    """
    attention: Any = stack.blocks[layer].attention
    out: Tensor = attention(x, SharedInputs(stack.position, Uncast(state), positions.visible))[0]
    return out


def use_kernel(stack: Encoder, kernel: str) -> None:
    """Let all blocks compute attention by a kernel: "sdpa", or "eager" for plain PyTorch.

    Example:
        >>> use_kernel(encoder("alibi", {}), "eager")
    """
    stack.config._attn_implementation = kernel  # the blocks share the configuration
