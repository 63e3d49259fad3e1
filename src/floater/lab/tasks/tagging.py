"""Part-of-speech tagging: train on CoNLL-U files, with or without their dependency trees."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from torch import nn
from torch.nn import functional as F

from floater.encodings import options
from floater.errors import DataError
from floater.lab.tasks import settings
from floater.lab.tasks.corpora.conllu import Sentence, head_order, read_sentences
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.examples import Collate, Encoded, keep_short, outputs, padded
from floater.lab.tasks.measurement import Measurement, accuracy
from floater.lab.tasks.prepared import Prepared, Splits, warn_of_shared
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import label_maps
from floater.lab.tasks.task import Task
from floater.lab.text.vocabulary import PAD, Vocabulary
from floater.lab.training.run import RunPath
from floater.lab.training.settings import SmoothedTrainingSettings, check_numbers
from floater.positions import Positions
from floater.transformer import FloaterForTokenClassification
from floater.transformer.outputs import IGNORED


@dataclass(frozen=True)
class Data:
    """Source of the sentences, and the vocabulary of their words.

    Attributes:
        train: CoNLL-U file of the training sentences; or, without trees, a table or a data set of Hugging
            Face with the words and the tags of a sentence in a row, as lists or separated by spaces. Or a
            mapping of languages to such files, as in {en: FILE, de: FILE}.
        valid: file of the validation sentences, or a mapping as in `train`.
        columns: names of the columns of a table, as in {words: tokens, tags: ner_tags}; by default guessed.
        min_count: minimum count of a word in the training sentences; rarer words count as unknown.
        suffix: number of final letters by which unknown words are distinguished; 0 for a single unknown word.
        max_tokens: maximum number of words of a training sentence; longer ones are excluded and counted.
        reordering: order of the second positions that `xl` and `xl_heads` read: head_final or head_initial,
            in which each head of the tree follows or precedes its dependents (Isozaki et al. 2010).
    """

    train: str | dict[str, str]
    valid: str | dict[str, str]
    columns: dict[str, str] = field(default_factory=dict)
    min_count: int = 2
    suffix: int = 3
    max_tokens: int | None = None
    reordering: Literal["head_final", "head_initial"] | None = None

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens",), min_count=1, suffix=0)
        if isinstance(self.train, str) != isinstance(self.valid, str):
            raise ValueError("train and valid must both be a file, or both files by language")
        if not isinstance(self.valid, str) and (other := [x for x in self.valid if x not in self.languages]):
            raise ValueError(f"valid has the language '{other[0]}'; train has {', '.join(self.languages)}")

    @property
    def languages(self) -> list[str]:
        """Return the languages of the training sentences, whose indices are their ids; empty for one file.

        They are sorted, since files of settings do not keep the order of a mapping.
        """
        return [] if isinstance(self.train, str) else sorted(self.train)


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer and its position model.

    Attributes:
        position_options: options of the position model; an option `labels` is by default the list of
            dependency relations, and `languages` the number of languages.
    """

    output_embeddings = False

    preset: str = "tiny"
    position: settings.PositionName = "sinusoidal"
    max_length: int = 256


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(settings.RunSettings):
    """A tagging run."""

    task: Literal["tagging"] = "tagging"
    data: Data
    model: Model = field(default_factory=Model)
    training: SmoothedTrainingSettings = field(
        default_factory=lambda: SmoothedTrainingSettings(
            learning_rate=2e-3, warmup_steps=200, max_tokens=1000, num_train_epochs=10, average_last=0
        )
    )

    def files_read(self) -> dict[str, Any]:
        files = settings.files_of(self.data, "train", "valid")
        return {name: file if isinstance(file, str) else [*file.values()] for name, file in files.items()}

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_fields(
            self.model,
            language=(bool(self.data.languages), "give files by language, data.train={en: FILE, de: FILE}"),
            reordered=(self.data.reordering is not None, "set data.reordering=head_final or head_initial"),
        )


