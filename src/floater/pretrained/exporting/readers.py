"""Rotary parameters as other readers of checkpoints understand them, and the configuration for each reader.

The keys are those of the sources of vLLM, SGLang and llama.cpp's converter; the page "Serve it" has a table
of them with their versions. All three derive the number of tokens from these keys, and they disagree.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.extending import native
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.install import NOTE

READERS = ("transformers", "vllm", "sglang", "llama.cpp")
"""Programs that an exported directory can be written for."""

_SCALINGS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
    "sglang": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
    "llama.cpp": frozenset({"default", "linear", "yarn", "llama3", "longrope"}),
}
"""Scalings that each other reader computes as Transformers does."""

_LLAMA, _LONGROPE = frozenset({"llama", "mistral"}), frozenset({"phi3", "minicpm", "minicpm3"})
"""Models for which llama.cpp's converter computes the factors of "llama3" and of "longrope"."""

_NEOX = "rotary_emb_base", "rotary_pct", ""
_MODERN = "global_rope_theta", "", "local_rope_theta"
_NAMES_OF_VERSION_4: Mapping[str, tuple[str, str, str]] = {
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese"), _NEOX),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _MODERN),
}
"""Fields of the base, of the share of a head that is rotated, and of the base of layers with a window, in
models for which Transformers 4 has other names."""


def fit_config(fields: dict[str, Any], config: PreTrainedConfig, reader: str) -> list[str]:
    """Change the fields of a saved configuration to those that a reader understands.

    The fields also get the names that Transformers 4 reads, which ignores `rope_parameters` without warning,
    and lose "type", the older name of "rope_type": some readers prefer it, and some refuse two that differ.

    Args:
        fields: contents of `config.json`; changed in place.
        config: configuration that was saved there.
        reader: one of READERS.

    Returns:
        Sentences about what the reader computes otherwise.

    Raises:
        ExportError: if the reader would compute another model.
    """
    if reader == "llama.cpp" and getattr(config, "relative_attention_max_distance", 128) != 128:
        raise ExportError(
            "llama.cpp computes T5's buckets up to a distance of 128 whatever the configuration says"
        )
    notes = []
    for section, part in _rotary_configs(fields, config):
        kind = _scaling(part, reader)
        if reader in _SCALINGS and kind not in _SCALINGS[reader]:
            raise ExportError(
                f"{reader} does not compute {kind!r} as Transformers does; extend by one of "
                f"{', '.join(sorted(_SCALINGS[reader] - {'default'}))}"
            )
        for each in (section["rope_parameters"], *section["rope_parameters"].values()):
            if isinstance(each, dict):
                each.pop("type", None)
        nested = "full_attention" in part.rope_parameters
        target = section["rope_parameters"]["full_attention"] if nested else section["rope_parameters"]
        if kind == "longrope" and _kind(part) != "phi3":  # version 4 computes it from other lengths
            target["attention_factor"] = _attention_factor(part)
        notes += [*_RULES[reader](section, target, part), *_add_names_of_version_4(section, part)]
    return notes


def check_rotation(model: nn.Module, config: PreTrainedConfig, reader: str) -> None:
    """Refuse factors of frequencies in a model that rotates neighbouring components, for servers.

    Args:
        model: model that is exported.
        config: its configuration.
        reader: one of READERS.

    Raises:
        ExportError: if the reader stops at such a model.
    """
    if reader not in ("vllm", "sglang"):
        return
    kinds = {_scaling(part, reader) for _, part in _rotary_configs(config.to_dict(), config)}
    if "longrope" in kinds and _rotates_neighbours(model):
        raise ExportError(
            f"{reader} computes factors of frequencies ('longrope', 'clipped', 'dropped', 'clex') only for "
            f"models that rotate halves of a head, and {type(model).__name__} rotates adjacent components; "
            "extend by 'yarn', 'ntk' or 'linear'"
        )


def _scaling(part: PreTrainedConfig, reader: str) -> str:
    """Return the scaling of the layers without a window; "default" for Transformers if there are no such."""
    try:
        return native.scaling(part) or "default"
    except ExtendError:
        if reader == "transformers":
            return "default"
        raise ExportError(
            f"{reader} is given one rotation, that of the layers without a window; a '{part.model_type}' "
            "model has no such layers, or several kinds of them"
        ) from None


def _rotates_neighbours(model: nn.Module) -> bool:
    """Return whether component 2 i of a head is rotated with 2 i + 1, by the function of its module."""
    rotate = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    return rotate is not None and rotate(torch.arange(4.0)).abs().tolist() == [1, 0, 3, 2]


def _rotary_configs(
    fields: dict[str, Any], config: PreTrainedConfig
) -> Iterator[tuple[dict[str, Any], PreTrainedConfig]]:
    """Yield the fields of each part of a configuration that has rotary parameters, with the part."""
    if (
        isinstance(rope := fields.get("rope_parameters"), dict)
        and rope
        and fields.get("max_position_embeddings")
    ):
        yield fields, config
    for name, value in fields.items():
        part = vars(config).get(name)  # some refuse attributes that differ among layers
        if isinstance(value, dict) and isinstance(part, PreTrainedConfig):
            yield from _rotary_configs(value, part)


