"""Learning rate schedules: a linear warm-up, then one of several decays."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler


def inverse_sqrt(optimizer: Optimizer, *, warmup: int, initial: float = 1e-7) -> LambdaLR:
    """Warm up linearly, then decay with the inverse square root of the update number.

    For update u = 0, 1, ... and W = ``warmup``, the learning rate of a parameter group with the peak p is

        initial + u (p - initial) / W    for u < W,
        p sqrt(W / u)                    for u >= W.

    Source: Vaswani et al. 2017, section 5.3. The warm-up from a given initial rate to a given peak is
    that of Liu et al. 2020, appendix B.2.

    Args:
        optimizer: optimizer; the peak of each parameter group is its ``lr``.
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
    return _warmed(optimizer, warmup, initial, lambda update: math.sqrt(warmup / update))


def transformers_schedule(
    name: str, optimizer: Optimizer, *, warmup: int, total: int, initial: float = 0.0
) -> LambdaLR:
    """Warm up linearly, then follow a schedule of Transformers.

    Args:
        name: name of a schedule with a warm-up in `transformers.get_scheduler`, such as "linear".
        optimizer: optimizer; the peak of each parameter group is its ``lr``.
        warmup: number of warm-up updates, from 0 to below `total`.
        total: number of updates of the training.
        initial: learning rate of the first update, between 0 and the peaks.

    Returns:
        The scheduler; call its ``step`` once after each update.

    Raises:
        ValueError: a peak is not positive, or ``initial`` is not in [0, peak].

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> schedule = transformers_schedule("cosine", sgd, warmup=2, total=6)
        >>> rates = []
        >>> for _ in range(7):
        ...     rates.append(round(schedule.get_last_lr()[0], 4))
        ...     sgd.step()
        ...     schedule.step()
        >>> rates
        [0.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    decay = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total).lr_lambdas[0]
    return _warmed(optimizer, warmup, initial, decay)


def learning_rates(scheduler: LambdaLR, updates: int | None = None) -> dict[str, float]:
    """Return the learning rates of a schedule by name, that of the flow's parameter groups apart.

    Args:
        scheduler: schedule, whose optimizer has the groups of ``parameter_groups``.
        updates: number of updates after which the rates apply; None for the present ones.

    Example:
        >>> import torch
        >>> groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0, "flow": False}]
        >>> learning_rates(inverse_sqrt(torch.optim.SGD(groups), warmup=4, initial=0.0), 2)
        {'learning rate': 0.5}
    """
    rates = [float(rate) for rate in scheduler.get_last_lr()]
    if updates is not None:
        factors = [factor(updates) for factor in scheduler.lr_lambdas]
        rates = [float(peak * factor) for peak, factor in zip(scheduler.base_lrs, factors, strict=True)]
    flows = [bool(group["flow"]) for group in scheduler.optimizer.param_groups]
    names = ["learning rate of the flow" if flow else "learning rate" for flow in flows]
    return dict(zip(names, rates, strict=True))


def _warmed(optimizer: Optimizer, warmup: int, initial: float, after: Callable[[int], float]) -> LambdaLR:
    """Return a schedule with a linear warm-up, then the factor ``after(update)`` of each group's peak."""
    peaks = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    for index, peak in enumerate(peaks):
        if not (peak > 0 and math.isfinite(peak)):
            raise ValueError(f"learning rate of parameter group {index} is {peak}; it must be positive")
        if not 0 <= initial <= peak:
            raise ValueError(
                f"initial learning rate is {initial}; it must be between 0 and {peak}, "
                f"the learning rate of parameter group {index}"
            )
    return LambdaLR(optimizer, [_factor(initial / peak, warmup, after) for peak in peaks])


def _factor(start: float, warmup: int, after: Callable[[int], float]) -> Callable[[int], float]:
    """Return the function from the update number to LambdaLR's factor on a group's learning rate."""
    return lambda update: start + update * (1 - start) / warmup if update < warmup else after(update)
