"""Hidden states and attention weights of a forward pass, as Hugging Face's models return them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from floater.transformer.attention import Attention, CrossAttention
from floater.transformer.blocks import Block
from floater.transformer.stacks import Stack


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

    def output(self, last: Tensor) -> BaseModelOutput:
        """Return the output of an encoder (batch, T, dim) with what was recorded."""
        return BaseModelOutput(
            last_hidden_state=last,
            hidden_states=self.hidden_states(last),
            attentions=tuple(self.attentions) or None,
        )


@contextmanager
def recording(stack: Stack, states: bool | None, attentions: bool | None) -> Iterator[Recorded]:
    """Record the forward pass of a stack, in this thread only.

    Args:
        stack: an encoder or decoder.
        states: whether to keep hidden states; None for the choice of the configuration.
        attentions: whether to keep attention weights; None for the choice of the configuration.

    Raises:
        ValueError: if weights are requested that the attention does not compute.
    """
    states = stack.config.output_hidden_states if states is None else states
    attentions = stack.config.output_attentions if attentions is None else attentions
    recorded = Recorded()
    if not (states or attentions):  # so that compiled code meets neither threads nor hooks
        yield recorded
        return
    owner = get_ident()

    def record_states(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if get_ident() == owner:
            recorded.states.extend([output] if recorded.states else [args[0], output])

    def record_weights(
        module: Attention, args: tuple[Any, ...], output: tuple[Tensor, Tensor | None]
    ) -> None:
        if get_ident() != owner:
            return
        if output[1] is None:
            raise ValueError(
                f"attention={stack.config.attention!r} has no weights for output_attentions"
                if stack.config.attention != "softmax"
                else "output_attentions needs weights, which this attention does not compute: load the model "
                "with attn_implementation='eager', or call model.set_attn_implementation('eager')"
            )
        weights = recorded.cross if isinstance(module, CrossAttention) else recorded.attentions
        weights.append(output[1])

    handles = []
    for module in stack.modules():
        if states and isinstance(module, Block):
            handles.append(module.register_forward_hook(record_states))
        if attentions and isinstance(module, Attention):
            handles.append(module.register_forward_hook(record_weights))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()
