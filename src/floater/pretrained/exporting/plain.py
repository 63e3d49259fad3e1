"""Models of Transformers' own classes that compute what extended models compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.extending import biases, clex, native, rotary
from floater.pretrained.extending.install import KEY, NOTE, PLAIN, extension_settings
from floater.pretrained.host import inner
from floater.pretrained.parts import changed_apart
from floater.pretrained.plugged import plugged
from floater.transformer.base import FloaterPreTrainedModel


@torch.no_grad()
def plain_model(model: nn.Module) -> Any:
    """Return a model of Transformers' own class that computes the same and shares the weights.

    Transformers, `torch.export` and converters read it without this library. Longer tables, rotary
    configurations and fixed bases are those of the extended model. Two extensions are written in other terms:

    - "clex" has one vector of frequencies for all texts. This is LongRoPE with these factors (Ding et al.
      2024, "LongRoPE", section 3), equal up to rounding.
    - "flow" for T5 has a bias for each distance. This is T5's table with a bucket for each distance (Raffel
      et al. 2020, section 2.1), equal bit for bit.

    Args:
        model: model of Transformers, extended or not.

    Raises:
        ExportError: if Transformers has no class that computes the same: for plugged models, "self_extend",
            "log_n", a "clex" that depends on the length, the biases of BLOOM, Falcon and MPT, adapters that
            are not merged, and models of this library.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> from floater.pretrained import extend
        >>> config = T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        >>> model = T5EncoderModel(config).eval()
        >>> summary = extend(model, 128, trained=64)
        >>> ids = torch.ones(1, 100, dtype=torch.long)
        >>> with torch.no_grad():
        ...     torch.equal(plain_model(model)(ids).last_hidden_state, model(ids).last_hidden_state)
        True
    """
    model = inner(model)
    check_whole(model)
    name = type(model).__name__
    if (state := plugged(model)) is not None:
        if "clock" in state.options:
            raise ExportError(
                f"this {name} has clocks, by which the text drives its rotation; export it with code=True"
            )
        raise ExportError(
            f"this {name} is plugged: a flow adds a vector to each query, key and value, after the layer "
            "norm, and a table adds one to the embedding before it; export it with code=True"
        )
    copies: dict[int, Any] = {}
    config: Any = copy.deepcopy(model.config, copies)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith(f"{KEY}.")}
    settings = extension_settings(model)
    if settings is not None and settings["method"] not in PLAIN:
        _REWRITES[settings["method"]](model, settings, copies, weights)
    without_record(config, settings)
    kind: Any = type(model)
    check_weights(kind, config, weights)
    plain = kind.from_pretrained(None, config=config, state_dict=weights, dtype=kind.dtype.fget(model))
    plain._weight_conversions = getattr(model, "_weight_conversions", None)  # the names in the files
    if hasattr(model, "generation_config"):
        plain.generation_config = copy.deepcopy(model.generation_config)
    return plain.eval()


def check_whole(model: Any) -> None:
    """Refuse a model of which a part has what its files would lack.

    Raises:
        ExportError: if it is not a model of Transformers, is quantized, has adapters, or a part of it was
            plugged or extended apart.
    """
    name = type(model).__name__
    if isinstance(model, FloaterPreTrainedModel):
        raise ExportError(
            f"{name} is a model of this library, and Transformers has no class that computes the same: bake "
            "it and export the program (torch.export or ONNX)"
        )
    if not isinstance(model, nn.Module) or not hasattr(model, "save_pretrained"):
        raise ExportError(f"the model is a {name}; it must be a model of transformers")
    if getattr(model, "is_quantized", False):
        raise ExportError(f"this {name} is quantized; load it with dtype, not quantized, and export that")
    if getattr(model, "peft_config", None) or any(hasattr(part, "lora_A") for part in model.modules()):
        raise ExportError(f"this {name} has adapters; merge them first (merge_and_unload)")
    if changed_apart(model):
        raise ExportError(
            f"a part of this {name} was plugged or extended apart; plug or extend the whole model"
        )
    for key, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and type(value.data) is not Tensor:
            raise ExportError(
                f"'{key}' of this {name} is a {type(value.data).__name__}, as in a quantized or distributed "
                "model; export the model with plain weights"
            )


def check_weights(kind: Any, config: Any, weights: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of a class: it would drop some, or start others at random.

    Args:
        kind: class of Transformers.
        config: its configuration.
        weights: the tensors of its files by name.

    Raises:
        ExportError: if a weight is missing, has another shape, or has no place in the class.
    """
    with torch.device("meta"):
        expected = kind(copy.deepcopy(config)).state_dict()
    for key in sorted(expected.keys() | weights.keys()):
        shapes = [
            tuple(each[key].shape) if isinstance(each.get(key), Tensor) else None
            for each in (expected, weights)
        ]
        if shapes[0] != shapes[1]:
            theirs, ours = ("missing" if shape is None else str(shape) for shape in shapes)
            raise ExportError(
                f"'{key}' is {ours} in this model and {theirs} in a {kind.__name__} of its configuration, as "
                "after blocks were removed or layers replaced; only weights of that class can be exported"
            )


