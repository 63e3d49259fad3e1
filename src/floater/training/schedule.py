"""The inverse square root learning rate schedule."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def inverse_sqrt(optimizer: Optimizer, *, warmup: int, initial: float = 1e-7) -> LambdaLR:
    """Warm up linearly, then decay with the inverse square root of the update number.

    For update u = 0, 1, ... and W = ``warmup``, a parameter group whose own learning rate is the
    peak p gets

        initial + u (p - initial) / W    for u < W,
        p sqrt(W / u)                    for u >= W.

    Source: Vaswani et al. 2017, section 5.3, with the warm-up from a given initial rate and a peak
    of one's own choice that Liu et al. 2020, appendix B.2, train with.

    Args:
        optimizer: each of its parameter groups keeps its own peak, its ``lr``.
        warmup: W, the number of warm-up updates, at least 1.
        initial: learning rate of the first update, the same for all groups, between 0 and their peaks.

    Returns:
        The scheduler; call its ``step`` once after each update.

    Raises:
        ValueError: ``warmup`` is below 1, a peak is not positive, or ``initial`` is not in [0, peak].

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> schedule = inverse_sqrt(sgd, warmup=2, initial=0.0)
        >>> rates = []
        >>> for _ in range(9):
        ...     rates.append(schedule.get_last_lr()[0])
        ...     sgd.step()
        ...     schedule.step()
        >>> [rates[u] for u in (0, 1, 2, 8)]
        [0.0, 0.5, 1.0, 0.5]
    """
    if warmup < 1:
        raise ValueError(f"warmup is {warmup} updates; it must be at least 1")
    peaks = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    for index, peak in enumerate(peaks):
        if not (peak > 0 and math.isfinite(peak)):
            raise ValueError(f"learning rate of parameter group {index} is {peak}; it must be positive")
        if not 0 <= initial <= peak:
            raise ValueError(
                f"initial learning rate is {initial}; it must be between 0 and {peak}, "
                f"the learning rate of parameter group {index}"
            )
    return LambdaLR(optimizer, [_factor(peak, warmup, initial) for peak in peaks])


def _factor(peak: float, warmup: int, initial: float) -> Callable[[int], float]:
    """Return the function of the update that LambdaLR multiplies a group's own rate by."""
    start = initial / peak

    def factor(update: int) -> float:
        if update < warmup:
            return start + update * (1 - start) / warmup
        return math.sqrt(warmup / update)

    return factor
