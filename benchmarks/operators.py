"""The operators of a forward pass."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Record of the operators that PyTorch executes: name, and shape and type of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        first = output[0] if isinstance(output, tuple | list) else output
        self.calls.append((str(func), getattr(first, "shape", None), getattr(first, "dtype", None)))
        return output
