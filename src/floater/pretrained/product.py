"""Projections that add baked vectors in their matrix product."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from floater.encodings.attention import added_product
from floater.pretrained.body import Injection


class Baked:
    """Bias of a projection, b + b(t), written into the memory of the product, which adds to it.

    Args:
        injection: injection of the baked vectors into the projection.
    """

    def __init__(self, injection: Injection) -> None:
        self.injection = injection

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
        return added_product(self.injection.vectors(use, x.shape).to(weight), x, weight, bias)


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
