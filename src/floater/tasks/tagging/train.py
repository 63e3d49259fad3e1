"""Training a tagger, from its settings to its directory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import set_seed

from floater.encodings import PositionError
from floater.tasks.conllu import Sentence
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import (
    VOCABULARY,
    Say,
    begin_run,
    trained,
)
from floater.tasks.tagging.data import TaggedSentences, Vocabulary, collate, read_sentences
from floater.tasks.tagging.run import structured
from floater.tasks.tagging.score import tag
from floater.tasks.tagging.settings import TaggingSettings
from floater.tasks.text import DataError
from floater.tasks.trainer import TaskTrainer
from floater.transformer import FloaterForTokenClassification


class TaggingTrainer(TaskTrainer):
    """A Trainer that validates by tagging.

    Args:
        vocabulary: of the model.
        valid: validation sentences.
        **kwargs: as for `TaskTrainer`.
    """

    metric, greater = "accuracy", True

    def __init__(self, *, vocabulary: Vocabulary, valid: Sequence[Sentence], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary, self.valid = vocabulary, valid

    def validation(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy of the validation sentences."""
        assert isinstance(model, FloaterForTokenClassification)
        return tag(model, self.vocabulary, self.valid).metrics


def train(settings: TaggingSettings) -> Path:
    """Train a tagger, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data or the run directory is not what it must be.
        PositionError: if the position model cannot serve the longest sentences, or those with the most words
            under one head.
    """
    return trained(settings, _train)


def check(settings: TaggingSettings) -> None:
    """Refuse a position model that cannot serve any sentence, before any data are read.

    Raises:
        PositionError: if it needs more than the places or the trees of words.
    """
    pair = Sentence(["a", "b"], ["A", "B"], [-1, 0], ["c", "c"])
    vocabulary = Vocabulary.of([pair], min_count=1, suffix=0)
    config = settings.model.config(len(vocabulary), vocabulary.tags, 1 + len(vocabulary.relations))
    with torch.random.fork_rng():
        model = FloaterForTokenClassification(config)
    _check_positions(model, toy=TaggedSentences([pair], vocabulary))


def check_test(settings: TaggingSettings, source: str) -> None:
    """Refuse a test set that `measure` would, before the training; see there for the argument.

    Raises:
        DataError: if the file cannot be read.
        PositionError: if a sentence is longer than the positions reach.
    """
    sentences = read_sentences(source, structured=structured(settings.model.position))
    words = max(len(sentence.words) for sentence in sentences)
    settings.model.check_reach(words, f"the longest sentence of {source} has {words} words")


def _train(settings: TaggingSettings, run: Path, state: PartialState, say: Say) -> Path:
    trees = structured(settings.model.position)
    sentences = read_sentences(settings.data.train, structured=trees)
    valid = read_sentences(settings.data.valid, structured=trees)
    say(f"{len(sentences):,} training sentences, {len(valid):,} validation sentences")
    with state.main_process_first():
        vocabulary, model, examples = _parts(settings, run, sentences, valid, say)
        check_schedule(settings.training, examples.lengths)
        begin_run(run, settings, vocabulary)
    trainer = TaggingTrainer(
        vocabulary=vocabulary,
        valid=valid,
        training=settings.training,
        run=run,
        model=model,
        lengths=examples.lengths,
        label_smoothing=settings.training.label_smoothing,
        train_dataset=examples,
        data_collator=functools.partial(collate, structured=trees),
    )
    return trainer.finish(
        vocabulary, settings.training.average, lambda model: tag(model, vocabulary, valid).metrics, say
    )


def _parts(
    settings: TaggingSettings, run: Path, sentences: list[Sentence], valid: list[Sentence], say: Say
) -> tuple[Vocabulary, FloaterForTokenClassification, TaggedSentences]:
    """The vocabulary, the model before its first step, and the encoded training sentences."""
    data, most = settings.data, settings.training.max_tokens
    if (run / VOCABULARY).is_dir():
        vocabulary = Vocabulary.from_pretrained(run / VOCABULARY)
    else:
        vocabulary = Vocabulary.of(sentences, data.min_count, data.suffix)
    examples = TaggedSentences(sentences, vocabulary, data.max_tokens)
    if settings.training.batch_size is None and max(examples.lengths) > most:
        raise DataError(
            f"a training sentence has {max(examples.lengths)} words, more than training.max_tokens, {most}; "
            "raise that, or leave long sentences out with data.max_tokens"
        )
    config = settings.model.config(len(vocabulary), vocabulary.tags, 1 + len(vocabulary.relations))
    set_seed(settings.training.seed)
    model = FloaterForTokenClassification(config)
    _check_positions(model, training=examples, validation=TaggedSentences(valid, vocabulary))
    if examples.dropped:
        say(f"{examples.dropped:,} training sentences of more than {data.max_tokens} words left out")
    positions = sum(p.numel() for p in model.model.encoder.position.parameters())
    say(
        f"{model.num_parameters():,} parameters, {positions:,} in the position model; "
        f"{len(vocabulary):,} words, {len(vocabulary.tags)} tags, {len(vocabulary.relations)} relations"
    )
    return vocabulary, model, examples


@torch.no_grad()
def _check_positions(model: FloaterForTokenClassification, **parts: TaggedSentences) -> None:
    """Let the position model see the hardest sentences, so that it may refuse them before the training."""
    model.train(False)
    for name, examples in parts.items():
        for index in examples.extremes():
            batch = collate([examples[index]], structured=structured(model.config.position))
            batch.pop("labels")
            try:
                model(**batch)
            except PositionError as error:
                raise PositionError(f"a {name} sentence: {error}") from error
    model.train()
