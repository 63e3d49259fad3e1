"""What other readers of checkpoints make of rotary parameters, and the configuration that each one reads.

The keys are those of the sources of vLLM, SGLang and llama.cpp's converter; the page "Serve it" has a table
of them with their versions. All three derive the number of tokens from these keys, and they disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.extending import native

READERS = ("transformers", "vllm", "sglang", "llama.cpp")
"""Programs that an exported directory can be written for."""

_SCALINGS: Mapping[str, frozenset[str]] = {
    "transformers": frozenset({"default", *native.KINDS}),
    "vllm": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
    "sglang": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
    "llama.cpp": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
}
"""Scalings that each reader computes as Transformers does."""

_LLAMA, _LONGROPE = frozenset({"llama", "mistral"}), frozenset({"phi3", "minicpm", "minicpm3"})
"""Models for which llama.cpp's converter computes the factors of "llama3" and of "longrope"."""


def fit_config(fields: dict[str, Any], config: PreTrainedConfig, reader: str) -> list[str]:
    """Change the fields of a saved configuration to those that a reader understands.

    Every configuration also gets `rope_theta` and `rope_scaling` as Transformers 4 reads them, which would
    otherwise ignore `rope_parameters` without a word.

    Args:
        fields: contents of `config.json`; changed in place.
        config: configuration that was saved there.
        reader: one of READERS.

    Returns:
        Sentences about what the reader computes otherwise.

    Raises:
        ExportError: if the reader would compute another model.
    """
    notes = []
    for section, part in _rotary_configs(fields, config):
        rope = native.parameters(part)
        kind = rope.get("rope_type", "default")
        if kind not in _SCALINGS[reader]:
            raise ExportError(
                f"{reader} does not compute {kind!r} as Transformers does; extend by one of "
                f"{', '.join(sorted(_SCALINGS[reader] - {'default'}))}"
            )
        nested = "full_attention" in part.rope_parameters
        target = section["rope_parameters"]["full_attention"] if nested else section["rope_parameters"]
        notes += _RULES[reader](section, target, part)
        if not nested:
            _add_names_of_version_4(section, part.model_type)
    return notes


def _rotary_configs(
    fields: dict[str, Any], config: PreTrainedConfig
) -> Iterator[tuple[dict[str, Any], PreTrainedConfig]]:
    """Yield the fields of each part of a configuration that has rotary parameters, with the part."""
    if isinstance(fields.get("rope_parameters"), dict) and fields.get("max_position_embeddings"):
        yield fields, config
    for name, value in fields.items():
        part = getattr(config, name, None)
        if isinstance(value, dict) and isinstance(part, PreTrainedConfig):
            yield from _rotary_configs(value, part)


def _add_names_of_version_4(section: dict[str, Any], model_type: str) -> None:
    rope = section["rope_parameters"]
    apart = {"rope_theta", "partial_rotary_factor"}
    section.update({name: rope[name] for name in apart & rope.keys()})
    scaling = {name: value for name, value in rope.items() if name not in apart}
    if scaling.get("rope_type", "default") == "default":
        return
    if model_type != "phi3":
        section["rope_scaling"] = scaling
    elif scaling.keys() <= {
        "rope_type",
        "short_factor",
        "long_factor",
        "factor",
        "original_max_position_embeddings",
    }:
        # version 4 takes exactly three entries for Phi-3, and computes the factor from the lengths
        section["rope_scaling"] = {
            "type": "longrope", "short_factor": scaling["short_factor"], "long_factor": scaling["long_factor"]
        }  # fmt: skip


def _unchanged(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    return []


def _for_servers(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    """Write the keys of vLLM, which SGLang has taken over."""
    kind = rope.get("rope_type", "default")
    if kind == "linear":  # they multiply this length by the factor
        old = section["max_position_embeddings"] / rope["factor"]
        if old != round(old):
            raise ExportError(
                f"vLLM and SGLang multiply a whole number by the factor, {rope['factor']:g}, which does not "
                f"give {section['max_position_embeddings']} tokens; extend to a multiple of the old length"
            )
        section["max_position_embeddings"] = round(old)
    if kind in ("yarn", "longrope"):
        computed, stated = _default_attention_factor(config, rope), _attention_factor(config)
        if not math.isclose(computed, stated, rel_tol=1e-6):
            if kind == "yarn":  # a multiple of the default
                rope["attn_factor"] = stated / computed
            else:
                rope["short_mscale"] = rope["long_mscale"] = stated
    if kind == "longrope":
        notes = ["vLLM reads a LongRoPE model up to its original length unless --max-model-len is given"]
        if rope["short_factor"] != rope["long_factor"]:
            notes.append("vLLM and SGLang use long_factor for texts of all lengths")
        return notes
    return []


def _for_llama_cpp(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    kind, model_type = rope.get("rope_type", "default"), config.model_type
    kinds = {"llama3": _LLAMA, "longrope": _LONGROPE}
    if kind in kinds and model_type not in kinds[kind]:
        raise ExportError(
            f"llama.cpp computes {kind!r} for {', '.join(sorted(kinds[kind]))} only and ignores it in a "
            f"'{model_type}' model; extend by 'yarn' or 'linear'"
        )
    if kind in ("yarn", "longrope"):
        computed, stated = _default_attention_factor(config, rope), _attention_factor(config)
        if not math.isclose(computed, stated, rel_tol=1e-6) or rope.get("truncate") is False:
            raise ExportError(
                f"llama.cpp computes the temperature of {kind!r} by itself and rounds its bounds; extend "
                "without attention_factor, mscale, mscale_all_dim and truncate"
            )
        rope.pop("attention_factor", None)  # it would be a multiple of the default
    if kind in kinds:  # the converter reads it here, and else assumes 8192
        section["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return []


_Rule = Callable[[dict[str, Any], dict[str, Any], Any], list[str]]
_RULES: Mapping[str, _Rule] = {
    "transformers": _unchanged,
    "vllm": _for_servers,
    "sglang": _for_servers,
    "llama.cpp": _for_llama_cpp,
}


def _attention_factor(config: Any) -> float:
    """Return the factor of sines and cosines by Transformers."""
    layers = "full_attention" if "full_attention" in config.rope_parameters else None
    function = ROPE_INIT_FUNCTIONS[native.parameters(config)["rope_type"]]
    return float(function(config, torch.device("cpu"), layer_type=layers)[1])


def _default_attention_factor(config: Any, rope: Mapping[str, Any]) -> float:
    """Return the factor of sines and cosines that other readers compute from the lengths.

    Peng et al. 2023, "YaRN", equation 22; Ding et al. 2024, "LongRoPE", in the code of Phi-3.
    """
    if rope["rope_type"] == "yarn":
        return 0.1 * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0
    original = rope["original_max_position_embeddings"]
    ratio = config.max_position_embeddings / original
    return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
