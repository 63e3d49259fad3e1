"""Rescaled frequencies of rotary positions, for texts longer than those of training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from floater.encodings.model import PositionError, one_of
from floater.encodings.relative.waves import frequencies


def rescaled(
    dim: int,
    base: float,
    trained: int,
    scaling: Mapping[str, Any] | None,
    device: torch.device | None = None,
) -> tuple[Tensor, float]:
    """Return the frequencies of rotary positions under a rule, and the factor of sines and cosines.

    Rules and keys are those of Hugging Face's `rope_parameters`: "linear" (position interpolation: Chen et
    al. 2023), "dynamic" (NTK-aware scaling of the base), "yarn" (Peng et al. 2023, section 3). Keys of
    attention are cached once they are rotated, so a rule depends on declared numbers, never on the length of
    a call: "dynamic" reads the text length that the model is to serve from `length`.

    Args:
        dim: components that rotate; even.
        base: of the frequencies.
        trained: training length in tokens, unless `scaling` has `original_max_position_embeddings`.
        scaling: None, or `rope_type` and its keys: `factor` (at least 1); for "dynamic" `length` (tokens,
            factor times the training length by default); for "yarn" `attention_factor`, `beta_fast`,
            `beta_slow`, `truncate`.
        device: where the result lives.

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
    given = dict(scaling)
    one_of("rope_type", name := given.pop("rope_type"), tuple(_RULES))
    trained = given.pop("original_max_position_embeddings", trained)
    valid = list(inspect.signature(_RULES[name]).parameters)[4:]
    for key in given:
        if key not in valid:
            raise PositionError(
                f"scaling has {key!r}; rope_type {name!r} takes {', '.join(valid)} "
                "and original_max_position_embeddings"
            )
    if not isinstance(given.get("factor"), int | float) or not 1 <= given["factor"] < math.inf:
        raise PositionError(f"factor of scaling is {given.get('factor')!r}; it must be at least 1")
    return _RULES[name](dim, base, trained, device, **given)


def _linear(
    dim: int, base: float, trained: int, device: torch.device | None, *, factor: float
) -> tuple[Tensor, float]:
    return frequencies(dim, base, device) / factor, 1.0


def _dynamic(
    dim: int,
    base: float,
    trained: int,
    device: torch.device | None,
    *,
    factor: float,
    length: float | None = None,
) -> tuple[Tensor, float]:
    length = factor * trained if length is None else length
    if length < trained:
        raise PositionError(
            f"length of scaling is {length}; it must be at least the training length {trained}"
        )
    if dim < 4:
        raise PositionError(f"head_dim is {dim}; dynamic scaling needs at least 4")
    grown = factor * length / trained - (factor - 1)
    return frequencies(dim, base * grown ** (dim / (dim - 2)), device), 1.0


def _yarn(
    dim: int,
    base: float,
    trained: int,
    device: torch.device | None,
    *,
    factor: float,
    attention_factor: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[Tensor, float]:
    if not beta_fast > beta_slow > 0:
        raise PositionError(
            f"beta_fast is {beta_fast}; it must be above beta_slow, {beta_slow}, and that above 0"
        )
    # the pairs that complete beta_fast and beta_slow turns within the training length
    fast, slow = (
        dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, dim - 1)
    pair = torch.arange(dim // 2, dtype=torch.float64, device=device)
    interpolated = ((pair - fast) / (slow - fast if slow != fast else 1e-3)).clamp(0, 1)
    plain = frequencies(dim, base, device)
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1
    return plain * (1 - interpolated) + plain / factor * interpolated, float(attention_factor)


_RULES: dict[str, Callable[..., tuple[Tensor, float]]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
}
