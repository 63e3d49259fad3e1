"""The part of a configuration file that says which Transformer and which position model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers.activations import ACT2FN

from floater.encodings.model import Site
from floater.tasks.bpe import BYTES, SPECIALS
from floater.transformer import FloaterConfig
from floater.transformer.blocks import position_model


def check_numbers(section: Any, *, positive: tuple[str, ...] = (), **least: float) -> None:
    """Refuse numbers of a section of settings that are too small, not a number or infinite.

    Args:
        section: has the numbers as attributes; null and texts pass.
        positive: names of those that must be above 0.
        least: the least value allowed of others, by name.

    Raises:
        ValueError: it names the number, its value and its bound.

    Example:
        >>> check_numbers(Changes(dropout=0.1), dropout=0.5)
        Traceback (most recent call last):
        ValueError: dropout is 0.1; it must be at least 0.5
    """
    for name, low in (dict.fromkeys(positive, 0) | least).items():
        value = getattr(section, name)
        if not isinstance(value, int | float):  # "epoch", or null
            continue
        if not (low < value if name in positive else low <= value) or value == math.inf:
            bound = "positive" if name in positive else f"at least {low}"
            raise ValueError(f"{name} is {value}; it must be {bound}")


@dataclass(frozen=True)
class Changes:
    """What differs from the preset; null keeps the preset's value.

    Attributes:
        hidden_size: width d.
        intermediate_size: inner width of the feed-forward layers.
        num_attention_heads: heads; they divide hidden_size.
        num_hidden_layers: blocks of the encoder.
        decoder_layers: blocks of the decoder.
        dropout: after the embeddings and after each sub-layer.
        attention_dropout: of the attention weights.
        activation_dropout: inside the feed-forward layers.
        activation_function: of the feed-forward layers, by its Hugging Face name.
        norm_first: pre-norm blocks with a last norm, instead of post-norm.
        tie_word_embeddings: one matrix for source, target and output embeddings.
    """

    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_hidden_layers: int | None = None
    decoder_layers: int | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    activation_function: str | None = None
    norm_first: bool | None = None
    tie_word_embeddings: bool | None = None

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
        check_numbers(self, positive=(*sizes, "decoder_layers"))
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{name} is {rate}; it must be at least 0 and below 1")
        if self.activation_function is not None and self.activation_function not in ACT2FN:
            valid = ", ".join(ACT2FN)
            raise ValueError(f"activation_function is '{self.activation_function}'; there are: {valid}")

    def given(self) -> dict[str, Any]:
        """The fields that are not null.

        Example:
            >>> Changes(dropout=0.3).given()
            {'dropout': 0.3}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Model:
    """The Transformer and its position model.

    Attributes:
        preset: named size: transformer-base, transformer-big, small or tiny.
        position: name of the position model (see `floater models`).
        position_options: its options.
        max_length: training length in tokens: the table of learned positions, the span of a starting flow.
        changes: what differs from the preset.
    """

    preset: str = "transformer-base"
    position: str = "floater"
    position_options: dict[str, Any] = field(default_factory=dict)
    max_length: int = 1024
    changes: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        config = self.config(vocab_size=BYTES + len(SPECIALS))
        sites: dict[Site, int] = {
            "self": config.num_hidden_layers,
            "decoder": config.decoder_layers,
            "memory": config.decoder_layers,
        }
        for site, layers in sites.items():
            try:
                position_model(config, layers, site)
            except (TypeError, ZeroDivisionError) as error:
                raise ValueError(f"position_options {self.position_options}: {error}") from error

    def config(self, vocab_size: int) -> FloaterConfig:
        """The Hugging Face configuration for a vocabulary of this size."""
        return FloaterConfig.preset(
            self.preset,
            vocab_size=vocab_size,
            position=self.position,
            position_options=dict(self.position_options),
            training_length=self.max_length,
            is_encoder_decoder=True,
            **self.changes.given(),
        )
