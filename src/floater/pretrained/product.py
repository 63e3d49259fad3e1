"""Projections that add baked vectors in their matrix product."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from floater.flow.cache import parameter_version
from floater.pretrained.body import Injection
from floater.pretrained.flows import Trajectory
from floater.transformer.attention import added_product


class Baked:
    """Bias of a projection, b + b(t), summed once for all forward passes.

    Args:
        injection: injection of the baked vectors into the projection.
    """

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self._sums: dict[Hashable, tuple[Hashable, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sums": {}}  # a copy of the model has its own tensors

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return x W + b + b(t).

        Args:
            x: input, (batch, T, dim).
            weight: W, (dim, width).
            bias: b, (width,) or None.

        Returns:
            The output, (batch, T, width); None if this call of the projection gets no vectors.
        """
        use = self.injection.next_use(x.shape)
        if use is None:
            return None
        table, index = self._sum(use, weight, bias), self.injection.index(use, x.shape)
        own = table[index].unsqueeze(0) if isinstance(index, slice) else F.embedding(index, table)
        return added_product(own, x, weight)

    def _sum(self, use: Sequence[Trajectory | None], weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return b + b(t) at all baked positions, (U, width), cached until one of them changes."""
        parts = [part for part in (*self.injection.tables(use), bias) if part is not None]
        changing = bias is not None and bias.requires_grad and torch.is_grad_enabled()
        # tensors of inference mode do not track their changes
        if changing or torch.compiler.is_compiling() or any(part.is_inference() for part in parts):
            return self._summed(use, weight, bias)
        state = (weight.dtype, weight.device, *map(parameter_version, parts))
        key = tuple(use)
        if key not in self._sums or self._sums[key][0] != state:
            with torch.inference_mode(False), torch.no_grad():
                self._sums[key] = state, self._summed(use, weight, bias)
        return self._sums[key][1]

    def _summed(self, use: Sequence[Trajectory | None], weight: Tensor, bias: Tensor | None) -> Tensor:
        table = self.injection.joined([None if v is None else v[None] for v in self.injection.tables(use)])
        table = table[0].to(weight)
        return table if bias is None else table + bias


class BakedLinear(nn.Linear):
    """A linear projection with baked vectors, x W + b + b(t) (Liu et al. 2020, section 4.4)."""

    _baked: Baked

    def forward(self, x: Tensor) -> Tensor:
        out = self._baked.product(x, self.weight.T, self.bias)
        return super().forward(x) if out is None else out


class BakedConv1D(Conv1D):
    """A projection of GPT-2 with baked vectors, x W + b + b(t)."""

    _baked: Baked

    def forward(self, x: Tensor) -> Tensor:
        out = self._baked.product(x, self.weight, self.bias)
        if out is None:
            out = super().forward(x)  # type: ignore[no-untyped-call]
        return out


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: BakedLinear, Conv1D: BakedConv1D}


def put_into(module: nn.Module, injection: Injection) -> bool:
    """Make a projection add its vectors in its product; return False if its class does not support it.

    Example:
        >>> from torch import nn
        >>> put_into(nn.LayerNorm(3), None)
        False
    """
    kind = _CLASSES.get(type(module))
    if kind is None or "forward" in module.__dict__:
        return False
    module.__class__ = kind
    module._baked = Baked(injection)  # type: ignore[assignment]
    return True


def take_out(module: nn.Module) -> None:
    """Undo `put_into`, if it was applied."""
    for kind, baked in _CLASSES.items():
        if type(module) is baked:
            module.__class__ = kind
            del module._baked
