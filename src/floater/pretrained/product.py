"""Projections that add baked vectors in their matrix product."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from floater.encodings.attention import added_product
from floater.encodings.sharded import is_plain_tensor
from floater.pretrained.body import Injection


class BakedLinear(nn.Linear):
    """A linear projection with baked vectors, x W + b + b(t) (Liu et al. 2020, section 4.4)."""

    _baked: Injection | None = None

    def forward(self, x: Tensor) -> Tensor:
        return _output(self, x, super().forward)


class BakedConv1D(Conv1D):
    """A projection of GPT-2 with baked vectors, x W + b + b(t)."""

    _baked: Injection | None = None

    def forward(self, x: Tensor) -> Tensor:
        return _output(self, x, super().forward)


def _output(module: BakedLinear | BakedConv1D, x: Tensor, plain: Callable[[Tensor], Tensor]) -> Tensor:
    """Return x W + b + b(t): b + b(t) is written into the memory of the product, which adds to it.

    Args:
        module: the projection.
        x: input, (batch, T, dim).
        plain: its own function, x W + b.

    Returns:
        The output, (batch, T, width); x W + b if this call of the projection gets no vectors.
    """
    injection = module._baked
    if injection is None:  # `take_out` could not change the class
        return plain(x)
    if not is_plain_tensor(module.weight):  # quantized or sharded
        return injection(module, (x,), plain(x))
    use = injection.next_use(x.shape)
    if use is None:
        return plain(x)
    weight = module.weight.T if isinstance(module, nn.Linear) else module.weight
    return added_product(injection.vectors(use, x.shape).to(weight), x, weight, module.bias)


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: BakedLinear,
    Conv1D: BakedConv1D,
}


def put_into(module: nn.Module, injection: Injection) -> bool:
    """Make a projection add its vectors in its product; return False if its class does not support it.

    Args:
        module: the projection; its class is changed.
        injection: injection of the baked vectors into it.

    Example:
        >>> from torch import nn
        >>> put_into(nn.LayerNorm(3), None)
        False
    """
    kind = _CLASSES.get(type(module))
    if kind is None or "forward" in module.__dict__:
        return False
    module.__class__ = kind
    module._baked = injection  # type: ignore[assignment]
    return True


def take_out(module: nn.Module) -> None:
    """Undo `put_into`, if it was applied.

    A projection that was parametrised after it keeps its class, which without vectors computes x W + b.
    """
    for kind, baked in _CLASSES.items():
        if isinstance(module, baked):
            module.__dict__.pop("_baked", None)
        if type(module) is baked:
            module.__class__ = kind
