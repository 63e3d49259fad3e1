"""Where the tokens of a batch stand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Positions:
    """Where each query and each key of an attention stands; a plain value, built once per forward pass.

    Positions are integers (token indices) or real numbers (times). A leading size of 1 means that all
    samples of the batch stand at the same places.

    Args:
        query: (batch or 1, T) positions of the queries.
        key: (batch or 1, S) positions of the keys.
        key_valid: (batch or 1, S) bool, False where a key is padding; None when every key is a token.
        target_length: (batch or 1,) how long the text shall become, for models that count down to its end.
        language: (batch or 1, T) integer ids of the languages that the queries are written in.
        reordered: (batch or 1, T) second positions of the queries: where their tokens stand in the order of
            another language.

    Raises:
        ValueError: if the shapes do not fit together.

    Example:
        >>> positions = Positions.arange(3)
        >>> positions.query.tolist()
        [[0, 1, 2]]
        >>> positions.delta[0].tolist()
        [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    """

    query: Tensor
    key: Tensor
    key_valid: Tensor | None = None
    target_length: Tensor | None = None
    language: Tensor | None = None
    reordered: Tensor | None = None

    def __post_init__(self) -> None:
        given = {
            "query": self.query,
            "key": self.key,
            "key_valid": self.key_valid,
            "target_length": self.target_length,
            "language": self.language,
            "reordered": self.reordered,
        }
        shapes = {name: tuple(value.shape) for name, value in given.items() if value is not None}
        for name, shape in shapes.items():
            if len(shape) != (1 if name == "target_length" else 2):
                wanted = "(batch or 1,)" if name == "target_length" else "(batch or 1, length)"
                raise ValueError(f"{name} is {shape}; it must be {wanted}")
        if len({shape[0] for shape in shapes.values()} - {1}) > 1:
            raise ValueError(f"the batch sizes differ: {shapes}; they must be equal or 1")
        if self.key_valid is not None and self.key_valid.shape[1] != self.key.shape[1]:
            raise ValueError(
                f"key_valid covers {self.key_valid.shape[1]} keys; there are {self.key.shape[1]}"
            )
        if self.key_valid is not None and self.key_valid.dtype != torch.bool:
            raise ValueError(f"key_valid is {self.key_valid.dtype}; it must be bool")
        for name in ("language", "reordered"):
            if name in shapes and shapes[name][1] != self.query.shape[1]:
                raise ValueError(f"{name} covers {shapes[name][1]} queries; there are {self.query.shape[1]}")
        if self.language is not None and (self.language.is_floating_point() or self.language.is_complex()):
            raise ValueError(f"language is {self.language.dtype}; it must be integers")
        if self.target_length is not None and not bool((self.target_length >= 1).all()):
            raise ValueError(f"target_length is {self.target_length.tolist()}; lengths must be at least 1")

    @property
    def delta(self) -> Tensor:
        """Relative position key - query, (batch or 1, T, S): the one sign convention of this library.

        Example:
            >>> Positions.arange(1, offset=2).delta.tolist()
            [[[-2, -1, 0]]]
        """
        return self.key[:, None, :] - self.query[:, :, None]

    @classmethod
    def arange(cls, length: int, *, offset: int = 0, device: torch.device | str | None = None) -> Positions:
        """Positions of `length` queries that come after `offset` earlier keys.

        Args:
            length: number of queries T.
            offset: number of keys before them (cached decoding); there are offset + T keys.
            device: where the tensors live.

        Returns:
            Positions shared by the batch: query (1, T), key (1, offset + T).

        Raises:
            ValueError: if `length` or `offset` is negative.

        Example:
            >>> step = Positions.arange(1, offset=4)
            >>> step.query.tolist(), step.key.tolist()
            ([[4]], [[0, 1, 2, 3, 4]])
        """
        if length < 0 or offset < 0:
            raise ValueError(f"length {length} and offset {offset} must not be negative")
        key = torch.arange(offset + length, device=device)[None]
        return cls(query=key[:, offset:], key=key)

    @classmethod
    def from_mask(cls, mask: Tensor, *, queries: int | None = None) -> Positions:
        """A token's position is its index among the unpadded tokens of its row.

        Padding may be on the left, on the right, or between; it stands at the position of some token of the
        batch. A batch padded on the right only stands at 0, 1, 2, ... in every row, and shares one row of
        positions.

        Args:
            mask: (batch, S), non-zero where there is a token.
            queries: only the last `queries` columns are queries (cached decoding); None means all.

        Returns:
            Positions: query (batch or 1, T), key (batch or 1, S), key_valid (batch, S) or None.

        Raises:
            ValueError: if the mask is not (batch, S), or has fewer columns than there are queries.

        Example:
            >>> Positions.from_mask(torch.tensor([[0, 0, 1, 1]])).query.tolist()
            [[0, 0, 0, 1]]
            >>> Positions.from_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])).query.tolist()
            [[0, 1, 2, 3]]
        """
        if mask.ndim != 2:
            raise ValueError(f"the mask is {tuple(mask.shape)}; it must be (batch, length)")
        valid = mask.bool()
        length = valid.shape[1]
        queries = length if queries is None else queries
        if not 0 <= queries <= length:
            raise ValueError(f"there are {queries} queries; the mask has {length} columns")
        if bool(valid.all()):
            return cls.arange(queries, offset=length - queries, device=mask.device)
        index = (valid.cumsum(1) - 1).clamp(min=0)
        # columns that are padding in every row must not reach past the longest row: a table may end there
        plain = torch.arange(length, device=mask.device).clamp(max=index.max())[None]
        key = plain if bool(((index == plain) | ~valid).all()) else index
        return cls(query=key[:, length - queries :], key=key, key_valid=valid)

    @classmethod
    def times(cls, times: Tensor, mask: Tensor | None = None) -> Positions:
        """Real positions, such as the times of events: queries and keys stand at the same times.

        Args:
            times: (batch or 1, T), in tokens or in any unit that the position model knows.
            mask: (batch or 1, T), non-zero where there is an event.

        Returns:
            Positions: query and key (batch or 1, T).

        Raises:
            ValueError: if a time is NaN or infinite, or the shapes do not fit together.

        Example:
            >>> Positions.times(torch.tensor([[0.0, 0.5, 3.2]])).query.tolist()[0][1]
            0.5
        """
        if not bool(torch.isfinite(times).all()):
            raise ValueError("times hold a NaN or an infinity; every time must be finite")
        return cls(query=times, key=times, key_valid=None if mask is None else mask.bool())
