"""Segment memory: inputs of the blocks in earlier segments of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from floater.encodings import PositionError, PositionModel
from floater.encodings.checks import is_whole
from floater.transformer.uncast import Uncast


class Earlier(NamedTuple):
    """The earlier segments that a block reads.

    Args:
        hidden: (batch, m, dim), the block's inputs there.
        state: the position model's state for all m + T tokens as queries and as keys.
    """

    hidden: Tensor
    state: Uncast[Any]


class Memory:
    """The inputs of every block at the last tokens of earlier segments, which the next segment attends to.

    Dai et al. 2019 (Transformer-XL), section 3.2: keys and values are computed from them again, without
    gradients to earlier segments. Press et al. 2021 (Shortformer), section 5, keep the previous subsequence
    in the same way. A forward pass reads and extends it. Memory at padding, or of another document, is not
    attended to.

    Args:
        size: tokens that are kept, at least 1.

    Raises:
        ValueError: if size is not a whole number of at least 1.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterForCausalLM
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, position="transformer_xl")
        >>> model, memory = FloaterForCausalLM(config).eval(), Memory(4)
        >>> for segment in torch.arange(3, 15).view(3, 1, 4):
        ...     logits = model(segment, memory=memory).logits
        >>> memory.length
        4
    """

    def __init__(self, size: int) -> None:
        if not is_whole(size) or size < 1:
            raise ValueError(f"the memory has {size!r} tokens; it must have a whole number of at least 1")
        self.size = size
        self.forget()

    def forget(self) -> None:
        """Clear the memory, as before the first segment."""
        self.hidden: list[Tensor] = []
        self.mask: Tensor | None = None
        self.documents: Tensor | None = None
        self._segment: tuple[Tensor | None, Tensor | None] = (None, None)

    def state(self) -> dict[str, Any]:
        """Return the contents, for `load_state`."""
        return {"hidden": self.hidden, "mask": self.mask, "documents": self.documents}

    def load_state(self, state: Any) -> None:
        """Restore the contents of another memory of this size.

        Args:
            state: a result of `state`.

        Raises:
            ValueError: if it is not such a result.
        """
        hidden = state.get("hidden") if isinstance(state, dict) else None
        if not isinstance(hidden, list) or not all(isinstance(x, Tensor) and x.dim() == 3 for x in hidden):
            raise ValueError("the state of a memory has hidden vectors (batch, m, dim) of each block")
        self.forget()
        self.hidden, self.mask, self.documents = hidden, state.get("mask"), state.get("documents")

    @property
    def length(self) -> int:
        """Return the number of tokens in the memory."""
        return self.hidden[0].shape[1] if self.hidden else 0

    def before(
        self, x: Tensor, mask: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return mask and document ids of the memory and of the segment after it.

        Args:
            x: (batch, T, dim), the segment.
            mask: (batch, T), non-zero where there is a token; None when all are tokens.
            documents: (batch, T) ids, the same for a document in every segment; None for one document.

        Returns:
            (batch, m + T) both, or None where neither is needed.

        Raises:
            ValueError: if the memory is of another batch, or a shape does not fit.
        """
        shape = tuple(x.shape[:2])
        for name, tensor in (("attention mask is", mask), ("document ids are", documents)):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise ValueError(f"the {name} a {type(tensor).__name__}; it must be a tensor {shape}")
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ValueError(f"the {name} {tuple(tensor.shape)}; with a memory it must be {shape}")
        if not self.length:
            self._segment = mask, documents
            return self._segment
        if len(self.hidden[0]) != len(x):
            raise ValueError(f"the memory is of {len(self.hidden[0])} texts; the segment is of {len(x)}")
        if (self.documents is None) != (documents is None):
            raise ValueError("give document ids for every segment or for none")
        old = x.new_zeros(len(x), self.length, dtype=torch.long)
        if mask is not None or self.mask is not None:
            earlier = old + 1 if self.mask is None else self.mask
            new = x.new_ones(shape, dtype=torch.long) if mask is None else mask
            mask = torch.cat([earlier.long(), new.long()], 1)
        if documents is not None and self.documents is not None:
            documents = torch.cat([self.documents, documents], 1)
        self._segment = mask, documents
        return self._segment

    def extend(self, hidden: Sequence[Tensor]) -> None:
        """Append the inputs (batch, T, dim) of each block at the segment that `before` was called for."""
        new = [x.detach() for x in hidden]
        if self.hidden:
            new = [torch.cat([a.to(b.dtype), b], 1) for a, b in zip(self.hidden, new, strict=True)]
        self.hidden = [x[:, -self.size :] for x in new]
        mask, documents = self._segment
        self.mask = None if mask is None else mask[:, -self.size :]
        self.documents = None if documents is None else documents[:, -self.size :]


def check_memory(position: PositionModel, causal: bool) -> None:
    """Refuse a memory of blocks that cannot read one.

    Args:
        position: the stack's position model.
        causal: whether its tokens attend to earlier ones only.

    Raises:
        PositionError: if the inputs of the blocks contain positions, which differ in another segment; if the
            model reads a whole text at once; or if the stack is not causal.

    Example:
        >>> from floater import build
        >>> check_memory(build("sinusoidal", dim=8, heads=2, layers=1, max_length=16), True)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: Sinusoidal adds positions to the inputs of blocks, ...
    """
    if not causal:
        raise PositionError("a memory needs a causal stack, that of a language model")
    if not position.supports_segment_memory:
        raise PositionError(
            f"{type(position).__name__} adds positions to the inputs of blocks, so segments of a text cannot "
            "be remembered; a relative model, such as 'transformer_xl', or 'shortformer' can"
        )
