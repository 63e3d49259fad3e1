"""Distances between queries and keys, and products with one vector per distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.errors import PositionError
from floater.flow.autograd import in_transform
from floater.positions import Positions


def consecutive(positions: Positions) -> bool:
    """Return whether query and key positions are consecutive integers, the same in all samples.

    False in compiled code, which cannot read the positions.
    """
    if torch.compiler.is_compiling():
        return False
    if positions.starts is not None:
        return True
    rows = positions.query, positions.key
    if any(row.is_floating_point() or len(row) != 1 or not row.numel() for row in rows):
        return False
    return all(bool((row.diff() == 1).all()) for row in rows)


def starts(positions: Positions) -> tuple[int, int]:
    """Return the first query and the first key of `consecutive` positions.

    Example:
        >>> starts(Positions.arange(1, offset=2))
        (2, 0)
    """
    if positions.starts is not None:
        return positions.starts
    first = torch.stack((positions.query[0, 0], positions.key[0, 0])).tolist()
    return first[0], first[1]


def spacing(positions: Positions) -> float | None:
    """Return the spacing of real positions if it is constant and the same in all samples, else None.

    Stretched random times have one; integer positions have none.

    Example:
        >>> at = torch.arange(3.0)[None]
        >>> spacing(Positions.times(at * 1.5 + 4.0)), spacing(Positions.times(at**2))
        (1.5, None)
    """
    rows = positions.query, positions.key
    if torch.compiler.is_compiling() or positions.group is not None:
        return None
    if any(not row.is_floating_point() or len(row) != 1 or row.shape[1] < 2 for row in rows):
        return None
    steps = torch.cat([row.diff().flatten() for row in rows])
    step = float(steps.mean())
    even = step > 0 and bool(((steps - step).abs() <= 1e-9 * step).all())
    return step if even else None


def pairs(table: Tensor, positions: Positions) -> Tensor:
    """Return the entries of a table of pairs (..., P, P) at every query and key.

    Args:
        table: (..., P, P), by the positions of query and key.
        positions: whole, below P.

    Returns:
        (batch or 1, ..., T, S).

    Example:
        >>> pairs(torch.arange(9).view(3, 3), Positions.arange(1, offset=2))
        tensor([[[6, 7, 8]]])
    """
    query, key = positions.query, positions.key
    if consecutive(positions):
        t, s = starts(positions)
        return table[..., t : t + query.shape[1], s : s + key.shape[1]][None]
    return table[..., query[:, :, None], key[:, None]].movedim(-3, 0)


def _dots(x: Tensor, rows: Tensor) -> Tensor:
    if rows.ndim == 2:
        return x @ rows.to(x.dtype).T
    return torch.einsum("bhtd,hnd->bhtn", x, rows.to(x.dtype))  # spares a copy of the rows per sample


@dataclass(frozen=True)
class Distances:
    """The distances key - query that occur, and the index of each pair's distance.

    If queries and keys are consecutive, a product with a vector per distance is one matrix product and a
    skewed view of it; otherwise it is gathered, or, if a batch shares many distances, one matrix product per
    query. None allocates a tensor (T, S, head_dim) for each sample.

    Args:
        values: (N,) increasing distances, among them all that occur; those beyond `reach` are clipped to it.
            Grouped ones (`Positions.group`) may repeat.
        index: (batch or 1, T, S), index of each pair's distance; None for the skewed view, then N = T + S.
        shape: T and S.
        first: the first of `values` if they are known to be consecutive; None of the skewed view if they are
            grouped.

    Example:
        >>> distances = Distances.of(Positions.arange(2), "shaw")
        >>> distances.values
        tensor([-1,  0,  1,  2])
        >>> distances.plane(distances.values[None])
        tensor([[[[ 0,  1],
                  [-1,  0]]]])
    """

    values: Tensor
    index: Tensor | None
    shape: tuple[int, int]
    first: int | None = None

    @classmethod
    def of(
        cls, positions: Positions, name: str, limit: int | None = None, *, reach: int | None = None
    ) -> Distances:
        """Return the distances of a batch.

        Args:
            positions: integers.
            name: name of the position model, for error messages.
            limit: exclusive limit of distances on both sides; None for no limit.
            reach: distance to which the model clips larger ones, on both sides; None for no clipping.

        Raises:
            PositionError: if a position is real or a distance too far.
        """
        whole_numbers(positions, name, signed=True)
        query, key = positions.query, positions.key
        shape = query.shape[1], key.shape[1]
        if not positions.delta.numel():
            return cls(torch.zeros(1, dtype=torch.long, device=key.device), positions.delta, shape)
        below = positions.below
        exporting = torch.compiler.is_exporting()  # a program for any length may not choose by it
        skewed = consecutive(positions)
        if not skewed and below is not None and (limit is None or below <= limit):
            far = below - 1 if reach is None else reach if exporting else min(below - 1, reach)
            values = torch.arange(-far, far + 1, device=key.device)
            return cls(values, positions.delta.clamp(-far, far) + far, shape, -far)
        if skewed:
            t, s = starts(positions)
            first = s - (t + shape[0] - 1)
            low, high = positions.grouped(torch.tensor([first, s + shape[1] - 1 - t])).tolist()
        else:  # pairs are within a row: rows may be far apart
            low, high = torch.stack(positions.delta.aminmax()).tolist()
        if limit is not None and max(-low, high) >= limit:
            raise PositionError(
                f"'{name}' ends at a distance of {limit - 1}; {max(-low, high)} was requested"
            )
        if skewed:
            values = torch.arange(first, first + sum(shape), device=key.device)
            return cls(positions.grouped(values), None, shape, None if positions.group else first)
        delta = positions.delta
        if reach is not None:
            low, high = max(low, -reach), min(high, reach)
            delta = delta.clamp(-reach, reach)
        if high - low < sum(shape):
            return cls(torch.arange(low, high + 1, device=key.device), delta - low, shape, low)
        # Timestamps may be too far apart for an entry per distance: keep the distances that occur.
        values, index = torch.unique(delta, return_inverse=True)
        return cls(values, index, shape)

    @property
    def counted(self) -> Tensor:
        """Return `values` for a reader on the CPU: counted there if they are known to be consecutive.

        A copy from another device would wait for all its work.

        Example:
            >>> Distances.of(Positions.arange(2, device="meta"), "shaw").counted
            tensor([-1,  0,  1,  2])
        """
        if self.first is None or torch.compiler.is_compiling():
            return self.values
        return torch.arange(self.first, self.first + len(self.values))

    @classmethod
    def from_spacing(cls, positions: Positions, step: float) -> Distances:
        """Return the distances of real positions with one `spacing`.

        Example:
            >>> Distances.from_spacing(Positions.times(torch.tensor([[1.0, 1.5]])), 0.5).values
            tensor([-0.5000,  0.0000,  0.5000,  1.0000])
        """
        query, key = positions.query, positions.key
        shape = query.shape[1], key.shape[1]
        first = float(key[0, 0] - query[0, -1]) / step
        if abs(first - round(first)) <= 1e-9 * (1 + abs(first)):
            first = round(first)  # for one text: the distance of a token from itself is 0
        counts = torch.arange(sum(shape), device=key.device, dtype=key.dtype)
        return cls((counts + first) * step, None, shape)

    def rows(self, table: Tensor, reach: int, dim: int = 0) -> Tensor:
        """Return the entries of a table of 2 reach + 1 distances, -reach first; larger distances get the
        last.

        Args:
            table: 2 reach + 1 entries along `dim`.
            reach: the largest distance of the table.
            dim: the dimension of the distances.

        Returns:
            The table with N entries along `dim`, in the order of `values`.
        """
        return table.index_select(dim, self.values.clamp(-reach, reach) + reach)

    def queries(self, q: Tensor, rows: Tensor) -> Tensor:
        """Return q_t . r(s - t), (batch, heads, T, S), for r (N, D) or (heads, N, D)."""
        if (each := self._each(q, rows)) is not None:
            return torch.einsum("bhtd,hbtsd->bhts", q, each)
        dots = _dots(q, rows)
        if self.index is not None:
            return dots.gather(-1, self.index[:, None].expand(*dots.shape[:-1], -1))
        (length, slots), count = self.shape, len(self.values)
        flat = dots.flatten(-2)[..., length - 1 : length - 1 + length * (count - 1)]
        return flat.view(*flat.shape[:-1], length, count - 1)[..., :slots]

    def keys(self, k: Tensor, rows: Tensor) -> Tensor:
        """Return k_s . r(s - t), (batch, heads, T, S), for r (N, D) or (heads, N, D)."""
        if (each := self._each(k, rows)) is not None:
            return torch.einsum("bhsd,hbtsd->bhts", k, each)
        if self.index is not None:
            dots = _dots(k, rows)
            index = self.index.transpose(1, 2)[:, None]
            return dots.gather(-1, index.expand(*dots.shape[:-1], -1)).transpose(-1, -2)
        (length, slots), count = self.shape, len(self.values)
        dots = _dots(k, rows.flip(-2))
        flat = dots.flatten(-2)[..., slots:]
        return flat.view(*flat.shape[:-1], slots, count - 1)[..., :length].transpose(-1, -2)

    def _each(self, x: Tensor, rows: Tensor) -> Tensor | None:
        """Return r(s - t), (heads or 1, batch or 1, T, S, D), or None if products with all r are smaller.

        These are larger in a step of decoding, for each key those of all distances; and in a sorted random
        subset of the positions (`Times`), which has up to T x S distances, of which a query meets S.
        """
        (length, slots), (count, dim), index = self.shape, rows.shape[-2:], self.index
        if torch.compiler.is_exporting() or count <= max(length, slots):
            return None  # a program for any length may not choose by it
        sharing = len(x) if index is not None and len(index) == 1 else 1
        if length * slots * dim > sharing * x.shape[2] * count:
            return None
        if index is None:
            query, key = (torch.arange(n, device=rows.device) for n in self.shape)
            index = (length - 1 - query)[None, :, None] + key
        each = rows.to(x.dtype).index_select(-2, index.flatten())
        return each.view(*([1] if rows.ndim == 2 else rows.shape[:1]), *index.shape, dim)

    def weighted(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return the sum over s of w_ts r(s - t), (batch, heads, T, D), of (batch, heads, T, S), (N, D)."""
        length, slots = self.shape
        count = len(self.values)
        if self.index is None:
            flat = F.pad(weights, (0, count - 1 - slots)).flatten(-2)
            sums = F.pad(flat, (length - 1, 1)).view(*flat.shape[:-1], length, count)
        else:
            index = self.index[:, None].expand_as(weights)
            sums = weights.new_zeros(*weights.shape[:-1], count).scatter_add(-1, index, weights)
        return sums @ rows.to(weights.dtype)

    def plane(self, row: Tensor) -> Tensor:
        """Return b(s - t): (..., N) gives (batch or 1, ..., T, S)."""
        row = row.contiguous()  # so that each head's plane is contiguous, as attention reads it
        if self.index is not None:
            return row[..., self.index].movedim(-3, 0)
        if in_transform():
            return _plane(row, *self.shape)[None]
        plane: Tensor = _Plane.apply(row, *self.shape)  # type: ignore[no-untyped-call]
        return plane[None]


