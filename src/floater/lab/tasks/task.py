"""Base class of all tasks: from a configuration to a trained run, and from a run to its scores."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import set_seed

from floater.encodings import PositionError
from floater.encodings.model import count_parameters
from floater.errors import DataError
from floater.flow import FlowError, SpanTooLong
from floater.lab.settings import load
from floater.lab.tasks.corpora.tables import with_split
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.stored import Store, store_of, unstored
from floater.lab.text.bpe import TOKENIZER_FILE, load_bpe
from floater.lab.training import flush_denormals
from floater.lab.training.arguments import batches, warmup_steps
from floater.lab.training.files import MANIFEST, damage
from floater.lab.training.launchers import refuse_sharding, settle_processes, variables_of_accelerate
from floater.lab.training.lock import locked
from floater.lab.training.model import configured, load_model
from floater.lab.training.needs import check_room, needs_of
from floater.lab.training.processes import main_process_first
from floater.lab.training.run import (
    ENCODED,
    MODEL,
    SETTINGS,
    VOCABULARY,
    RunPath,
    RunWithSettings,
    begin_run,
    find_run,
)
from floater.lab.training.run_data import RunData
from floater.lab.training.run_trainer import RunTrainer

logger = logging.getLogger(__name__)


class Splits(NamedTuple):
    """Training and validation examples before they are encoded."""

    train: Any
    valid: Any


@dataclass
class Prepared:
    """Inputs of a training run: settings, processor, model and encoded examples.

    Args:
        settings: settings of the run.
        processor: vocabulary, tokenizer or other object that turns examples into the model's inputs.
        model: model before its first training step.
        train: encoded training examples.
        valid: encoded validation examples.
    """

    settings: Any
    processor: Any
    model: Any
    train: Any
    valid: Any


class Task(ABC):
    """Base class of a task, which defines its examples, their encoding, its model and its scores.

    A subclass defines only the parts specific to its task. The base class implements the shared parts:
    splits, the run's directory, training, resuming, validation, loading. Register it under a name with
    `floater.lab.tasks.register`; `floater train`, `evaluate`, `predict` and studies then find it.

    The options of `floater evaluate` are the keyword arguments of `evaluate`. A task that a study can score
    example by example has `measure`, whose arguments are the fields of a test set in a study.

    Class attributes: `name` is the name of the task in configurations; `Settings` the dataclass of its
    configuration; `metric` the score that selects the best validation, `greater` whether a greater value is
    better; `metrics` the scores of `measure` that a study can compare variants by; `example` and `unit` are
    the nouns for an example and the unit of its length in messages;
    `shorten` is a hint in messages on how to exclude long examples; `output` is the noun for the lines that
    `floater evaluate --output` writes, if any; `reads_tables` whether data.train and data.valid may be tables
    or data sets with splits (`floater.lab.tasks.corpora.tables`); `Trainer` is the class of the Trainer.
    `stored` are the dataclasses of examples that are kept in files, which all processes map into their
    memory, if the data are large; with them, `read` and `encode` depend on the data and the processor alone.

    See `examples/` in the repository for a task in less than 100 lines.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Any]]
    metric: ClassVar[str]
    greater: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ()
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
        """Return what decides, with the data, the vocabulary that is trained on them; None if none is."""
        return None

    def load_processor(self, folder: Path, /) -> Any:
        """Load a saved processor; by default a BPE vocabulary."""
        return load_bpe(folder)

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

    # Methods shared by all tasks.

    def train(
        self,
        settings: Any,
        *,
        accept_changed_data: bool = False,
        encoded: Path | None = None,
        tests: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Path:
        """Train a model, or resume a stopped training.

        A run that was killed and resumed ends with the same weights as an uninterrupted run, on the same
        machine and with the same number of processes. Nothing is written before settings and data are
        validated.

        Args:
            settings: settings of the run; the configuration, vocabulary, log, checkpoints and final model are
                written to `settings.run`.
            accept_changed_data: whether a stopped training resumes on other data than it began with; what
                has changed is written to the run's `data.json`.
            encoded: directory of the examples of large data, which several runs may share; by default one in
                that of the run.
            tests: arguments of `measure` for each test set of a study, which are checked once more, with the
                vocabulary.

        Returns:
            The run directory.

        Raises:
            DataError: if the data or the run directory is not valid, another process trains the run, or it
                began on other data.
            PositionError: if the position model does not support the data.
        """
        if not PartialState._shared_state:  # nobody has made one in this process
            settle_processes(os.environ)
        refuse_sharding(os.environ)
        with variables_of_accelerate():
            state = PartialState(cpu=not torch.accelerator.is_available())
        if state.num_processes == 1 and torch.cuda.device_count() > 1:
            raise DataError(
                f"there are {torch.cuda.device_count()} GPUs and one process: start one for each with "
                "torchrun --nproc-per-node, or choose a GPU with CUDA_VISIBLE_DEVICES"
            )
        if not state.is_main_process:
            logging.getLogger("floater").setLevel(logging.WARNING)
        run = find_run(settings, accept_changed_data=accept_changed_data)
        if (run / MODEL).is_dir():
            logger.info("%s is finished; its model is in %s", run, run / MODEL)
            if state.is_main_process and (changes := RunData(run, settings).changes):
                logger.warning("its data have changed since: %s", "; ".join(changes))
            return run
        with locked(run) if state.is_main_process else nullcontext(), flush_denormals():
            # check again: another process may have started the run while it held the lock
            find_run(settings, accept_changed_data=accept_changed_data)
            data = RunData(run, settings, accept=accept_changed_data)
            data.check()
            if data.is_unknown and state.is_main_process:
                logger.warning("%s has no record of its data: that they are the same is not checked", run)
            self.check_needs(settings)
            store = store_of(self, settings, data, encoded or run / ENCODED)
            with main_process_first():
                splits = Splits(*store("text", lambda: self.read(settings)))
            data.check_examples(train=splits.train, valid=splits.valid)
            if len({json.dumps(digests) for digests in gather_object([data.examples])}) > 1:
                raise DataError("the processes read different examples; each must read the same data")
            with main_process_first():
                prepared = self.prepare(settings, run, splits, store)
                self.check_schedule(prepared)
                if state.is_main_process:
                    logger.info(check_room(run, needs_of(prepared.model, settings.training)))
                begin_run(run, settings, prepared.processor, *([data.write] * state.is_main_process))
            for test, arguments in tests.items():
                try:
                    self.check_test(settings, **arguments)
                except (DataError, PositionError) as error:
                    raise type(error)(f"test {test}: {error}") from error
            before = self.before(prepared)
            with variables_of_accelerate():
                trainer = self.trainer(prepared, run)
            return trainer.finish(prepared.processor, lambda: before | self.final(prepared))

    def prepare(self, settings: Any, run: Path, splits: Splits, store: Store = unstored) -> Prepared:
        """Encode the examples, build the model, and check that the model supports the examples.

        Args:
            settings: settings of the run.
            run: directory of the run.
            splits: examples before they are encoded.
            store: function that returns an encoded value, perhaps from files; by default it is made anew.

        Raises:
            DataError: if an example does not fit into a batch.
            PositionError: if the position model does not support an example.
        """
        processor = self.processor(settings, run, splits.train, store)
        asked = getattr(settings.data, "vocabulary_size", None)
        if asked and not getattr(settings.data, "vocabulary", None) and len(processor) < asked:
            logger.warning(
                "the vocabulary has %s tokens, not data.vocabulary_size=%s: the training text has no more",
                *map("{:,}".format, (len(processor), asked)),
            )
        train = store(
            "training tokens",
            lambda: self.encode(settings, processor, splits.train, training=True),
            processor,
        )
        valid = self.encode(settings, processor, splits.valid)
        training, longest = settings.training, max(train.lengths)
        if training.per_device_train_batch_size is None and longest > training.max_tokens:
            where = self.where(settings, train, list(train.lengths).index(longest), "training")
            raise DataError(
                f"{where} has {longest:,} {self.unit}, more than training.max_tokens, {training.max_tokens}; "
                f"raise that{self.shorten}"
            )
        set_seed(training.seed)
        model = self.build(settings, processor, train)
        prepared = Prepared(settings, processor, model, train, valid)
        for name, examples in (("training", train), ("validation", valid)):
            self.check_model(settings, model, processor, examples, name)
        logger.info(self.summary(prepared))
        positions = count_parameters(model)
        logger.info("%s parameters, %s in position models", f"{model.num_parameters():,}", f"{positions:,}")
        return prepared

    def processor(self, settings: Any, run: Path, train: Any, store: Store = unstored) -> Any:
        """Return the saved processor of a resumed run, or a new one, which trials of a study share.

        Raises:
            DataError: if the saved processor is damaged; a new one could encode the inputs differently.
        """
        vocabulary = run / VOCABULARY
        if vocabulary.is_dir():
            if (vocabulary / MANIFEST).exists() and (why := damage(vocabulary)) is not None:
                raise DataError(f"{vocabulary} is damaged: {why}; remove it to have it made again")
            return self.load_processor(vocabulary)
        if self.vocabulary_key(settings) is None:
            return self.make_processor(settings, train)
        return store(VOCABULARY, lambda: self.make_processor(settings, train))

    def check_schedule(self, prepared: Prepared) -> None:
        """Refuse a warm-up that is longer than the training on all processes."""
        training, processes = prepared.settings.training, PartialState().num_processes
        warmup_steps(training, len(batches(training, prepared.train.lengths, processes)))

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Any, name: str) -> None:
        """Run the model on the hardest examples, so that it refuses them before the training.

        Args:
            settings: settings of the run.
            model: the model.
            processor: the processor of the examples.
            examples: encoded examples.
            name: name of their set, for messages, such as "training"; "" for those of `toy`.

        Raises:
            DataError: if a flow cannot be solved up to its last position.
            PositionError: if the position model refuses an example.
        """
        collate = self.collate(settings, processor, model)
        model.train(False)
        with torch.no_grad():
            for index in self.hardest(examples):
                batch = collate([examples[index]])
                batch.pop("labels", None)
                where = self.where(settings, examples, index, name) if name else f"task '{self.name}'"
                try:
                    self.try_batch(model, batch)
                except PositionError as error:
                    raise PositionError(f"{where}: {error}") from error
                except FlowError as error:
                    setting = " (model.position_options.time_scale)" * isinstance(error, SpanTooLong)
                    raise DataError(f"{where}: {error}{setting}") from error
        model.train()

    def where(self, settings: Any, examples: Any, index: int, name: str) -> str:
        """Return a description of an example of the set `name`, such as "training", for a message."""
        return f"a {name} {self.example}"

    def try_batch(self, model: Any, batch: dict[str, Any]) -> None:
        """Run the model on a batch; a task may check the outputs."""
        model(**batch)

    def check(self, settings: Any) -> None:
        """Refuse a position model that supports no example of the task, before any data are read.

        Raises:
            DataError: if the model cannot perform the task with this position model.
            PositionError: if the position model needs inputs that the task does not have, such as a tree.
        """
        toy = self.toy(settings)
        if toy is None:
            return
        processor = self.make_processor(settings, toy)
        examples = self.encode(settings, processor, toy)
        with torch.random.fork_rng():
            model = self.build(settings, processor, examples)
        self.check_model(settings, model, processor, examples, "")

    def trainer(self, prepared: Prepared, run: Path, **options: Any) -> RunTrainer:
        """Make the Trainer of a run."""
        settings, train = prepared.settings, prepared.train
        trainer: RunTrainer

        def collate(examples: Sequence[Any]) -> dict[str, Any]:
            # no random number of torch: a batch prefetched before a checkpoint is made again after resuming
            return self.training_collate(prepared, trainer.sampler.epoch)(examples)

        trainer = self.Trainer(
            training=settings.training,
            run=run,
            model=prepared.model,
            lengths=train.lengths,
            train_dataset=train,
            validate=lambda: self.validate(prepared).scores,
            **self.best(settings),
            data_collator=collate,
            compute_loss_func=self.loss(prepared),
            **options,
        )
        return trainer

    def settings_of(self, run: RunPath) -> Any:
        """Return the settings of a run, from memory or from its directory.

        Raises:
            SettingsError: if the run has no readable settings.
        """
        if isinstance(run, RunWithSettings):
            return run.settings
        return load(self.Settings, Path(run) / SETTINGS)

    def load(self, run: RunPath, device: str | torch.device | None = None) -> tuple[Any, Any, Any]:
        """Load the final model of a run in evaluation mode, its processor and its settings.

        Args:
            run: directory of a finished run, or of a saved model.
            device: device of the model; by default a GPU if there is one.

        Returns:
            The model, the processor and the settings; the settings are None for a saved model that is no run.

        Raises:
            DataError: if the model is missing or damaged.
            SettingsError: if the run's settings cannot be read.
        """
        settings = self.settings_of(run) if (Path(run) / SETTINGS).is_file() else None
        return *load_model(configured(self.kind(settings)), run, device, read=self.load_processor), settings

    def evaluate(self, run: RunPath, source: Any) -> Measurement:
        """Score the final model of a run on a test set.

        Args:
            run: directory of a finished run.
            source: location of the test set.

        Raises:
            DataError: if the run or the test set is not valid.
            PositionError: if the position model does not support an example.
        """
        model, processor, settings = self.load(run)
        examples = self.encode(settings, processor, self.read_test(settings, source))
        return self.score(settings, model, processor, examples)


def vocabulary_of(settings: Any) -> Any:
    """Return the digest of a run's vocabulary, on which means over tokens depend; None before it is made."""
    manifest = Path(settings.run) / VOCABULARY / MANIFEST
    if not manifest.is_file():
        return None
    return json.loads(manifest.read_text(encoding="utf-8")).get(TOKENIZER_FILE)
