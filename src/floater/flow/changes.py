"""How vectors that are stored learn that the parameters they were solved from have changed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_watched: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def stamp(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lies and how often it was written to: another pair after every change.

    From the first call on, steps of optimizers count as writes to a parameter, those of fused kernels too, of
    which PyTorch is not told. A write through `.data` is not seen.

    Args:
        tensor: A parameter or a buffer; of an inference tensor, writes are not counted.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.ones(2))
        >>> before = stamp(weight)
        >>> weight.grad = torch.ones(2)
        >>> torch.optim.SGD([weight], lr=0.1, fused=True).step()
        >>> stamp(weight) == before
        False
    """
    if isinstance(tensor, nn.Parameter):
        _watch_optimizers()
        _watched[id(tensor)] = tensor
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


@lru_cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_count)


def _count(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    every = (p for group in optimizer.param_groups for p in group["params"])
    increment_version([p for p in every if p.grad is not None and id(p) in _watched])