def _plane(row: Tensor, length: int, slots: int) -> Tensor:
    return row.unfold(-1, slots, 1)[..., :length, :].flip(-2)


_BLOCK = 32
"""Number of queries that the gradient of a plane processes at once."""


class _Plane(torch.autograd.Function):
    """b(s - t) at every query and key from b at T + S increasing distances.

    The gradient of `unfold` adds up one window after another; that of a plane is a sum along diagonals, which
    a view with one column more turns into columns. Blocks of queries pass through one buffer that
    stays in the cache: copies of whole planes would take longer than the sums.
    """

    @staticmethod
    def forward(ctx: Any, row: Tensor, length: int, slots: int) -> Tensor:
        return _plane(row, length, slots)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        *shape, length, slots = gradient.shape
        count = max(1, min(length, _BLOCK))
        buffer = gradient.new_zeros(*shape, count, count + slots + 1)
        strides = (*buffer.stride()[:-2], count + slots, 1)
        # row r begins r columns further left in the buffer than in this view: s - r + count is its column
        rows = buffer.as_strided((*shape, count, slots), strides, count)
        sums = gradient.new_zeros(*shape, count + length + slots + 1)
        for left in range(length, 0, -count):  # queries
            if left < count:
                buffer.zero_()
            first = length - left
            rows[..., :left, :].copy_(gradient[..., first : first + count, :])
            sums[..., left : left + count + slots] += buffer.sum(-2)[..., :-1]
        return sums[..., count + 1 :], None, None
