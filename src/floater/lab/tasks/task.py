"""Base class of all tasks: from a configuration to a trained run, and from a run to its scores."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import set_seed

from floater.encodings import PositionError
from floater.errors import DataError
from floater.flow import FlowError, SpanTooLong
from floater.lab.settings import load
from floater.lab.tasks.definition import TaskDefinition
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.tasks.stored import Store, store_of, unstored
from floater.lab.text.bpe import TOKENIZER_FILE
from floater.lab.training import flush_denormals, keep_freed_memory
from floater.lab.training.arguments import arguments, batches, warmup_steps
from floater.lab.training.files import MANIFEST, damage, write_json
from floater.lab.training.launchers import refuse_sharding, settle_processes, variables_of_accelerate
from floater.lab.training.lock import locked
from floater.lab.training.model import configured, load_model, try_random_times
from floater.lab.training.needs import check_room, needs_of
from floater.lab.training.optimizer import count_position_parameters
from floater.lab.training.processes import in_company, main_process_first, meeting
from floater.lab.training.run import (
    ENCODED,
    MODEL,
    SETTINGS,
    VOCABULARY,
    RunPath,
    RunWithSettings,
    begin_run,
    find_run,
    supersede_run,
)
from floater.lab.training.run_data import DATA, RunData
from floater.lab.training.run_trainer import RunTrainer

logger = logging.getLogger(__name__)


class Task(TaskDefinition):
    """Base class of a task, which defines its examples, their encoding, its model and its scores.

    A subclass defines only the parts specific to its task. The base class implements the shared parts:
    splits, the run's directory, training, resuming, validation, loading. Register it under a name with
    `floater.lab.tasks.register`; `floater train`, `evaluate`, `predict` and studies then find it.

    The options of `floater evaluate` are the keyword arguments of `evaluate`. A task that a study can score
    example by example has `measure`, whose arguments are the fields of a test set in a study.

    Class attributes: `name` is the name of the task in configurations; `Settings` the dataclass of its
    configuration; `metric` the score that selects the best validation, `greater` whether a greater value is
    better; `metrics` the scores of `measure` that a study can compare variants by; `validation_loss` the name
    of the loss among the scores of a validation, None for none; `example` and `unit` are the nouns for an
    example and the unit of its length in messages;
    `shorten` is a hint in messages on how to exclude long examples; `output` is the noun for the lines that
    `floater evaluate --output` writes, if any; `reads_tables` whether data.train and data.valid may be tables
    or data sets with splits (`floater.lab.tasks.corpora.tables`); `Trainer` is the class of the Trainer.
    `stored` are the dataclasses of examples that are kept in files, which all processes map into their
    memory, if the data are large; with them, `read` and `encode` depend on the data and the processor alone.

    See `examples/` in the repository for a task in less than 100 lines.
    """

    def train(
        self,
        settings: Any,
        *,
        shorter: Any = None,
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
            shorter: settings of the run in that directory, if it is trained for longer (see `lengthen`). It
                stays as it is until the longer training has written a checkpoint.
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
        with variables_of_accelerate(), meeting():
            state = PartialState(cpu=not torch.accelerator.is_available())
        if state.num_processes == 1 and torch.cuda.device_count() > 1:
            raise DataError(
                f"there are {torch.cuda.device_count()} GPUs and one process: start one for each with "
                "torchrun --nproc-per-node, or choose a GPU with CUDA_VISIBLE_DEVICES"
            )
        if not state.is_main_process:
            logging.getLogger("floater").setLevel(logging.WARNING)
        present = settings if shorter is None else shorter
        run = find_run(present, accept_changed_data=accept_changed_data)
        if (run / MODEL).is_dir() and shorter is None:
            logger.info("%s is finished; its model is in %s", run, run / MODEL)
            if state.is_main_process:
                now = RunData(run, settings)
                for what, changes in (("data have", now.changes), ("code has", now.code_changes)):
                    if changes:
                        logger.warning("its %s changed since: %s", what, "; ".join(changes))
            return run
        if state.device.type == "cpu":
            keep_freed_memory()
        with locked(run) if state.is_main_process else nullcontext(), in_company(), flush_denormals():
            # check again: another process may have started the run while it held the lock
            find_run(present, accept_changed_data=accept_changed_data)
            data = RunData(run, settings, accept=accept_changed_data)
            data.check()
            if data.is_unknown and state.is_main_process:
                logger.warning("%s has no record of its data: that they are the same is not checked", run)
            if data.code_changes and state.is_main_process:
                logger.warning("%s was begun with other code: %s", run, "; ".join(data.code_changes))
            self.check_needs(settings)
            store = store_of(self, settings, data, encoded or run / ENCODED)
            with main_process_first():
                read = store if self.stores_text(settings) else unstored
                splits = Splits(*read("text", lambda: self.read(settings)))
            data.check_examples(train=splits.train, valid=splits.valid)
            if len({json.dumps(digests) for digests in gather_object([data.examples])}) > 1:
                raise DataError("the processes read different examples; each must read the same data")
            with main_process_first():
                prepared = self.prepare(settings, run, splits, store)
                self.check_schedule(prepared)
            with variables_of_accelerate():  # refuse arguments before the run is written
                arguments(settings.training, run, prepared.model, None, self.greater)
            with main_process_first():
                if state.is_main_process:
                    logger.info(check_room(run, needs_of(prepared.model, settings.training)))
                supersede = None
                if shorter is None:
                    begin_run(run, settings, prepared.processor, *([data.write] * state.is_main_process))
                elif state.is_main_process:
                    write = partial(write_json, run / DATA, data.record())
                    supersede = partial(supersede_run, run, settings, prepared.processor, write)
            for test, options in tests.items():
                try:
                    self.check_test(settings, **options)
                except (DataError, PositionError) as error:
                    raise type(error)(f"test {test}: {error}") from error
            before = self.before(prepared)
            with variables_of_accelerate():
                trainer = self.trainer(prepared, run, supersede=supersede)
            return trainer.finish(self.for_model(prepared), lambda: before | self.final(prepared))

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
        train = (store if self.stores_tokens(settings) else unstored)(
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
        positions = count_position_parameters(model)
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
            PositionError: if the position model refuses an example, or random times have no room for it.
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
                    if name == "training":
                        try_random_times(model, batch)
                except PositionError as error:
                    raise PositionError(f"{where}: {error}") from error
                except FlowError as error:
                    setting = " (model.position_options.time_scale)" * isinstance(error, SpanTooLong)
                    raise DataError(f"{where}: {error}{setting}") from error
        model.train()

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
            The model, the processor and the settings; the settings are None for a saved model without a run.

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
