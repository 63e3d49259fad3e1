"""The summary of an extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floater.pretrained.extending.errors import ExtendError

Kind = Literal["table", "image", "rotary", "bias"]

DESCRIPTIONS: dict[Kind, str] = {
    "table": "a learned table of positions",
    "image": "a grid of patches",
    "rotary": "rotary positions",
    "bias": "biases of distances",
}
"""Descriptions of the kinds of positions, for messages."""


@dataclass(frozen=True)
class Extension:
    """Summary of an extension: the method, the kind of positions, and the lengths before and after.

    Args:
        method: name of the method.
        positions: kind of positions: "table", "image", "rotary" or "bias".
        old: previous maximum number of tokens, or side of the images in pixels.
        new: new maximum number of tokens, or side of the images in pixels.
        unchanged: True if inputs of the old lengths have the same outputs as before, bit for bit.
        error: root mean squared error of the flow that is fitted to trained biases, in logits.
        by_longest: True if the longest text of a batch, padding included, determines the rotation of all: the
            outputs for a text depend on the rest of the batch and on later tokens.

    Example:
        >>> print(Extension("flow", "table", 512, 2048, True))
        table of positions, 512 to 2048 by 'flow'; shorter inputs as before
    """

    method: str
    positions: Kind
    old: int
    new: int
    unchanged: bool
    error: float | None = None
    by_longest: bool = False

    def __str__(self) -> str:
        kind = DESCRIPTIONS[self.positions].removeprefix("a ").removeprefix("learned ")
        shorter = "as before" if self.unchanged else "changed, too"
        more = "" if self.error is None else f"; the flow misses the trained bias by {self.error:.2g}"
        if self.by_longest:
            more += "; the longest text of a batch sets the rotation of all"
        return f"{kind}, {self.old} to {self.new} by {self.method!r}; shorter inputs {shorter}{more}"


def check_longer(length: int, old: int, what: str = "{} tokens") -> None:
    """Refuse a length that a model takes already.

    Args:
        length: requested length.
        old: present length.
        what: description of inputs of the present length, which replaces {}.

    Raises:
        ExtendError: if the requested length is not more than the present one.
    """
    if length <= old:
        raise ExtendError(
            f"length is {length}; the model takes {what.format(old)} already, so it must be more"
        )
