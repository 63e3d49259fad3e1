"""Rules by which a trained model reads long texts: spacing of times, grouped distances, temperature."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from floater.encodings import PositionError
from floater.encodings.checks import one_of
from floater.encodings.composed.parts import Composite
from floater.encodings.model import PositionModel
from floater.flow.checks import is_count
from floater.flow.precision import wide_dtype
from floater.positions import Positions
from floater.transformer.times import Times, check_names, placed


@dataclass(frozen=True, eq=False)  # a tensor has no single truth value to compare by
class Reading:
    """The rule by which a trained model reads texts that may be longer than those it was trained on.

    **Spacing**: token i of a text of N tokens is at the time t_i = i T / max(N0, N). A model trained at
    random times always reads by this rule: T is its horizon, N0 is T for "stretch" and "shift" (tokens are
    one apart as long as they fit) and the training length for "float" and "subset". Relative encodings that
    read times in training do so here, too, but after "stretch" read true distances. With `interpolate` a
    model without random times does so, too, with T = N0 = training length (position interpolation, Chen et
    al. 2023). N is declared, or the length of each text; an encoder-decoder takes the longer side. It must
    not change once keys are cached, the encoder has run separately, or the times of later events are to be
    predicted: then it is N0 unless declared.

    **Grouped distances**: a distance d above w counts as w + (d - w) / G, rounded down for whole positions
    (Jin et al. 2024, Self-Extend; Su 2023, leaky ReRoPE), in biases of distances.

    **Temperature**: logits are multiplied by max(1, log n_i / log L), n_i the keys that query i sees and L
    the training length (Chiang and Cholak 2022; Su 2021), in cross-attention, too.

    Args:
        length: N in tokens, one number or (batch,) numbers; None where it is not declared.
        interpolate: space the tokens of a model without random times.
        group: w and G.
        temperature: whether to sharpen attention over many keys.
        overrun: whether a row may exceed its N, as finished rows of a search do while others grow; later
            tokens have the time of the last one. False makes that an error.

    Raises:
        PositionError: if a value is not valid.

    Example:
        >>> Reading.of("length=200,group=32:4").group
        (32, 4)
    """

    length: int | Tensor | None = None
    interpolate: bool = False
    group: tuple[int, int] | None = None
    temperature: bool = False
    overrun: bool = False

    def __post_init__(self) -> None:
        for name in ("interpolate", "temperature", "overrun"):
            one_of(f"reading.{name}", getattr(self, name), (True, False))
        if isinstance(self.length, Tensor):
            if self.length.ndim != 1 or self.length.is_floating_point() or bool((self.length < 1).any()):
                raise PositionError("reading.length must hold a whole number of at least 1 for each sample")
        elif self.length is not None and not is_count(self.length):
            raise PositionError(f"reading.length is {self.length!r}; it must be at least 1 token")
        if self.group is not None:
            pair = isinstance(self.group, Sequence) and len(self.group) == 2
            if not pair or not all(map(is_count, self.group)):
                raise PositionError(
                    f"reading.group is {self.group!r}; it must be w and G, whole numbers of at least 1"
                )
            object.__setattr__(self, "group", tuple(self.group))  # of a list, as JSON has it

    @classmethod
    def of(cls, rule: Reading | Mapping[str, Any] | str | None) -> Reading:
        """Return the reading rule that a value describes.

        Args:
            rule: a rule; its fields by name; these as a text, as in "length=200,group=32:4"; or None for no
                rule.

        Raises:
            PositionError: if a name or value is not valid.

        Example:
            >>> Reading.of("group=32")
            Traceback (most recent call last):
            floater.encodings.errors.PositionError: reading.group is 32; it must be w and G, whole numbers ...
        """
        if isinstance(rule, Reading):
            return rule
        if isinstance(rule, str):
            parts = [[side.strip() for side in part.split("=", 1)] for part in rule.split(",")]
            check_names("reading", {name: None for name, *_ in parts}, _NAMES)
            for name, count in Counter(name for name, *_ in parts).items():
                if count > 1:
                    raise PositionError(f"reading.{name} is given twice")
            rule = {name: _value("".join(text)) for name, *text in parts}
            for name, value in rule.items():
                if value is None:
                    raise PositionError(f"reading.{name} has no value; write {name}=VALUE")
        else:
            check_names("reading", rule or {}, _NAMES)
        return cls(**(rule or {}))

    def repeat(self, times: int) -> Reading:
        """Return the rule with each sample's length a number of times, as a beam search needs it.

        Example:
            >>> Reading(length=torch.tensor([3, 4])).repeat(2).length.tolist()
            [3, 3, 4, 4]
        """
        if not isinstance(self.length, Tensor):
            return self
        return replace(self, length=self.length.repeat_interleave(times))


# Listed once, as compiled code does not list the fields of a class.
_NAMES = [field.name for field in fields(Reading) if field.name != "overrun"]


def _value(text: str) -> Any:
    """Return the value of a text: a number, a truth value, or numbers between colons."""
    if text.replace(":", "").isdecimal() and ":" in text:
        return tuple(int(part) if part else 0 for part in text.split(":"))
    try:
        return json.loads(text.lower()) if text else None
    except (ValueError, RecursionError):
        return text


def check_reading(reading: Reading, position: PositionModel, config: Any) -> None:
    """Refuse a rule that would change nothing, or that the encoding does not support.

    Args:
        reading: the rule.
        position: the encoding.
        config: the model's configuration.

    Raises:
        PositionError: if a part of the rule would change nothing, or the encoding cannot follow it; the
            message names the models that can.
    """
    name = config.position_name(position.spec.site)
    spaces = reading.interpolate or reading.length is None or read_times(config, position) is not None
    if not spaces and config.times is not None:
        raise PositionError(
            "reading.length is given, but no token is spaced by it: after times.mode 'stretch' "
            f"'{name}' reads true distances"
        )
    if not spaces:
        raise PositionError(
            "reading.length is given, but no token is spaced by it: the model was trained without random "
            "times, and interpolate is off"
        )
    if reading.interpolate and config.times is not None:
        raise PositionError(
            "reading.interpolate is True, but random times of training space the tokens already; leave it out"
        )
    if reading.interpolate and not position.reads_times:
        raise PositionError(
            f"reading.interpolate spaces times, but '{name}' reads none; encodings of absolute positions, "
            "such as 'floater' and 'sinusoidal', do"
        )
    # parts of a composition that read no times are at whole positions all the same
    parts = position.models if isinstance(position, Composite) else [position]
    if reading.interpolate and any(part.reads_times and "real" in part.card.exceptions for part in parts):
        raise PositionError(
            f"reading.interpolate puts tokens between whole times, but '{name}' is defined at whole times "
            "only; 'floater' and 'sinusoidal' are defined between them, too"
        )
    if reading.group is not None and not position.reads_distances:
        raise PositionError(
            f"reading.group changes distances, but '{name}' has no bias of them; biases, such as 'alibi' and "
            "'t5', do"
        )
    if reading.temperature:
        check_temperature(config)
        if config.attention_temperature is not None:
            raise PositionError(
                f"reading.temperature is True, but the model has attention_temperature "
                f"'{config.attention_temperature}' already"
            )


def read_times(config: Any, position: PositionModel) -> Times | None:
    """Return the random times of training that a trained encoding goes on to read, None for none.

    After relative times of "stretch" an encoding of distances alone reads the true ones, of any length. A
    decoder with an encoding of its own may read others, so that the times then stay.
    """
    times = Times.of(config.times, config.training_length)
    if times is None or not times.relative or times.spreads:
        return times
    return times if position.reads_times or config.decoder_position is not None else None


def check_temperature(config: Any) -> None:
    """Refuse a temperature where there are no logits, or the training length has no logarithm.

    Raises:
        PositionError: if attention is linear or the training length is below 2.
    """
    if config.attention != "softmax":
        raise PositionError(f"a temperature scales logits; attention is '{config.attention}' and has none")
    if config.training_length < 2:
        raise PositionError(f"training_length is {config.training_length}; a temperature needs at least 2")


def lengths(positions: Positions) -> Tensor:
    """Return the length of the text that each key belongs to: (batch or 1, 1), packed (batch, S).

    Example:
        >>> lengths(Positions.packed([[2, 3]]))
        tensor([[2, 2, 3, 3, 3]])
    """
    ends = positions.key + 1
    if positions.key_valid is not None:
        ends = ends.masked_fill(~positions.key_valid, 0)
    if not ends.shape[1]:
        return ends.new_ones(1, 1)
    if positions.document is None:
        return ends.amax(1, keepdim=True)
    ids, documents = torch.unique(positions.document, return_inverse=True)
    rows = max(len(ends), len(documents))
    ends, documents = ends.expand(rows, -1), documents.expand(rows, -1)
    longest: Tensor = ends.new_zeros(rows, len(ids)).scatter_reduce(1, documents, ends, "amax")
    return longest.gather(1, documents)


def spaced(
    reading: Reading, times: Times | None, length: int, *several: Positions, apart: bool
) -> tuple[Positions, ...]:
    """Give positions the times that a model reads them at; see `Reading`.

    Args:
        reading: the rule.
        times: random times that the model was trained with, or None.
        length: training length in tokens.
        several: positions that share a length, as source and target do.
        apart: whether other keys are, or will be, at times of the same rule: cached ones, those of an encoder
            that ran in a call of its own, or later events.

    Returns:
        The positions with times; unchanged if no rule applies, or if they have times already.

    Raises:
        PositionError: if a text goes past its length, or more than T integer times are needed.

    Example:
        >>> (long,) = spaced(Reading(length=8, interpolate=True), None, 4, Positions.arange(3), apart=False)
        >>> long.query_time
        tensor([[0.0000, 0.5000, 1.0000]], dtype=torch.float64)
    """
    if (times is None and not reading.interpolate) or several[0].query_time is not None:
        return several
    most, least = (length, length) if times is None else (times.horizon, times.least)
    counts = lengths(several[0])
    for other in several[1:]:  # one length for a source and its target
        counts = torch.maximum(counts.amax(1, keepdim=True), lengths(other).amax(1, keepdim=True))
    if reading.length is not None:
        limit = torch.as_tensor(reading.length, dtype=counts.dtype, device=counts.device).view(-1, 1)
    else:
        limit = counts.new_full((1, 1), least) if apart else counts.clamp(min=least)
    excess = counts - limit
    if not reading.overrun and bool((excess > 0).any()):
        longest = int(excess.argmax())
        count, most_tokens = (int(part.expand_as(excess).flatten()[longest]) for part in (counts, limit))
        limit_source = (
            "its length was declared as"
            if reading.length is not None
            else "no length was declared, and before all tokens are known the limit is then"
        )
        raise PositionError(
            f"a text has {count} tokens, but {limit_source} {most_tokens}; declare the longest it may become "
            "with reading={'length': N} from its first pass on"
        )
    spread = limit.clamp(min=least)
    whole = times is not None and times.mode == "subset"
    if whole and bool((spread > most).any()):
        raise PositionError(
            f"a text of {int(spread.max())} tokens has no whole times of its own below the horizon, {most}; "
            "train with a larger times.max_scale, or read shorter texts"
        )
    even = bool((spread == most).all())  # a spacing of one: positions are the times, and stay integers

    def time(at: Tensor) -> Tensor:
        first = limit.shape[1] - at.shape[1] if limit.shape[1] > 1 else 0
        over = spread[:, first:]
        if reading.overrun:
            at = torch.minimum(at, (limit[:, first:] - 1).to(at.dtype))
        if even:
            return at
        if whole:
            return (at * most).div(over, rounding_mode="floor")
        wide = wide_dtype(at.device)
        return at.to(wide) * (most / over.to(wide))

    distances = times is not None and times.spreads
    return tuple(
        placed(positions, time(positions.query), time(positions.key), distances=distances)
        for positions in several
    )


def record_rule(holder: Any, reading: Reading) -> None:
    """Record on a cache or an encoder's output the rule of its tokens; refuse another rule.

    Args:
        holder: the cache or the output; None for none.
        reading: the rule of this pass.

    Raises:
        PositionError: if another rule, or length, was recorded before.
    """
    if holder is None or isinstance(holder, tuple):
        return
    before = getattr(holder, "reading", None)
    if before is None:
        holder.reading = reading
    elif before.interpolate != reading.interpolate or not _same(before.length, reading.length):
        raise PositionError(
            f"keys have times of length {_shown(before)}, and this pass would use length "
            f"{_shown(reading)}; declare one length for all passes"
        )


def _same(before: int | Tensor | None, now: int | Tensor | None) -> bool:
    """Return whether lengths are equal, but for repeats of each sample in a beam search."""
    if before is None or now is None:
        return before is now
    a, b = (torch.as_tensor(part).flatten().cpu() for part in (before, now))
    if len(a) > 1 and len(b) % len(a) == 0:
        a = a.repeat_interleave(len(b) // len(a))
    return bool((a == b).all()) if len(a) == len(b) or 1 in (len(a), len(b)) else False


def _shown(reading: Reading) -> str:
    length = reading.length
    shown = length.tolist() if isinstance(length, Tensor) else "undeclared" if length is None else length
    return f"{shown}{', interpolated' if reading.interpolate else ''}"
