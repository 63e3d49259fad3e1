"""Fine-tuning of a checkpoint, plugged or not: shared parts of classification, GLUE, SQuAD and RACE."""

from __future__ import annotations

import functools
import logging
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.errors import DataError, no_directory
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.finetuning.checkpoint import (
    checkpoint_files,
    load_tokenizer,
    locate,
    read_config,
    start,
)
from floater.lab.tasks.finetuning.extension import Extend, extend
from floater.lab.tasks.finetuning.features import CutTexts, Features, collate, loss, predict
from floater.lab.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Prepared
from floater.lab.tasks.settings import RunSettings, files_of
from floater.lab.tasks.task import Task
from floater.lab.text.ragged import Records
from floater.lab.training.model import load_model
from floater.lab.training.optimizer import flow_parameters
from floater.lab.training.run import RunPath
from floater.lab.training.settings import TrainingSettings, check_trained_flow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings(RunSettings):
    """A run that fine-tunes a checkpoint.

    Attributes:
        model: checkpoint that training starts from.
        plug: FLOATER inside the checkpoint.
        extend: extension of its context.
    """

    random_positions: ClassVar[bool] = False

    model: Checkpoint
    plug: Plug = field(default_factory=Plug)
    extend: Extend = field(default_factory=Extend)
    training: TrainingSettings = field(default_factory=Training)

    def files_read(self) -> dict[str, Any]:
        """Return the files of the data, and those of the checkpoint and of the flow that it starts from."""
        files = files_of(self.data, *{"train", "valid"} & vars(self.data).keys())
        paths = {"model.path": self.model.path, "plug.flow": self.plug.flow}
        return files | {name: checkpoint_files(path) for name, path in paths.items() if path is not None}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extend.positions == "pose" and not self.random_positions:
            raise ValueError(f"extend.positions is 'pose', which task '{self.task}' does not train with")


class CheckpointTask(Task):
    """A task that starts from a checkpoint of Hugging Face, plugged or not, under a head of its own.

    Class attribute: `Auto` is the Auto class of transformers that loads the model with its head.
    """

    Auto: ClassVar[Any]

    def head(self, settings: Any, train: Any) -> dict[str, Any]:
        """Return the fields of the configuration about the head for encoded training examples."""
        return {}

    def make_processor(self, settings: Any, train: Any) -> Any:
        return load_tokenizer(settings.model.path)

    def processor(self, settings: Any, run: Path, train: Any, *_: Any) -> Any:
        return self.make_processor(settings, train)

    def load_processor(self, folder: Path, /) -> PreTrainedTokenizerFast:
        return load_tokenizer(str(folder))

    def check_needs(self, settings: Any) -> None:
        locate(settings.model.path)
        flow = settings.plug.flow
        if flow is not None and not Path(locate(flow)).is_dir():
            raise no_directory(flow)

    def empty(self, settings: Any) -> PreTrainedModel | None:
        """Return the checkpoint's model without its weights; None if its configuration cannot be read."""
        try:
            config = read_config(locate(settings.model.path), settings.model.config)
        except DataError:
            return None
        with torch.device("meta"), torch.random.fork_rng():
            model: PreTrainedModel = self.Auto.from_config(config, trust_remote_code=False)
        return model

    def build(self, settings: Any, processor: Any, train: Any) -> PreTrainedModel:
        model = start(settings.model, settings.plug, self.Auto, processor, **self.head(settings, train))
        extend(model, processor, settings.extend)
        check_flow(model, settings.training)
        return model

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        return functools.partial(collate, tokenizer=processor)

    def summary(self, prepared: Prepared) -> str:
        tokens = f"{sum(prepared.train.lengths):,} tokens"
        return f"{tokens} in {len(prepared.train):,} encoded examples, {len(prepared.valid):,} for validation"

    def load(self, run: RunPath, device: str | torch.device | None = None) -> tuple[Any, Any, Any]:
        settings = self.settings_of(run)

        def build(folder: Path) -> PreTrainedModel:
            model: PreTrainedModel = self.Auto.from_config(read_config(str(folder)), trust_remote_code=False)
            return model

        return *load_model(build, run, device, read=self.load_processor), settings


