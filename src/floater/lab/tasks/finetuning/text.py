"""Training of checkpoints on plain text: shared parts of masked and causal language modelling."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerFast

from floater.lab.tasks.examples import Examples
from floater.lab.tasks.finetuning.checkpoint import locate, read_config
from floater.lab.tasks.finetuning.extension import Adapter, learn, merge, save_adapter, training_positions
from floater.lab.tasks.finetuning.features import readable
from floater.lab.tasks.finetuning.settings import Training
from floater.lab.tasks.finetuning.task import CheckpointTask, FineTuningSettings
from floater.lab.tasks.language_modeling.data import Rows, encode_documents, read_documents
from floater.lab.tasks.language_modeling.score import Score, rows_score
from floater.lab.tasks.language_modeling.settings import TextData
from floater.lab.tasks.prepared import Prepared
from floater.lab.tasks.settings import check_block
from floater.lab.tasks.task import vocabulary_of
from floater.lab.text.bpe import for_prompts
from floater.lab.text.ragged import Ragged
from floater.lab.training.model import inference
from floater.lab.training.run_trainer import RunTrainer
from floater.lab.training.settings import TrainingSettings, check_read
from floater.transformer import FloaterConfig

Texts = Sequence[Sequence[str]]
ADAPTER = "adapter"
"""Directory in a run with the adapters of its final model, whose matrices have them merged."""


@dataclass(frozen=True, kw_only=True)
class TextSettings(FineTuningSettings):
    """A run on plain text. Defaults are those of fairseq's RoBERTa on WikiText-103, for one epoch.

    Attributes:
        data: source of the text, and its division into rows.
        train: trained parameters: "all", or "lora", adapters in place of the checkpoint's matrices, or
            "positions" alone. Positions (an extension, a plugged flow, learned tables) are always trained.
        lora: settings of the adapters, which are merged into the matrices of the final model, and saved in
            the run's directory `adapter`, in the format of `peft`.
    """

    random_positions: ClassVar[bool] = True

    data: TextData
    train: Literal["all", "lora", "positions"] = "all"
    lora: Adapter = field(default_factory=Adapter)
    training: TrainingSettings = field(
        default_factory=lambda: Training(
            learning_rate=5e-4, per_device_train_batch_size=None, num_train_epochs=1, weight_decay=0.01
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.extend.length
        if self.extend.positions == "pose" and length is not None and self.data.block >= length:
            raise ValueError(
                f"extend.positions is 'pose', which shifts rows within {length} positions, and data.block is "
                f"{self.data.block}; give shorter rows, or consecutive positions"
            )
        check_block(f"data.block is {self.data.block}", self.data.block, self.training)
        if self.train != "lora":
            check_read(self.lora, [each.name for each in fields(self.lora)], "train 'lora'", "lora.")
        if self.train != "all" and self.plug.train != "all":
            raise ValueError(f"train is '{self.train}' and plug.train '{self.plug.train}'; give one of them")


class TextTask(CheckpointTask):
    """A task whose examples are rows of documents, scored by the loss of their tokens.

    Class attribute: `later` is True if the logits at a token predict the next token.
    """

    metric, greater, example = "loss", False, "row"
    reads_tables = True
    later: ClassVar[bool] = False

    def read_test(self, settings: Any, source: Any) -> Texts:
        return read_documents(source, settings.data.documents, settings.data.columns)

    def build(self, settings: Any, processor: Any, train: Any) -> Any:
        model = super().build(settings, processor, train)
        learn(model, settings.train, settings.lora)
        return model

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Rows, name: str) -> None:
        longest = examples.ids[int(examples.ids.lengths.argmax())]
        uncached = {"use_cache": False} if self.later else {}
        with readable(f"rows of {len(longest)} tokens", "data.block"), inference(model):
            model(torch.from_numpy(longest).long()[None], **uncached)

    def for_model(self, prepared: Prepared) -> Any:
        if not isinstance(read_config(locate(prepared.settings.model.path)), FloaterConfig):
            return prepared.processor
        return for_prompts(prepared.processor, causal=self.later)

    def question(self, settings: Any, metric: str, test: Mapping[str, Any] | None) -> Any:
        data = settings.data
        return data.valid, data.documents, data.columns, vocabulary_of(settings)

    def trainer(self, prepared: Prepared, run: Path, **options: Any) -> RunTrainer:
        return training_positions(super().trainer(prepared, run, **options), prepared.settings)

    def final(self, prepared: Prepared) -> dict[str, Any]:
        settings = prepared.settings
        if settings.train == "lora" and PartialState().is_main_process:
            save_adapter(prepared.model, Path(settings.run) / ADAPTER, locate(settings.model.path))
        merge(prepared.model)
        return super().final(prepared)

    def score(self, settings: Any, model: Any, processor: Any, examples: Examples) -> Score:
        collate, most = self.collate(settings, processor, model), settings.evaluation.max_tokens
        with readable(f"rows of {max(examples.lengths)} tokens", "their length"):
            return rows_score(model, examples, collate, most, later=self.later)


def as_rows(rows: Iterable[list[int]]) -> Rows:
    """Return rows of token ids as encoded examples, of one part each."""
    ids = Ragged.of(rows)
    return Rows(ids, Ragged(ids.lengths, np.arange(1, len(ids) + 1)))


def documents_of(tokenizer: PreTrainedTokenizerFast, documents: Texts) -> Iterator[list[int]]:
    """Yield the token ids of each document, without special tokens."""
    lines = [[" " * bool(i) + line.strip() for i, line in enumerate(document)] for document in documents]
    # not verbose: lines beyond the model's maximum length are cut later
    for ids in encode_documents(tokenizer, lines, add_special_tokens=False, verbose=False):
        yield np.concatenate(ids).tolist()


def special(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["special_tokens_mask"]
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
