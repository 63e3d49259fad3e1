"""Parts of a data set, chosen by the ids of its examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

PARTS = ("train", "valid", "test")
_Example = TypeVar("_Example")


def split(
    examples: Sequence[_Example],
    part: str,
    *,
    valid: float,
    test: float,
    seed: int,
    name: Callable[[_Example], str],
) -> list[_Example]:
    """Return the examples of a data set that are for training, validation or testing.

    Where an example belongs follows from its id and the seed alone, so that no part changes with the others.

    Args:
        examples: all of them.
        part: "train", "valid" or "test".
        valid, test: shares of the examples; the rest is for training.
        seed: another one chooses other parts.
        name: the id of an example.

    Example:
        >>> split(["a", "b", "c", "d"], "test", valid=0.0, test=0.5, seed=0, name=str)
        ['d']
    """

    def place(example: _Example) -> str:
        digest = hashlib.sha256(f"{seed}:{name(example)}".encode()).digest()
        x = int.from_bytes(digest[:8], "big") / 2**64
        return PARTS[1] if x < valid else PARTS[2] if x < valid + test else PARTS[0]

    return [example for example in examples if place(example) == part]
