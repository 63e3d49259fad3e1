"""The parts of a configuration file that tasks share: the run, the Transformer and its position model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from transformers.activations import ACT2FN

from floater.encodings import PositionError, PositionModel, catalogue, options
from floater.encodings.spec import Site
from floater.errors import DataError
from floater.settings import convert, members_of
from floater.tasks.corpora.split import split
from floater.text.bpe import BYTES, SPECIALS
from floater.training.settings import TrainingSettings, check_numbers, check_trained_flow
from floater.transformer import FloaterConfig
from floater.transformer.stacks import position_model


@dataclass(frozen=True)
class Changes:
    """Changes to the preset; null keeps the preset's value.

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
        """Return the fields that are not null.

        Example:
            >>> Changes(dropout=0.3).given()
            {'dropout': 0.3}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_options(position: str, given: Mapping[str, Any]) -> None:
    """Refuse options of a position encoding that are not of the type that it is written for.

    Args:
        position: name of the encoding; of an unknown one nothing is checked here, nor of an unknown option.
        given: its options.

    Raises:
        SettingsError: it names the option, its type and the value.

    Example:
        >>> check_options("floater", {"delta": "a"})
        Traceback (most recent call last):
        floater.settings.SettingsError: 'position_options.delta' must be float, not 'a'
    """
    if position not in catalogue():
        return
    for name, kind in get_type_hints(catalogue()[position].__init__).items():
        if name in given and {*members_of(kind)} <= {int, float, str, bool, NoneType}:
            convert(kind, given[name], f"position_options.{name}")


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
    Config: ClassVar[type[FloaterConfig]] = FloaterConfig

    def __post_init__(self) -> None:
        if isinstance(self.position, list):
            if self.position_options:
                raise ValueError("position is a list; options stand in its entries, not in position_options")
            object.__setattr__(self, "position_options", {"models": self.position})
            object.__setattr__(self, "position", "compose")
        check_options(self.position, self.position_options)
        self.position_model()
        if self.encoder_decoder:
            self.position_model("decoder")
            self.position_model("cross")

    def position_model(self, site: Site = "self") -> PositionModel:
        """Build the position model of a stack of blocks (see `StackSpec.site`), with parameters of its own.

        Raises:
            ValueError: if the name, an option or a value is not valid.
        """
        if site not in self._built:
            config = self.config(vocab_size=BYTES + len(SPECIALS))
            layers = config.num_hidden_layers if site == "self" else config.decoder_layers
            try:
                self._built[site] = position_model(config, layers, site)
            except (TypeError, ZeroDivisionError) as error:
                raise ValueError(f"position_options {self.position_options}: {error}") from error
        return self._built[site]

    @functools.cached_property
    def _built(self) -> dict[Site, PositionModel]:
        """Return what was built to validate the settings, so that no later check builds it again."""
        return {}

    @property
    def levels(self) -> tuple[Model, ...]:
        """Return the Transformers that the model consists of."""
        return (self,)

    def check_reach(self, length: int, longest: str) -> None:
        """Refuse what is longer than the positions of a position model that has a bound.

        Args:
            length: in tokens.
            longest: what has this length, for the message.

        Raises:
            PositionError: if it is longer.
        """
        bound = self.position_model().max_positions
        if bound is not None and length > bound:
            raise PositionError(
                f"'{self.position}' has {bound} positions, but {longest}; raise model.max_length"
            )

    def config(self, vocab_size: int = 1, **found: Any) -> Any:
        """Return the Hugging Face configuration, a `Config` with what a subclass adds to the fields here.

        Args:
            vocab_size: tokens in the vocabulary.
            **found: what the training set says.
        """
        own = [field.name for field in fields(self) if field.name not in Model.__dataclass_fields__]
        given = {
            "vocab_size": vocab_size,
            "position": self.position,
            "position_options": dict(self.position_options),
            "training_length": self.max_length,
            "times": self.times,
            "reading": self.reading,
            "is_encoder_decoder": self.encoder_decoder,
            **self.changes.given(),
            **{name: getattr(self, name) for name in own},
        }
        return self.Config.preset(self.preset, **given, **found)


@dataclass(frozen=True)
class SplitData:
    """Examples that are split by their ids into those for training, validation and a test.

    Attributes:
        train: where they come from.
        valid_share: share of the examples that are for validation, chosen by their ids.
        test_share: share that no training sees (floater evaluate --part test).
        split_seed: another one chooses other parts.
    """

    train: str
    valid_share: float = 0.1
    test_share: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, valid_share=0, test_share=0, split_seed=0)
        if not self.valid_share + self.test_share < 1:
            raise ValueError(
                f"valid_share {self.valid_share} and test_share {self.test_share} leave nothing for training"
            )

    def part(self, examples: Sequence[Any], part: str) -> list[Any]:
        """Return the examples, which have an `id` each, of "train", "valid" or "test".

        Raises:
            DataError: if there is none.
        """
        shares = {"valid": self.valid_share, "test": self.test_share}
        found = split(examples, part, **shares, seed=self.split_seed, name=lambda example: str(example.id))
        if not found:
            raise DataError(
                f"none of the {len(examples):,} examples is for '{part}', with data.valid_share "
                f"{self.valid_share}, test_share {self.test_share} and split_seed {self.split_seed}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A run.

    Attributes:
        run: directory for the configuration, vocabulary, log, checkpoints and final model.
        task: name of the task.
        data: where the examples come from.
        model: the Transformer and its position model.
        training: optimisation.
        imports: Python modules to import first, with tasks or position encodings of your own; they are found
            from the working directory, too.
    """

    run: str
    task: str
    data: Any
    model: Any
    training: TrainingSettings = field(default_factory=TrainingSettings)
    imports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for level in self.model.levels if isinstance(self.model, Model) else ():
            if "refresh_every" in options(level.position):
                check_trained_flow(self.training)


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """Return the labels of a classifier as its configuration has them.

    Example:
        >>> label_maps(["no", "yes"])
        {'id2label': {0: 'no', 1: 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def check_block(what: str, tokens: int, training: TrainingSettings) -> None:
    """Refuse training rows that are longer than a batch.

    Args:
        what: has this many tokens, for the message.
        tokens: of a row.
        training: the settings of the batches.

    Raises:
        ValueError: if a row is longer.
    """
    if training.per_device_train_batch_size is None and tokens > training.max_tokens:
        raise ValueError(f"{what}, more than a batch, training.max_tokens {training.max_tokens}")
