"""The parts of a configuration file that tasks share: the Transformer, its position model, optimisation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from transformers.activations import ACT2FN

from floater.encodings import PositionError, PositionModel, options
from floater.encodings.model import Site
from floater.tasks.bpe import BYTES, SPECIALS
from floater.transformer import FloaterConfig
from floater.transformer.stacks import position_model


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
        num_hidden_layers: blocks of the encoder, or of the language model.
        decoder_layers: blocks of the decoder of an encoder-decoder.
        dropout: after the embeddings and after each sub-layer.
        attention_dropout: of the attention weights.
        activation_dropout: inside the feed-forward layers.
        activation_function: of the feed-forward layers, by its Hugging Face name.
        norm_first: pre-norm blocks with a last norm, instead of post-norm.
        recipe: initialisation, scales and norms of the Transformer: transformer, bert, roberta, t5, gpt, or a
            mapping of preset, one of these, and of what differs from it; null takes bert for the encodings of
            BERT and TUPE, else transformer.
        attention: "softmax", or "linear" for position models that leave the attention matrix alone.
        attention_temperature: "log" or "learned", logits that grow with the logarithm of the number of keys.
        share_layers: one block, applied as often as there are layers, as Universal Transformers do.
        halting: threshold between 0 and 1 at which a token needs no further layer; needs share_layers.
        ponder_cost: weight in the loss of the layers that tokens take, with halting.
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
    recipe: str | dict[str, Any] | None = None
    attention: Literal["softmax", "linear"] | None = None
    attention_temperature: Literal["log", "learned"] | None = None
    share_layers: bool | None = None
    halting: float | None = None
    ponder_cost: float | None = None
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
        position: name of the position model (see `floater models`), or a list of names and of mappings of
            name and options, which act together.
        position_options: its options; none with a list.
        max_length: training length in tokens: the table of learned positions, the span of a starting flow.
        times: random times of training, as in {mode: stretch, max_scale: 4}; mode stretch, shift, float or
            subset, max_scale the longest text served over max_length; shift false begins at 0 (stretch).
        reading: how the trained model reads long texts unless it is asked otherwise, as in {group: [32, 4]};
            length (tokens declared), interpolate, group (w and G: distances above w in groups of G),
            temperature (sharper attention over more keys than max_length).
        changes: what differs from the preset.
    """

    preset: str = "transformer-base"
    if TYPE_CHECKING:
        position: str = "floater"
    else:
        position: str | list[Any] = "floater"  # a list becomes "compose" at once
    position_options: dict[str, Any] = field(default_factory=dict)
    max_length: int = 1024
    times: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None
    changes: Changes = field(default_factory=Changes)

    encoder_decoder: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.position, list):
            if self.position_options:
                raise ValueError("position is a list; options stand in its entries, not in position_options")
            object.__setattr__(self, "position_options", {"models": self.position})
            object.__setattr__(self, "position", "compose")
        self.position_model()
        if self.encoder_decoder:
            self.position_model("decoder")
            self.position_model("memory")

    def position_model(self, site: Site = "self") -> PositionModel:
        """The position model of a stack of blocks (see `Frame.site`), with parameters of its own.

        Raises:
            ValueError: if the name, an option or a value is not valid.
        """
        config = self.config(vocab_size=BYTES + len(SPECIALS))
        layers = config.num_hidden_layers if site == "self" else config.decoder_layers
        try:
            return position_model(config, layers, site)
        except (TypeError, ZeroDivisionError) as error:
            raise ValueError(f"position_options {self.position_options}: {error}") from error

    def check_reach(self, length: int, longest: str) -> None:
        """Refuse what is longer than the positions of a position model that has so many.

        Args:
            length: in tokens.
            longest: what is so long, for the message.

        Raises:
            PositionError: if it is longer.
        """
        bound = self.position_model().bound
        if bound is not None and length > bound:
            raise PositionError(
                f"'{self.position}' has {bound} positions, but {longest}; raise model.max_length"
            )

    def config(self, vocab_size: int) -> FloaterConfig:
        """The Hugging Face configuration for a vocabulary of this size."""
        return FloaterConfig.preset(self.preset, **self.fields(vocab_size))

    def fields(self, vocab_size: int) -> dict[str, Any]:
        """What the configuration changes in the preset, or adds to it."""
        return {
            "vocab_size": vocab_size,
            "position": self.position,
            "position_options": dict(self.position_options),
            "training_length": self.max_length,
            "times": self.times,
            "reading": self.reading,
            "is_encoder_decoder": self.encoder_decoder,
            **self.changes.given(),
        }


@dataclass(frozen=True)
class Flow:
    """How the flow's parameters are trained (Liu et al. 2020, section 4.4).

    Attributes:
        lr_multiplier: learning rate of the flow as a multiple of the rest's.
        update_every: steps between updates of the flow; the gradients between are averaged. save_every
            must be a multiple.
    """

    lr_multiplier: float = 1.0
    update_every: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, positive=("lr_multiplier",), update_every=1)


