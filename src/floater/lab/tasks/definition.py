"""The definition of a task: its examples, their encoding, its model and its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.text.bpe import load_bpe
from floater.lab.training.run_trainer import RunTrainer


class TaskDefinition(ABC):
    """The part of a `Task` that each task defines for itself, or overrides; `Task` documents it."""

    name: ClassVar[str]
    Settings: ClassVar[type[Any]]
    metric: ClassVar[str]
    greater: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ()
    validation_loss: ClassVar[str | None] = "loss"
    example: ClassVar[str] = "example"
    unit: ClassVar[str] = "tokens"
    shorten: ClassVar[str] = ""
    output: ClassVar[str] = ""
    reads_tables: ClassVar[bool] = False
    stored: ClassVar[tuple[type, ...]] = ()
    Trainer: ClassVar[type[RunTrainer]] = RunTrainer
    measure: ClassVar[Callable[..., Measurement] | None] = None
    predict: ClassVar[Callable[..., list[str]] | None] = None

    # Methods that a task must define.

    @abstractmethod
    def make_processor(self, settings: Any, train: Any) -> Any:
        """Make the processor, which encodes examples and has `save_pretrained`, from training examples."""

    @abstractmethod
    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Any:
        """Encode examples; training examples may be filtered."""

    @abstractmethod
    def build(self, settings: Any, processor: Any, train: Any) -> Any:
        """Build the initial model for encoded training examples."""

    @abstractmethod
    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        """Return the function from encoded examples to a batch, which has the model's inputs and `labels`."""

    @abstractmethod
    def score(self, settings: Any, model: Any, processor: Any, examples: Any) -> Measurement:
        """Score a model on encoded examples; no random number is used, so that the training is unaffected."""

    # Methods that a task may override.

    def read(self, settings: Any) -> Splits:
        """Read the training and the validation examples, by default with `read_test`.

        Raises:
            DataError: if the data are not valid.
        """
        sources = {name: getattr(settings.data, name) for name in ("train", "valid")}
        if self.reads_tables:
            sources = {name: with_split(source, name) for name, source in sources.items()}
        return Splits(*(self.read_test(settings, source) for source in sources.values()))

    def check_needs(self, settings: Any) -> None:
        """Refuse a run without what it needs besides data, such as a checkpoint, before any data are read.

        Raises:
            DataError: if something is missing or unfit.
            PositionError: if the task cannot have this position model.
        """
        return

    def read_test(self, settings: Any, source: Any) -> Any:
        """Read the examples of a test set.

        Raises:
            DataError: if the examples are not valid.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no test sets")

    def vocabulary_key(self, settings: Any) -> Any:
        """Return what, besides the data, determines the trained vocabulary; None if none is trained."""
        return None

    def stores_text(self, settings: Any) -> bool:
        """Return whether the examples as they are read are of the classes in `stored`."""
        return True

    def stores_tokens(self, settings: Any) -> bool:
        """Return whether training tokens follow from the data and the processor, so that runs share them."""
        return True

    def load_processor(self, folder: Path, /) -> Any:
        """Load a saved processor; by default a BPE vocabulary."""
        return load_bpe(folder)

    def for_model(self, prepared: Prepared) -> Any:
        """Return the processor that is saved with the final model; by default that of the run."""
        return prepared.processor

    def empty(self, settings: Any) -> Any:
        """Return the initial model on the device "meta", before data are read; None if it is unknown."""
        return None

    def kind(self, settings: Any) -> Callable[[Any], Any]:
        """Return the function from a Hugging Face configuration to the model of a run, for `load`."""
        raise NotImplementedError(f"{type(self).__name__} defines no kind of model to load")

    def training_collate(self, prepared: Prepared, epoch: int) -> Collate:
        """Return the collate function of a training epoch; by default the same for all epochs."""
        return self.collate(prepared.settings, prepared.processor, prepared.model)

    def loss(self, prepared: Prepared) -> Any:
        """Return the loss function of outputs and labels; None for the cross-entropy with aligned labels."""
        return None

    def best(self, settings: Any) -> dict[str, Any]:
        """Return `metric` and `greater`; override it where they depend on the settings."""
        return {"metric": self.metric, "greater": self.greater}

    def validate(self, prepared: Prepared) -> Measurement:
        """Score the model on the validation set during training."""
        return self.score(prepared.settings, prepared.model, prepared.processor, prepared.valid)

    def before(self, prepared: Prepared) -> dict[str, Any]:
        """Return the entries of the result about the initial model."""
        return {}

    def validates(self, settings: Any) -> bool:
        """Return whether `final` has the scores of the validation set."""
        return True

    def final(self, prepared: Prepared) -> dict[str, Any]:
        """Return the entries of the result about the final model; by default its validation scores."""
        return self.validate(prepared).scores

    def hardest(self, examples: Any) -> Sequence[int]:
        """Return the indices of the examples that a position model refuses first; by default the longest."""
        lengths = list(examples.lengths)
        return [lengths.index(max(lengths))]

    def toy(self, settings: Any) -> Any:
        """Return a few training examples to try position models on; None if the task has no such examples."""
        return None

    def check_test(self, settings: Any, **test: Any) -> None:
        """Refuse, before the training, a test set that `measure` would refuse; by default none."""
        return

    def question(self, settings: Any, metric: str, test: Mapping[str, Any] | None) -> Any:
        """Return a key of the questions that a score answers; a study compares only scores of equal keys.

        By default the key is all settings of the data. Override it to exclude settings that only the training
        depends on.

        Args:
            settings: settings of the run.
            metric: name of the score.
            test: arguments of `measure`; None for the run's own validation.
        """
        return settings.data

    def lengths(self, settings: Any) -> str:
        """Return the unit of the lengths of scored examples."""
        return self.unit

    def summary(self, prepared: Prepared) -> str:
        """Return a line of the log about the examples and the vocabulary."""
        return (
            f"{len(prepared.train):,} training {self.example}s, {len(prepared.valid):,} for validation; "
            f"{len(prepared.processor):,} tokens in the vocabulary"
        )

    def where(self, settings: Any, examples: Any, index: int, name: str) -> str:
        """Return a description of an example of the set `name`, such as "training", for a message."""
        return f"a {name} {self.example}"

    def try_batch(self, model: Any, batch: dict[str, Any]) -> None:
        """Run the model on a batch; a task may check the outputs."""
        model(**batch)
