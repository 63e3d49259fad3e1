"""Position vectors cached between calls, until a value that they depend on changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from floater.flow.collocation.solution import Solution
from floater.flow.errors import FlowError
from floater.flow.snapshot import Derived, Snapshot
from floater.flow.vectors import as_slice, distinct

Solve = Callable[..., Tensor]
"""Function that solves for vectors.

Its arguments are increasing positions (U,), and optionally a state (rows, dim) and its position, by default
the starting vectors at 0; it returns vectors (U, rows, dim).
"""

# Generation needs one position at a time; this number of positions is solved for at once.
_LOOK_AHEAD = 64


@dataclass(frozen=True)
class VectorTable:
    """Vectors at known positions.

    Args:
        positions: Strictly increasing positions (U,), float64, on the CPU.
        values: Vectors (rows, U, dim), without gradient.

    Example:
        >>> table = VectorTable(torch.arange(3.0), torch.zeros(1, 3, 2))
        >>> table.is_range
        True
    """

    positions: Tensor
    values: Tensor
    is_range: bool = field(init=False)

    def __post_init__(self) -> None:
        """Record whether the positions are 0, 1, ..., U - 1, so that each is its own index."""
        count = torch.arange(len(self.positions), device="cpu")
        object.__setattr__(self, "is_range", bool((self.positions == count).all()))

    def find(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of each position and whether the table has it; else the index means nothing."""
        index = torch.searchsorted(self.positions, wanted).clamp(max=len(self.positions) - 1)
        return index, self.positions[index] == wanted

    def merged(self, positions: Tensor, values: Tensor) -> VectorTable:
        """Return a table with these vectors in addition to its own, which do not change."""
        together, order = torch.cat((self.positions, positions)).sort()
        both = torch.cat((self.values, values), dim=1)
        return VectorTable(together, both[:, order.to(both.device)].contiguous())


class VectorCache(Derived):
    """A table of vectors at whole positions, and a solution from which vectors at real ones are read.

    It does not depend on fields: callers pass the function that solves.

    Attributes:
        table: Vectors at whole positions; None before the first.
        solution: A solution without gradient; None before the first.
        calls: The number of calls with gradients, of which one in `refresh_every` solves.
        counted_in_forward: Whether the last of them was counted outside of a backward pass.
    """

    def __init__(self) -> None:
        self.table: VectorTable | None = None
        self.solution: Solution | None = None
        self.calls, self.counted_in_forward = 0, False
        self._snapshot: Snapshot | None = None

    def clear(self) -> None:
        """Empty the cache."""
        self.table = self.solution = self._snapshot = None

    def trust_nothing(self) -> None:
        """Let the next `validated` block empty the cache, whose vectors may belong to earlier values."""
        self._snapshot = None

    @contextmanager
    def validated(self, *values: object) -> Iterator[None]:
        """Empty the cache if values that its vectors depend on have changed, before the block uses it.

        Args:
            *values: The values; `Snapshot` defines what counts as a change.
        """
        if self._snapshot is None or not self._snapshot.matches(*values):
            self.clear()
        before = self.table, self.solution
        yield
        if self.table is not before[0] or self.solution is not before[1]:
            # Taken after the solve, in which a field may count its evaluations.
            self._snapshot = Snapshot(*values)

    def fill(self, length: int, solve: Solve) -> VectorTable:
        """Start a new table, of positions 0, ..., length - 1."""
        with torch.inference_mode(False), torch.no_grad():
            wanted = torch.arange(length, dtype=torch.float64, device="cpu")
            self.table = VectorTable(wanted, solve(wanted).transpose(0, 1).contiguous())
        return self.table

    def look_up(
        self, positions: Tensor, solve: Solve, *, ahead: bool
    ) -> tuple[Sequence[Tensor], Tensor | slice]:
        """Take vectors from the table, after solving for the missing ones.

        Args:
            positions: (N, T), integer or real.
            solve: See `Solve`.
            ahead: Whether to solve for some later positions as well.

        Returns:
            One tensor (U, dim) per row, and the index of the positions in it: (N, T), or a slice if N = 1.
        """
        # Vectors made in inference mode could not take part in a training later.
        with torch.inference_mode(False), torch.no_grad():
            table = self.fill(1, solve) if self.table is None else self.table
            if table.is_range and not positions.is_floating_point():
                index = as_slice(positions.long())
                last = index.stop - 1 if isinstance(index, slice) else int(index.max())
                if last < len(table.positions):
                    return table.values.unbind(0), index
            wanted, where = distinct(positions)
            at, present = table.find(wanted)
            if not bool(present.all()):
                table = self._extended(table, wanted[~present], solve, ahead)
                at, _ = table.find(wanted)
            return table.values.unbind(0), as_slice(at[where].reshape(positions.shape))

    def _extended(self, table: VectorTable, missing: Tensor, solve: Solve, ahead: bool) -> VectorTable:
        """Return a table with the missing positions, and keep it if these are whole numbers.

        Real positions between whole ones seldom recur and would fill the memory. A table of a range stays one
        if that takes at most twice its length.
        """
        size, top = len(table.positions), float(missing[-1])
        whole = bool((missing == missing.floor()).all())
        if whole and table.is_range and top < 2 * size + _LOOK_AHEAD:
            missing = torch.arange(size, int(top) + 1, device="cpu").to(missing)
            if len(missing) < _LOOK_AHEAD and ahead:
                to_come = torch.arange(size, size + _LOOK_AHEAD, device="cpu").to(missing)
                with suppress(FlowError):  # it may diverge beyond the positions of the call
                    return self._grown(table, to_come, solve, keep=True)
        return self._grown(table, missing, solve, keep=whole)

    def _grown(self, table: VectorTable, missing: Tensor, solve: Solve, keep: bool) -> VectorTable:
        """Solve for the missing positions, from the table's last state if all lie beyond it."""
        last = float(table.positions[-1])
        beyond = (table.values[:, -1], last) if float(missing[0]) > last else ()
        values = solve(missing, *beyond)
        table = table.merged(missing, values.transpose(0, 1))
        if keep:
            self.table = table
        return table
