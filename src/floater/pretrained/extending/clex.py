"""A flow over the scale of rotary frequencies (Chen et al. 2024, "CLEX: Continuous Length Extrapolation")."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.relative.rescaling import rescaled
from floater.encodings.relative.waves import frequencies
from floater.flow import solve
from floater.flow.snapshot import Snapshot
from floater.flow.vector_fields import FieldLinear
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.watch import Watch

SCALINGS = ("yarn", "linear", "ntk", "dynamic")
"""Initial scalings; see `scaled`."""


def scaled(start: str, dim: int, base: float, trained: int, scale: float) -> tuple[Tensor, float]:
    """Return frequencies (dim / 2,) and the factor of sines and cosines by a scaling.

    Args:
        start: name of the scaling, one of SCALINGS.
        dim: number of rotated components.
        base: base of the frequencies.
        trained: training length in tokens.
        scale: scale of the text.
    """
    if start == "ntk":
        return frequencies(dim, base * scale ** (dim / (dim - 2))), 1.0
    rule: dict[str, Any] = {"rope_type": start, "factor": scale}
    if start == "dynamic":
        # the rule of the paper, alpha = 2 s - 1, is dynamic scaling by 2 for a text of s training lengths
        rule |= {"factor": 2.0, "length": scale * trained}
    return rescaled(dim, base, trained, rule)


class ScaleField(nn.Module):
    """The velocity of log frequencies minus that of the initial scaling (section 3.2).

    With z the log frequencies and z0(s) those of the scaling, dz/ds = W2 a(W1 (z + z0(s))) + dz0/ds. So
    y = z - z0 follows dy/ds = W2 a(W1 (y + 2 z0(s))), and W2 = 0 gives the scaling itself. Adding z0 to the
    input follows the released code.

    Args:
        base: function from a scale to z0, (dim / 2,).
        half: half of the number of rotated components, dim / 2.
        hidden: width of the hidden layer.
    """

    smooth = True

    def __init__(self, base: Callable[[float], Tensor], half: int, hidden: int) -> None:
        super().__init__()
        self.base = base
        self.inner = FieldLinear(half, hidden, bias=False)
        self.outer = FieldLinear(hidden, half, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return dy/ds, (rows, dim / 2), at a scale t."""
        base = self.base(float(t)).to(p)
        velocity: Tensor = self.outer(F.silu(self.inner(p + 2 * base)))
        return velocity


