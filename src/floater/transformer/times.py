"""Times of tokens: random in training, so that the times of longer texts occur in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from floater.encodings import PositionError
from floater.encodings.checks import one_of
from floater.encodings.model import PositionModel
from floater.flow.precision import wide_dtype
from floater.positions import Positions

Mode = Literal["stretch", "shift", "float", "subset"]
_AFFINE = ("stretch", "shift")
_WHOLE = ("shift", "subset")


@dataclass(frozen=True)
class Times:
    """Random times of training: token i of a text of n tokens is at a time t_i below the horizon T.

    T is max_scale x training length. Encodings that read times (`PositionModel.reads_times`) are then trained
    at every time below T by short texts; the others read the true positions, unless `relative` is set. Every
    forward pass in training mode samples once, shared by all samples of the batch, and by source and target;
    with `each`, once for each sample of the batch.

    - "stretch": t_i = s + e i; log e is uniform in [0, log max_scale] as far as e n fits into T, s in
      [0, T - e n]. Spacing stays even, and the ratio of the lengths of source and target is unchanged.
    - "shift": t_i = s + i, s a whole number, uniform in [0, T - n] (Kiyono et al. 2021, SHAPE).
    - "float": n uniform samples from [0, T), sorted (Shimizu et al. 2026, Random Float Sampling).
    - "subset": n of the whole numbers below T, sorted, without replacement (Ruoss et al. 2023, randomized
      positional encodings).

    Tables have entries at whole times only: "shift" and "subset".

    Args:
        mode: "stretch", "shift", "float" or "subset".
        length: training length in tokens.
        max_scale: horizon over training length, at least 1.
        shift: False begins at time 0 ("stretch").
        relative: whether relative encodings read the times, too, so that they meet distances up to the
            horizon. "float" and "subset" rarely have a spacing of one: reading then is at evenly spaced
            times, and options in tokens, such as a clip, count times, with defaults for a training length
            of T. With "stretch" reading is at the true distances. "shift" changes no distance.
        each: whether each sample of a batch has its own s, uniform in [0, T - n] for its own n ("shift"), as
            in learned positions with random offsets (Huang et al. 2025).

    Raises:
        PositionError: if the mode is none of these, the scale is below 1, or `shift`, `relative` or `each`
            does not apply to the mode.

    Example:
        >>> times = Times("stretch", length=16, max_scale=4.0)
        >>> at = times.sample(last=15)(torch.arange(16))
        >>> times.horizon, bool((at >= 0).all()), bool((at < 64).all())
        (64, True, True)
    """

    mode: str
    length: int
    max_scale: float = 4.0
    shift: bool = True
    relative: bool = False
    each: bool = False

    def __post_init__(self) -> None:
        one_of("times.mode", self.mode, get_args(Mode))
        number = isinstance(self.max_scale, int | float) and not isinstance(self.max_scale, bool)
        if not number or not 1 <= self.max_scale < math.inf:
            raise PositionError(f"times.max_scale is {self.max_scale!r}; it must be a number of at least 1")
        one_of("times.shift", self.shift, (True, False))
        if not self.shift and self.mode != "stretch":
            raise PositionError(f"times.shift is False; only mode 'stretch' goes without, not {self.mode!r}")
        one_of("times.relative", self.relative, (True, False))
        if self.relative and self.mode == "shift":
            raise PositionError("times.relative is True; mode 'shift' changes no distance, so leave it out")
        one_of("times.each", self.each, (True, False))
        if self.each and self.mode != "shift":
            raise PositionError(f"times.each is True; it goes with mode 'shift', not with {self.mode!r}")

    @classmethod
    def of(cls, values: Mapping[str, Any] | None, length: int) -> Times | None:
        """Return the times that a configuration describes, None for none.

        Args:
            values: fields of this class by name, but `length`.
            length: training length in tokens.

        Raises:
            PositionError: if a name or value is not valid.

        Example:
            >>> Times.of({"mode": "shift", "scale": 2}, 16)
            Traceback (most recent call last):
            floater.encodings.errors.PositionError: times has no 'scale'; valid: mode, max_scale, ...
        """
        if values is None:
            return None
        check_names("times", values, [field.name for field in fields(cls) if field.name != "length"])
        if "mode" not in values:
            raise PositionError(f"times has no mode; valid: {', '.join(map(repr, get_args(Mode)))}")
        return cls(length=length, **values)

    @property
    def horizon(self) -> int:
        """Return T in tokens."""
        return int(self.max_scale * self.length)

    @property
    def least(self) -> int:
        """Return the shortest length whose reading fills the horizon: shorter texts are spaced like it."""
        return self.horizon if self.mode in _AFFINE else self.length

    @property
    def spreads(self) -> bool:
        """Return whether relative encodings read times in evaluation, too."""
        return self.relative and self.mode not in _AFFINE

    def sample(self, last: float, real: bool = False) -> Callable[[Tensor], Tensor]:
        """Sample the times of the tokens of one forward pass, from PyTorch's default generator.

        Args:
            last: the greatest position; a text has n = last + 1 tokens.
            real: whether positions are real numbers.

        Returns:
            The map of positions to times; times are whole where mode and positions are, else float64.

        Raises:
            PositionError: if n tokens do not fit below the horizon, or positions are real and times no affine
                function of them.
        """
        most, count = self._room(last), last + 1
        if real and self.mode not in _AFFINE:
            raise PositionError(
                f"times.mode is {self.mode!r}, which gives times to counted tokens; real positions go with "
                "'stretch' or 'shift'"
            )
        if self.mode == "float":
            return _entries(torch.rand(int(count), dtype=torch.float64, device="cpu").sort().values * most)
        if self.mode == "subset":
            return _entries(torch.randperm(most, device="cpu")[: int(count)].sort().values)
        first, second = torch.rand(2, dtype=torch.float64, device="cpu").tolist()
        if self.mode == "shift":
            offset = first * (most - count) if real else int(first * (most - count + 1))
            return lambda at: at + offset
        spacing = min(self.max_scale, most / count) ** first
        start = second * (most - spacing * count) if self.shift else 0.0
        return lambda at: at.to(wide_dtype(at.device)) * spacing + start

    def _room(self, last: float) -> int:
        """Return the horizon, after a check that a text up to a position fits below it."""
        if last + 1 > self.horizon:
            raise PositionError(
                f"a text of {last + 1:g} tokens does not fit below the horizon of random times, "
                f"{self.horizon} (times.max_scale {self.max_scale:g} x training length {self.length}); raise "
                "one of these"
            )
        return self.horizon

    def offsets(self, last: Tensor, real: bool = False) -> Tensor:
        """Sample the s of each text of a batch, from PyTorch's default generator.

        Args:
            last: (batch,) the greatest position of each text.
            real: whether positions are real numbers.

        Returns:
            (batch, 1), whole numbers where positions are, else float64.

        Raises:
            PositionError: if a text does not fit below the horizon.
        """
        free = self._room(float(last.max())) - (last.to(wide_dtype(last.device)) + 1)
        uniform = torch.rand(len(last), 1, dtype=torch.float64, device="cpu").to(free)
        return uniform * free[:, None] if real else (uniform * (free[:, None] + 1)).long()


def _entries(times: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map of token indices to the entries of times (n,)."""

    def at(positions: Tensor) -> Tensor:
        wide = times.to(wide_dtype(positions.device)) if times.is_floating_point() else times
        return wide.to(positions.device)[positions]

    return at


