"""Classification of texts, short or long, by a Hugging Face checkpoint, on your own tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from floater.errors import DataError
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.corpora.tables import is_table, read_table
from floater.lab.tasks.corpora.text import read_lines
from floater.lab.tasks.finetuning.features import LABEL, Features, predict
from floater.lab.tasks.finetuning.task import FineTuning, FineTuningSettings, warn_of_cut
from floater.lab.tasks.finetuning.text import special
from floater.lab.tasks.measurement import Measurement, accuracy
from floater.lab.tasks.prepared import Splits, warn_of_shared
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import SplitData, label_maps
from floater.lab.text.ragged import Records
from floater.lab.training.run import RunPath
from floater.lab.training.settings import check_numbers

logger = logging.getLogger(__name__)
_MOST_LABELS = 0.5
"""Largest number of labels per text; a column with more is probably not that of the labels."""


@dataclass(frozen=True)
class Text:
    """A text with its label, None where it is unknown.

    Args:
        id: the text itself, so that equal texts are in the same part of a split.
        label: name of its class.
    """

    id: str
    label: str | None


@dataclass(frozen=True)
class Data(SplitData):
    """Source of the texts, and how long ones are read.

    Attributes:
        train: table with a text and a label in each row, or list of tables: CSV, TSV, JSON, JSON Lines,
            Parquet, plain or compressed; a folder or "hf:NAME" of a Hugging Face data set.
        valid: table of the validation texts; null takes `valid_share` of the training table.
        valid_share: share of the texts of `train` used for validation, chosen by the texts; null takes a
            tenth without `valid`, else none.
        test_share: share of the texts of `train` excluded from training, for a test
            (floater evaluate --part test).
        columns: names of the columns, as in {text: review, label: stars}; by default guessed.
        max_length: maximum number of tokens of the model's input, special tokens included; null takes
            extend.length, or without it 512 or the tokenizer's maximum, if that is less.
        long: reading of longer texts: "cut" drops the rest and logs their number; "parts" classifies
            consecutive parts by the mean of their logits, and trains on each part with the label of its text.
    """

    train: str | list[str]  # type: ignore[assignment] # several tables
    valid: str | list[str] | None = None
    valid_share: float | None = None  # type: ignore[assignment]
    test_share: float = 0.0
    columns: dict[str, str] = field(default_factory=dict)
    max_length: int | None = None
    long: Literal["cut", "parts"] = "cut"

    def __post_init__(self) -> None:
        if self.valid is not None and self.valid_share:
            raise ValueError("valid and valid_share are both given; the texts of valid are the validation")
        if self.valid_share is None:
            object.__setattr__(self, "valid_share", 0.0 if self.valid else 0.1)
        if not self.valid and not self.valid_share:
            raise ValueError("valid_share is 0 and there is no valid; a training needs a validation")
        check_numbers(self, max_length=8)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(FineTuningSettings):
    """A classification run.

    Attributes:
        data: source of the texts.
    """

    task: Literal["classification"] = "classification"
    data: Data


@dataclass
class Texts(Features):
    """Encoded texts, each in one row or, read in parts, in several.

    Args:
        text_of: index of the text of each row.
        sizes: number of tokens of each whole text.
        classes: names of the classes in the order of the logits.
    """

    text_of: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    classes: Sequence[str] = ()


def _max_length(settings: ClassificationSettings, tokenizer: Any) -> int:
    """Return the maximum number of tokens of the model's input."""
    return settings.data.max_length or settings.extend.length or min(512, tokenizer.model_max_length)