class ScaleFlow(nn.Module):
    """Rotary frequencies at any scale, as a flow from scale 1 that initially equals a scaling.

    Args:
        dim: number of components of a head that are rotated.
        base: base of the frequencies.
        trained: training length in tokens.
        start: initial scaling, one of SCALINGS.

    Example:
        >>> flow = ScaleFlow(4, 10000.0, 32, "linear")
        >>> flow.at(2.0)[0].detach()
        tensor([0.5000, 0.0050])
    """

    def __init__(self, dim: int, base: float, trained: int, start: str) -> None:
        super().__init__()
        self.dim, self.theta, self.trained, self.start = dim, base, trained, start
        self.field = ScaleField(self._base, dim // 2, dim)
        self._cache: dict[float, tuple[Tensor, float]] = {}
        self._snapshot: Snapshot | None = None

    def _scaled(self, scale: float) -> tuple[Tensor, float]:
        with torch.device("cpu"):
            return scaled(self.start, self.dim, self.theta, self.trained, scale)

    def _base(self, scale: float) -> Tensor:
        return self._scaled(scale)[0].log()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a solver is no part of a graph
    def at(self, scale: float) -> tuple[Tensor, float]:
        """Return the frequencies (dim / 2,) in float32 and the factor of sines and cosines.

        Args:
            scale: scale of the text, at least 1.

        Raises:
            ExtendError: where weights are plain attributes: pruned ones, and those of FSDP1 and
                `nn.DataParallel`; or if a frequency overflows.
            PositionError: if accelerate has offloaded the weights.
        """
        layers = self.field.inner, self.field.outer
        if any(hasattr(layer, "weight_orig") for layer in layers):
            raise ExtendError(
                "torch.nn.utils.prune hides the weights of 'clex' from its solver; call prune.remove first"
            )
        if any("weight" in vars(layer) for layer in layers):
            raise ExtendError(
                "FSDP1 and nn.DataParallel hide the weights of 'clex' from its solver; wrap the model by "
                "fully_shard or DistributedDataParallel"
            )
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            return self._solved(scale)
        values = self.field, self.dim, self.theta, self.trained, self.start
        if self._snapshot is None or not self._snapshot.matches(*values):
            self._cache, self._snapshot = {}, Snapshot(*values)
        if scale not in self._cache:
            self._cache[scale] = self._solved(scale)
        return self._cache[scale]

    def _solved(self, scale: float) -> tuple[Tensor, float]:
        device = self.field.inner.weight.device
        plain, factor = self._scaled(scale)
        change = torch.zeros(self.dim // 2, device="cpu")
        if scale > 1:
            end = torch.tensor([scale], device="cpu")
            field = copy.copy(self._on_cpu())
            field.base = functools.cache(self._base)  # a solve reads each of few scales several times
            change = solve(field, change[None], end, begin=1.0)[0, 0]
        frequencies = (plain * change.double().exp()).float()
        if not torch.isfinite(frequencies).all():
            raise ExtendError(
                f"the flow of 'clex' diverges: at scale {scale:g} a frequency is {frequencies.max():g}; "
                "train it at a lower rate"
            )
        return frequencies.to(device), factor

    def _on_cpu(self) -> ScaleField:
        """Return the field on the CPU: it needs every time in Python, and is a few numbers per frequency."""
        weights = self.field.inner.weight, self.field.outer.weight
        if weights[0].device.type == "cpu":
            return self.field
        flat = torch.cat([weight.flatten() for weight in weights]).to("cpu")
        read = torch.split(flat, [weight.numel() for weight in weights])
        moved = {id(each): part.view(each.shape) for each, part in zip(weights, read, strict=True)}
        twin: ScaleField = copy.deepcopy(self.field, {id(self): self, **moved})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": {}, "_snapshot": None}


class ScaledRotary(nn.Module):
    """A rotary part of a model whose frequencies are those of a flow at the scale of the text.

    Args:
        rotary: rotary part that it replaces; at scale 1 it is used unchanged.
        flow: function that returns the flow of the frequencies.
        watch: watch of the model, with the scale of a forward pass.
        layers: kind of the layers that attend to the whole text; None for all layers.
        shared: function of the frequencies, which gives them the gradient of all heads where several
            processes share these.
    """

    def __init__(
        self,
        rotary: nn.Module,
        flow: Callable[[], ScaleFlow],
        watch: Watch,
        layers: str | None,
        shared: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.rotary = rotary
        self.flow = flow
        self.watch = watch
        self.shared = shared
        self.prefix = "" if layers is None else f"{layers}_"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the rotary part at the scale of the forward pass."""
        scale = self.watch.current.scale
        if scale == 1:
            return self.rotary(*args, **kwargs)
        names = f"{self.prefix}inv_freq", f"{self.prefix}attention_scaling"
        plain, plain_factor = (getattr(self.rotary, name) for name in names)
        frequencies, factor = self.flow().at(scale)
        values = self.shared(frequencies.to(plain.device)), plain_factor * factor
        compute = inspect.unwrap(type(self.rotary).forward)  # the decorated one disables gradients
        return compute(_Scaled(self.rotary, dict(zip(names, values, strict=True))), *args, **kwargs)


class _Scaled:
    """A rotary part with other values, which leaves the part as other threads use it."""

    def __init__(self, rotary: nn.Module, values: dict[str, Any]) -> None:
        self.rotary, self.values = rotary, values

    def __getattr__(self, name: str) -> Any:
        return self.values[name] if name in self.values else getattr(self.rotary, name)


def scale_of(length: int, *, trained: int, factor: float, declared: bool) -> float:
    """Return the scale of a batch, its length in training lengths rounded up, as in the released code.

    Args:
        length: number of tokens of the longest text.
        trained: training length.
        factor: largest scale.
        declared: True if every text has the largest scale.

    Example:
        >>> [scale_of(length, trained=32, factor=4.0, declared=False) for length in (32, 33, 200)]
        [1.0, 2.0, 4.0]
    """
    if declared:
        return float(factor)
    return float(min(factor, max(1, math.ceil(length / trained))))
