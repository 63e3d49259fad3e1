"""Training on documents, from the settings of a run to its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor, nn
from transformers import set_seed

from floater.encodings import PositionError
from floater.tasks.documents.data import Document, Documents, collate, read_documents, vocabulary_of
from floater.tasks.documents.model import FloaterForDocuments
from floater.tasks.documents.score import classify, part_of
from floater.tasks.documents.settings import DocumentsSettings
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import VOCABULARY, Say, begin_run, trained
from floater.tasks.split import PARTS
from floater.tasks.tagging.data import PAD, Vocabulary
from floater.tasks.text import DataError
from floater.tasks.trainer import TaskTrainer


class DocumentsTrainer(TaskTrainer):
    """A Trainer that validates by labelling documents.

    Args:
        vocabulary: of the model.
        valid: validation documents.
        **kwargs: as for `TaskTrainer`.
    """

    metric, greater = "accuracy", True

    def __init__(self, *, vocabulary: Vocabulary, valid: Documents, **kwargs: Any) -> None:
        super().__init__(data_collator=collate, **kwargs)
        self.vocabulary, self.valid = vocabulary, valid

    def tokens_of(self, batch: Mapping[str, Any]) -> Tensor:
        """The words."""
        words: Tensor = (batch["words"] != PAD).sum()
        return words

    def validation(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy of the validation documents."""
        assert isinstance(model, FloaterForDocuments)
        return classify(model, self.vocabulary, self.valid).metrics


def train(settings: DocumentsSettings) -> Path:
    """Train on documents, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data or the run directory is not what it must be.
        PositionError: if the position model cannot serve the longest documents.
    """
    return trained(settings, _train)


def check(settings: DocumentsSettings) -> None:
    """Refuse position models that cannot serve any document, before any data are read.

    Raises:
        PositionError: if that of the sentences, or of the words, needs more than their places.
    """
    documents = [Document(f"{label}/1.txt", label, [["a"], ["b", "a"]]) for label in ("one", "other")]
    vocabulary = vocabulary_of(documents, 1)
    with torch.random.fork_rng():
        model = FloaterForDocuments(settings.model.config(len(vocabulary), num_labels=2))
    _check(model, Documents(documents, vocabulary, settings.data.max_words), "toy")


def _train(settings: DocumentsSettings, run: Path, state: PartialState, say: Say) -> Path:
    data = settings.data
    every = read_documents(data.train)
    documents, held = (part_of(every, part, data) for part in PARTS[:2])
    with state.main_process_first():
        vocabulary, model, examples, valid = _parts(settings, run, documents, held, say)
        check_schedule(settings.training, examples.lengths)
        begin_run(run, settings, vocabulary)
    trainer = DocumentsTrainer(
        vocabulary=vocabulary,
        valid=valid,
        training=settings.training,
        run=run,
        model=model,
        lengths=examples.lengths,
        train_dataset=examples,
    )
    return trainer.finish(
        vocabulary,
        settings.training.average,
        lambda model: classify(model, vocabulary, valid).metrics,
        say,
    )


def _parts(
    settings: DocumentsSettings, run: Path, documents: list[Document], held: list[Document], say: Say
) -> tuple[Vocabulary, FloaterForDocuments, Documents, Documents]:
    """The vocabulary, the model before its first step, the encoded training and validation documents."""
    data, most = settings.data, settings.training.max_tokens
    if (run / VOCABULARY).is_dir():
        vocabulary = Vocabulary.from_pretrained(run / VOCABULARY)
    else:
        vocabulary = vocabulary_of(documents, data.min_count)
    examples, valid = (Documents(part, vocabulary, data.max_words) for part in (documents, held))
    if settings.training.batch_size is None and max(examples.lengths) > most:
        raise DataError(
            f"a training document has {max(examples.lengths):,} words, more than training.max_tokens, "
            f"{most}; raise that"
        )
    count = sum(examples.counts)
    set_seed(settings.training.seed)
    model = FloaterForDocuments(
        settings.model.config(
            len(vocabulary),
            sentence_length=sum(examples.lengths) / count,
            word_length=data.max_words,
            id2label=dict(enumerate(vocabulary.tags)),
            label2id={label: i for i, label in enumerate(vocabulary.tags)},
        )
    )
    for name, part in (("training", examples), ("validation", valid)):
        _check(model, part, name)
    say(
        f"{len(examples):,} training documents of {count:,} sentences and {sum(examples.lengths):,} words, "
        f"{len(valid):,} validation documents"
    )
    positions = sum(p.numel() for p in model.encoder.position.parameters())
    say(
        f"{model.num_parameters():,} parameters, {positions:,} in the position model of the sentences; "
        f"{len(vocabulary):,} words, {len(vocabulary.tags)} labels"
    )
    return vocabulary, model, examples, valid


@torch.no_grad()
def _check(model: FloaterForDocuments, examples: Documents, name: str) -> None:
    """Let the position model see the longest documents, so that it may refuse them before the training."""
    model.train(False)
    for sizes in (examples.lengths, examples.counts):
        index = sizes.index(max(sizes))
        batch = collate([examples[index]])
        batch.pop("labels")
        try:
            model(**batch)
        except PositionError as error:
            raise PositionError(f"a {name} document: {error}") from error
    model.train()