@register("classification")
class Classification(FineTuning):
    """Classification of texts in one of the classes of the training table."""

    Settings = ClassificationSettings
    Auto = AutoModelForSequenceClassification
    metric, output, reads_tables = "accuracy", "labels", True
    metrics = ("accuracy", "document_loss")

    def read(self, settings: ClassificationSettings) -> Splits:
        data = settings.data
        every = read_texts(with_split(data.train, "train"), data.columns)
        train, classes = data.part(every, "train"), classes_of(every)
        if len(classes) < 2:
            raise DataError(f"{data.train}: all {len(every):,} texts have the label '{classes[0]}'")
        if len(classes) > max(2, _MOST_LABELS * len(every)):
            raise DataError(
                f"{data.train}: {len(classes):,} labels of {len(every):,} texts; is that the column of the "
                "classes? Choose another: data.columns.label=NAME"
            )
        if missing := {*classes} - {text.label for text in train}:
            raise DataError(
                f"{data.train}: none of the {len(train):,} training texts has the label '{min(missing)}'; "
                "lower data.valid_share and test_share, choose another split_seed, or remove the label"
            )
        if data.valid is None:
            return Splits(train, data.part(every, "valid"))
        valid = read_texts(with_split(data.valid, "valid"), data.columns, classes=classes)
        warn_of_shared(train, valid, lambda text: text.id, "texts")
        return Splits(train, valid)

    def read_test(self, settings: Any, source: Any, *, labelled: bool = True) -> list[Text]:
        return read_texts(source, settings.data.columns, labelled=labelled)

    def head(self, settings: Any, train: Any) -> dict[str, Any]:
        return {"problem_type": "single_label_classification", **label_maps(train.classes)}

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Texts:
        before, after = special(processor)
        room = _max_length(settings, processor) - len(before) - len(after)
        texts = processor([text.id for text in examples], add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        starts = [
            range(0, max(1, len(ids)), room) if settings.data.long == "parts" else (0,) for ids in texts
        ]
        classes = classes_of(examples)
        rows = (
            {"input_ids": [*before, *ids[start : start + room], *after]}
            | ({LABEL: classes.index(text.label)} if training else {})
            for text, ids, begins in zip(examples, texts, starts, strict=True)
            for start in begins
        )
        return Texts(
            Records.of(rows),
            source=examples,
            cut=sum(len(ids) > room for ids in texts) if settings.data.long == "cut" else 0,
            limit="data.max_length",
            text_of=[index for index, begins in enumerate(starts) for _ in begins],
            sizes=[len(before) + len(ids) + len(after) for ids in texts],
            classes=classes,
        )

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Any, name: str) -> None:
        super().check_model(settings, model, processor, examples, name)
        if name != "validation":  # once; texts to come may be longer than these
            longest = examples[0]["input_ids"][:1] * _max_length(settings, processor)
            predict(model, Features(Records.of([{"input_ids": longest}])), processor)

    def score(self, settings: Any, model: Any, processor: Any, examples: Texts) -> Measurement:  # type: ignore[override]
        names = model.config.id2label
        classes = [names[index] for index in range(model.config.num_labels)]
        return super().score(settings, model, processor, replace(examples, classes=classes))

    def answer(self, settings: Any, features: Any, logits: Sequence[np.ndarray]) -> Measurement:
        """Classify each text by the mean logits of its rows; the loss is in nats per text."""
        rows = torch.from_numpy(np.stack(logits)).double()
        index = torch.tensor(features.text_of)
        sums = torch.zeros(len(features.sizes), rows.shape[1], dtype=rows.dtype).index_add_(0, index, rows)
        means = sums / index.bincount()[:, None]
        best = means.argmax(-1)
        lines = [features.classes[label] for label in best.tolist()]
        labels = [text.label for text in features.source]
        if None in labels:
            return Measurement(lines=lines)
        gold = torch.tensor([features.classes.index(label) for label in labels])
        losses, right = F.cross_entropy(means, gold, reduction="none").numpy(), (best == gold).numpy()
        (percent, line), loss = accuracy(right, "texts"), losses.mean()
        f1 = 100 * float(f1_score(gold.numpy(), best.numpy(), average="macro"))
        return Measurement(
            lengths=np.array(features.sizes),
            statistics={
                "accuracy": np.stack([right, np.ones(len(right))], axis=1),
                "document_loss": np.stack([losses, np.ones(len(right))], axis=1),
            },
            lines=lines,
            scores={"loss": round(float(loss), 4), "accuracy": percent, "macro_f1": round(f1, 2)},
            report=f"{line}, macro F1 {f1:.2f}, loss {loss:.4f} nats a text",
        )

    def evaluate(self, run: RunPath, source: str | None = None, part: str | None = None) -> Measurement:
        """Classify texts with the final model of a run, and score the classes.

        Args:
            run: directory of a finished run.
            source: table of labelled texts, whose columns are those of the run; None for the run's own data.
            part: part of the source, "train", "valid" or "test", split as the run splits its own data. None
                for all of a source, and for the validation texts of the run's own data.

        Returns:
            The scores; `lines` are the classes, with an empty one for a row without a text.

        Raises:
            DataError: if the run or the texts are not valid, or a label is none of the run.

        Warns:
            CutTexts: if texts are cut; the message has their number.
        """
        model, tokenizer, settings = self.load(run)
        data, classes = settings.data, list(model.config.label2id)
        if source is None and part is None and data.valid is not None:
            source = with_split(data.valid, "valid")
        elif source is None:
            source, part = with_split(data.train, "train"), part or "valid"
        every = read_texts(source, data.columns, classes=classes, blank=part is None)
        every = data.part(every, part) if part else every
        features = self.encode(settings, tokenizer, [text for text in every if text.id.strip()])
        warn_of_cut(features)
        score = self.score(settings, model, tokenizer, features)
        return score.with_gaps([bool(text.id.strip()) for text in every])

    measure = evaluate

    def lengths(self, settings: Any) -> str:
        return "tokens of the whole text"

    def question(self, settings: Any, metric: str, test: Mapping[str, Any] | None) -> Any:
        data = settings.data
        splits = data.valid_share, data.test_share, data.split_seed
        has_run_data = test is None or test.get("source") is None
        return data.columns, splits, (data.train, data.valid) if has_run_data else None


