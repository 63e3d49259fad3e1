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
    """Return the examples of a part of a data set.

    The part of an example depends only on its id and the seed, and not on the other examples.

    Args:
        examples: all examples of the data set.
        part: "train", "valid" or "test".
        valid, test: shares of the validation and the test set; the other examples are for training.
        seed: seed of the split.
        name: function from an example to its id.

    Example:
        >>> split(["a", "b", "c", "d"], "test", valid=0.0, test=0.5, seed=0, name=str)
        ['d']
    """

    def place(example: _Example) -> str:
        digest = hashlib.sha256(f"{seed}:{name(example)}".encode()).digest()
        x = int.from_bytes(digest[:8], "big") / 2**64
        return PARTS[1] if x < valid else PARTS[2] if x < valid + test else PARTS[0]

    return [example for example in examples if place(example) == part]
