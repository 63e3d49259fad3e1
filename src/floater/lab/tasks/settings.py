"""The parts of a configuration file that tasks share: the run, the Transformer and its position model."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from floater.encodings import PositionError, PositionModel, options
from floater.encodings.composed.parts import resolved
from floater.encodings.spec import Site
from floater.errors import DataError
from floater.lab.paths import expand_fields
from floater.lab.text.bpe import BYTES, SPECIALS, TOKENIZER_FILE, load_bpe
from floater.lab.training.named_files import files_named
from floater.lab.training.run import MODEL, VOCABULARY, inside
from floater.lab.training.settings import TrainingSettings, check_numbers, check_read, check_trained_flow
from floater.positions import Positions
from floater.transformer import FloaterConfig
from floater.transformer.stacks import position_model

if TYPE_CHECKING:
    PositionName = str
else:
    PositionName = str | list[Any] | dict[str, Any]  # which become names at once


@dataclass(frozen=True)
class Changes:
    """Changes to the preset; null keeps the preset's value.

    Attributes:
        hidden_size: width d.
        intermediate_size: inner width of the feed-forward layers.
        num_attention_heads: number of attention heads, a divisor of hidden_size.
        num_hidden_layers: number of blocks of the encoder, or of the language model.
        decoder_layers: number of blocks of the decoder of an encoder-decoder.
        dropout: dropout after the embeddings and after each sub-layer.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout inside the feed-forward layers.
        activation_function: Hugging Face name of the activation of the feed-forward layers.
        norm_first: true for pre-norm blocks with a final norm, instead of post-norm blocks.
        recipe: initialisation, scales and norms of the Transformer: transformer, bert, roberta, t5, gpt, or a
            mapping with one of these as preset, and the values that differ from it; null takes bert for the
            encodings of BERT and TUPE, else transformer.
        attention: "softmax", or "linear" or "performer" for position models that do not change the attention
            matrix.
        attention_features: number of random features of "performer".
        attention_temperature: "log" or "learned" scale of the logits, which grows with the logarithm of the
            number of keys.
        share_layers: true to apply one block as many times as there are layers, as Universal Transformers do.
        tie_word_embeddings: true for one matrix of source, target and output embeddings.
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
    attention: Literal["softmax", "linear", "performer"] | None = None
    attention_features: int | None = None
    attention_temperature: Literal["log", "learned"] | None = None
    share_layers: bool | None = None
    tie_word_embeddings: bool | None = None

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
        check_numbers(self, positive=(*sizes, "decoder_layers"))
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{name} is {rate}; it must be at least 0 and below 1")

    def non_null(self) -> dict[str, Any]:
        """Return the fields that are not null.

        Example:
            >>> Changes(dropout=0.3).non_null()
            {'dropout': 0.3}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


_SETTINGS = {
    **{change.name: f"changes.{change.name}" for change in fields(Changes)},
    "dim": "changes.hidden_size",
    "head_dim": "changes.hidden_size / changes.num_attention_heads",
    "training_length": "max_length",
}
"""Settings by the names that configurations and position models have for them."""
_NAMED = re.compile(rf"(?<![\w.'])(?:{'|'.join(_SETTINGS)})(?= (?:is|are|has|\d))")


@contextmanager
def _naming_settings() -> Iterator[None]:
    """Name the settings in the message of an error on a configuration, in place of its fields."""
    try:
        yield
    except ValueError as error:
        raise type(error)(_NAMED.sub(lambda name: _SETTINGS[name[0]], str(error))) from error


def resolve_position(model: Any, name: str) -> None:
    """Replace a list or a mapping in a field of the settings by the name and the options of its encoding.

    Args:
        model: settings with the fields `name` and `name`_options.
        name: "position" or "decoder_position".

    Raises:
        ValueError: if options are given beside a list or a mapping.
    """
    position, options = resolved(getattr(model, name), getattr(model, f"{name}_options"), name)
    object.__setattr__(model, name, position)
    object.__setattr__(model, f"{name}_options", options)


@dataclass(frozen=True)
class Model:
    """The Transformer and its position model.

    Attributes:
        preset: named size: transformer-base, transformer-big, small or tiny.
        position: name of the position model (see `floater models`), or a list of names, or mappings of name
            and options, of position models that are combined; or one such mapping, as {name: rotary, clock:
            {per: head}}.
        position_options: options of the position model; empty with a list or a mapping.
        max_length: training length in tokens: size of a table of learned positions, initial span of a flow.
        times: random times of training, as in {mode: stretch, max_scale: 4}: mode is stretch, shift, float or
            subset; max_scale is the ratio of the longest supported text to max_length; shift false begins at
            0 (stretch); each true gives every text of a batch an offset of its own (shift).
        reading: default of the trained model for long texts, as in {group: [32, 4]}: length (tokens
            declared), interpolate, group (w and G: distances above w in groups of G), temperature (sharper
            attention over more keys than max_length).
        changes: values that differ from the preset.
    """

    preset: str = "transformer-base"
    position: PositionName = "floater"
    position_options: dict[str, Any] = field(default_factory=dict)
    max_length: int = 1024
    times: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None
    changes: Changes = field(
        default_factory=Changes,
        metadata={"removed": ("halting", "ponder_cost")},  # runs of 0.1 have them
    )

    encoder_decoder: ClassVar[bool] = False
    output_embeddings: ClassVar[bool] = True
    """True if the model has output embeddings, which can be tied to its input embeddings."""
    Config: ClassVar[type[FloaterConfig]] = FloaterConfig

    def __post_init__(self) -> None:
        if not self.encoder_decoder:
            check_read(self.changes, ["decoder_layers"], "an encoder-decoder (task translation)", "changes.")
        if not self.output_embeddings:
            check_read(self.changes, ["tie_word_embeddings"], "a model that predicts tokens", "changes.")
        resolve_position(self, "position")
        with _naming_settings():
            self.position_model()
            if self.encoder_decoder:
                self.position_model("decoder")
                self.position_model("cross")

    def position_model(self, site: Site = "self") -> PositionModel:
        """Build a new position model of a stack of blocks (see `StackSpec.site`).

        Raises:
            ValueError: if the name, an option or a value is not valid.
        """
        if site not in self._built:
            config = self.config(vocab_size=BYTES + len(SPECIALS))
            layers = config.num_hidden_layers if site == "self" else config.decoder_layers
            try:
                self._built[site] = position_model(config, layers, site)
            except (TypeError, ZeroDivisionError) as error:
                name, chosen = config.position_at(site)
                raise ValueError(f"options {chosen} of position model '{name}': {error}") from error
        return self._built[site]

    @functools.cached_property
    def _built(self) -> dict[Site, PositionModel]:
        """Return the position models built by the validation of the settings, for reuse in later checks."""
        return {}

    @property
    def levels(self) -> tuple[Model, ...]:
        """Return the Transformers that the model consists of."""
        return (self,)

    def check_reach(self, length: int, longest: str, site: Site = "self") -> None:
        """Refuse a length beyond the positions of a bounded position model.

        Args:
            length: length in tokens.
            longest: noun for the object of this length, for the message.
            site: stack of blocks that reads it.

        Raises:
            PositionError: if the length exceeds the bound.
        """
        bound = self.position_model(site).max_positions
        if bound is not None and length > bound:
            name = self.config(BYTES + len(SPECIALS)).position_name(site)
            raise PositionError(f"'{name}' has {bound} positions, but {longest}; raise model.max_length")

    def config(self, vocab_size: int = 1, **data_fields: Any) -> Any:
        """Return the Hugging Face configuration, a `Config`, with the fields that a subclass adds.

        Args:
            vocab_size: number of tokens in the vocabulary.
            **data_fields: fields that depend on the training set.
        """
        added = [field.name for field in fields(self) if field.name not in Model.__dataclass_fields__]
        values = {
            "vocab_size": vocab_size,
            "position": self.position,
            "position_options": dict(self.position_options),
            "training_length": self.max_length,
            "times": self.times,
            "reading": self.reading,
            "is_encoder_decoder": self.encoder_decoder,
            **self.changes.non_null(),
            **{name: getattr(self, name) for name in added},
        }
        return self.Config.preset(self.preset, **values, **data_fields)


@dataclass(frozen=True)
class SplitData:
    """Examples that are split by their ids into a training, a validation and a test set.

    Attributes:
        train: source of the examples.
        valid_share: share of the examples used for validation, chosen by their ids.
        test_share: share of the examples excluded from training, for a test (floater evaluate --part test).
        split_seed: seed of the split.
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
        if not self.valid_share + self.test_share:
            check_read(self, ["split_seed"], "a split, by valid_share or test_share,")

    def part(self, examples: Sequence[Any], part: str) -> list[Any]:
        """Return the examples of a part, "train", "valid" or "test"; each example has an `id`.

        The part of an example depends only on its id and the seed, and not on the other examples.

        Raises:
            DataError: if there is no such part, or it is empty.
        """
        if part not in ("train", "valid", "test"):
            raise DataError(f"part is {part!r}; it must be train, valid or test")

        def assigned_part(example: Any) -> str:
            digest = hashlib.sha256(f"{self.split_seed}:{example.id}".encode()).digest()
            x = int.from_bytes(digest[:8], "big") / 2**64
            return "valid" if x < self.valid_share else "test" if x < held_out else "train"

        held_out = self.valid_share + self.test_share
        chosen = [example for example in examples if assigned_part(example) == part]
        if not chosen:
            raise DataError(
                f"none of the {len(examples):,} examples is for '{part}', with data.valid_share "
                f"{self.valid_share}, test_share {self.test_share} and split_seed {self.split_seed}"
            )
        return chosen


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A run.

    Attributes:
        run: directory for the configuration, vocabulary, log, checkpoints and final model.
        task: name of the task.
        data: source of the examples.
        model: settings of the Transformer and its position model.
        training: settings of the optimisation.
        imports: Python modules to import first, with tasks or position encodings of your own; the working
            directory is searched as well. Commands that read the run need --trust-code to import them.
    """

    run: str
    task: str
    data: Any
    model: Any
    training: TrainingSettings = field(default_factory=TrainingSettings)
    imports: list[str] = field(default_factory=list)

    def files_read(self) -> dict[str, Any]:
        """Return the files that training reads, whose contents must be the same when it is resumed.

        By default these are all files and folders that settings of the data name. Override it where a folder
        has more files than are read, or other settings name files.

        Returns:
            By the name of the setting, such as "data.train", a path, a `floater.lab.training.contents.Part`
            of a folder, or a list of them.
        """
        return files_named(self.data)

    def __post_init__(self) -> None:
        expand_fields(self)
        if not self.run:
            raise ValueError("run is ''; it must name a directory, as . for this one")
        for name, value in getattr(self.data, "__dict__", {}).items():
            if value in ("", [], {}) and name.startswith(("train", "valid")):  # "" would be this directory
                raise ValueError(f"data.{name} is {value!r}; it must name a file")
        for level in self.model.levels if isinstance(self.model, Model) else ():
            if "refresh_every" in options(level.position):
                check_trained_flow(self.training)


def files_of(data: Any, *names: str) -> dict[str, Any]:
    """Return the files that settings of the data name, as `RunSettings.files_read` does.

    Args:
        data: settings of the data.
        *names: names of settings whose value is a path, several paths, or null. The file of a `vocabulary` is
            its tokenizer.
    """
    files = {f"data.{name}": value for name in names if (value := getattr(data, name)) is not None}
    if (vocabulary := files.get("data.vocabulary")) is not None:  # perhaps of a run that is still training
        folder = inside(Path(vocabulary), VOCABULARY, MODEL)
        files["data.vocabulary"] = folder / TOKENIZER_FILE if folder.is_dir() else folder
    return files


def check_fields(model: Model, **supplied: tuple[bool, str]) -> None:
    """Refuse an encoding of fields of positions that the data lack, and second positions without a reader.

    Args:
        model: settings of the model.
        **supplied: by the name of a field, "language" or "reordered": whether the settings of the data supply
            it, and a hint at how they do.

    Raises:
        ValueError: if the encoding of the text reads a field that is not supplied; or if it does not read
            second positions, and these are.
    """
    for name, (is_supplied, hint) in supplied.items():
        is_read = reads(model.position_model(), name)
        if is_read and not is_supplied:
            raise ValueError(
                f"position model '{model.position}' reads the field '{name}' of positions; {hint}"
            )
        if is_supplied and not is_read and name == "reordered":
            raise ValueError(
                f"data has second positions, which position model '{model.position}' does not read; leave "
                "them out, or choose xl or xl_heads"
            )


def reads(position: PositionModel, name: str) -> bool:
    """Return whether a position model refuses positions without a field.

    Args:
        position: the position model.
        name: "language" or "reordered".

    Example:
        >>> model = Model(position="language_specific").position_model()
        >>> reads(model, "language"), reads(model, "reordered")
        (True, False)
    """
    positions = Positions.tree([[-1, 0]])
    zeros = torch.zeros(1, positions.query.shape[1], dtype=torch.long)
    positions = positions.but(language=zeros, reordered=zeros, token=zeros, target_length=torch.tensor([2]))
    try:
        position.prepare(positions)
    except PositionError:
        return False
    try:
        position.prepare(positions.but(**{name: None}))
    except PositionError:
        return True
    return False


def vocabulary_size(data: Any) -> int:
    """Return the number of tokens of the vocabulary that settings of the data name, or will train.

    Args:
        data: settings with `vocabulary` and `vocabulary_size`.
    """
    tokenizer = named_vocabulary(data)
    return int(data.vocabulary_size) if tokenizer is None else len(tokenizer)


def named_vocabulary(data: Any) -> Any:
    """Return the vocabulary that settings of the data name; None if it is trained, or does not exist yet."""
    if data.vocabulary is None:
        return None
    try:
        return load_bpe(inside(Path(data.vocabulary), VOCABULARY, MODEL))
    except DataError:
        return None


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a Hugging Face configuration for the labels of a classifier.

    Example:
        >>> label_maps(["no", "yes"])
        {'id2label': {0: 'no', 1: 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def check_block(what: str, tokens: int, training: TrainingSettings) -> None:
    """Refuse training rows that are longer than a batch.

    Args:
        what: noun for a row, for the message.
        tokens: number of tokens of a row.
        training: training settings, with the size of a batch.

    Raises:
        ValueError: if a row is longer.
    """
    if training.per_device_train_batch_size is None and tokens > training.max_tokens:
        raise ValueError(f"{what}, more than a batch, training.max_tokens {training.max_tokens}")
