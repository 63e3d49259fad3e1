"""Arithmetic of the solvers: float64 for what accumulates, neither autocast nor TF32 for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from threading import Lock
from typing import Any

import torch
from torch import Tensor


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of times and running states: float64 where the device has it (MPS has not).

    A solve adds up hundreds of small displacements, so a float32 state would drift by several tolerances. The
    state is only rows x dim numbers; its float64 costs nothing compared with the products.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Switch off autocast on the device of a tensor; the device "meta" has none.

    Example:
        >>> with torch.autocast("cpu"), without_autocast(x := torch.ones(2, 2)):
        ...     (x @ x).dtype
        torch.float32
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast, and TF32 and bfloat16 inside float32 products.

    Products of 10-bit mantissas err by 1e-3 and no tolerance of 1e-6 can be met with them.

    Example:
        >>> with torch.autocast("cpu"), full_precision(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    with torch.autocast(device.type, enabled=False):
        if torch.compiler.is_compiling():  # whose products have the precision of the whole program
            yield
            return
        _enter()
        try:
            yield
        finally:
            _leave()


def backward_in_full_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the `backward` of an autograd function, which may run under autocast."""

    @wraps(backward)
    def precise(ctx: Any, *cotangents: Tensor) -> Any:
        with full_precision(cotangents[0].device):
            return backward(ctx, *cotangents)

    return precise


# The precision of products is one for all threads. The first that enters records the setting, and the last
# that leaves restores it; if each thread did so by itself, one would restore the setting of another.
_lock, _inside, _chosen = Lock(), 0, ExitStack()


def _enter() -> None:
    global _inside
    with _lock:
        _inside += 1
        if _inside > 1:
            return
        backends: Any = torch.backends
        for matmul in (backends.cuda.matmul, backends.mkldnn.matmul):
            _chosen.callback(_restore, matmul, matmul.fp32_precision)
            matmul.fp32_precision = "ieee"


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            _chosen.close()


def _restore(matmul: Any, precision: str) -> None:
    """Let a backend inherit its precision if that is the requested one; set it explicitly otherwise."""
    matmul.fp32_precision = "none"
    if matmul.fp32_precision != precision:
        matmul.fp32_precision = precision


def norms(x: Tensor) -> Tensor:
    """Return Euclidean norms over the last dim, in the wide dtype: squares of large float32 overflow.

    Example:
        >>> norms(torch.tensor([3e30, 4e30])) / 1e30
        tensor(5.0000, dtype=torch.float64)
    """
    result: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=wide_dtype(x.device))
    return result
