"""Stage 2 of the protocol of Liu et al. 2020, B.2: a Transformer's weights in a FLOATER model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from floater.encodings import options
from floater.encodings.composed.parts import named
from floater.encodings.spec import Site
from floater.errors import DataError
from floater.lab.training.model import load_weights
from floater.pretrained.extending.continuation import continue_table
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration, encoder_decoder

_STACKS: Mapping[Site, str] = {"self": "encoder", "decoder": "decoder"}
POSITION_PARTS = ("encoder.position.", "decoder.position.", "decoder.cross_position.")
_ONLY_TRAINING = ("start", "solver", "step", "gradient", "refresh_every")
_START_AT_RANDOM = ("clock", "floater_cde")
"""Encodings whose option `std` is that of initial weights."""
_COMPUTES = (
    "num_attention_heads",
    "activation_function",
    "norm_first",
    "attention",
    "attention_features",
    "attention_temperature",
    "share_layers",
)
"""Config fields, other than shapes and the position model, that change what the weights compute."""


def is_position(name: str) -> bool:
    """Return whether a parameter of the encoder-decoder belongs to its position models.

    Example:
        >>> is_position("decoder.cross_position.flows.0.start"), is_position("embedding.weight")
        (True, False)
    """
    return name.startswith(POSITION_PARTS)


def warm_started(
    config: FloaterConfig, trained: FloaterForConditionalGeneration, origin: str
) -> FloaterForConditionalGeneration:
    """Build a model of `config` with the weights of a trained one; only position parameters may be new.

    Args:
        config: configuration of the new model.
        trained: trained model, with the same position model as the new one. For a FLOATER model with
            injection "qkv" it is the plain Transformer with sinusoids at the input; for a composition of a
            position model and flows added to it, or for one with a clock, a model with that position model;
            for "floater_cde" also one with "rotary".
            Tables that are shorter than the new ones are continued by the linear flow that fits them best.
        origin: source of `trained`, for messages.

    Returns:
        The new model. With a zero flow its outputs equal those of `trained`, bit for bit.

    Raises:
        DataError: if the new position model cannot start from the trained one, or the weights do not fit.

    Example:
        >>> plain = FloaterConfig.preset("tiny", vocab_size=8, position="sinusoidal")
        >>> stage1 = FloaterForConditionalGeneration(plain)
        >>> flow = FloaterConfig.preset("tiny", vocab_size=8, position_options={"start": "zero"})
        >>> stage2 = warm_started(flow, stage1, "stage 1")
        >>> bool((stage1.embedding.weight == stage2.embedding.weight).all())
        True
    """
    before = trained.config
    assert isinstance(before, FloaterConfig)
    _check(config, before, origin)
    model = encoder_decoder(config)
    weights: Mapping[str, Tensor] = trained.state_dict()
    if config.position == "compose" != before.position:
        weights = _as_part(weights, f"parts.{_part(config, before, origin)}", model.state_dict())
    elif config.position == "clock" != before.position:
        weights = _as_part(weights, "inner", model.state_dict())
    load_weights(model, weights, origin, may_lack=is_position)
    return model


def _as_part(weights: Mapping[str, Tensor], part: str, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with the position model as a part of another, with tables of the new length."""
    renamed = {}
    for name, weight in weights.items():
        for prefix in POSITION_PARTS:
            name = name.replace(prefix, f"{prefix}{part}.")
        if ".tables." in name and name in wanted and len(weight) < len(wanted[name]):
            weight = continue_table(weight, len(wanted[name]), "flow", special=(0, 0))
        renamed[name] = weight
    return renamed


def _part(new: FloaterConfig, old: FloaterConfig, origin: str) -> int:
    """Return the index of the part of a composition that is the position model of a trained model.

    Raises:
        DataError: if no part is that position model, or another part is not an added flow.
    """
    parts = [named(part) for part in (new.position_options or {})["models"]]
    same = [index for index, (name, _) in enumerate(parts) if name == old.position]
    flows = [options_ for name, options_ in parts if name == "floater" and options_.get("injection") == "add"]
    if len(same) != 1 or len(flows) != len(parts) - 1:
        raise DataError(
            f"{origin} has the position model '{old.position}', which 'compose' cannot continue; valid: that "
            "model and 'floater' with injection 'add'"
        )
    _check_options(options(old.position) | parts[same[0]][1], _meaning(old), origin)
    return same[0]


def _check(new: FloaterConfig, old: FloaterConfig, origin: str) -> None:
    for name in _COMPUTES:
        if getattr(new, name) != getattr(old, name):
            raise DataError(f"{origin} has {name} {getattr(old, name)!r}, not {getattr(new, name)!r}")
    if new.tie_word_embeddings and not old.tie_word_embeddings:
        raise DataError(f"{origin} has tie_word_embeddings False: two tables, of which True keeps one")
    if new.decoder_position is not None or old.decoder_position is not None:
        _check_decoders(new, old, origin)
    here, there = _meaning(new), _meaning(old)
    if new.position == "floater" and here["injection"] == "qkv" and old.position == "sinusoidal":
        if there["blocks"] != "input":
            raise DataError(
                f"{origin} has sinusoids at blocks {there['blocks']}, but 'floater' at the input only"
            )
        return
    if new.position == "compose" != old.position:
        _part(new, old, origin)
        return
    if new.position == "clock" != old.position:
        name, chosen = named((new.position_options or {})["model"])
        if name == old.position:
            _check_options(options(name) | chosen, there, origin)
            return
    if (old.position, new.position) == ("rotary", "floater_cde") and here["positions"]:
        _check_options(options("rotary") | {"base": here["base"]}, there, origin)
        return
    if new.position != old.position:
        raise DataError(
            f"{origin} has the position model '{old.position}', which '{new.position}' cannot continue; "
            "valid: the same model, 'sinusoidal' followed by 'floater' with injection 'qkv', 'rotary' by "
            "'floater_cde', or a model followed by its composition with 'floater' of injection 'add', or by "
            "itself with a 'clock'"
        )
    _check_options(here, there, origin)


def _check_decoders(new: FloaterConfig, old: FloaterConfig, origin: str) -> None:
    """Refuse a decoder with an encoding of its own, unless the encodings of both models are the same."""
    for site, stack in _STACKS.items():
        (name, _), (other, _) = new.position_at(site), old.position_at(site)
        if name != other:
            raise DataError(
                f"{origin} has the position model '{other}' in its {stack}, which '{name}' cannot continue: "
                "with a decoder_position, both must be the same"
            )
        _check_options(_meaning(new, site), _meaning(old, site), origin)


def _check_options(here: Mapping[str, Any], there: Mapping[str, Any], origin: str) -> None:
    for name, value in there.items():
        if here[name] != value:
            raise DataError(f"{origin} has the position option {name} {value!r}, not {here[name]!r}")


def _meaning(config: FloaterConfig, site: Site = "self") -> dict[str, Any]:
    """Return the options that decide what a position model's parameters compute."""
    name, chosen = config.position_at(site)
    meaningless = (*_ONLY_TRAINING, "std") if name in _START_AT_RANDOM else _ONLY_TRAINING
    return {key: value for key, value in (options(name) | chosen).items() if key not in meaningless}
