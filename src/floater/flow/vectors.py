"""Position vectors of a batch, indexed by its distinct positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.flow.collocation.solution import Samples
from floater.flow.errors import FlowDiverged, FlowTransformError, PositionsOutOfRange
from floater.flow.precision import full_precision, wide_dtype


@dataclass(frozen=True)
class FlowVectors:
    """Position vectors of one batch, gathered on demand.

    Args:
        rows: One tensor of vectors (U, dim) per starting vector; a `Samples` computes them on demand.
        index: The index of each position's vector: (N, T), a slice when N = 1 and they are consecutive, or
            the size (N, T) itself when all are.
        keys: The row of each (block, name).
        dtype: The dtype of the vectors returned.
    """

    rows: Sequence[Tensor]
    index: Tensor | slice | torch.Size
    keys: Mapping[tuple[int, str], int]
    dtype: torch.dtype

    def of(self, block: int, name: str) -> Tensor:
        """Return the vectors of one block and name at the distinct positions: (U, dim).

        Raises:
            ValueError: if the encoder has no such starting vector.
        """
        if (block, name) not in self.keys:
            valid = ", ".join(f"({b}, {n!r})" for b, n in self.keys)
            raise ValueError(f"no flow vectors for ({block}, {name!r}); valid (block, name): {valid}")
        return self.rows[self.keys[block, name]]

    def projected(self, weight: Tensor) -> FlowVectors:
        """Return W p instead of p, with a matrix W for each starting vector.

        Args:
            weight: (blocks x names, dim, width), in the order of the starting vectors.

        Returns:
            Vectors of size `width` at the same positions.
        """
        if isinstance(self.rows, Samples):
            rows: Sequence[Tensor] = self.rows.projected(weight)
        else:
            with full_precision(weight.device):
                rows = [row.to(weight.dtype) @ part for row, part in zip(self.rows, weight, strict=True)]
        return replace(self, rows=rows)

    def picked(self, positions: Tensor) -> FlowVectors:
        """Return the vectors at positions (N, T), whole numbers; these vectors are at 0, 1, 2 and so on.

        Example:
            >>> rows, keys = [torch.tensor([[5.0], [6.0]])], {(0, "q"): 0}
            >>> vectors = FlowVectors(rows, slice(None), keys, torch.float32)
            >>> vectors.picked(torch.tensor([[1, 0]])).at(0, "q").flatten()
            tensor([6., 5.])
        """
        index = self.index
        if isinstance(index, Tensor):
            return replace(self, index=index[0].to(positions.device)[positions])
        first = 0 if isinstance(index, torch.Size) or index.start is None else index.start
        return replace(self, index=positions + first)

    def all(self) -> Tensor:
        """Return the vectors of every block and name at once, (N, T, blocks x names, dim)."""
        if isinstance(self.rows, Samples) and isinstance(self.index, torch.Size):
            rows = self.rows.all()
            return rows.view(*self.index, *rows.shape[1:]).to(self.dtype)
        return torch.stack([self.at(*key) for key in self.keys], 2)

    def at(self, block: int, name: str) -> Tensor:
        """Return the vectors of one block and name, in the order of the positions.

        Args:
            block: One of the encoder's blocks.
            name: One of the encoder's names.

        Returns:
            Vectors (N, T, dim).

        Raises:
            ValueError: if the encoder has no such starting vector.
        """
        row = self.of(block, name)
        if isinstance(self.index, torch.Size):
            return row.view(*self.index, -1).to(self.dtype)
        if isinstance(self.index, slice):
            return row[self.index].unsqueeze(0).to(self.dtype)
        return F.embedding(self.index, row).to(self.dtype)


def checked(positions: Tensor) -> Tensor:
    """Return positions on the CPU, after a check that they are (N, T), not empty, finite and not negative.

    Those that need gradients stay where they are: a GPU is synchronised once for the others.

    Raises:
        TypeError: if they are no tensor.
        ValueError: if a check fails.
        FlowTransformError: if a transform of `torch.func` maps them.

    Example:
        >>> checked(torch.tensor([[0.0, -0.5]]))
        Traceback (most recent call last):
        floater.flow.errors.PositionsOutOfRange: positions must be finite and not negative, got -0.5
    """
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a tensor (N, T), got {type(positions).__name__}")
    if torch._C._functorch.is_functorch_wrapped_tensor(positions):
        raise FlowTransformError
    if positions.is_complex():
        raise ValueError(f"positions must be whole or real numbers, got {positions.dtype}")
    positions = positions if positions.requires_grad else positions.to("cpu")
    if positions.dim() != 2 or positions.numel() == 0:
        raise ValueError(f"positions must be (N, T) and not empty, got shape {tuple(positions.shape)}")
    low, high = torch.stack(positions.detach().aminmax()).tolist()
    if not (low >= 0 and high < math.inf):
        got = high if low >= 0 else low
        raise PositionsOutOfRange(f"positions must be finite and not negative, got {got:g}")
    return positions


def check_norms(vectors: Tensor, times: Tensor, largest: float) -> None:
    """Refuse vectors (U, rows, dim) whose squared norm overflows: attention would compute NaN with them.

    Args:
        vectors: the vectors.
        times: (U,) their times, for the message.
        largest: a bound of their norms. If it is small enough they are not read, as this would wait for
            their device.

    Raises:
        FlowDiverged: if a squared norm overflows.

    Example:
        >>> check_norms(torch.full((1, 1, 2), 1e20), torch.tensor([0.5]), largest=math.inf)
        Traceback (most recent call last):
        floater.flow.errors.FlowDiverged: the flow diverged at t = 0.5 (the squared norm of p is too ...
    """
    if largest**2 < torch.finfo(vectors.dtype).max:
        return
    fits = vectors.detach().square().sum(-1).isfinite().flatten(1).all(1)
    if not bool(fits.all()):
        first = float(times.detach()[int((~fits).nonzero()[0])])
        raise FlowDiverged(first, f"the squared norm of p is too large for {vectors.dtype}")


def distinct(positions: Tensor) -> tuple[Tensor, Tensor | slice]:
    """Return the sorted distinct positions and the index of each position among them.

    Args:
        positions: (N, T), integer or real.

    Returns:
        The positions (U,) in float64; the index (N, T), or a slice over all of them where N = 1 and
        the positions increase.

    Example:
        >>> distinct(torch.tensor([[2, 0, 2]]))
        (tensor([0., 2.], dtype=torch.float64), tensor([[1, 0, 1]]))
    """
    exact = positions.to(wide_dtype(positions.device))
    if len(exact) == 1 and bool((exact.diff() > 0).all()):
        return exact[0], slice(None)
    wanted, index = torch.unique(exact.detach(), return_inverse=True)
    return wanted, index


def as_slice(index: Tensor) -> Tensor | slice:
    """Return an index (N, T) as a slice if N = 1 and it counts up by one, else unchanged.

    Example:
        >>> as_slice(torch.tensor([[3, 4, 5]]))
        slice(3, 6, None)
    """
    if len(index) == 1 and bool((index.diff() == 1).all()):
        return slice(int(index[0, 0]), int(index[0, -1]) + 1)
    return index
