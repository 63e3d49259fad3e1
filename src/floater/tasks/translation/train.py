"""Training a translation model, from its settings to its directory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerFast, set_seed

from floater.positions import Positions
from floater.tasks import cldr
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import Say, begin_run, trained
from floater.tasks.text import DataError, read_pairs
from floater.tasks.translation.data import Corpus, TokenPairs, load_corpus
from floater.tasks.translation.run import load_run, vocabulary
from floater.tasks.translation.settings import TranslationSettings
from floater.tasks.translation.trainer import check_lengths, make_trainer
from floater.tasks.translation.validation import validate
from floater.tasks.translation.warm import is_position, warm_started
from floater.transformer import FloaterForConditionalGeneration, encoder_decoder


def train(settings: TranslationSettings) -> Path:
    """Train a translation model, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the warm start or the run directory is not what it must be.
    """
    return trained(settings, _train)


def check(settings: TranslationSettings) -> None:
    """Refuse position models that need more than this task tells them, as trees, before any data are read.

    Raises:
        PositionError: if the model is one.
    """
    told = replace(
        Positions.arange(8), token=torch.zeros(1, 8, dtype=torch.long), target_length=torch.tensor([8])
    )
    for site in ("self", "decoder", "memory"):
        settings.model.position_model(site).prepare(told)


def check_test(settings: TranslationSettings, source: str, reference: str, token: str = cldr.TOKEN) -> None:
    """Refuse a test set that `measure` would, before the training; see there for the arguments.

    Raises:
        DataError: if the files cannot be read, or are not aligned, or the token is no regular expression.
        PositionError: if a sentence is longer than the positions reach, however few tokens it has.
    """
    try:
        re.compile(token)
    except re.error as error:
        raise DataError(f"token {token!r} is no regular expression: {error}") from None
    pairs = read_pairs(source, reference)
    for path, lines in ((source, pairs.source), (reference, pairs.target)):
        words = max(len(line.split()) for line in lines)
        settings.model.check_reach(words + 1, f"the longest line of {path} has {words} words and an end")


def _train(settings: TranslationSettings, run: Path, state: PartialState, say: Say) -> Path:
    check(settings)
    corpus = load_corpus(settings.data, say)
    with state.main_process_first():
        tokenizer, model, examples = _parts(settings, run, corpus, say)
        check_schedule(settings.training, examples.lengths)
        begin_run(run, settings, tokenizer)
    trainer = make_trainer(settings.training, run, model, tokenizer, examples, corpus.valid, say)

    def measure(model: FloaterForConditionalGeneration) -> dict[str, float]:
        if settings.training.validate_every == "never":
            return {}
        found = validate(model, tokenizer, corpus.valid, settings.decoding)
        return found.metrics | {"cut_translations": found.cut}

    return trainer.finish(tokenizer, settings.training.average, measure, say)


def _parts(
    settings: TranslationSettings, run: Path, corpus: Corpus, say: Say
) -> tuple[PreTrainedTokenizerFast, FloaterForConditionalGeneration, TokenPairs]:
    """The vocabulary, the model before its first step, and the encoded training pairs."""
    start, most = settings.training.warm_start, settings.data.max_tokens
    trained = None if start is None else load_run(start, "cpu")[0]
    tokenizer = vocabulary(settings, run, corpus.train)
    config = settings.model.config(len(tokenizer))
    set_seed(settings.training.seed)
    if start is None or trained is None:
        model = encoder_decoder(config)
    else:
        model = warm_started(config, trained, start)
    examples = TokenPairs(corpus.train, tokenizer, most)
    batch = settings.training.max_tokens if settings.training.batch_size is None else None
    check_lengths(model, examples, TokenPairs(corpus.valid, tokenizer), batch)
    if examples.dropped:
        say(f"{examples.dropped:,} training pairs of more than {most} tokens left out")
    positions = sum(p.numel() for name, p in model.named_parameters() if is_position(name))
    say(f"{model.num_parameters():,} parameters, {positions:,} in position models; {len(tokenizer):,} tokens")
    return tokenizer, model, examples
