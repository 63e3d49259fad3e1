"""Tables of position vectors, continued: by a flow that is fitted to them, and without one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

ENERGY, RANK, DELAYS = 0.99, 64, 8
"""The share of a table's variance that the flow follows, its most dimensions, and the rows in one state."""

RIDGES = (1e-6, 1e-2, 1e-1)
"""Ridge penalties of the amplitudes, as a share of the number of rows."""

ALPHA = 0.4
"""The weight of the coarse position in `hierarchical` (Su 2020)."""


@dataclass(frozen=True)
class LinearFlow:
    """dp/dt = A (p - c), the eigenvalues of A imaginary: p(t) = c + sum_k a_k cos(w_k t) + b_k sin(w_k t).

    Vectors neither grow nor vanish, however far they are solved.

    Args:
        center: c, (dim,).
        frequencies: w, (K,) radians for each position.
        cosines: a, (K, dim).
        sines: b, (K, dim).

    Example:
        >>> flow = LinearFlow(torch.zeros(1), torch.tensor([torch.pi]), torch.ones(1, 1), torch.zeros(1, 1))
        >>> flow.at(torch.arange(3.0)).flatten()
        tensor([ 1., -1.,  1.])
    """

    center: Tensor
    frequencies: Tensor
    cosines: Tensor
    sines: Tensor

    def at(self, times: Tensor) -> Tensor:
        """Return the vectors at times (T,): (T, dim)."""
        angles = times[:, None] * self.frequencies
        return self.center + angles.cos() @ self.cosines + angles.sin() @ self.sines


