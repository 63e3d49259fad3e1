"""A vector field whose solutions stay in a ball for all time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from floater.flow.field import MLPField

CLOCKS = 8


class BoundedField(MLPField):
    """The learned field with a clock instead of the time, and a pull towards zero that grows with p.

        h(t, p) = W2 tanh(W1 p + U c(t) + b1) + b2 - pull (|p|^2 / dim) p

    c(t) holds sines and cosines of t / 2^k, k = 0 to 7, so that nothing on the right grows with the time:
    what is learned over the training span goes on beyond it, with vectors of the same size. For any weights
    and all times |p(t)| is at most the larger of |p(0)| and `radius`: there the pull outweighs the rest.

    Args:
        dim: Size of a position vector.
        hidden: Size between the layers; `dim` if not given.
        pull: How strongly vectors are pulled back, positive; at components of size one it is -pull p.
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
        >>> bool((field(torch.tensor(0.5), far) * far).sum() < 0)  # back to where it came from
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
        self.inner = nn.Linear(dim + 2 * CLOCKS, self.hidden)
        self.outer = nn.Linear(self.hidden, dim)

    @property
    def radius(self) -> float:
        """Of the ball that no vector leaves, if it starts within."""
        with torch.no_grad():
            fastest = float(torch.linalg.matrix_norm(self.outer.weight.double(), 2)) * self.hidden**0.5
            fastest += float(self.outer.bias.double().norm())
        return math.cbrt(fastest * self.dim / self.pull)

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """The velocity dp/dt at time t: (rows, dim)."""
        frequencies = 0.5 ** torch.arange(CLOCKS, dtype=t.dtype, device=p.device)
        angle = t * (frequencies if self.adapt is None else self.adapt(frequencies))
        clock = torch.cat((angle.sin(), angle.cos())).to(p.dtype).expand(len(p), -1)
        velocity: Tensor = self.outer(torch.tanh(self.inner(torch.cat((p, clock), dim=1))))
        return velocity - self.pull * p.square().mean(1, keepdim=True) * p
