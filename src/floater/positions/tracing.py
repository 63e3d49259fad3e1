"""Refusal of `torch.jit.trace`, which keeps the positions of its example."""

from __future__ import annotations

import torch


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
