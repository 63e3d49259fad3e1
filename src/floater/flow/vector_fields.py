"""Vector fields h(t, p), the velocities of position vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.flow.checks import check_choice

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "selu": F.selu,
    "relu": F.relu,
}
_KINKED = {"relu", "selu"}


class FieldLinear(nn.Module):
    """A linear layer of a field, initialised as `nn.Linear`.

    It does not subclass `nn.Linear`: tools that replace the linear layers of a model or their weights, such
    as quantizers, leave it alone, and solvers can read its weights.

    Args:
        in_features: Size of the inputs.
        out_features: Size of the outputs.
        bias: Whether there is a bias.

    Example:
        >>> FieldLinear(3, 2)(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        plain = nn.Linear(in_features, out_features, bias)
        self.weight, self.bias = plain.weight, plain.bias

    def reset_parameters(self) -> None:
        """Initialise the weights as `nn.Linear` does."""
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


class MLPField(nn.Module):
    """The learned field of FLOATER: two linear layers around one nonlinearity.

    Source: Liu, Yu, Dhillon, Hsieh, "Learning to Encode Position for Transformer with Continuous
    Dynamical Model" (2020), sections 3.1 and 4.4. As in the authors' code the time is appended to
    the input of both layers, as the last column of their weights:

        h(t, p) = W2 s(W1 p + u1 t + b1) + u2 t + b2.

    Args:
        dim: Size of a position vector.
        hidden: Size between the layers; None takes `dim`.
        activation: "tanh" (smooth and bounded, the default), "silu", "gelu", "selu" or "relu" (as
            the authors released it; the kink caps the accuracy of every solver).

    Shapes:
        t: scalar; p: (rows, dim); returns (rows, dim).

    Raises:
        ValueError: if the activation is unknown.

    Example:
        >>> field = MLPField(512)
        >>> sum(parameter.numel() for parameter in field.parameters())
        526336
        >>> field(torch.tensor(0.5), torch.zeros(18, 512)).shape
        torch.Size([18, 512])
    """

    def __init__(self, dim: int, hidden: int | None = None, activation: str = "tanh") -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        hidden = dim if hidden is None else hidden
        self.dim, self.hidden, self.activation = dim, hidden, activation
        self.inner = FieldLinear(dim + 1, hidden)
        self.outer = FieldLinear(hidden + 1, dim)

    @property
    def smooth(self) -> bool:
        """Return whether h has no kinks, so that high-order solvers keep their order."""
        return self.activation not in _KINKED

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the velocity dp/dt at time t: (rows, dim)."""
        time = t.to(p.dtype).expand(p.shape[0], 1)
        s = ACTIVATIONS[self.activation](self.preactivations(t, p))
        velocity: Tensor = self.outer(torch.cat((s, time), dim=1))
        return velocity

    def preactivations(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the arguments W1 p + u1 t + b1 of the activation: (rows, hidden)."""
        arguments: Tensor = self.inner(torch.cat((p, t.to(p.dtype).expand(p.shape[0], 1)), dim=1))
        return arguments

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


CLOCKS = 8


class BoundedField(MLPField):
    """The learned field with a clock instead of the time, and a pull towards zero that grows with p.

        h(t, p) = W2 tanh(W1 p + U c(t) + b1) + b2 - pull (|p|^2 / dim) p

    c(t) holds sines and cosines of t / 2^k, k = 0 to 7, so that nothing on the right grows with the time:
    what is learned over the training span continues beyond it, with vectors of the same size. For any weights
    and all times |p(t)| is at most the larger of |p(0)| and `radius`: there the pull outweighs the rest.

    Args:
        dim: Size of a position vector.
        hidden: Size between the layers; None takes `dim`.
        pull: Strength of the pull towards zero, positive; at components of size one the pull is -pull p.
        adapt: Change of the clocks' frequencies 2^-k, (8,) in radians per unit of time. A clock whose period
            is longer than the training span has shown only part of its circle there.

    Shapes:
        t: scalar; p: (rows, dim); returns (rows, dim).

    Raises:
        ValueError: if the pull is not positive.

    Example:
        >>> field = BoundedField(8)
        >>> field(torch.tensor(0.5), torch.zeros(3, 8)).shape
        torch.Size([3, 8])
        >>> far = 10 * field.radius * torch.nn.functional.normalize(torch.ones(1, 8))
        >>> bool((field(torch.tensor(0.5), far) * far).sum() < 0)  # towards zero
        True
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        pull: float = 0.1,
        adapt: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(dim, hidden)
        if not pull > 0:
            raise ValueError(f"pull is {pull}; it must be positive")
        self.pull, self.adapt = pull, adapt
        self.inner = FieldLinear(dim + 2 * CLOCKS, self.hidden)
        self.outer = FieldLinear(self.hidden, dim)

    @property
    def radius(self) -> float:
        """Return the radius of the ball that no vector leaves, if it starts within."""
        with torch.no_grad():
            fastest = float(torch.linalg.matrix_norm(self.outer.weight.double(), 2)) * self.hidden**0.5
            fastest += float(self.outer.bias.double().norm())
        return math.cbrt(fastest * self.dim / self.pull)

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the velocity dp/dt at time t: (rows, dim)."""
        velocity: Tensor = self.outer(torch.tanh(self.preactivations(t, p)))
        return velocity - self.pull * p.square().mean(1, keepdim=True) * p

    def preactivations(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the arguments W1 p + U c(t) + b1 of the activation: (rows, hidden)."""
        frequencies = 0.5 ** torch.arange(CLOCKS, dtype=t.dtype, device=p.device)
        angle = t * (frequencies if self.adapt is None else self.adapt(frequencies))
        clock = torch.cat((angle.sin(), angle.cos())).to(p.dtype).expand(len(p), -1)
        arguments: Tensor = self.inner(torch.cat((p, clock), dim=1))
        return arguments


@torch.no_grad()
def init_small_(field: MLPField, span: float) -> MLPField:
    """Initialise a field, in place, so that its vectors stay of order one over a span of time.

    Source: section 4.4 ("we can initialize the FLOATER with smaller weights"). The time enters h
    linearly, so vectors under PyTorch's own initialisation grow like t squared. Here every weight
    that multiplies the time or makes the velocity shrinks with the span: normal weights of standard
    deviation 1/sqrt(dim) for W1, 1/span for u1, 1/(span sqrt(hidden)) for W2 and 1/span^2 for u2,
    biases zero. The clocks of a `BoundedField` do not grow: their weights are of 1/sqrt(their number).

    Args:
        field: The field to initialise.
        span: The largest time of training: positions x delta x time_scale.

    Returns:
        The same field.

    Raises:
        ValueError: if the span is not positive.

    Example:
        >>> field = init_small_(MLPField(64), span=51.2)
        >>> bool(field.outer.bias.any())
        False
    """
    if not span > 0:
        raise ValueError(f"span must be a positive time, got {span}")
    clocks = field.inner.weight.shape[1] - field.dim
    nn.init.normal_(field.inner.weight[:, : field.dim], std=field.dim**-0.5)
    nn.init.normal_(field.inner.weight[:, field.dim :], std=1 / span if clocks == 1 else clocks**-0.5)
    nn.init.normal_(field.outer.weight[:, : field.hidden], std=field.hidden**-0.5 / span)
    nn.init.normal_(field.outer.weight[:, field.hidden :], std=1 / span**2)
    nn.init.zeros_(field.inner.bias)
    nn.init.zeros_(field.outer.bias)
    return field


@torch.no_grad()
def init_zero_(field: MLPField) -> MLPField:
    """Set the output layer of a field to zero, in place, so that h = 0 exactly.

    Source: section 3.3: with h = 0 and a zero start the model is the plain Transformer. The inner
    layer keeps its weights, so gradients still reach the outer one.

    Args:
        field: The field to change.

    Returns:
        The same field.

    Example:
        >>> field = init_zero_(MLPField(8))
        >>> bool(field(torch.tensor(3.0), torch.ones(2, 8)).any())
        False
    """
    nn.init.zeros_(field.outer.weight)
    nn.init.zeros_(field.outer.bias)
    return field


def _frequencies(
    dim: int, device: torch.device | None = None, adapt: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return the frequencies w_k = c^(2k/d), c = 1e-4, of the dim/2 pairs: (dim/2,), float64."""
    if dim < 2 or dim % 2:
        raise ValueError(f"dim must be a positive even number (sine and cosine pairs), got {dim}")
    pair = torch.arange(0, dim, 2, dtype=torch.float64, device=device)
    frequencies = torch.pow(1e-4, pair / dim)
    return frequencies if adapt is None else adapt(frequencies)


def sinusoid(
    positions: Tensor,
    dim: int,
    adapt: Callable[[Tensor], Tensor] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the sinusoidal position encoding of the Transformer.

    Source: Vaswani et al. (2017), section 3.5; equation 6 of the FLOATER paper: component 2k is
    sin(i w_k), component 2k + 1 is cos(i w_k), w_k = 10000^(-2k/dim). Computed in float64.

    Args:
        positions: Positions (...), integer or real.
        dim: Size of a vector, even.
        adapt: Change of the frequencies w (dim / 2,), in radians per token.
        dtype: Type of the model that reads the vectors.

    Returns:
        Vectors (..., dim), float64 if the positions or the model are float64, else float32.

    Raises:
        ValueError: if dim is not a positive even number.

    Example:
        >>> sinusoid(torch.tensor([0]), 4)
        tensor([[0., 1., 0., 1.]])
    """
    angle = positions.to(torch.float64).unsqueeze(-1) * _frequencies(dim, positions.device, adapt)
    vectors = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    return vectors if torch.float64 in (positions.dtype, dtype) else vectors.float()


class SinusoidField(nn.Module):
    """The field whose solution is the sinusoidal position encoding.

    Source: equation 9 of the FLOATER paper, with the exponent of the leading factor corrected: the
    derivative of sin(t w) is +w cos(t w), where the paper prints its reciprocal. Solved from
    `start()` the vector at time i x delta is `sinusoid(i, dim)`. It has no parameters and does not
    depend on p, so `SumField(SinusoidField(dim), MLPField(dim))` learns a correction to it.

    Args:
        dim: Size of a position vector, even.
        delta: Time between two neighbouring positions.
        adapt: Change of the frequencies; see `sinusoid`.

    Shapes:
        t: scalar; p: (rows, dim); returns (rows, dim).

    Raises:
        ValueError: if dim is not a positive even number or delta is not positive.

    Example:
        >>> field = SinusoidField(4)
        >>> field(torch.tensor(0.0), field.start().unsqueeze(0))
        tensor([[1.0000, -0.0000, 0.0100, -0.0000]])
    """

    smooth = True

    def __init__(self, dim: int, delta: float = 1.0, adapt: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        _frequencies(dim)
        if not delta > 0:
            raise ValueError(f"delta must be a positive time, got {delta}")
        self.dim, self.delta, self.adapt = dim, delta, adapt

    def start(self) -> Tensor:
        """Return p(0): zeros and ones in turn, (dim,)."""
        return sinusoid(torch.zeros(()), self.dim)

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the velocity dp/dt at time t, the same for all rows: (rows, dim)."""
        rate = _frequencies(self.dim, p.device, self.adapt) / self.delta
        angle = t.to(torch.float64) * rate
        velocity = torch.stack((rate * angle.cos(), -rate * angle.sin()), dim=-1).flatten()
        return velocity.to(p.dtype).expand_as(p)


class ZeroField(nn.Module):
    """The field h = 0, under which every position keeps the starting vector.

    Example:
        >>> ZeroField()(torch.tensor(1.0), torch.ones(1, 2))
        tensor([[0., 0.]])
    """

    smooth = True

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return zeros: (rows, dim)."""
        return torch.zeros_like(p)


class SumField(nn.Module):
    """The sum of two fields: h(t, p) = a(t, p) + b(t, p).

    Args:
        a: A field.
        b: Another field of the same dim.

    Example:
        >>> SumField(ZeroField(), SinusoidField(2))(torch.tensor(0.0), torch.zeros(1, 2))
        tensor([[1., 0.]])
    """

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    @property
    def dim(self) -> int | None:
        """Return the size of a vector; None if neither field has one."""
        dims = (getattr(field, "dim", None) for field in (self.a, self.b))
        return next((dim for dim in dims if dim is not None), None)

    @property
    def smooth(self) -> bool | None:
        """Return whether both fields have no kinks; None if that is unknown."""
        flags = [getattr(field, "smooth", None) for field in (self.a, self.b)]
        return False if False in flags else None if None in flags else True

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the velocity dp/dt at time t: (rows, dim)."""
        velocity: Tensor = self.a(t, p) + self.b(t, p)
        return velocity


class ScaledField(nn.Module):
    """A field under a change of the time unit: dp/du = s h(s u, p), with the exact gradient in s.

    Args:
        field: The field h.
        log_scale: The logarithm of s, a scalar parameter.

    Example:
        >>> field = ScaledField(SinusoidField(2), nn.Parameter(torch.tensor(2.0).log()))
        >>> field(torch.tensor(0.0), torch.zeros(1, 2)).detach()
        tensor([[2., -0.]])
    """

    def __init__(self, field: nn.Module, log_scale: nn.Parameter) -> None:
        super().__init__()
        self.field, self.log_scale = field, log_scale

    @property
    def dim(self) -> int | None:
        """Return the size of a vector; None if the field has none."""
        return getattr(self.field, "dim", None)

    @property
    def smooth(self) -> bool | None:
        """Return whether the field has no kinks; None if that is unknown."""
        return getattr(self.field, "smooth", None)

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """Return the velocity dp/du at time u: (rows, dim)."""
        scale = self.log_scale.exp()
        velocity: Tensor = scale * self.field(scale * t, p)
        return velocity