def check_names(name: str, values: Any, valid: list[str]) -> None:
    """Refuse a mapping with names that are not valid.

    Raises:
        PositionError: if a name is not valid; the message has the first such name and the valid ones.

    Example:
        >>> check_names("times", {"scale": 2}, ["mode", "max_scale"])
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: times has no 'scale'; valid: mode, max_scale
    """
    if not isinstance(values, Mapping):
        raise PositionError(f"{name} is {values!r}; it must map names to values; valid: {', '.join(valid)}")
    for key in values:
        if key not in valid:
            raise PositionError(f"{name} has no {key!r}; valid: {', '.join(valid)}")


def check_times(times: Times, position: PositionModel, name: str) -> None:
    """Refuse random times that an encoding does not read, or only in some of its parts.

    Args:
        times: the times.
        position: the encoding.
        name: name of the encoding.

    Raises:
        PositionError: if the encoding reads no times, or counts tokens and times are not whole.
    """
    if times.relative:
        if any(getattr(part, "cls", None) == "first" for part in position.modules()):
            raise PositionError(
                f"times.relative is True, but '{name}' with cls='first' finds [CLS] by its position, which "
                "is a random time; choose cls='special' or 'none'"
            )
        if position.card.point not in ("relative", "both") or position.derives_positions:
            raise PositionError(
                f"times.relative is True, but '{name}' reads no distances, so nothing would change; relative "
                "encodings, such as 'floater_relative' and 'alibi', do"
            )
    elif not position.reads_times:
        raise PositionError(
            f"times.mode is {times.mode!r}, but '{name}' reads no times, so nothing would change; "
            "encodings of absolute positions, such as 'floater' and 'sinusoidal', do"
        )
    valid = ("subset",) if times.relative else _WHOLE
    if "real" in position.card.exceptions and times.mode not in valid:
        raise PositionError(
            f"times.mode is {times.mode!r}, but '{name}' is defined at whole times only; valid: "
            f"{', '.join(map(repr, valid))}"
        )


def randomised(times: Times, *several: Positions, batch: int = 1) -> tuple[Positions, ...]:
    """Sample one set of times for positions that share it, as source and target do.

    Args:
        times: the times.
        several: the positions.
        batch: number of texts, for times of each.

    Example:
        >>> source, target = randomised(Times("shift", 8), Positions.arange(4), Positions.arange(6))
        >>> bool((source.key_time == target.key_time[:, :4]).all())
        True
    """
    filled = [positions.key for positions in several if positions.key.numel()]
    if not filled:
        return several
    real = any(at.is_floating_point() for at in filled)
    if times.each:
        ends = torch.stack([_ends(positions, batch) for positions in several if positions.key.numel()])
        last = ends.amax(0)
        offset = times.offsets(last, real)

        def shifted(at: Tensor) -> Tensor:  # padding has a time that the text has, too
            return at.minimum(last[:, None]) + offset

        return tuple(
            placed(positions, shifted(positions.query), shifted(positions.key), distances=False)
            for positions in several
        )
    sample = times.sample(max(float(at.max()) for at in filled), real)

    return tuple(
        placed(positions, sample(positions.query), sample(positions.key), distances=times.relative)
        for positions in several
    )


def placed(positions: Positions, query: Tensor, key: Tensor, *, distances: bool) -> Positions:
    """Return positions at times; with `distances`, relative encodings read the times as well."""
    changed = {"query_time": query, "key_time": key}
    return positions._but(**changed, **({"query": query, "key": key} if distances else {}))


def _ends(positions: Positions, batch: int) -> Tensor:
    """Return the greatest position of each text, (batch,)."""
    key, valid = positions.key, positions.key_valid
    least = torch.zeros((), dtype=key.dtype, device=key.device)
    return (key if valid is None else torch.where(valid, key, least)).amax(1).expand(batch)
