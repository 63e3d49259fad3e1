"""Rotary positions that are scaled already, as those of many checkpoints, and how they are scaled further.

The kind of the scaling stays, and its factors grow. Frequencies that rotate often within the old length are
kept by the rules that keep them: Llama 3's, YaRN's, and for LongRoPE that of YaRN's paper.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from floater.pretrained.extending.errors import ExtendError

KINDS = ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
"""Scalings of Transformers that `widen` knows."""

_SLOW, _FAST = 1.0, 32.0
"""Rotations within the old length: with fewer a frequency is interpolated, with more it is kept."""


def parameters(config: Any) -> dict[str, Any]:
    """Return the rotary parameters of the layers that attend to the whole text.

    Separate parameters of layers with a sliding window are not changed, as a window contains no new
    distances.
    """
    rope: dict[str, Any] = config.rope_parameters
    kind = layer_kind(config)
    return rope if kind is None else rope[kind]


def layer_kind(config: Any) -> str | None:
    """Return the kind of the layers that attend to the whole text; None if all have the same parameters.

    Raises:
        ExtendError: if there is not one such kind.
    """
    kinds = [kind for kind, value in config.rope_parameters.items() if isinstance(value, dict)]
    whole = [kind for kind in kinds if "sliding" not in kind]
    if kinds and len(whole) != 1:
        raise ExtendError(
            f"a '{config.model_type}' model rotates layers by their kinds, {', '.join(kinds)}; it is "
            "extended if one of them is that of all layers without a window"
        )
    return whole[0] if whole else None


def replace_parameters(config: Any, rope: dict[str, Any]) -> None:
    """Replace the `parameters` of a configuration.

    The older name of "rope_type", which other programs prefer, would keep the scaling before.
    """
    kind, rope = layer_kind(config), {name: value for name, value in rope.items() if name != "type"}
    config.rope_parameters = rope if kind is None else {**config.rope_parameters, kind: rope}


def scaling(config: Any) -> str | None:
    """Return the name of the scaling that the rotary parameters of a configuration have, or None."""
    kind: str = parameters(config).get("rope_type", "default")
    return None if kind == "default" else kind


def supported(config: Any) -> int:
    """Return the number of tokens that a model with rotary positions takes, with its scaling.

    Some checkpoints declare the length before their scaling, as those of Qwen with YaRN.

    Example:
        >>> from transformers import LlamaConfig
        >>> rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
        >>> rope |= {"original_max_position_embeddings": 32}
        >>> supported(LlamaConfig(max_position_embeddings=32, rope_parameters=rope))
        128
    """
    rope, declared = parameters(config), int(config.max_position_embeddings)
    original = rope.get("original_max_position_embeddings")
    if scaling(config) == "yarn" and original and rope.get("factor"):
        return max(declared, round(float(original * rope["factor"])))
    return declared


def widen(config: Any, length: int) -> None:
    """Scale rotary positions further, and write this and the length into the configuration.

    With k the ratio of the new length to the old one:

    - "linear", "proportional", "llama3", "yarn": the factor is multiplied by k. Llama 3's rule keeps the
      frequencies that it keeps, and YaRN's computes its ramp and its temperature from the new factor.
    - "longrope": each long factor is multiplied by 1 / ((1 - g) / k + g), with g rising from 0 for
      frequencies that rotate once within the old length to 1 for those that rotate 32 times (Peng et al.
      2023, "YaRN", definition 2).
    - "dynamic": the base becomes that of a text of the new length, for all texts.

    A temperature that the configuration states is computed anew if it is the one of the old factor, and kept
    otherwise.

    Args:
        config: configuration whose `scaling` is one of KINDS; changed in place.
        length: number of tokens to support.
    """
    rope, old, kind = dict(parameters(config)), supported(config), scaling(config)
    ratio = length / old
    stated = rope.pop("attention_factor", None)
    temperature = None if stated is None else _attention_factor(config, rope)
    if kind == "dynamic":
        factor, trained = rope.pop("factor"), int(config.max_position_embeddings)
        width = 2 * len(_computed(config, None)[0])
        stretch = factor * length / trained - (factor - 1)
        rope |= {"rope_type": "default", "rope_theta": rope["rope_theta"] * stretch ** (width / (width - 2))}
    elif kind == "longrope":
        rope["long_factor"] = [
            factor / ((1 - kept) / ratio + kept)
            for factor, kept in zip(rope["long_factor"], _kept(config, old), strict=True)
        ]
    if kind in ("linear", "yarn", "llama3", "proportional") or (kind == "longrope" and rope.get("factor")):
        rope["factor"] = rope.get("factor", 1.0) * ratio
    if stated is not None and not math.isclose(stated, temperature or stated, rel_tol=1e-6):
        rope["attention_factor"] = stated
    replace_parameters(config, rope)
    config.max_position_embeddings = length


def state_factor(config: Any) -> None:
    """State the factor of a scaling, which Transformers would otherwise compute from the declared length."""
    rope = parameters(config)
    original = rope.get("original_max_position_embeddings")
    if scaling(config) in ("longrope", "yarn") and original and rope.get("factor") is None:
        rope["factor"] = int(config.max_position_embeddings) / original


def _kept(config: Any, old: int) -> list[float]:
    """Return how far each frequency of a long text is kept, from 0 to 1."""
    rotations = _computed(config, old)[0].double() * old / (2 * math.pi)
    return [float(share) for share in ((rotations - _SLOW) / (_FAST - _SLOW)).clamp(0, 1)]


def _attention_factor(config: Any, rope: dict[str, Any]) -> float:
    """Return the factor of sines and cosines that Transformers computes where none is stated."""
    unstated = copy.deepcopy(config)
    replace_parameters(unstated, rope)
    return _computed(unstated, None)[1]


def _computed(config: Any, length: int | None) -> tuple[Tensor, float]:
    """Return the frequencies and the factor of sines and cosines by Transformers."""
    function = ROPE_INIT_FUNCTIONS[parameters(config)["rope_type"]]
    result: tuple[Tensor, float] = function(
        config, torch.device("cpu"), seq_len=length, layer_type=layer_kind(config)
    )
    return result