def without_record(config: Any, settings: Mapping[str, Any] | None) -> None:
    """Remove what this library has recorded in a configuration, and note the extension for its next reader.

    The model would else pass for an original one, and a second extension would count from its length.

    Args:
        config: configuration; changed in place.
        settings: settings of the extension; None if the rotary parameters or the tables say all.
    """
    fusions = dict(getattr(config, "fusion_config", None) or {})
    for name in (KEY, "floater", "fusion_config"):
        vars(config).pop(name, None)
    if fusions := {key: value for key, value in fusions.items() if not key.startswith("floater:")}:
        config.fusion_config = fusions
    if settings is not None:
        setattr(config, NOTE, {name: settings[name] for name in ("method", "old", "new")})


def _clex(
    model: Any, settings: Mapping[str, Any], copies: dict[int, Any], weights: dict[str, Tensor]
) -> None:
    """Write the frequencies of a flow over scale as factors of LongRoPE."""
    if not settings["declared"]:
        raise ExportError(
            "'clex' with declared=False rotates by the longest text of a batch, which no other reader does; "
            "extend with declared=True"
        )
    old, new = settings["old"], settings["new"]
    for body in model.modules():
        for part in (each for each in body.children() if isinstance(each, clex.ScaledRotary)):
            scaled, factor = part.flow().at(new / old)
            config = copies[id(body.config)]
            exponents = torch.arange(len(scaled), dtype=torch.float64) / len(scaled)
            base = native.parameters(config)["rope_theta"] ** exponents
            factors = (1 / (scaled.double().cpu() * base)).tolist()
            options = {"long_factor": factors, "attention_factor": factor}
            config.max_position_embeddings = old
            if reason := rotary.refusal(body, "longrope", new, options, config):
                raise ExportError(f"{type(body).__name__} takes no factors for its frequencies: {reason}")
            rotary.scale(config, "longrope", new, options)


def _flow(
    model: Any, settings: Mapping[str, Any], copies: dict[int, Any], weights: dict[str, Tensor]
) -> None:
    """Write the continued biases of T5 as a table with a bucket for each distance."""
    tables = [
        (path, table)
        for path, part in model.named_modules()
        if isinstance(table := getattr(part, "relative_attention_bias", None), biases.Buckets)
    ]
    if not tables:
        raise ExportError(
            f"the code of {type(model).__name__} computes the slopes of its biases, and no configuration "
            "replaces them; use it with this library"
        )
    count = 4 * settings["new"]  # half of a side's buckets are exact, and encoders have two sides
    for path, table in tables:
        sides = table.options["bidirectional"]
        options = {"bidirectional": sides, "num_buckets": count, "max_distance": count}
        every, device = range(1 - count, count), table.weight.device
        values = biases.continued_bias(table.flow, table.trained, every, table.old, device)
        distances = torch.arange(every.start, every.stop, device=device)
        # the nearest distance of each bucket, by its index in the last digits; threads write in any order
        keys = distances.abs() * len(every) + torch.arange(len(every), device=device)
        none = count * len(every)
        nearest = keys.new_full((count,), none)
        nearest = nearest.scatter_reduce(0, table.bucket(distances, **options), keys, "amin")
        reached = nearest < none  # no text reaches a bucket without a distance below `count`
        weight = values.new_zeros(count, values.shape[1])
        weight[reached] = values[nearest[reached] % len(every)]
        weights[f"{path}.relative_attention_bias.weight"] = weight
        config = copies[id(model.config)]  # T5 copies it for its encoder and its decoder
        config.relative_attention_num_buckets = config.relative_attention_max_distance = count


def _refuse(
    model: Any, settings: Mapping[str, Any], copies: dict[int, Any], weights: dict[str, Tensor]
) -> None:
    raise ExportError(
        f"no class of Transformers computes {settings['method']!r}, which changes attention; export it with "
        "code=True"
    )


_Rewrite = Callable[[Any, Mapping[str, Any], dict[int, Any], dict[str, Tensor]], None]
_REWRITES: Mapping[str, _Rewrite] = {"clex": _clex, "flow": _flow, "self_extend": _refuse, "log_n": _refuse}
