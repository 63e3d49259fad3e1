"""Extension of rotary models by their configuration, computed by Transformers."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel

from floater.encodings.relative import waves
from floater.errors import first_line
from floater.pretrained.clocks import ANGLES
from floater.pretrained.extending.divisors import DIVISORS
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.native import (
    layer_kind,
    parameters,
    replace_parameters,
    scaling,
)
from floater.pretrained.find import is_inside

ROTATION = "rotation of "
"""Prefix of the mark of what the rotary parts of a body return, by the path of the body."""
NEAR, FAR = "rotation in windows of ", "rotation of new distances of "
"""Prefixes of the marks of the angles that layers of a body get, by the path of the body: those of layers in
whose windows all distances occur in texts of the old length, and those of the others."""
_LAYER_BASES = "layer_rope_theta"
"""Field of configurations whose layers rotate by bases of their own."""

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def rotary_bodies(model: nn.Module) -> list[PreTrainedModel]:
    """Return the models within a model that rotate queries and keys by positions up to a declared length."""
    bodies = [part for part in model.modules() if isinstance(part, PreTrainedModel) and rotary_parts(part)]
    return [body for body in bodies if hasattr(body.config, "max_position_embeddings")]


def rotary_parts(body: nn.Module) -> list[str]:
    """Return the names of a body's parts that contain rotary frequencies, without those of models in it."""
    parts = [(name, part) for name, part in body.named_modules() if name]
    inner = [name for name, part in parts if isinstance(part, PreTrainedModel)]
    return [
        name for name, part in parts if _rotates(part) and not any(is_inside(name, model) for model in inner)
    ]


def _rotates(module: nn.Module) -> bool:
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))


def frequencies(body: nn.Module) -> list[str]:
    """Return the names of the buffers of a body with the frequencies of layers that attend to the whole text.

    Args:
        body: one of `rotary_bodies`.
    """
    names = [
        (part, name)
        for part in rotary_parts(body)
        for name, _ in body.get_submodule(part).named_buffers(recurse=False)
        if name.endswith("inv_freq") and "sliding" not in name
    ]
    return [f"{part}.{name}" for part, name in names]


def mark(body: PreTrainedModel, path: str, dry_run: DryRun) -> None:
    """Mark the frequencies of a body in a dry run by its path, and its rotations by `ROTATION`."""
    names = frequencies(body)
    dry_run.mark({f"{path}.{name}".strip("."): path for name in names})
    if any(name.endswith(".inv_freq") for name in names):  # some compute the frequencies in each pass
        for part in rotary_parts(body):
            dry_run.mark_output(f"{path}.{part}".strip("."), ROTATION + path)
    trained = int(body.config.max_position_embeddings)
    for name, part in dry_run.parts.items():
        if is_inside(name, path) and isinstance(getattr(part, "layer_idx", None), int):
            near = windowed(part, dry_run.parts[path].config, trained)
            dry_run.mark_argument(name, ANGLES, (NEAR if near else FAR) + path)


def windowed(layer: Any, config: Any, trained: int) -> bool:
    """Return whether a layer attends within a window or a chunk of at most the training length.

    Args:
        layer: attention module.
        config: configuration of its model.
        trained: training length.
    """
    index: Any = getattr(layer, "layer_idx", None)
    if getattr(config, "is_heterogeneous", False) and index is not None:
        config = config.per_layer_config[index]
    types = getattr(config, "layer_types", None)
    kind = "sliding" if types is None or index is None else types[index]
    windows = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}
    sizes = [getattr(config, size, None) for part, size in windows.items() if part in kind]
    return any(size is not None and size <= trained for size in sizes)


def check(body: PreTrainedModel) -> None:
    """Refuse a body whose rotation is not that of `parameters`.

    Raises:
        ExtendError: if its configuration does not say how it rotates, or says so by other kinds of layers.
    """
    name, rope = type(body).__name__, getattr(body.config, "rope_parameters", None)
    if not isinstance(rope, dict):
        raise ExtendError(
            f"the configuration of {name} has no rope_parameters: its rotation cannot be scaled by them"
        )
    if scaling(body.config) == "proportional":
        return  # the frequencies of components that are not rotated are 0
    width, half = rotated(body.config, parameters(body.config)), len(body.get_buffer(frequencies(body)[0]))
    if (width + 1) // 2 != half:
        raise ExtendError(
            f"{name} rotates {2 * half} components of a head, and {width} by its configuration; its rotation "
            "cannot be scaled by it"
        )


