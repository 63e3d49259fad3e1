"""How training spares a GPU from being waited for: conditions are read later, numbers sent ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

Judge = Callable[[list[float]], Exception | None]

_LATE = {"cuda"}


class _Copied(NamedTuple):
    numbers: Tensor
    there: torch.cuda.Event | None
    judge: Judge


_waiting: deque[_Copied] = deque()


def defers(device: torch.device) -> bool:
    """Whether training reads conditions later on this device, which would run dry if it were waited for.

    Example:
        >>> defers(torch.device("cpu")), defers(torch.device("cuda"))
        (False, True)
    """
    return device.type in _LATE


def defer(numbers: Tensor, judge: Judge) -> None:
    """Have numbers judged once they are there, at the latest before the next step of any optimizer.

    Args:
        numbers: A few numbers (k,).
        judge: Takes them as a list; the exception it returns, if any, is raised by `settle`.
    """
    watch_optimizers()
    if numbers.device.type != "cuda":
        _waiting.append(_Copied(numbers.detach().clone(), None, judge))
        return
    with torch.cuda.device(numbers.device):
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers.detach(), non_blocking=True)
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record()
    _waiting.append(_Copied(host, there, judge))


def settle(*, wait: bool = True) -> None:
    """Judge what was deferred.

    Every optimizer of PyTorch calls this before its step and after its closure, so that no step is taken with
    the gradient of a solve that failed; of several closures, as those of LBFGS, the steps before stay taken.
    Who updates parameters without an optimizer calls it first, and with a `torch.amp.GradScaler` before
    `unscale_` and `step`: it does not forget that it unscaled the gradients of a step that was not taken.

    Args:
        wait: Whether to wait for numbers that are not there yet; else these stay deferred.

    Raises:
        FlowError: if a solve missed its tolerance. The next solve plans anew: drop the gradients and take
            the step again.

    Example:
        >>> from floater.flow import FlowInaccurate
        >>> defer(torch.tensor([7.0]), lambda numbers: FlowInaccurate(1.5, numbers[0]))
        >>> settle()
        Traceback (most recent call last):
        floater.flow.errors.FlowInaccurate: collocation missed its tolerance 7 times over near t = 1.5; ...
    """
    failures = []
    for _ in range(len(_waiting)):
        try:
            copied = _waiting.popleft()
        except IndexError:  # another thread was faster
            break
        if copied.there is not None and not wait and not copied.there.query():  # type: ignore[no-untyped-call]
            _waiting.append(copied)
            continue
        if copied.there is not None:
            copied.there.synchronize()
        failures.append(copied.judge(copied.numbers.tolist()))
    for failure in filter(None, failures):
        raise failure


def require(met: Tensor, failure: Callable[[], Exception], *, later: bool) -> None:
    """Raise the failure unless a condition is met.

    Args:
        met: A single truth value.
        failure: What to raise.
        later: Whether the answer may wait for `settle`, where the device `defers`.

    Example:
        >>> require(torch.tensor(False), lambda: ValueError("no"), later=True)
        Traceback (most recent call last):
        ValueError: no
    """
    if later and defers(met.device):
        settle(wait=False)
        defer(met.reshape(1), lambda numbers: None if numbers[0] else failure())
    elif not bool(met):
        raise failure()


def sent(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on a device, without waiting for what the device has to do before.

    Example:
        >>> sent(torch.ones(2), torch.device("cpu"), torch.float64).dtype
        torch.float64
    """
    tensor = tensor.to(dtype or tensor.dtype)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=defers(device))


@lru_cache
def watch_optimizers() -> None:
    """Have every optimizer settle before its steps; a closure, only if this comes before it is called."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Settle, and once more after a closure, whose solves come after this."""
    settle()

    def settled(argument: Any) -> Any:
        if not callable(argument):
            return argument

        def closure() -> Any:
            result = argument()
            settle()
            return result

        return closure

    optimizer, *rest = args
    return (optimizer, *map(settled, rest)), {name: settled(value) for name, value in kwargs.items()}
