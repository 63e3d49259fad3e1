"""Training and measuring a language model, from its settings to its directory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerFast, set_seed

from floater.settings import load
from floater.tasks.bpe import BYTES, SPECIALS, load_bpe, train_bpe
from floater.tasks.causal import check_causal
from floater.tasks.language_modeling.data import (
    Rows,
    Streams,
    begin_id,
    collate,
    encode_documents,
    read_documents,
    with_mask,
)
from floater.tasks.language_modeling.far import Losses, check_edges, doubling, losses, ranges, summed
from floater.tasks.language_modeling.score import (
    Score,
    causal_score,
    masked_score,
    remembering_score,
)
from floater.tasks.language_modeling.settings import LanguageModelingSettings
from floater.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.tasks.measurement import Measurement
from floater.tasks.optimisation import check_schedule, warmup_steps
from floater.tasks.run import (
    MODEL,
    SETTINGS,
    VOCABULARY,
    Say,
    begin_run,
    inside,
    load_model,
    read_by,
    trained,
)
from floater.tasks.text import DataError
from floater.training import StreamSampler
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM

LanguageModel = FloaterForCausalLM | FloaterForMaskedLM
Texts = list[list[str]]


def train(settings: LanguageModelingSettings) -> Path:
    """Train a language model, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data or the run directory is not what it must be, or the position model shows a
            causal model the tokens to come.
        PositionError: if the position model cannot serve the text, as one over trees cannot.
    """
    return trained(settings, _train)


def _train(settings: LanguageModelingSettings, run: Path, state: PartialState, say: Say) -> Path:
    texts = [
        read_documents(files, settings.data.documents) for files in (settings.data.train, settings.data.valid)
    ]
    with state.main_process_first():
        tokenizer = _vocabulary(settings, run, texts[0])
        model, rows = _parts(settings, tokenizer, texts[0], say)
        score = scorer(settings, tokenizer, texts[1])
        if isinstance(rows, Streams):
            warmup_steps(settings.training, rows.rows)
        else:
            check_schedule(settings.training, rows.lengths)
        begin_run(run, settings, tokenizer)
    trainer = LanguageModelTrainer(
        settings=settings,
        tokenizer=tokenizer,
        score=score,
        memory=settings.data.memory,
        run=run,
        model=model,
        lengths=rows.lengths,
        train_dataset=rows,
        sampler=StreamSampler(
            rows.lengths, rows.streams, world_size=state.num_processes, rank=state.process_index
        )
        if isinstance(rows, Streams)
        else None,
    )
    return trainer.finish(tokenizer, settings.training.average, lambda model: score(model).metrics, say)


def load_run(
    run: str | Path, device: str | torch.device | None = None
) -> tuple[LanguageModel, PreTrainedTokenizerFast, LanguageModelingSettings]:
    """The final model of a run, its vocabulary and its settings.

    Args:
        run: the run directory.
        device: where to put the model; by default a GPU if there is one.

    Raises:
        DataError: if the directory holds no finished run, or a broken one.
        SettingsError: if it has no settings that can be read.
    """
    settings = load(LanguageModelingSettings, Path(run) / SETTINGS)
    if settings.objective == "causal":
        return *load_model(FloaterForCausalLM, run, device), settings
    model, tokenizer = load_model(FloaterForMaskedLM, run, device)
    return model, with_mask(tokenizer), settings


def evaluate(
    run: str | Path,
    source: str | list[str],
    *,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    edges: Sequence[int] = (),
    reading: Any = None,
) -> Score:
    """Measure the perplexity of a text with a run's final model.

    Args:
        run: a finished run directory.
        source: the text, a file or several.
        window: tokens that the model sees at once; by default what the run's configuration says.
        stride: tokens that the window moves by, for a causal model; by default the run's, or if a window is
            given half of it, all but one token of one that is longer than the training rows.
        memory: tokens before the window that the blocks of a causal model remember; by default the run's.
        edges: where ranges of context begin, besides 1: a causal model is scored in each. By default they
            begin at the training length, twice as much, and so on, where the window is longer.
        reading: how to read long rows, see `Reading.of`; by default as the model does.

    Returns:
        The score. Where the window is longer than the training rows, its ranges also have the loss of the
        same tokens in windows of the training length.

    Raises:
        DataError: if the run, a file, the window or the edges are not what they must be.
        PositionError: if the window is longer than learned positions reach, or the position model has no use
            for a memory.
    """
    check_edges(edges)
    model, tokenizer, settings = load_run(run)
    read_by(model, reading)
    texts = read_documents(source, settings.data.documents)
    block, (wide, _, held) = settings.data.block, _windows(settings, window, stride, memory)
    if edges and (held or settings.objective != "causal"):
        raise DataError(f"bins {list(edges)}: only a causal model without a memory is scored by context")
    score, found, near = _losses(model, tokenizer, settings, texts, window, stride, memory)
    starts = edges or (doubling(block, wide) if near is not None else ())
    return replace(score, ranges=ranges(found, near, starts, wide)) if starts else score


def measure(
    run: str | Path,
    source: str | list[str],
    window: int | None = None,
    stride: int | None = None,
    edges: tuple[int, ...] = (),
) -> Measurement:
    """Loss of a run's final model on a text, row by row; see `evaluate` for the arguments.

    A row is a window of a causal model, and a packed row of a masked one; its length is the number of its
    tokens that are predicted, and the position of a loss is that of its token in the row. With edges, an
    example is the part of a window whose tokens have read as many before them as a range says; its length is
    the least of these numbers.

    Where the window is longer than the training rows, "excess" is the loss less that of the same tokens in
    windows of the training length.
    """
    model, tokenizer, settings = load_run(run)
    texts = read_documents(source, settings.data.documents)
    _, found, near = _losses(model, tokenizer, settings, texts, window, stride)
    ordered = reads_in_order(settings) and bool(edges)
    part = np.searchsorted(edges, found.contexts, side="right") if ordered else np.zeros_like(found.rows)
    first, sums = summed(
        found.rows * (len(edges) + 1) + part, found.nats, *([] if near is None else [near.nats])
    )
    tokens = sums[:, -1]
    statistics = {"loss": np.stack([sums[:, 0], tokens], axis=1)}
    if near is not None:
        statistics["excess"] = np.stack([sums[:, 0] - sums[:, 1], tokens], axis=1)
    return Measurement(
        lengths=found.contexts[first] if ordered else tokens.astype(np.int64),
        statistics=statistics,
        position_nats=np.bincount(found.places, weights=found.nats),
        position_tokens=np.bincount(found.places),
    )


def reads_in_order(settings: LanguageModelingSettings) -> bool:
    """Whether a test reads windows of a causal model without a memory, whose tokens have a context each."""
    return settings.objective == "causal" and not _windows(settings)[2]


def _losses(
    model: LanguageModel,
    tokenizer: PreTrainedTokenizerFast,
    settings: LanguageModelingSettings,
    texts: Texts,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
) -> tuple[Score, Losses, Losses | None]:
    """Score a text, and again in windows of the training length where those of a causal model are longer."""
    score, found = losses(scorer(settings, tokenizer, texts, window, stride, memory), model)
    wide, _, held = _windows(settings, window, stride, memory)
    if held or settings.objective != "causal" or wide <= settings.data.block:
        return score, found, None
    return score, found, losses(scorer(settings, tokenizer, texts, settings.data.block), model)[1]


def scorer(
    settings: LanguageModelingSettings,
    tokenizer: PreTrainedTokenizerFast,
    texts: Texts,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
) -> Callable[..., Score]:
    """How a run measures a model on a text; see `evaluate` for the arguments.

    Raises:
        DataError: if window, stride or memory is too small, the stride not below the window, or there is a
            memory beside a stride or for a masked model.
    """
    asked = settings.evaluation
    wide, step, held = _windows(settings, window, stride, memory)
    documents, begin = encode_documents(tokenizer, texts), begin_id(tokenizer)
    batch = asked.max_tokens
    if held:
        return functools.partial(
            remembering_score, documents=documents, window=wide, memory=held, begin=begin, max_tokens=batch
        )
    if settings.objective == "causal":
        return functools.partial(
            causal_score, documents=documents, window=wide, stride=step, begin=begin, max_tokens=batch
        )
    rows = Rows(documents, wide, begin=begin, pack=settings.data.pack)
    return functools.partial(
        masked_score,
        rows=rows,
        masking=settings.masking,
        tokenizer=tokenizer,
        seed=asked.seed,
        max_tokens=batch,
    )


def check_test(
    settings: LanguageModelingSettings,
    source: str | list[str],
    window: int | None = None,
    stride: int | None = None,
    edges: tuple[int, ...] = (),
) -> None:
    """Refuse a test set that `measure` would, before the training; see there for the arguments.

    Raises:
        DataError: if the text cannot be read, or window or stride is too small.
        PositionError: if the window is longer than the positions reach.
    """
    wide, _, held = _windows(settings, window, stride)
    read_documents(source, settings.data.documents)
    settings.model.check_reach(
        wide + held, f"the window {'and memory have' if held else 'has'} {wide + held}"
    )


def _windows(
    settings: LanguageModelingSettings,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
) -> tuple[int, int, int]:
    """Window, stride and memory of a measurement; see `scorer`."""
    asked = settings.evaluation
    try:
        if window is not None:
            asked = replace(asked, window=window, stride=stride)
        elif stride is not None:
            asked = replace(asked, stride=stride)
        if memory is not None:
            asked = replace(asked, memory=memory)
        wide, step = asked.windows(settings.data.block)
        held = settings.data.memory if asked.memory is None else asked.memory
        if held and settings.objective != "causal":
            raise ValueError(f"memory is {held}; a masked language model has none")
        if stride is not None and (held or settings.objective != "causal"):
            why = f"with a memory of {held} tokens there is none" if held else "a masked model has none"
            raise ValueError(f"stride is {stride}; {why}")
    except ValueError as error:
        raise DataError(str(error)) from error
    return wide, step, held


def _vocabulary(settings: LanguageModelingSettings, run: Path, texts: Texts) -> PreTrainedTokenizerFast:
    """The run's vocabulary: its own, the one given, or a new one; with <mask> where it is needed."""
    data = settings.data
    if (run / VOCABULARY).is_dir():
        tokenizer = load_bpe(run / VOCABULARY)
    elif data.vocabulary is not None:
        tokenizer = load_bpe(inside(Path(data.vocabulary), VOCABULARY, MODEL))
    else:
        tokenizer = train_bpe((line for text in texts for line in text), data.vocabulary_size)
    return with_mask(tokenizer) if settings.objective == "masked" else tokenizer


