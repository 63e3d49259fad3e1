"""A task in one file: which language is a sentence in? The sentences are those of the built-in corpus.

Run from this folder; a test set is a file of lines "language<TAB>sentence":

    floater train languages.yaml && floater evaluate runs/languages --trust-code --source test.tsv
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from transformers import DataCollatorWithPadding

from floater.lab.tasks import Model, RunSettings, Splits, Task, register
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import read_lines
from floater.lab.tasks.examples import Encoded, outputs
from floater.lab.tasks.measurement import Measurement
from floater.lab.text.bpe import train_bpe
from floater.lab.training.run import RunPath
from floater.transformer import FloaterForSequenceClassification


@dataclass(frozen=True)
class Data:
    """The sentences.

    Attributes:
        languages: two of en, de and fr.
        train: training sentences in each language.
    """

    languages: tuple[str, str] = ("en", "de")
    train: int = 2000


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    task: Literal["language_identification"] = "language_identification"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)


@register("language_identification")
class LanguageIdentification(Task):
    """Classification of sentences by an encoder."""

    Settings = Settings
    metric, example, output = "accuracy", "sentence", "languages"

    def read(self, settings: Settings) -> Splits:
        one, other = settings.data.languages
        parts = cldr.split(source=one, target=other, train=settings.data.train, valid=50, test=1)
        train, valid = (parts[name] for name in ("train", "valid"))
        return Splits(
            *([(n, text) for pair in part for n, text in enumerate(pair)] for part in (train, valid))
        )

    def read_test(self, settings: Settings, source: str) -> list[tuple[int, str]]:
        rows = [line.split("\t") for line in read_lines(source)]
        return [(settings.data.languages.index(language), text) for language, text in rows]

    def make_processor(self, settings: Settings, train: list[tuple[int, str]]) -> Any:
        return train_bpe((text for _, text in train), vocab_size=500)

    def encode(self, settings: Settings, processor: Any, examples: Any, *, training: bool = False) -> Encoded:
        rows = [{"input_ids": processor(text).input_ids, "label": label} for label, text in examples]
        return Encoded(rows, [len(row["input_ids"]) for row in rows])

    def kind(self, settings: Settings) -> Any:
        return FloaterForSequenceClassification

    def build(self, settings: Settings, processor: Any, train: Any) -> Any:
        config = settings.model.config(len(processor))
        config.id2label = dict(enumerate(settings.data.languages))
        return FloaterForSequenceClassification(config)

    def collate(self, settings: Settings, processor: Any, model: Any) -> Any:
        return DataCollatorWithPadding(processor)

    def score(self, settings: Settings, model: Any, processor: Any, examples: Encoded) -> Measurement:
        labels = np.zeros(len(examples), dtype=int)
        for indices, result, _ in outputs(model, examples, self.collate(settings, processor, model), 4096):
            labels[indices] = result.logits.argmax(-1).cpu()
        right = labels == [row["label"] for row in examples.rows]
        statistics = {"accuracy": np.stack([right, np.ones(len(right))], axis=1)}  # what a study compares
        scores = {"accuracy": round(100 * float(right.mean()), 2)}
        lines = [settings.data.languages[i] for i in labels]
        return Measurement(np.array(examples.lengths), statistics, scores=scores, lines=lines)

    def evaluate(self, run: RunPath, source: str, *, shortest: int = 0) -> Measurement:
        """Score sentences of at least `shortest` characters."""
        model, processor, settings = self.load(run)
        rows = [(label, text) for label, text in self.read_test(settings, source) if len(text) >= shortest]
        return self.score(settings, model, processor, self.encode(settings, processor, rows))

    measure = evaluate