def check_options(method: str, options: Mapping[str, Any], half: int, body: nn.Module) -> None:
    """Refuse options that Transformers would only warn about.

    Args:
        method: name of the method.
        options: options of the method by name.
        half: number of frequencies.
        body: model that is extended.

    Raises:
        ExtendError: if a value is not valid, or nothing reads it.

    Example:
        >>> check_options("yarn", {"truncate": 1}, 4, nn.Identity())
        Traceback (most recent call last):
        floater.pretrained.extending.errors.ExtendError: truncate is 1; it must be True or False
    """
    for name, value in options.items():
        if name in ("truncate", "declared"):
            if not isinstance(value, bool):
                raise ExtendError(f"{name} is {value!r}; it must be True or False")
        elif name in ("short_factor", "long_factor"):
            if not isinstance(value, list) or len(value) != half or not all(map(_is_positive, value)):
                raise ExtendError(f"{name} must be a list of {half} numbers above 0, one for each frequency")
        elif name == "clipped":
            if not isinstance(value, int) or isinstance(value, bool) or not 2 <= value <= half:
                raise ExtendError(f"{name} is {value!r}; it must be a whole number from 2 to {half}")
        elif not _is_positive(value):
            raise ExtendError(f"{name} is {value!r}; it must be a number above 0")
    for kind, low, high, defaults in (
        ("llama3", "low_freq_factor", "high_freq_factor", LLAMA3),
        ("yarn", "beta_slow", "beta_fast", {"beta_slow": 1.0, "beta_fast": 32.0}),
    ):
        values = {**defaults, **options}
        if method == kind and values[low] >= values[high]:
            raise ExtendError(f"{low} is {values[low]}; it must be below {high}, which is {values[high]}")
    # DeepSeek's attention reads the second by itself
    read = hasattr(sys.modules[type(body).__module__], "yarn_get_mscale")
    for name, other, alone in (("mscale", "mscale_all_dim", False), ("mscale_all_dim", "mscale", read)):
        if name in options and not alone and ("attention_factor" in options or other not in options):
            raise ExtendError(
                f"{name} is {options[name]}, which {type(body).__name__} reads only beside {other} and "
                "without attention_factor"
            )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def scale(config: Any, method: str, length: int, options: dict[str, Any]) -> None:
    """Write the rotary parameters of an extended model, and the length, into its configuration.

    Args:
        config: configuration of the model before the extension.
        method: name of the method.
        length: number of tokens to support.
        options: options of the method, by their names in Transformers; for "dynamic", `declared`.
    """
    rope, old = parameters(config), int(config.max_position_embeddings)
    factor, width = length / old, rotated(config, rope)
    changes: dict[str, Any] = {"rope_type": method, "factor": factor}
    follows = method == "dynamic" and not options.get("declared", True)
    options = {name: value for name, value in options.items() if name != "declared"}
    if method == "ntk" or (method == "dynamic" and not follows):
        changes = {"rope_theta": stretched_base(rope["rope_theta"], factor, width, method)}
    if method in DIVISORS:
        factors = DIVISORS[method](waves.frequencies(width, rope["rope_theta"]), old, **options)
        changes |= {"rope_type": "longrope", "attention_factor": 1.0}
        changes |= dict.fromkeys(("short_factor", "long_factor"), factors)
        options = {}
    if method in ("yarn", "longrope", "llama3", *DIVISORS):
        changes["original_max_position_embeddings"] = old
    if method == "llama3":
        changes |= LLAMA3
    if method == "longrope":
        factors = options.get("long_factor", [factor] * (width // 2))
        changes |= {"short_factor": factors, "long_factor": factors}
    if vars(config).get("head_dim", 0) is None:  # Transformers takes the default only if the field is missing
        config.head_dim = config.hidden_size // config.num_attention_heads
    if hasattr(config, "original_max_position_embeddings"):  # a separate field in Phi-3
        config.original_max_position_embeddings = config.max_position_embeddings
    if not follows:  # "dynamic" scales from this length, the training length
        config.max_position_embeddings = length
    replace_parameters(config, {**rope, **changes, **options})


def stretched_base(base: float, factor: float, width: int, method: str) -> float:
    """Return the base of "ntk", or of "dynamic" for texts of the new length.

    The lowest frequency is stretched by the factor, and the highest is kept (bloc97 2023). "dynamic" takes
    factor n / old - (factor - 1) in place of the factor in a text of n tokens.

    Args:
        base: base before.
        factor: ratio of the lengths.
        width: number of components that are rotated, more than 2.
        method: "ntk" or "dynamic".

    Example:
        >>> stretched_base(10000.0, 2.0, 4, "ntk")
        40000.0
    """
    stretch = factor if method == "ntk" else factor * factor - (factor - 1)
    return base * float(stretch ** (width / (width - 2)))


def rotated(config: Any, rope: Mapping[str, Any]) -> int:
    """Return the number of components of a head that are rotated by rotary parameters."""
    layers = getattr(config, "per_layer_config", None)
    if layers and (kind := layer_kind(config)) is not None:  # the width may differ by kind of layer
        config = layers[config.layer_types.index(kind)]
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head * rope.get("partial_rotary_factor", 1.0))


def refusal(
    body: nn.Module, method: str, length: int, options: dict[str, Any], config: Any = None
) -> str | None:
    """Return the reason for which the configuration of a body refuses a scaling; None if it accepts it.

    Args:
        body: one of `rotary_bodies`.
        method: name of the method.
        length: number of tokens to support.
        options: options of the method.
        config: configuration to try; that of the body by default.
    """
    config = copy.deepcopy(body.config if config is None else config)
    if method in ("clex", "dynamic", "ntk") and hasattr(config, _LAYER_BASES):
        return f"its layers have bases of their own, {_LAYER_BASES}"
    if method in ("clex", "self_extend", "log_n"):  # Transformers does not compute these
        return None
    scale(config, method, length, options)
    try:
        config.validate()
    except (StrictDataclassError, ValueError) as error:
        return str(error.__cause__ or error)
    try:
        for name in rotary_parts(body):
            part = body.get_submodule(name)
            type(part)(_part_config(config, part))
    except Exception as error:  # any error of any model
        return first_line(error)
    return None


def rebuild(body: PreTrainedModel, *, changed: bool) -> None:
    """Rebuild the rotary parts of a model from its configuration.

    Args:
        body: one of `rotary_bodies`.
        changed: True if the frequencies or the factor of sines and cosines must change.

    Raises:
        ExtendError: if they do not change.
    """
    before = _rotation(body)
    for name in rotary_parts(body):
        part: Any = body.get_submodule(name)
        rebuilt = type(part)(_part_config(body.config, part))
        body.set_submodule(name, rebuilt.to(next(part.buffers()).device))
    if changed and _rotation(body) == before:
        raise ExtendError(f"the scaling leaves every frequency of {type(body).__name__} as it is")


def parts_elsewhere(model: nn.Module, bodies: list[PreTrainedModel]) -> list[str]:
    """Return the names of the rotary parts outside bodies that are built from the bodies' configurations.

    The decoder of DiffusionGemma rotates by the configuration of the encoder, whose keys it reads.

    Args:
        model: model that contains the bodies.
        bodies: some of its `rotary_bodies`.
    """
    inside = {body.get_submodule(name) for body in bodies for name in rotary_parts(body)}
    return [
        name
        for name, part in model.named_modules()
        if _rotates(part)
        and part not in inside
        and any(getattr(part, "config", None) is body.config for body in bodies)
    ]


def rebuild_elsewhere(model: nn.Module, bodies: list[PreTrainedModel]) -> None:
    """Rebuild the `parts_elsewhere`, which would have other frequencies when the model is loaded again."""
    for name in parts_elsewhere(model, bodies):
        part: Any = model.get_submodule(name)
        model.set_submodule(name, type(part)(part.config).to(next(part.buffers()).device))


def _part_config(config: Any, part: Any) -> Any:
    """Return the configuration of a rotary part by that of its body; some layers have their own bases."""
    if not hasattr(config, _LAYER_BASES):
        return config
    config = copy.deepcopy(config)
    config.rope_parameters |= {"rope_theta": part.config.rope_parameters["rope_theta"]}
    return config


def _rotation(body: nn.Module) -> list[Any]:
    """Return the frequencies and factors of the rotary parts of a body, as plain numbers."""
    buffers = [body.get_buffer(name).tolist() for name in frequencies(body)]
    parts = [vars(body.get_submodule(name)) for name in rotary_parts(body)]
    return [buffers, [value for part in parts for name, value in part.items() if name.endswith("_scaling")]]
