"""Rescaled frequencies of rotary positions, for texts longer than those of training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from floater.encodings.checks import is_number, is_whole, one_of
from floater.encodings.errors import PositionError
from floater.encodings.relative.waves import frequencies

Rescaled = tuple[Tensor, float]


class _Plain(NamedTuple):
    """Parameters of rotary positions before a rule rescales them."""

    dim: int
    base: float
    trained: int
    device: torch.device | None

    def frequencies(self, base: float | None = None) -> Tensor:
        return frequencies(self.dim, self.base if base is None else base, self.device)


def rescaled(
    dim: int, base: float, trained: int, scaling: Mapping[str, Any] | None, device: torch.device | None = None
) -> Rescaled:
    """Return the frequencies of rotary positions under a rule, and the factor of sines and cosines.

    Rules and keys are those of Hugging Face's `rope_parameters`: "linear" (position interpolation: Chen et
    al. 2023), "dynamic" (NTK-aware scaling of the base), "yarn" (Peng et al. 2023, section 3), "longrope" (a
    factor found for each pair: Ding et al. 2024), "llama3" (by wavelength: Dubey et al. 2024),
    "proportional" (the slowest pairs do not rotate: Barbero et al. 2024). Keys of attention are cached once
    they are rotated, so a rule depends on declared numbers, never on the length of a call: "dynamic" and
    "longrope" read the text length that the model is extended to from `length`.

    Args:
        dim: components that rotate; even.
        base: base of the frequencies.
        trained: training length in tokens, unless `scaling` has `original_max_position_embeddings`.
        scaling: None, or `rope_type` and its keys: `factor` (at least 1; 1 by default for "proportional");
            for "dynamic" `length` (tokens, factor times the training length by default); for "yarn"
            `attention_factor`, `beta_fast`, `beta_slow`, `truncate`; for "longrope" `short_factor` and
            `long_factor` (a number for each pair, that of texts up to the training length and of longer
            ones), `length` as above and `attention_factor`; for "llama3" `low_freq_factor` and
            `high_freq_factor`, training lengths over the wavelengths between which it smooths; for
            "proportional" `partial_rotary_factor`, the share of the pairs that rotate. Any rule takes
            `original_max_position_embeddings`. Numbers are finite; None stands for a default of None only.
        device: device of the result.

    Returns:
        Frequencies (dim / 2,) in float64 and the attention factor.

    Raises:
        PositionError: if a rule, a key or a value is not valid.

    Example:
        >>> rescaled(4, 10000.0, 16, {"rope_type": "linear", "factor": 2.0})[0].tolist()
        [0.5, 0.005]
    """
    if scaling is None:
        return frequencies(dim, base, device), 1.0
    if not isinstance(scaling, Mapping) or "rope_type" not in scaling:
        raise PositionError(
            f"scaling is {scaling!r}; it must be None or a mapping with rope_type, one of "
            f"{', '.join(map(repr, _RULES))}, and factor"
        )
    arguments = dict(scaling)
    one_of("rope_type", name := arguments.pop("rope_type"), tuple(_RULES))
    trained = arguments.pop("original_max_position_embeddings", trained)
    if not is_whole(trained) or trained < 1:
        raise PositionError(
            f"original_max_position_embeddings of scaling is {trained!r}; it must be a whole number of at "
            "least 1"
        )
    _check_values(name, arguments)
    return _RULES[name](_Plain(dim, base, trained, device), **arguments)


def _check_values(name: str, values: Mapping[str, Any]) -> None:
    """Check the keys and values of a rule, except for lists, which a rule checks itself."""
    _, *parameters = inspect.signature(_RULES[name]).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    for key in values:
        if key not in defaults:
            raise PositionError(
                f"scaling has {key!r}; rope_type {name!r} takes {', '.join(defaults)} "
                "and original_max_position_embeddings"
            )
    for key, default in defaults.items():
        value = values.get(key, default)
        if value is inspect.Parameter.empty:
            raise PositionError(f"scaling has no {key!r}, which rope_type {name!r} needs")
        if key == "truncate":
            one_of("truncate of scaling", value, (True, False))
        elif key == "factor":
            if not is_number(value) or value < 1:
                raise PositionError(f"factor of scaling is {value!r}; it must be at least 1")
        elif key in _LISTS or value is default:
            continue
        elif not is_number(value) or (key == "attention_factor" and value <= 0):
            above = " above 0" if key == "attention_factor" else ""
            raise PositionError(f"{key} of scaling is {value!r}; it must be a finite number{above}")


def _linear(x: _Plain, *, factor: float) -> Rescaled:
    return x.frequencies() / factor, 1.0


def _dynamic(x: _Plain, *, factor: float, length: float | None = None) -> Rescaled:
    length = _declared_length(x.trained, factor, length)
    if x.dim < 4:
        raise PositionError(f"head_dim is {x.dim}; dynamic scaling needs at least 4")
    grown = factor * length / x.trained - (factor - 1)
    return x.frequencies(x.base * grown ** (x.dim / (x.dim - 2))), 1.0


def _yarn(
    x: _Plain,
    *,
    factor: float,
    attention_factor: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Rescaled:
    if not beta_fast > beta_slow > 0:
        raise PositionError(
            f"beta_fast is {beta_fast}; it must be above beta_slow, {beta_slow}, and that above 0"
        )
    # the pairs that complete beta_fast and beta_slow turns within the training length
    fast, slow = (
        x.dim * math.log(x.trained / (turns * 2 * math.pi)) / (2 * math.log(x.base))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, x.dim - 1)
    pair = torch.arange(x.dim // 2, dtype=torch.float64, device=x.device)
    interpolated = ((pair - fast) / (slow - fast if slow != fast else 1e-3)).clamp(0, 1)
    plain = x.frequencies()
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1
    return plain * (1 - interpolated) + plain / factor * interpolated, float(attention_factor)


def _longrope(
    x: _Plain,
    *,
    factor: float,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    length: float | None = None,
    attention_factor: float | None = None,
) -> Rescaled:
    for name, numbers in zip(_LISTS, (short_factor, long_factor), strict=True):
        whole = isinstance(numbers, Sequence) and all(is_number(n) and n > 0 for n in numbers)
        if not whole or len(numbers) != x.dim // 2:
            raise PositionError(f"{name} of scaling is {numbers!r}; it must be {x.dim // 2} positive numbers")
    chosen = long_factor if _declared_length(x.trained, factor, length) > x.trained else short_factor
    if attention_factor is None:
        if x.trained < 2:
            raise PositionError(
                f"the training length is {x.trained}; longrope without attention_factor needs at least 2"
            )
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(x.trained))
    divisor = torch.tensor(chosen, dtype=torch.float64, device=x.device)
    return x.frequencies() / divisor, float(attention_factor)


def _llama3(x: _Plain, *, factor: float, low_freq_factor: float, high_freq_factor: float) -> Rescaled:
    if not high_freq_factor > low_freq_factor > 0:
        raise PositionError(
            f"high_freq_factor is {high_freq_factor}; it must be above low_freq_factor, {low_freq_factor}, "
            "and that above 0"
        )
    plain = x.frequencies()
    turns = x.trained * plain / (2 * math.pi)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept), 1.0


def _proportional(x: _Plain, *, factor: float = 1.0, partial_rotary_factor: float = 1.0) -> Rescaled:
    if not 0 <= partial_rotary_factor <= 1:
        raise PositionError(f"partial_rotary_factor is {partial_rotary_factor}; it must be between 0 and 1")
    turning = torch.arange(x.dim // 2, device=x.device) < int(partial_rotary_factor * x.dim // 2)
    return x.frequencies() * turning / factor, 1.0


def _declared_length(trained: int, factor: float, length: float | None) -> float:
    """Return the declared length of texts, by default `factor` times the training length."""
    length = factor * trained if length is None else length
    if length < trained:
        raise PositionError(
            f"length of scaling is {length}; it must be at least the training length {trained}"
        )
    return length


_LISTS = ("short_factor", "long_factor")

_RULES: dict[str, Callable[..., Rescaled]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