def classes_of(texts: Sequence[Text]) -> list[str]:
    """Return the names of the classes of texts, sorted, as numbers if they are.

    Example:
        >>> classes_of([Text("a", "10"), Text("b", "9"), Text("c", "9")])
        ['9', '10']
    """
    names = {text.label for text in texts if text.label is not None}
    numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))  # "1" and "01" are two classes


def read_texts(
    source: Any,
    columns: Mapping[str, str] | None = None,
    *,
    labelled: bool = True,
    classes: Sequence[str] | None = None,
    blank: bool = False,
) -> list[Text]:
    """Read texts with their labels; rows without a text are skipped and counted.

    Args:
        source: path or name of a table, or a list of them; see `read_table`. Without labels, also that of a
            text file with a text in each line.
        columns: names of the columns "text" and "label" of tables.
        labelled: whether labels are read; otherwise rows without a text are kept, so that each has a line of
            predictions.
        classes: valid labels; None for any.
        blank: True to keep rows without a text, too; they are counted as skipped.

    Raises:
        DataError: if a source cannot be read, has no text, or a label is missing or not valid; the message
            names file, line and column.
    """
    texts: list[Text] = []
    for name in source if isinstance(source, list) else [str(source)]:
        if not labelled and not is_table(name):
            texts += [Text(line, None) for line in read_lines(name)]
            continue
        if not is_table(name):
            raise DataError(f"{name}: no table; its name must end in .csv, .tsv, .jsonl, .json or .parquet")
        roles = ["text", "label"] if labelled else ["text"]
        chosen = {role: column for role, column in (columns or {}).items() if labelled or role != "label"}
        table = read_table(name, roles, chosen)
        labels = table.labels() if labelled else [None] * len(table)
        for row, label in enumerate(labels):
            if classes is not None and label not in classes:
                raise DataError(
                    f"{table.where(row, 'label')}: '{label}' is none of {', '.join(classes)}"[:500]
                )
        every = [Text(text, label) for text, label in zip(table.texts("text"), labels, strict=True)]
        kept = [text for text in every if text.id.strip() or not labelled]
        if skipped := len(every) - len(kept):
            logger.warning("%s: %s rows without a text are skipped", name, f"{skipped:,}")
        texts += every if blank else kept
    if not any(text.id.strip() for text in texts):
        raise DataError(f"{source}: there is no text in it")
    return texts