def _parts(
    settings: LanguageModelingSettings, tokenizer: PreTrainedTokenizerFast, texts: Texts, say: Say
) -> tuple[LanguageModel, Rows | Streams]:
    """The model before its first step, and the training rows."""
    data = settings.data
    documents = encode_documents(tokenizer, texts)
    begin, rows = begin_id(tokenizer), None
    if data.memory:
        processes = PartialState().num_processes
        of_one = settings.training.batch_size or settings.training.max_tokens // data.block
        most = of_one * processes
        streams = Streams(documents, data.block, most, begin=begin)
        if streams.streams < processes:
            raise DataError(f"{streams.tokens:,} tokens are too few for {processes} processes")
        said = f"{len(streams):,} rows of {streams.streams:,} streams"
    else:
        rows = Rows(documents, data.block, begin=begin, pack=data.pack)
        said = f"{len(rows):,} rows"
    found = rows or streams
    say(f"{len(documents):,} training documents: {found.tokens:,} tokens in {said}")
    if rows is not None and rows.cut:
        say(f"{rows.cut:,} training lines of more than {data.block - 1} tokens cut")
    set_seed(settings.training.seed)
    kind = FloaterForCausalLM if settings.objective == "causal" else FloaterForMaskedLM
    model = kind(settings.model.config(len(tokenizer)))
    _check_positions(model, rows)
    positions = sum(p.numel() for p in model.model.encoder.position.parameters())
    say(f"{model.num_parameters():,} parameters, {positions:,} in position models; {len(tokenizer):,} tokens")
    return model, found


@torch.no_grad()
def _check_positions(model: LanguageModel, rows: Rows | None) -> None:
    """Refuse a position model that cannot serve these rows, before anything is written."""
    model.train(False)
    if rows is not None:
        hardest = max((rows[i] for i in range(min(64, len(rows)))), key=lambda row: len(row["parts"]))
        model(**collate([hardest], pad=0))
    if isinstance(model, FloaterForCausalLM):
        check_causal(model)
    model.train(True)


def check(settings: LanguageModelingSettings) -> None:
    """Refuse a position model that cannot serve any text of these settings, before any data are read.

    Raises:
        DataError: if it shows a causal model the tokens to come.
        PositionError: if it needs more than the places of tokens, or cannot serve packed documents.
    """
    kind = FloaterForCausalLM if settings.objective == "causal" else FloaterForMaskedLM
    with torch.random.fork_rng():
        model = kind(settings.model.config(BYTES + len(SPECIALS)))
    packed = settings.data.pack and settings.data.documents != "file"
    document = [np.full(3, 7)]
    rows = Rows([document] * 2, 8, begin=BYTES, pack=packed)
    _check_positions(model, rows)
