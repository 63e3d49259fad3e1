"""Continuation of tables of position vectors, by a fitted flow or by methods without a flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

ENERGY, RANK, DELAYS = 0.99, 64, 8
"""Share of a table's variance that the flow fits, its maximum number of dimensions, and rows in a state."""

RIDGES = (1e-6, 1e-2, 1e-1)
"""Ridge penalties of the amplitudes, as a share of the number of rows."""

Flow = Callable[[Tensor], Tensor]
"""Function from times (T,) to vectors (T, dim)."""

ALPHA = 0.4
"""The weight of the coarse position in `hierarchical` (Su 2020)."""


def fit_flow(rows: Tensor) -> Flow:
    """Fit a linear flow to vectors at times 0, 1, ...

    The flow is dp/dt = A (p - c), the eigenvalues of A imaginary: p(t) = c + sum_k a_k cos(w_k t) + b_k
    sin(w_k t). Its vectors neither grow nor vanish, at any distance.

    The initial frequencies are the angles of the eigenvalues of the operator that maps a state to the next
    one, by least squares (dynamic mode decomposition, Schmid 2010). States are principal components of the
    table, with DELAYS rows in a state (Arbabi and Mezic 2017), which averages noise. Moduli of eigenvalues
    are ignored, as noise reduces them and the flow must neither decay nor grow. From there the frequencies
    are optimised for the least squared error, with the best c, a and b for given frequencies (variable
    projection, Golub and Pereyra 1973). Frequencies with less than half a period in the table are raised to
    half a period, so that a trend turns instead of leaving the range of the trained vectors. Frequencies
    that the table is too short to distinguish are merged.

    Real tables are not exact sums of waves. The penalty of a and b (ridge regression) is the one whose fit
    to the first three quarters of the table continues it best into the last quarter.

    Args:
        rows: vectors, (n, dim), n at least 2.

    Returns:
        The function from times (T,) to vectors (T, dim), in float64.

    Example:
        >>> fit_flow(torch.tensor([[1.0], [-1.0]] * 8))(torch.arange(16.0, 19.0).double()).round().flatten()
        tensor([ 1., -1.,  1.], dtype=torch.float64)
    """
    rows = rows.double()
    if (n := len(rows)) < 2 * DELAYS:
        return _fitted(rows, _frequencies(rows), RIDGES[0])
    begin = rows[: 3 * n // 4]
    frequencies, times = _frequencies(begin), torch.arange(len(begin), n, device=rows.device).double()
    errors = {
        ridge: float((_fitted(begin, frequencies, ridge)(times) - rows[len(begin) :]).square().sum())
        for ridge in RIDGES
    }
    return _fitted(rows, _frequencies(rows), min(errors, key=errors.__getitem__))


def _fitted(rows: Tensor, frequencies: Tensor, ridge: float) -> Flow:
    """Return the flow with these frequencies that fits rows best, with a ridge penalty of its amplitudes."""
    n = len(rows)
    design = _design(frequencies, n)
    # at half a turn per position the sine is zero at every position; the ridge makes its amplitude zero
    held = torch.full_like(design[0], ridge * n)
    held[0] = 0
    fitted = torch.linalg.solve(design.T @ design + held.diag(), design.T @ rows)
    center, cosines, sines = fitted.split([1, len(frequencies), len(frequencies)])

    def at(times: Tensor) -> Tensor:
        angles = times[:, None] * frequencies
        vectors: Tensor = center + angles.cos() @ cosines + angles.sin() @ sines
        return vectors

    return at


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
    """Return frequencies that are optimised to fit the rows (n, dim), none below half a period."""
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
    optimised = moved.detach().clamp(min=math.pi / n)
    return optimised if bool(optimised.isfinite().all()) else frequencies


def _delayed(rows: Tensor, delays: int) -> Tensor:
    """Return all sequences of `delays` consecutive rows (n, dim), joined: (n - delays + 1, delays dim)."""
    return rows.unfold(0, delays, 1).flatten(1)


def _distinct(values: Tensor, apart: float) -> Tensor:
    """Return sorted values, with values closer than `apart` merged."""
    kept: list[float] = []
    for value in sorted(values.tolist()):
        if not kept or value - kept[-1] >= apart:
            kept.append(value)
    return values.new_tensor(kept)


def flow(rows: Tensor, length: int) -> Tensor:
    """Continue rows by the flow that fits them best."""
    times = torch.arange(len(rows), length, dtype=torch.float64, device=rows.device)
    return torch.cat((rows, fit_flow(rows)(times).to(rows)))


def repeat(rows: Tensor, length: int) -> Tensor:
    """Repeat the rows from the first after the last, as Longformer does (Beltagy et al. 2020, section 5)."""
    return rows[torch.arange(length, device=rows.device) % len(rows)]


def interpolation(rows: Tensor, length: int) -> Tensor:
    """Stretch the rows: new row i is the old row i (n - 1) / (length - 1). Shorter inputs change, too."""
    stretched = F.interpolate(rows.T[None].double(), size=length, mode="linear", align_corners=True)
    return stretched[0].T.to(rows)


def hierarchical(rows: Tensor, length: int) -> Tensor:
    """Compute position i n + j as alpha u_i + (1 - alpha) u_j, where the first n are the rows (Su 2020)."""
    n = len(rows)
    base = (rows - ALPHA * rows[:1]) / (1 - ALPHA)
    index = torch.arange(n, length, device=rows.device)
    return torch.cat((rows, ALPHA * base[index // n] + (1 - ALPHA) * base[index % n]))


def sinusoids(table: Tensor, length: int) -> Tensor:
    """Continue a table of sinusoids (Vaswani et al. 2017, section 3.5) by its formula.

    Args:
        table: vectors, (n, dim), with the sines before the cosines or beside them.
        length: number of rows of the result, at least n.

    Returns:
        The longer table, (length, dim), whose first n rows are those of the table.

    Raises:
        ValueError: if the table is not one of sinusoids.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [math.sin(1), math.cos(1)]])
        >>> torch.allclose(sinusoids(table, 4)[3], torch.tensor([math.sin(3), math.cos(3)]))
        True
    """
    n, dim = table.shape
    waves = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=table.device) / dim)
    angles = torch.arange(length, dtype=torch.float64, device=table.device)[:, None] * waves
    sines, cosines = angles.sin(), angles[:, : dim // 2].cos()
    beside = torch.stack((sines, angles.cos()), -1).flatten(1)[:, :dim]
    tolerance = max(1e-4, 4 * torch.finfo(table.dtype).eps)
    for whole in (torch.cat((sines, cosines), 1), beside):
        if torch.allclose(whole[:n], table.double(), rtol=0.0, atol=tolerance):
            return torch.cat((table, whole[n:].to(table.dtype)))
    raise ValueError("the table is not one of sinusoids")


METHODS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "flow": flow,
    "repeat": repeat,
    "interpolation": interpolation,
    "hierarchical": hierarchical,
}


def continue_table(table: Tensor, length: int, method: str, *, special: tuple[int, int] = (1, 1)) -> Tensor:
    """Continue a table of position vectors.

    Args:
        table: vectors, (n, dim).
        length: number of rows of the result, at least n.
        method: name of the method, a key of METHODS.
        special: numbers of special rows at the start and at the end of the table, such as those of [CLS] and
            of a position that few texts reach. They keep their positions, and the method does not use them.

    Returns:
        The longer table, (length, dim). Except for "interpolation", its first n rows are those of the table.

    Raises:
        ValueError: if the method is "hierarchical", and the length more than the square of the rows that it
            continues and the first special ones.

    Example:
        >>> continue_table(torch.arange(6.0)[:, None], 9, "repeat", special=(1, 1)).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0]
    """
    first, last = special if len(table) > sum(special) + 1 else (0, 0)
    rows = table[first : len(table) - last]
    if method == "hierarchical" and length > (reach := first + len(rows) ** 2):
        raise ValueError(f"length is {length}; 'hierarchical' reaches {reach} positions")
    plain = METHODS[method](rows, length - first)
    result = torch.cat((table[:first], plain))
    if method != "interpolation":
        result[: len(table)] = table
    return result


def continue_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str) -> Tensor:
    """Continue a table of the patches of an image, ordered by rows of the grid.

    The old grid is the upper left part of the new one. First its columns are continued, then its rows.

    Args:
        table: vectors, (height width, dim).
        old: height and width in patches.
        new: new height and width in patches, at least as large.
        method: name of the method, a key of METHODS; for "interpolation" see Transformers' own
            `interpolate_pos_encoding`.

    Returns:
        The larger table, (new height new width, dim).
    """
    (height, width), dim = old, table.shape[-1]
    down = continue_table(table.view(height, width * dim), new[0], method, special=(0, 0))
    across = down.view(new[0], width, dim).transpose(0, 1).reshape(width, new[0] * dim)
    across = continue_table(across, new[1], method, special=(0, 0))
    return across.view(new[1], new[0], dim).transpose(0, 1).reshape(-1, dim)