class FineTuning(CheckpointTask):
    """A task over texts that are encoded alone or in pairs.

    A subclass reads its data (`read_test`) and encodes them as `Features`, whose `source` contains the
    examples before encoding; `answer` turns the logits of the model into scores and a file of predictions.
    """

    example, output = "text", "predictions"

    def stores_text(self, settings: Any) -> bool:
        return False

    @abstractmethod
    def read_test(self, settings: Any, source: str, *, labelled: bool = True) -> Any:
        """Read a split by its name in the settings, or the data that a finished run is scored on or predicts.

        Raises:
            DataError: if the data are not valid, or have no labels though `labelled` is True.
        """

    @abstractmethod
    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Features:
        """Encode examples; only training examples need labels."""

    @abstractmethod
    def answer(self, settings: Any, features: Features, logits: Sequence[np.ndarray]) -> Measurement:
        """Score the logits of a model if there are labels, and return its predictions as `lines`."""

    def loss(self, prepared: Prepared) -> Any:
        return loss

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Any, name: str) -> None:
        parts = (examples, *examples.more.values())
        if cut := sum(part.cut for part in parts):
            logger.info("%s %s texts cut at %s", f"{cut:,}", name, examples.limit)
        for part in parts:
            longest = part.lengths.index(max(part.lengths))
            predict(model, Features(Records.of([part[longest]])), processor)

    def final(self, prepared: Prepared) -> dict[str, Any]:
        scores = self.validate(prepared).scores
        for split, examples in prepared.valid.more.items():
            more = self.score(prepared.settings, prepared.model, prepared.processor, examples).scores
            scores = scores | {f"{name}_{split}": value for name, value in more.items()}
        return scores

    def score(self, settings: Any, model: Any, processor: Any, examples: Features) -> Measurement:
        return self.answer(settings, examples, predict(model, examples, processor))

    def answers(self, run: RunPath, settings: Any, source: str, *, labelled: bool) -> Measurement:
        """Score the final model of a run with its own or other settings; see `evaluate`."""
        examples = self.read_test(settings, source, labelled=labelled)
        model, tokenizer, _ = self.load(run)
        features = self.encode(settings, tokenizer, examples)
        warn_of_cut(features, stacklevel=4)
        return self.score(settings, model, tokenizer, features)

    def evaluate(self, run: RunPath, source: str) -> Measurement:
        """Score the final model of a run on labelled data.

        Args:
            run: directory of a finished run.
            source: location of the data, in the layout of the task.

        Raises:
            DataError: if the run or the data are not valid, or there are no labels.

        Warns:
            CutTexts: if texts are too long; the message has their number.
        """
        return self.answers(run, self.settings_of(run), source, labelled=True)

    def check_test(self, settings: Any, **test: Any) -> None:
        if (source := test.get("source")) is not None:
            self.read_test(settings, source)

    def predict(self, run: RunPath, source: str) -> list[str]:
        """Return the predictions of the final model of a run, as lines of the benchmark's submission file.

        Args:
            run: directory of a finished run.
            source: location of the data, as for `evaluate`; labels are not read.

        Raises:
            DataError: if the run or the data are not valid.
        """
        return list(self.answers(run, self.settings_of(run), source, labelled=False).lines)


def warn_of_cut(features: Features, stacklevel: int = 3) -> None:
    """Warn of texts that were cut."""
    if features.cut:
        warnings.warn(f"{features.cut:,} texts cut at {features.limit}", CutTexts, stacklevel=stacklevel)


def check_flow(model: PreTrainedModel, training: TrainingSettings) -> None:
    """Refuse settings with which a resumed run would train the model's flow differently.

    Raises:
        DataError: if checkpoints fall between two updates of the flow.
    """
    flow = flow_parameters(model)
    if any(parameter.requires_grad for name, parameter in model.named_parameters() if name in flow):
        try:
            check_trained_flow(training)
        except ValueError as error:
            raise DataError(str(error)) from error
