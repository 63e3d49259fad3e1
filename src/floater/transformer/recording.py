"""Hidden states and attention weights of a forward pass, as Hugging Face's models return them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from floater.transformer.attention import Attention, CrossAttention
from floater.transformer.blocks import EncoderBlock


@dataclass
class Recorded:
    """The outputs of the blocks of a stack, one for each step of a shared block.

    Args:
        states: input of the first block and output of each block, (batch, T, dim).
        attentions: weights of self-attention, (batch, heads, T, S).
        cross: weights of cross-attention, (batch, heads, T, S).
    """

    states: list[Tensor] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)

    def hidden_states(self, last: Tensor) -> tuple[Tensor, ...] | None:
        """Return the states, the last one being the output of the stack; None if they were not requested."""
        return (*self.states[:-1], last) if self.states else None


@contextmanager
def recording(stack: nn.Module, *, states: bool, attentions: bool) -> Iterator[Recorded]:
    """Record the forward pass of a stack, in this thread only.

    Args:
        stack: an encoder or decoder.
        states: whether to keep hidden states.
        attentions: whether to keep attention weights.

    Raises:
        ValueError: if weights are requested that the attention does not compute.
    """
    found = Recorded()
    if not (states or attentions):  # so that compiled code meets neither threads nor hooks
        yield found
        return
    owner = get_ident()

    def block(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if get_ident() == owner:
            found.states.extend([output] if found.states else [args[0], output])

    def attention(module: Attention, args: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
        if get_ident() != owner:
            return
        if output[1] is None:
            kind = module.config.attention
            raise ValueError(
                "attention='linear' has no weights for output_attentions"
                if kind == "linear"
                else "output_attentions needs weights, which this attention does not compute: load the model "
                "with attn_implementation='eager', or call model.set_attn_implementation('eager')"
            )
        kept = found.cross if isinstance(module, CrossAttention) else found.attentions
        kept.append(output[1])

    handles = []
    for module in stack.modules():
        if states and isinstance(module, EncoderBlock):
            handles.append(module.register_forward_hook(block))
        if attentions and isinstance(module, Attention):
            handles.append(module.register_forward_hook(attention))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def wanted(config: PreTrainedConfig, states: bool | None, attentions: bool | None) -> dict[str, bool]:
    """Return whether to record states and weights: as requested, else as configured."""
    return {
        "states": bool(config.output_hidden_states if states is None else states),
        "attentions": bool(config.output_attentions if attentions is None else attentions),
    }
