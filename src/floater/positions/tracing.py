"""Checks of positions that hold in compiled code, and the refusal of what would not check."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def require(
    valid: Tensor,
    message: str,
    number: Callable[[], Tensor] | None = None,
    error: type[Exception] = ValueError,
) -> None:
    """Raise an error unless a tensor of truth values is True throughout.

    Compiled code, which cannot read the values, raises a RuntimeError when it runs. Those on the device
    "meta" are not known.

    Args:
        valid: truth values.
        message: message of the error.
        number: function that returns the number for {} in the message; compiled code says "another".
        error: type of the error.

    Raises:
        Exception: of that type, if a value is False.

    Example:
        >>> at = torch.tensor([3, 9])
        >>> require(at <= 8, "position {} is above 8", at.max)
        Traceback (most recent call last):
        ValueError: position 9 is above 8
    """
    if torch.compiler.is_compiling():
        torch._assert_async(valid.all(), message if number is None else message.format("another"))
    elif not valid.is_meta and not bool(valid.all()):
        raise error(message if number is None else message.format(int(number())))


def refuse_trace(error: type[Exception], what: str, instead: str) -> None:
    """Refuse a forward pass that is being traced.

    A trace records the operations of one example. Python code decides on the positions of its tokens and on
    padding, so these would be constants for all other inputs.

    Args:
        error: type of the error.
        what: description of the model.
        instead: advice for the message.

    Raises:
        Exception: of that type, if the pass is traced.

    Example:
        >>> refuse_trace(ValueError, "a plugged model", "bake it")
    """
    if torch._C._get_tracing_state() is not None:
        raise error(
            f"{what} cannot be traced by torch.jit.trace, nor exported by what traces: positions of the "
            f"example would be constants; {instead}"
        )


def in_context_parallel() -> bool:
    """Return whether PyTorch's `context_parallel` shows this process a part of each text.

    It replaces `scaled_dot_product_attention` by a function that passes keys around; other attention, and
    whatever counts tokens, would take the part for the whole. Compiled code cannot look, and gets False.

    Example:
        >>> in_context_parallel()
        False
    """
    if torch.compiler.is_compiling():
        return False
    return "context_parallel" in (getattr(F.scaled_dot_product_attention, "__module__", None) or "")


def refuse_counting(error: type[Exception]) -> None:
    """Refuse to count tokens where a process reads a part of a text.

    Raises:
        Exception: of that type, within PyTorch's `context_parallel`.

    Example:
        >>> refuse_counting(ValueError)
    """
    if in_context_parallel():
        raise error(
            "within context_parallel a process reads a part of a text and cannot count its tokens; pass "
            "position_ids, sharded as the tokens are"
        )
