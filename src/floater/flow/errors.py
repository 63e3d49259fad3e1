"""Errors of solves that fail."""

from __future__ import annotations


class FlowError(RuntimeError):
    """A flow could not be solved up to the requested time.

    Attributes:
        time: The time near which the solve failed.
        reason: Why it failed there.
    """

    time: float
    reason: str


class FlowDiverged(FlowError):
    """A position vector left what floating-point numbers can hold, or a step size vanished.

    Args:
        time: The time at which the solve stopped.
        reason: Why it stopped there.
    """

    def __init__(self, time: float, reason: str) -> None:
        super().__init__(time, reason)
        self.time, self.reason = time, reason

    def __str__(self) -> str:
        """Return one line: where, why, and what to try."""
        return (
            f"the flow diverged at t = {self.time:.6g} ({self.reason}); try smaller initial weights "
            "(floater.flow.init_small_), a smaller delta or time_scale, or a bounded activation such as tanh"
        )


class FlowStiff(FlowError):
    """A field is stiff, and the method of the solve needs more steps than it may take.

    Args:
        time: The time at which the solve stopped.
        reason: Why it stopped there.
        rate: The rate at which differences of vectors decay there.
    """

    def __init__(self, time: float, reason: str, rate: float) -> None:
        super().__init__(time, reason, rate)
        self.time, self.reason, self.rate = time, reason, rate

    def __str__(self) -> str:
        """Return one line: where, why, and what to try."""
        return (
            f"the field is stiff at t = {self.time:.6g}: differences of vectors decay at a rate of "
            f"{self.rate:.3g}, and {self.reason}; try smaller weights, or a smaller delta or time_scale "
            "(method='collocation' is implicit for stiff fields with few components)"
        )


class FlowInaccurate(FlowError):
    """No mesh of a collocation solve met its tolerance.

    Args:
        time: The end of the interval whose estimated error was largest.
        error: The estimated error, relative to what is accepted of the mesh.
    """

    reason = "its tolerance is out of reach"

    def __init__(self, time: float, error: float) -> None:
        super().__init__(time, error)
        self.time, self.error = time, error

    def __str__(self) -> str:
        """Return one line: where, by how much, and what to try."""
        return (
            f"collocation missed its tolerance {self.error:.3g} times over near t = {self.time:.6g}; "
            "try a larger rtol or atol, a float64 start, or method='dopri5'"
        )


class SpanTooLong(FlowError):
    """The span of the positions is longer than the solver can cover.

    Args:
        time: The time at which the solve stopped.
        reason: Why it stopped there.
        last: The last position.
        scale: A time scale under which the span would end where the solve did.
    """

    def __init__(self, time: float, reason: str, last: float, scale: float) -> None:
        super().__init__(time, reason, last, scale)
        self.time, self.reason, self.last, self.scale = time, reason, last, scale

    def __str__(self) -> str:
        """Return one line: where, why, and the scale to try."""
        return (
            f"the flow cannot be solved up to position {self.last:.6g}: it stopped at t = {self.time:.6g} "
            f"({self.reason}); try time_scale={self.scale:.1e} or less, or times in a longer unit"
        )


class PositionsOutOfRange(ValueError):
    """Positions at which no flow is defined: negative, infinite or NaN."""


class FlowTransformError(RuntimeError):
    """A solve was called under `torch.vmap` or a transform of `torch.func`."""

    def __str__(self) -> str:
        """Return one line: what is missing, and what to do instead."""
        return (
            "a solve cannot run under torch.vmap or a transform of torch.func: give all rows as one start "
            "(rows, dim), and take gradients by torch.autograd"
        )


class SecondDerivativeError(RuntimeError):
    """A gradient was differentiated again that has no derivatives.

    Args:
        what: What has no second derivatives.
        instead: What has them.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what, self.instead = what, instead

    def __str__(self) -> str:
        """Return one line: what is missing, and where it is found."""
        return f"{self.what} has no second derivatives; use {self.instead}"
