"""Causal and masked language modelling: train on plain text, measure perplexity."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from floater.errors import DataError
from floater.lab.tasks.causal import causal_loss, check_causal
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.language_modeling.data import (
    Rows,
    Streams,
    begin_id,
    causal_batch,
    collate,
    encode_documents,
    epoch_collate,
    joined,
    masked_by,
    read_documents,
    stream_batch,
    with_mask,
)
from floater.lab.tasks.language_modeling.far import doubling, ranges
from floater.lab.tasks.language_modeling.score import (
    Losses,
    Score,
    causal_score,
    remembering_score,
    rows_score,
)
from floater.lab.tasks.language_modeling.settings import LanguageModelingSettings
from floater.lab.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.lab.tasks.measurement import Measurement, check_edges, summed
from floater.lab.tasks.prepared import Prepared
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import vocabulary_size
from floater.lab.tasks.task import Task, vocabulary_of
from floater.lab.text.bpe import BYTES, SPECIALS, for_prompts, load_bpe, train_bpe
from floater.lab.training import StreamSampler, smoothed_loss
from floater.lab.training.arguments import warmup_steps
from floater.lab.training.files import sealed
from floater.lab.training.model import set_reading, try_random_times
from floater.lab.training.run import MODEL, VOCABULARY, RunPath, RunWithSettings, inside
from floater.lab.training.run_trainer import RunTrainer
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM

logger = logging.getLogger(__name__)
LanguageModel = FloaterForCausalLM | FloaterForMaskedLM
Texts = Sequence[Sequence[str]]


@register("language_modeling")
class LanguageModeling(Task):
    """Prediction of the next token, with or without a memory, or of masked tokens."""

    Settings = LanguageModelingSettings
    metric, metrics, greater, example = "loss", ("loss", "excess"), False, "row"
    reads_tables = True
    stored = (Rows,)
    Trainer = LanguageModelTrainer

    def read_test(self, settings: LanguageModelingSettings, source: Any) -> Texts:
        return read_documents(source, settings.data.documents, settings.data.columns)

    def make_processor(self, settings: LanguageModelingSettings, train: Texts) -> Any:
        data = settings.data
        if data.vocabulary is not None:
            tokenizer = load_bpe(sealed(inside(Path(data.vocabulary), VOCABULARY, MODEL)))
            if data.lowercase and tokenizer("A").input_ids != tokenizer("a").input_ids:
                raise DataError(
                    f"data.lowercase is true, but the vocabulary {data.vocabulary} keeps upper case; leave "
                    "lowercase out, or data.vocabulary to train one"
                )
        else:
            lines = (line for text in train for line in text)
            tokenizer = train_bpe(lines, data.vocabulary_size, lowercase=data.lowercase)
        return with_mask(tokenizer) if settings.objective == "masked" else tokenizer

    def for_model(self, prepared: Prepared) -> Any:
        return for_prompts(prepared.processor, causal=prepared.settings.objective == "causal")

    def vocabulary_key(self, settings: LanguageModelingSettings) -> Any:
        return settings.objective if settings.data.vocabulary is None else None

    def stores_tokens(self, settings: LanguageModelingSettings) -> bool:
        return not settings.data.memory  # streams are as many as the rows of a batch of all processes

    def encode(self, settings: Any, processor: Any, examples: Texts, *, training: bool = False) -> Any:
        """Pack training texts into rows; validation texts are cut into windows when they are scored."""
        if not training:
            return scorer(settings, processor, examples)
        data, documents = settings.data, encode_documents(processor, examples)
        whole = [joined(documents, int(processor.eos_token_id))] if data.full_sentences else documents
        begin = begin_id(processor)
        rows: Rows | Streams
        if not data.memory:
            rows = Rows.of(whole, data.block, begin=begin, pack=data.pack)
            cut = f"{len(rows):,} rows"
            if rows.cut:
                logger.info("%s training lines of more than %s tokens cut", f"{rows.cut:,}", data.block - 1)
        else:
            processes = PartialState().num_processes
            streams_per_process = (
                settings.training.per_device_train_batch_size or settings.training.max_tokens // data.block
            )
            rows = Streams(
                [list(document) for document in whole],
                data.block,
                streams_per_process * processes,
                begin=begin,
            )
            if rows.streams < processes:
                raise DataError(f"{rows.tokens:,} tokens are too few for {processes} processes")
            cut = f"{len(rows):,} rows of {rows.streams:,} streams"
        logger.info("%s training documents: %s tokens in %s", f"{len(documents):,}", f"{rows.tokens:,}", cut)
        return rows

    def kind(self, settings: LanguageModelingSettings) -> Any:
        return FloaterForCausalLM if settings.objective == "causal" else FloaterForMaskedLM

    def empty(self, settings: LanguageModelingSettings) -> LanguageModel:
        with torch.device("meta"), torch.random.fork_rng():
            model: LanguageModel = self.kind(settings)(settings.model.config(vocabulary_size(settings.data)))
        return model

    def build(self, settings: Any, processor: Any, train: Any) -> LanguageModel:
        model: LanguageModel = self.kind(settings)(settings.model.config(len(processor)))
        return model

    def collate(self, settings: Any, processor: Any, model: Any, *seed: int) -> Collate:
        """Return the function that makes batches; without a seed, masking uses that of the evaluation."""
        pad = int(processor.pad_token_id)
        if settings.data.memory:
            return functools.partial(stream_batch, pad=pad)
        if settings.objective == "causal":
            return functools.partial(causal_batch, pad=pad, begin=begin_id(processor))
        return masked_by(settings, processor, *seed)

    training_collate = epoch_collate

    def loss(self, prepared: Prepared) -> Any:
        if prepared.settings.objective == "masked":
            return None
        return smoothed_loss(0.0) if prepared.settings.data.memory else causal_loss

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Any, name: str) -> None:
        """Run the position model on the row with the most documents, and refuse it if it is not causal.

        In training also run it on the longest part of a document, for which random times may have no room.

        Raises:
            PositionError: if the position model refuses a row.
        """
        model.train(False)
        with torch.no_grad():
            if isinstance(examples, Rows):
                few = (examples[i] for i in range(min(64, len(examples))))
                uncached = {"use_cache": False} if isinstance(model, FloaterForCausalLM) else {}
                model(**collate([max(few, key=lambda row: len(row["parts"]))], pad=0), **uncached)
                if name == "training":
                    parts = examples.parts
                    longest = int(np.searchsorted(parts.ends, parts.values.argmax(), side="right"))
                    try_random_times(model, collate([examples[longest]], pad=0))
            if isinstance(model, FloaterForCausalLM):
                check_causal(model)
        model.train(True)

    def check_schedule(self, prepared: Prepared) -> None:
        if isinstance(prepared.train, Streams):
            warmup_steps(prepared.settings.training, prepared.train.rows)
        else:
            super().check_schedule(prepared)

    def check(self, settings: LanguageModelingSettings) -> None:
        with torch.random.fork_rng():
            model = self.kind(settings)(settings.model.config(BYTES + len(SPECIALS)))
        data = settings.data
        packed = data.pack and data.documents != "file" and not data.full_sentences
        rows = Rows.of([[np.full(3, 7)]] * 2, 8, begin=BYTES, pack=packed)
        self.check_model(settings, model, None, rows, "")

    def summary(self, prepared: Prepared) -> str:
        return f"{len(prepared.processor):,} tokens in the vocabulary"

    def trainer(self, prepared: Prepared, run: Path, **options: Any) -> RunTrainer:
        rows, state = prepared.train, PartialState()
        if isinstance(rows, Streams):
            world = {"world_size": state.num_processes, "rank": state.process_index}
            options["sampler"] = StreamSampler(rows.lengths, rows.streams, **world)
        return super().trainer(prepared, run, memory=prepared.settings.data.memory, **options)

    def score(self, settings: Any, model: Any, processor: Any, examples: Callable[..., Score]) -> Measurement:
        return examples(model)

    def load(self, run: RunPath, device: str | torch.device | None = None) -> tuple[Any, Any, Any]:
        return super().load(RunWithSettings(Path(run), self.settings_of(run)), device)

    def evaluate(
        self,
        run: RunPath,
        source: Any,
        *,
        window: int | None = None,
        stride: int | None = None,
        memory: int | None = None,
        bins: Sequence[int] = (),
        reading: Any = None,
    ) -> Score:
        """Measure the perplexity of a text with the final model of a run.

        Args:
            run: directory of a finished run.
            source: file or files of the text.
            window: number of tokens in the model's input; by default that of the run's configuration.
            stride: number of tokens that the window of a causal model moves by; by default that of the run.
                If a window is given, the default is half of it, or all but one token if it is longer than the
                training rows.
            memory: number of tokens before the window that the blocks of a causal model attend to; by default
                that of the run.
            bins: first contexts of the ranges in which a causal model is scored, besides 1. By default they
                are the training length, twice as much, and so on, if the window is longer.
            reading: settings for long rows, see `Reading.of`; by default those of the model.

        Returns:
            Loss, perplexity and number of tokens. If the window is longer than the training rows, the report
            also has the loss of the same tokens in windows of the training length.

        Raises:
            DataError: if the run, a file, the window or the bins are not valid.
            PositionError: if the window is longer than the table of learned positions, or the position model
                does not support a memory.
        """
        check_edges(bins)
        model, tokenizer, settings = self.load(run)
        set_reading(model, reading)
        texts = self.read_test(settings, source)
        block, (wide, _, held) = settings.data.block, windows_of(settings, window, stride, memory)
        if bins and (held or settings.objective != "causal"):
            raise DataError(f"bins {list(bins)}: only a causal model without a memory is scored by context")
        score, near = _losses(model, tokenizer, settings, texts, window, stride, memory)
        starts = bins or (doubling(block, wide) if near is not None else ())
        parts = ranges(score.losses, near, starts, wide) if starts else ()
        return replace(score, ranges=parts, bins=[part.record for part in parts])

    def measure(
        self,
        run: RunPath,
        source: str | list[str],
        window: int | None = None,
        stride: int | None = None,
        bins: tuple[int, ...] = (),
    ) -> Measurement:
        """Return the loss of a run's final model on a text, row by row; see `evaluate` for the arguments.

        A row is a window of a causal model, or a packed row of a masked one. Its length is the number of its
        predicted tokens, and the position of a loss is that of its token in the row. With bins, an example is
        the part of a window whose tokens have a context within one range; its length is the least of these
        contexts, and its unit is the window. A document is no unit, as a text may be one document.

        If the window is longer than the training rows, "excess" is the loss minus that of the same tokens in
        windows of the training length.
        """
        model, tokenizer, settings = self.load(run)
        texts = self.read_test(settings, source)
        total, near = _losses(model, tokenizer, settings, texts, window, stride)
        losses = total.losses
        ordered = reads_in_order(settings) and bool(bins)
        part = np.searchsorted(bins, losses.contexts, side="right") if ordered else np.zeros_like(losses.rows)
        first, sums = summed(
            losses.rows * (len(bins) + 1) + part, losses.nats, *([] if near is None else [near.nats])
        )
        tokens = sums[:, -1]
        statistics = {"loss": np.stack([sums[:, 0], tokens], axis=1)}
        if near is not None:
            statistics["excess"] = np.stack([sums[:, 0] - sums[:, 1], tokens], axis=1)
        return replace(
            total,
            lengths=losses.contexts[first] if ordered else tokens.astype(np.int64),
            statistics=statistics,
            units=losses.rows[first] if ordered else np.zeros(0, dtype=np.int64),
            position_nats=np.bincount(losses.positions, weights=losses.nats),
            position_tokens=np.bincount(losses.positions),
        )

    def question(
        self, settings: LanguageModelingSettings, metric: str, test: Mapping[str, Any] | None
    ) -> Any:
        data, masked = settings.data, settings.objective == "masked"
        chosen = (settings.masking, settings.evaluation.seed) if masked else None
        valid = data.valid if test is None else None
        return chosen, valid, data.columns, data.documents, data.full_sentences, vocabulary_of(settings)

    def lengths(self, settings: LanguageModelingSettings) -> str:
        return "tokens read before" if reads_in_order(settings) else "predicted tokens of a row"

    def check_test(self, settings: LanguageModelingSettings, **test: Any) -> None:
        wide, _, held = windows_of(settings, test.get("window"), test.get("stride"))
        self.read_test(settings, test["source"])
        what = f"the window {'and memory have' if held else 'has'} {wide + held}"
        settings.model.check_reach(wide + held, what)


def reads_in_order(settings: LanguageModelingSettings) -> bool:
    """Return True for a causal model without a memory, whose windows give each token a known context."""
    return settings.objective == "causal" and not windows_of(settings)[2]


def encoded(settings: LanguageModelingSettings, tokenizer: Any, texts: Texts) -> list[Any]:
    """Return the token ids of documents, joined to one text if the settings ask for it."""
    documents = encode_documents(tokenizer, texts)
    return (
        [list(joined(documents, int(tokenizer.eos_token_id)))]
        if settings.data.full_sentences
        else list(documents)
    )


def scorer(
    settings: LanguageModelingSettings, tokenizer: Any, texts: Texts, *sizes: int | None
) -> Callable[..., Score]:
    """Return a function that scores a model on a text.

    Args:
        settings: settings of the run.
        tokenizer: tokenizer of the run.
        texts: documents of the text.
        *sizes: window, stride and memory, as for `LanguageModeling.evaluate`.

    Raises:
        DataError: if window, stride or memory is too small, the stride is not below the window, or a memory
            is given together with a stride or for a masked model.
    """
    asked, (wide, step, held) = settings.evaluation, windows_of(settings, *sizes)
    documents, begin = encoded(settings, tokenizer, texts), begin_id(tokenizer)
    causal: dict[str, Any] = {"documents": documents, "window": wide, "begin": begin}
    if held:
        return functools.partial(remembering_score, memory=held, max_tokens=asked.max_tokens, **causal)
    if settings.objective == "causal":
        return functools.partial(causal_score, stride=step, max_tokens=asked.max_tokens, **causal)
    rows = Rows.of(documents, wide, begin=begin, pack=settings.data.pack)
    return functools.partial(
        rows_score, rows=rows, collate=masked_by(settings, tokenizer), max_tokens=asked.max_tokens
    )


def windows_of(
    settings: LanguageModelingSettings,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
) -> tuple[int, int, int]:
    """Return window, stride and memory of a measurement; see `scorer`."""
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


def _losses(
    model: LanguageModel, tokenizer: Any, settings: LanguageModelingSettings, texts: Texts, *sizes: int | None
) -> tuple[Score, Losses | None]:
    """Score a text, and again in windows of the training length if those of a causal model are longer."""
    score = scorer(settings, tokenizer, texts, *sizes)(model)
    wide, _, held = windows_of(settings, *sizes)
    if held or settings.objective != "causal" or wide <= settings.data.block:
        return score, None
    return score, scorer(settings, tokenizer, texts, settings.data.block)(model).losses