def fit_flow(rows: Tensor) -> LinearFlow:
    """Fit a linear flow to vectors at times 0, 1, ...

    The frequencies are the angles of the eigenvalues of the operator that takes a state to the next one, by
    least squares (dynamic mode decomposition, Schmid 2010), in the principal components of the table, DELAYS
    rows in a state (Arbabi and Mezic 2017), which averages noise. Lengths of eigenvalues are left out: noise
    shortens them, and what decays or grows is not continued. From there the frequencies descend to the least
    squared error, c, a and b being the best for them (variable projection, Golub and Pereyra 1973). A
    frequency of less than half a period in the table counts as half a period, so that a trend turns instead
    of leaving the range of what was trained; two that the table is too short to distinguish are one.

    Real tables are no exact waves. How much a and b are held back (ridge regression) is decided by what
    continues the first three quarters of the table best into the last.

    Args:
        rows: (n, dim), n at least 2.

    Returns:
        In float64.
    """
    rows = rows.double()
    if (n := len(rows)) < 2 * DELAYS:
        return _fitted(rows, _frequencies(rows), RIDGES[0])
    begin = rows[: 3 * n // 4]
    frequencies, times = _frequencies(begin), torch.arange(len(begin), n, device=rows.device).double()
    errors = {
        ridge: float((_fitted(begin, frequencies, ridge).at(times) - rows[len(begin) :]).square().sum())
        for ridge in RIDGES
    }
    return _fitted(rows, _frequencies(rows), min(errors, key=errors.__getitem__))


def _fitted(rows: Tensor, frequencies: Tensor, ridge: float) -> LinearFlow:
    """Return the flow of given frequencies that fits rows best, its amplitudes held back by a ridge."""
    n, count = len(rows), len(frequencies)
    design = _design(frequencies, n)
    # at half a turn the sine is zero at every position, which the ridge takes for an amplitude of zero
    held = torch.full_like(design[0], ridge * n)
    held[0] = 0
    fitted = torch.linalg.solve(design.T @ design + held.diag(), design.T @ rows)
    return LinearFlow(fitted[0], frequencies, fitted[1 : 1 + count], fitted[1 + count :])


def _frequencies(rows: Tensor) -> Tensor:
    """Return the frequencies of rows (n, dim), see `fit_flow`: (K,)."""
    n = len(rows)
    x = rows - rows.mean(0)
    basis, sizes, _ = torch.linalg.svd(x, full_matrices=False)
    share = sizes.square().cumsum(0) / sizes.square().sum().clamp(min=1e-300)
    rank = min(int((share < ENERGY).sum()) + 1, RANK, n)
    components = basis[:, :rank] * sizes[:rank]
    states = _delayed(components, max(1, min(DELAYS, n // 4)))
    left, sizes, _ = torch.linalg.svd(states - states.mean(0), full_matrices=False)
    share = sizes.square().cumsum(0) / sizes.square().sum().clamp(min=1e-300)
    rank = min(int((share < ENERGY).sum()) + 1, 2 * RANK, len(states) // 2 or 1)
    states = left[:, :rank] * sizes[:rank]
    # lstsq's default driver depends on uninitialised memory (pytorch#187411)
    operator = torch.linalg.pinv(states[:-1]) @ states[1:]
    angles = torch.linalg.eigvals(operator).angle().abs().clamp(min=math.pi / n)
    apart = 2 * math.pi / n
    return _distinct(_descended(_distinct(angles, apart), components), apart)


def _design(frequencies: Tensor, n: int) -> Tensor:
    """Return 1, cos(w t) and sin(w t) at times 0, ..., n - 1: (n, 2 K + 1)."""
    angles = torch.arange(n, dtype=frequencies.dtype, device=frequencies.device)[:, None] * frequencies
    return torch.cat((torch.ones_like(angles[:, :1]), angles.cos(), angles.sin()), 1)


@torch.enable_grad()
def _descended(frequencies: Tensor, rows: Tensor) -> Tensor:
    """Return frequencies near the given ones that fit the rows (n, dim) better, none below half a period."""
    n, size = len(rows), rows.square().sum().clamp(min=1e-300)
    moved = frequencies.clone().requires_grad_()
    search = torch.optim.LBFGS([moved], max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def error() -> Tensor:
        search.zero_grad()
        design = _design(moved.clamp(min=math.pi / n), n)
        gram = design.T @ design + 1e-8 * n * torch.eye(design.shape[1]).to(design)
        left = rows - design @ torch.linalg.solve(gram, design.T @ rows)
        loss: Tensor = left.square().sum() / size
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(error)  # type: ignore[no-untyped-call]
    found = moved.detach().clamp(min=math.pi / n)
    return found if bool(found.isfinite().all()) else frequencies


def _delayed(rows: Tensor, delays: int) -> Tensor:
    """Return each `delays` consecutive rows (n, dim) as one: (n - delays + 1, delays dim)."""
    return rows.unfold(0, delays, 1).flatten(1)


def _distinct(values: Tensor, apart: float) -> Tensor:
    """Return sorted values, those that are closer than `apart` merged."""
    kept: list[float] = []
    for value in sorted(values.tolist()):
        if not kept or value - kept[-1] >= apart:
            kept.append(value)
    return values.new_tensor(kept)


def flow(rows: Tensor, length: int) -> Tensor:
    """Continue rows by the flow that fits them best."""
    times = torch.arange(len(rows), length, dtype=torch.float64, device=rows.device)
    return torch.cat((rows, fit_flow(rows).at(times).to(rows)))


def repeat(rows: Tensor, length: int) -> Tensor:
    """Begin again after the last row, as Longformer does (Beltagy et al. 2020, section 5)."""
    return rows[torch.arange(length, device=rows.device) % len(rows)]


def interpolation(rows: Tensor, length: int) -> Tensor:
    """Stretch the rows: row i stands where i (n - 1) / (length - 1) stood. Shorter inputs change, too."""
    stretched = F.interpolate(rows.T[None].double(), size=length, mode="linear", align_corners=True)
    return stretched[0].T.to(rows)


def hierarchical(rows: Tensor, length: int) -> Tensor:
    """Write position i n + j as alpha u_i + (1 - alpha) u_j, such that the first n are the rows (Su 2020).

    Raises:
        ValueError: if the length is more than the square of the number of rows.
    """
    n = len(rows)
    if length > n * n:
        raise ValueError(f"length is {length}; 'hierarchical' reaches {n * n} positions")
    base = (rows - ALPHA * rows[:1]) / (1 - ALPHA)
    index = torch.arange(n, length, device=rows.device)
    return torch.cat((rows, ALPHA * base[index // n] + (1 - ALPHA) * base[index % n]))


METHODS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "flow": flow,
    "repeat": repeat,
    "interpolation": interpolation,
    "hierarchical": hierarchical,
}


def continued(table: Tensor, length: int, method: str, *, special: tuple[int, int] = (1, 1)) -> Tensor:
    """Continue a table of position vectors.

    Args:
        table: (n, dim).
        length: rows of the result, at least n.
        method: a key of METHODS.
        special: how many rows at the table's begin and end are unlike the others, such as those of [CLS] and
            of a position that few texts reach; they stay where they are, and the method does not see them.

    Returns:
        (length, dim); but for "interpolation", its first n rows are the table's.

    Example:
        >>> continued(torch.arange(6.0)[:, None], 9, "repeat", special=(1, 1)).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0]
    """
    first, last = special if len(table) > sum(special) + 1 else (0, 0)
    plain = METHODS[method](table[first : len(table) - last], length - first)
    result = torch.cat((table[:first], plain))
    if method != "interpolation":
        result[: len(table)] = table
    return result


def continued_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str) -> Tensor:
    """Continue a table of the patches of an image, row after row of the grid.

    The grid stays where it is, at the upper left; first its columns are continued, then its rows.

    Args:
        table: (height width, dim).
        old: height and width in patches.
        new: at least as large.
        method: a key of METHODS; of "interpolation" see Transformers' own `interpolate_pos_encoding`.

    Returns:
        (new height new width, dim).
    """
    (height, width), dim = old, table.shape[-1]
    down = continued(table.view(height, width * dim), new[0], method, special=(0, 0))
    across = down.view(new[0], width, dim).transpose(0, 1).reshape(width, new[0] * dim)
    across = continued(across, new[1], method, special=(0, 0))
    return across.view(new[1], new[0], dim).transpose(0, 1).reshape(-1, dim)
