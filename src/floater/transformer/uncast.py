"""Arguments of blocks that mixed precision leaves alone."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Uncast(Generic[Value]):
    """A value that travels into a block in its own precision.

    The mixed precision of PyTorch's FSDP2 casts the floating-point tensors among the arguments of a wrapped
    module, also those in tuples, dicts and dataclasses: in bfloat16 positions from 256 on are rounded. It
    does not look into other objects, such as this one.

    Args:
        value: the state of a position model, or whatever else holds positions.

    Example:
        >>> import torch
        >>> from torch.distributed.utils import _apply_to_tensors
        >>> at = torch.tensor([257.0])
        >>> (cast, left) = _apply_to_tensors(torch.Tensor.bfloat16, (at, Uncast(at)))
        >>> cast.tolist(), left.value.tolist()
        ([256.0], [257.0])
    """

    def __init__(self, value: Value) -> None:
        self.value = value
