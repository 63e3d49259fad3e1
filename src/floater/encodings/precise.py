"""Position models that keep their precision when the rest of a model is cast to a narrower type."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from floater.encodings.model import PositionModel


class Precise(PositionModel):
    """A position model whose parameters stay float32 or wider: positions multiply them.

    A frequency rounded to bfloat16, to three digits, has a wrong phase from the hundredth token on.

    The class attribute `precise` names those parameters; without names they are all, those of parts included.

    Example:
        >>> from floater import build
        >>> model = build("complex", dim=8, heads=2, layers=1, max_length=16)
        >>> model.bfloat16().frequency.dtype, model.double().frequency.dtype
        (torch.float32, torch.float64)
    """

    precise: ClassVar[tuple[str, ...]] = ()

    def precise_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that stay float32 or wider."""
        every = self.named_parameters()
        return [each for name, each in every if not self.precise or _unchanged(name) in self.precise]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Precise:
        kept = {id(tensor) for each in self.precise_parameters() for tensor in (each, each.grad)}

        def keep(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            dtype = at_least_float32(changed.dtype)
            if changed.dtype == dtype or (self.precise and id(tensor) not in kept):
                return changed
            return tensor.to(changed.device, dtype)

        return super()._apply(keep, recurse)


def _unchanged(name: str) -> str:
    """Return the name of a parameter before `torch.nn.utils.prune` or `parametrize` has replaced it."""
    return name.removeprefix("parametrizations.").split(".")[0].removesuffix("_orig")


def at_least_float32(dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the type itself, or float32 if it is narrower.

    Args:
        dtype: None means the default one.

    Example:
        >>> at_least_float32(torch.float16), at_least_float32(torch.float64)
        (torch.float32, torch.float64)
    """
    return torch.promote_types(torch.get_default_dtype() if dtype is None else dtype, torch.float32)