def _add_names_of_version_4(section: dict[str, Any], config: PreTrainedConfig) -> list[str]:
    """Add the names of Transformers 4 to fields, unless version 5 then computes another rotation."""
    rope = section["rope_parameters"]
    full = rope.get("full_attention") or rope  # None where all layers have a window
    apart, kind = ("rope_theta", "partial_rotary_factor"), _kind(config)
    base, share, local = _NAMES_OF_VERSION_4.get(kind, (*apart, "rope_local_base_freq"))
    names = {older: full[name] for name, older in zip(apart, (base, share), strict=True) if name in full}
    if rope.get("sliding_attention"):
        names[local] = rope["sliding_attention"]["rope_theta"]
    scaling = {name: x for name, x in full.items() if name not in apart and not isinstance(x, dict)}
    if scaling not in ({}, {"rope_type": "default"}):
        names["rope_scaling"] = scaling
        if kind == "phi3":  # three entries alone; the factor follows from the lengths
            factors = {name: full.get(name) for name in ("short_factor", "long_factor")}
            names["rope_scaling"] = {"type": full["rope_type"], **factors}
    try:
        both = _read(config, {**section, **names})
    except (StrictDataclassError, TypeError, ValueError):
        both = None
    if both is None or _rotation(both) != _rotation(_read(config, section)):
        return ["Transformers 4 does not read its rotary parameters; use version 5"]
    section.update(names)
    return []


def _read(config: PreTrainedConfig, fields: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration that Transformers reads from the fields of a file."""

    def number(entry: dict[str, Any]) -> Any:  # JSON has no infinity
        return float(entry["__float__"]) if entry.keys() == {"__float__"} else entry

    return type(config).from_dict(json.loads(json.dumps(fields), object_hook=number))


def _kind(config: PreTrainedConfig) -> str:
    """Return the `model_type` of a configuration, or of that from which exported code inherits."""
    return config.model_type.removeprefix("floater_")


def _rotation(config: Any) -> Any:
    """Return the frequencies and the factor of sines and cosines of each kind of layer."""
    kinds = [kind for kind, value in config.rope_parameters.items() if isinstance(value, dict)]
    try:
        return [_computed(config, kind) for kind in kinds or [None]]
    except Exception:  # fields of some configurations differ among layers, and cannot be read from the whole
        return config.rope_parameters


def _computed(config: Any, layers: str | None) -> tuple[dict[str, Any], list[float], float]:
    rope = config.rope_parameters if layers is None else config.rope_parameters[layers]
    if rope.get("rope_type", "default") not in ROPE_INIT_FUNCTIONS:
        return {name: rope.get(name) for name in ("rope_theta", "partial_rotary_factor")}, [], 1.0
    function = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    frequencies, factor = function(config, torch.device("cpu"), layer_type=layers)
    return {}, frequencies.tolist(), factor


def _unchanged(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    return []


def _for_servers(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    """Write the keys of vLLM, which SGLang has taken over."""
    kind = rope.get("rope_type", "default")
    if kind == "linear":  # they multiply this length by the factor
        old = round(section["max_position_embeddings"] / rope["factor"])
        if int(old * rope["factor"]) != section["max_position_embeddings"]:
            raise ExportError(
                f"vLLM and SGLang multiply a whole number by the factor, {rope['factor']:g}, which does not "
                f"give {section['max_position_embeddings']} tokens; extend to a multiple of the old length"
            )
        section[NOTE] = {"method": kind, "old": old, "new": section["max_position_embeddings"]}
        section["max_position_embeddings"] = old
    if kind in ("yarn", "longrope"):
        computed, stated = _default_attention_factor(config, rope), _attention_factor(config)
        if not math.isclose(computed, stated, rel_tol=1e-6):
            if kind == "yarn":  # a multiple of the default
                rope["attn_factor"] = stated / computed
            else:
                rope["short_mscale"] = rope["long_mscale"] = stated
    if kind == "longrope":
        notes = []
        if "original_max_position_embeddings" in section:
            notes.append("vLLM reads texts of the original length unless --max-model-len is given")
        if rope["short_factor"] != rope["long_factor"]:
            notes.append("vLLM uses long_factor for texts of all lengths")
        return notes
    return []


def _for_sglang(section: dict[str, Any], rope: dict[str, Any], config: Any) -> list[str]:
    """Write the keys of vLLM; the tables of "longrope" are joined and entered by another rule.

    Its table for short texts ends before the first position that does not select the other one by itself.
    """
    _for_servers(section, rope, config)
    if rope.get("rope_type") != "longrope":
        return []
    original = section.get("original_max_position_embeddings", rope["original_max_position_embeddings"])
    notes = [f"SGLang rotates the token at position {original} as the first one when it generates it"]
    if rope["short_factor"] != rope["long_factor"]:
        notes.append("SGLang uses long_factor from the first pass that has a later position")
    return notes


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
        if kind == "longrope" and not math.isclose(computed, stated, rel_tol=1e-6):
            raise ExportError(
                f"llama.cpp multiplies sines and cosines of 'longrope' by {computed:.3g}, and this model by "
                f"{stated:.3g}, as 'clipped', 'dropped' and 'clex' do; extend by 'longrope' without "
                "attention_factor"
            )
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
    "sglang": _for_sglang,
    "llama.cpp": _for_llama_cpp,
}


def _attention_factor(config: Any) -> float:
    """Return the factor of sines and cosines by Transformers."""
    return _computed(config, "full_attention" if "full_attention" in config.rope_parameters else None)[2]


def _default_attention_factor(config: Any, rope: Mapping[str, Any]) -> float:
    """Return the factor of sines and cosines that other readers compute from the lengths.

    Peng et al. 2023, "YaRN", equation 22; Ding et al. 2024, "LongRoPE", in the code of Phi-3.
    """
    if rope["rope_type"] == "yarn":
        return 0.1 * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0
    original = rope["original_max_position_embeddings"]
    ratio = config.max_position_embeddings / original
    return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