@dataclass(frozen=True)
class Optimisation:
    """Optimisation. Defaults are those of Liu et al. 2020 (their repository) and Vaswani et al. 2017.

    Attributes:
        lr: peak learning rate.
        schedule: of the learning rate after its warm-up: "inverse_sqrt", "linear" (down to 0 at the last
            step), or "constant".
        warmup: steps of linear warm-up from initial_lr; below 1, a share of all steps.
        initial_lr: learning rate at the first step.
        max_tokens: tokens in a batch, padding included.
        batch_size: examples in a batch, of about equal length, instead of max_tokens.
        accumulation: batches in a step of one process; its gradient is the mean over all their tokens.
        epochs: passes over the data, where max_steps is null.
        max_steps: steps of the training, instead of epochs.
        betas: of Adam.
        eps: of Adam.
        weight_decay: of AdamW; 0 is Adam.
        clip: largest norm of the gradient; 0 means no clipping.
        seed: of the weights, the dropout and the order of the batches.
        validate_every: steps between validations, "epoch", or "never".
        log_every: steps between lines of the log (loss, learning rate, tokens per second).
        patience: validations without a better score before training stops; 0 means never.
        save_every: steps between checkpoints, or "epoch"; with flow.update_every above 1, a multiple of it.
        keep: checkpoints kept; the average needs as many.
        average: the last checkpoints whose mean is the final model; 0 takes the best validation's.
        bf16: bfloat16 autocast.
        flow: schedule of the flow's parameters.
    """

    lr: float = 7e-4
    schedule: Literal["inverse_sqrt", "linear", "constant"] = "inverse_sqrt"
    warmup: int | float = 4000
    initial_lr: float = 1e-7
    max_tokens: int = 2000
    batch_size: int | None = None
    accumulation: int = 1
    epochs: int = 30
    max_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    validate_every: int | Literal["epoch", "never"] = "epoch"
    log_every: int = 50
    patience: int = 0
    save_every: int | Literal["epoch"] = "epoch"
    keep: int = 5
    average: int = 5
    bf16: bool = False
    flow: Flow = field(default_factory=Flow)

    def __post_init__(self) -> None:
        positive = ("lr", "eps", "max_tokens", "max_steps", "validate_every", "log_every", "save_every")
        if not self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; it must be below 2**32")
        least = dict.fromkeys(("initial_lr", "weight_decay", "clip", "seed"), 0)
        least |= dict.fromkeys(("patience", "average", "warmup"), 0)
        least |= dict.fromkeys(("accumulation", "epochs", "keep", "batch_size"), 1)
        check_numbers(self, positive=positive, **least)
        if self.warmup == 0 and self.schedule == "inverse_sqrt":
            raise ValueError("warmup is 0; it must be at least 1 before an inverse square root")
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is {self.warmup}; it must be a number of steps, or a share below 1")
        lowest = self.lr * min(1.0, self.flow.lr_multiplier)
        if self.initial_lr > lowest:
            raise ValueError(f"initial_lr is {self.initial_lr}, above the peak rate {lowest:g}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; they must be at least 0 and below 1")
        if self.average > self.keep:
            raise ValueError(f"average is {self.average}, but only {self.keep} checkpoints are kept")
        if self.validate_every == "never" and (self.patience or not self.average):
            raise ValueError("patience and average=0 need validation; validate_every is 'never'")
        if self.patience and self.validate_every == "epoch" and self.save_every != "epoch":
            raise ValueError(
                f"patience with validate_every 'epoch' and save_every {self.save_every}: a checkpoint at an "
                "epoch's end would not know the validation there; save by epoch, or validate by steps"
            )
        if not self.average and not _falls_on(self.validate_every, self.save_every):
            raise ValueError(
                f"average=0 takes the best validation's checkpoint, but validate_every {self.validate_every} "
                f"is no multiple of save_every {self.save_every}"
            )


def _falls_on(event: int | str, other: int | str) -> bool:
    """Whether every step of an event is a step of the other, too."""
    return event % other == 0 if isinstance(event, int) and isinstance(other, int) else event == other


def check_flow(model: Model, training: Optimisation) -> None:
    """Refuse checkpoints between two updates of a flow, from which no run could go on as if never stopped.

    Raises:
        ValueError: if `training.save_every` is no multiple of `training.flow.update_every`, or a flow is
            reused among the parts of a batch.
    """
    if "refresh_every" not in options(model.position):
        return
    check_trained_flow(training, model.position_options.get("refresh_every", 1), "position_options")


def check_trained_flow(training: Optimisation, refresh_every: int, options: str) -> None:
    """Refuse what would train a flow otherwise than is asked for; see `check_flow`.

    Args:
        training: the settings.
        refresh_every: passes for which vectors are reused.
        options: where that is set, for messages.

    Raises:
        ValueError: as `check_flow`.
    """
    if refresh_every > 1 and training.accumulation > 1:
        raise ValueError(
            f"{options}.refresh_every is {refresh_every} and training.accumulation {training.accumulation}: "
            "passes are counted, so only some parts of a batch would train the flow; use flow.update_every"
        )
    save, update = training.save_every, training.flow.update_every
    if update > 1 and (save == "epoch" or save % update):
        raise ValueError(
            f"training.save_every is {save}; with flow.update_every {update} it must be a multiple of "
            f"{update} steps, or a resumed run would not equal a whole one"
        )