@register("tagging")
class Tagging(Task):
    """Tagging of words; a position encoding over trees or graphs reads the dependency trees."""

    Settings = TaggingSettings
    metric, metrics, example, unit = "accuracy", ("accuracy",), "sentence", "words"
    output, reads_tables = "tags", True
    load_processor = staticmethod(Vocabulary.from_pretrained)
    shorten = ", or exclude long sentences with data.max_tokens"

    def read(self, settings: TaggingSettings) -> Splits:
        def sentences(files: str | dict[str, str], split: str) -> list[Sentence]:
            if isinstance(files, str):
                return self.read_test(settings, with_split(files, split))
            parts = [
                self.read_test(settings, with_split(file, split), name)
                for name, file in sorted(files.items())
            ]
            return [*chain(*parts)]

        train, valid = (sentences(getattr(settings.data, name), name) for name in ("train", "valid"))
        warn_of_shared(train, valid, lambda sentence: tuple(sentence.words), "sentences")
        return Splits(train, valid)

    def read_test(
        self, settings: TaggingSettings, source: Any, language: str | None = None
    ) -> list[Sentence]:
        """Read a file of a language, which is one of those of the training.

        Raises:
            DataError: if the file cannot be read, or the run has no such language, or needs one.
        """
        data = settings.data
        if language is None and data.languages:
            raise DataError(f"{source} needs a language: {', '.join(data.languages)} (--language)")
        if language is not None and language not in data.languages:
            languages = ", ".join(data.languages) or "none: data.train is one file"
            raise DataError(f"language is '{language}'; the run has {languages}")
        trees = data.reordering is not None or structured(settings.model.position_model())
        return read_sentences(source, structured=trees, columns=data.columns, language=language)

    def toy(self, settings: TaggingSettings) -> list[Sentence]:
        language = next(iter(settings.data.languages), None)
        return [Sentence(["a", "b"], ["A", "B"], [-1, 0], ["c", "c"], language)]

    def make_processor(self, settings: TaggingSettings, train: list[Sentence]) -> Vocabulary:
        words, tags, relations = zip(*((s.words, s.tags, s.relations) for s in train), strict=True)
        how = {"min_count": settings.data.min_count, "suffix": settings.data.suffix}
        return Vocabulary.of(words, chain(*tags), chain(*relations), **how)

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Encoded:
        lengths = [len(sentence.words) for sentence in examples]
        kept = keep_short(lengths, settings.data.max_tokens if training else None, self.example, self.unit)
        data = settings.data
        kept_sentences = [examples[i] for i in kept]
        return encode(kept_sentences, processor, languages=data.languages, reordering=data.reordering)

    def kind(self, settings: Any) -> Any:
        return FloaterForTokenClassification

    def build(self, settings: Any, processor: Vocabulary, train: Any) -> FloaterForTokenClassification:
        config = settings.model.config(len(processor))
        config.id2label, config.label2id = label_maps(processor.tags).values()
        if "labels" in options(config.position):
            config.position_options = {"labels": 1 + len(processor.relations)} | config.position_options
        if settings.data.languages and "languages" in options(config.position):
            config.position_options = {"languages": len(settings.data.languages)} | config.position_options
        return FloaterForTokenClassification(config)

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        return functools.partial(collate, structured=structured(model))

    def hardest(self, examples: Encoded) -> Sequence[int]:
        widest = [max(Counter(row["parents"]).values(), default=0) for row in examples.rows]
        return [sizes.index(max(sizes)) for sizes in (examples.lengths, widest)]

    def summary(self, prepared: Prepared) -> str:
        vocabulary = prepared.processor
        return (
            f"{len(prepared.train):,} training sentences, {len(prepared.valid):,} for validation; "
            f"{len(vocabulary):,} words, {len(vocabulary.tags)} tags, {len(vocabulary.relations)} relations"
        )

    def score(self, settings: Any, model: Any, processor: Vocabulary, examples: Encoded) -> Measurement:
        """Tag sentences and score the tags of all words and of unknown ones; `lines` are the tags."""
        tags: list[list[str]] = [[]] * len(examples)
        nats, count = 0.0, 0
        for indices, result, labels in outputs(
            model, examples, self.collate(settings, processor, model), 4096
        ):
            logits = result.logits.float()
            nats += float(F.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="sum"))
            count += int((labels != IGNORED).sum())
            for index, row in zip(indices, logits.argmax(-1).tolist(), strict=True):
                tags[index] = [processor.tags[tag] for tag in row[: examples.lengths[index]]]
        wanted = chain.from_iterable(sentence.tags for sentence in examples.source)
        right = np.array([a == b for a, b in zip(chain(*tags), wanted, strict=True)])
        unknown = [word not in processor for sentence in examples.source for word in sentence.words]
        percent, line = accuracy(right, "words")
        loss = round(nats / max(count, 1), 4)  # per word whose tag is in the vocabulary
        scores, report = {"loss": loss, "accuracy": percent}, f"{line}\nno unknown words"
        if any(unknown):
            scores["accuracy_unknown"], more = accuracy(right[unknown], "words", "unknown words")
            report = f"{line}\n{more}"
        by_sentence = np.split(right, np.cumsum(examples.lengths)[:-1])
        return Measurement(
            lengths=np.array(examples.lengths),
            statistics={"accuracy": np.array([[np.sum(row), len(row)] for row in by_sentence])},
            lines=[" ".join(row) for row in tags],
            scores=scores,
            report=report,
        )

    def evaluate(self, run: RunPath, source: Any, *, language: str | None = None) -> Measurement:
        """Score the final model of a run on a test set.

        Args:
            run: directory of a finished run.
            source: file of the test sentences.
            language: language of the sentences, for a run with files by language.

        Raises:
            DataError: if the run, the test set or the language is not valid.
            PositionError: if the position model does not support a sentence.
        """
        model, processor, settings = self.load(run)
        examples = self.encode(settings, processor, self.read_test(settings, source, language))
        return self.score(settings, model, processor, examples)

    measure = evaluate

    def question(self, settings: TaggingSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        return settings.data.valid if test is None else None

    def check_test(self, settings: TaggingSettings, **test: Any) -> None:
        source = test["source"]
        sentences = self.read_test(settings, source, test.get("language"))
        words = max(len(sentence.words) for sentence in sentences)
        settings.model.check_reach(words, f"the longest sentence of {source} has {words} words")


def encode(
    sentences: Sequence[Sentence],
    vocabulary: Vocabulary,
    *,
    languages: Sequence[str] = (),
    reordering: str | None = None,
) -> Encoded:
    """Encode sentences; their lengths are in words.

    Args:
        sentences: sentences.
        vocabulary: vocabulary of the words.
        languages: languages, whose indices are their ids; empty where sentences have none.
        reordering: order of the second positions, see `Data`; None for none.
    """
    rows = []
    for sentence in sentences:
        row = {
            "input_ids": vocabulary.ids(sentence.words),
            "labels": vocabulary.labels(sentence.tags),
            "parents": sentence.parents,
            "relations": vocabulary.edges(sentence.relations),
        }
        if sentence.language is not None:
            row["language"] = [languages.index(sentence.language)] * len(sentence.words)
        if reordering is not None:
            row["reordered"] = head_order(sentence.parents, final=reordering == "head_final")
        rows.append(row)
    return Encoded(rows, [len(sentence.words) for sentence in sentences], sentences)


def collate(examples: Sequence[dict[str, list[int]]], *, structured: bool) -> dict[str, Any]:
    """Make a padded batch: `input_ids`, `labels`, and `attention_mask` or `positions`.

    There are positions if the encoding reads trees (`structured`), or sentences have languages or second
    positions.
    """
    ids, labels = ([row[name] for row in examples] for name in ("input_ids", "labels"))
    batch: dict[str, Any] = {"input_ids": padded(ids, PAD), "labels": padded(labels, IGNORED)}
    mask = (batch["input_ids"] != PAD).long()
    names = [name for name in ("language", "reordered") if name in examples[0]]
    fields: dict[str, Any] = {name: padded(row[name] for row in examples) for name in names}
    if not structured:
        positions = {"positions": Positions.from_mask(mask).but(**fields)}
        return batch | (positions if fields else {"attention_mask": mask})
    relations = [example["relations"] for example in examples]
    trees = Positions.tree([row["parents"] for row in examples], labels=relations)
    return batch | {"positions": trees.but(**fields)}


def structured(model: nn.Module) -> bool:
    """Return whether a model has a position encoding that reads trees or graphs."""
    return any(hasattr(module, "needs") for module in model.modules())
