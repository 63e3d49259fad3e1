"""Stage 2 of the protocol of Liu et al. 2020, B.2: a Transformer's weights in a FLOATER model."""

from __future__ import annotations

from floater.tasks.text import DataError
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration

POSITION_PARTS = ("encoder.position.", "decoder.position.", "decoder.memory.")


def is_position(name: str) -> bool:
    """Whether a parameter of the encoder-decoder belongs to its position models."""
    return name.startswith(POSITION_PARTS)


def warm_started(
    config: FloaterConfig, trained: FloaterForConditionalGeneration, origin: str
) -> FloaterForConditionalGeneration:
    """A model of `config` with the weights of a trained one; only position parameters may be new.

    Args:
        config: of the new model.
        trained: the model to continue from: one with the same position model, or, for a FLOATER model with
            injection "qkv", the plain Transformer with sinusoids at the input.
        origin: where `trained` comes from, for messages.

    Returns:
        The new model; with a zero flow it computes what `trained` computes, bit for bit.

    Raises:
        DataError: if the position models do not continue each other, or the sizes differ.
    """
    _check_positions(config, trained.config, origin)
    model = FloaterForConditionalGeneration(config)
    known = model.state_dict()
    weights = {name: value for name, value in trained.state_dict().items() if name in known or not is_position(name)}
    for name, value in weights.items():
        if name not in known or known[name].shape != value.shape:
            here = tuple(known[name].shape) if name in known else "absent"
            raise DataError(f"cannot start from {origin}: {name} is {tuple(value.shape)} there and {here} here")
    missing = [name for name in known if name not in weights and not is_position(name)]
    if missing:
        raise DataError(f"cannot start from {origin}: it has no {missing[0]}")
    model.load_state_dict(weights, strict=False)
    return model


def _check_positions(new: FloaterConfig, old: FloaterConfig, origin: str) -> None:
    options, before = new.position_options or {}, old.position_options or {}
    same = new.position == old.position and options.get("injection") == before.get("injection")
    plain = old.position == "sinusoidal" and before.get("blocks", "input") == "input"
    onto_plain = new.position == "floater" and options.get("injection", "qkv") == "qkv"
    if not same and not (plain and onto_plain):
        raise DataError(
            f"{origin} has the position model '{old.position}', which '{new.position}' cannot continue; "
            "valid: the same model, or 'sinusoidal' at the input followed by 'floater' with injection 'qkv'"
        )
