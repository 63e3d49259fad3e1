"""Perplexity: causal with a sliding window, masked with a fixed seed."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.tasks.examples import Examples, moved
from floater.tasks.language_modeling.data import (
    Document,
    Example,
    collate,
    masked_batch,
    stream_batch,
)
from floater.tasks.language_modeling.settings import Masking
from floater.tasks.measurement import Measurement, perplexity
from floater.training import TokenBatchSampler
from floater.training.run import evaluating
from floater.transformer import FloaterForCausalLM
from floater.transformer.head import logits_at
from floater.transformer.memory import Memory
from floater.transformer.outputs import IGNORED

RowKey = int | tuple[int, int]
Record = Callable[[Sequence[RowKey], Tensor, Tensor], None]
"""Takes the keys of rows, the losses of their tokens (rows, T), and the mask of those that were predicted."""


@dataclass(frozen=True)
class Range:
    """The loss of the tokens of a text that have read a range of numbers of tokens.

    Args:
        low: least number of tokens read before, and
        high: greatest.
        tokens: how many were predicted.
        loss: nats per token.
        near: of the same tokens in windows of the training length; None where the window is not longer.
    """

    low: int
    high: int
    tokens: int
    loss: float
    near: float | None


@dataclass(frozen=True, kw_only=True)
class Score(Measurement):
    """The loss, the perplexity and the number of tokens of a model on a text.

    Args:
        nats: cross-entropy, summed over the tokens.
        tokens: how many were predicted.
        seconds: that it took.
        ranges: the loss by the number of tokens read before, where that was asked for.
        **kwargs: as for `Measurement`.
    """

    nats: float
    tokens: int
    seconds: float
    ranges: Sequence[Range] = ()

    def __post_init__(self) -> None:
        loss, value = round(self.loss, 4), round(self.perplexity, 3)
        self.scores.update({"loss": loss, "perplexity": value, "tokens": self.tokens})

    @property
    def loss(self) -> float:
        """Return the loss in nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Return the perplexity of the tokens, exp(loss)."""
        return perplexity(self.loss)

    def __str__(self) -> str:
        """Format the score for a reader, with a table of the ranges.

        Example:
            >>> ranges = [Range(1, 7, 6, 1.5, 1.25), Range(8, 15, 4, 2.75, None)]
            >>> print(Score(nats=20.0, tokens=10, seconds=1.0, ranges=ranges))
            perplexity 7.389 (loss 2.0000 nats a token)
            tokens     10
            seconds    1.0
            context            tokens    loss  as trained  difference
            1-7                     6  1.5000      1.2500     +0.2500
            8-15                    4  2.7500
        """
        lines = [
            f"perplexity {self.perplexity:.3f} (loss {self.loss:.4f} nats a token)",
            f"tokens     {self.tokens:,}",
            f"seconds    {self.seconds:.1f}",
        ]
        if self.ranges:
            lines.append(f"{'context':<12}{'tokens':>13}{'loss':>8}  as trained  difference")
        for part in self.ranges:
            line = f"{f'{part.low}-{part.high}':<12}{part.tokens:>13,}{part.loss:>8.4f}"
            if part.near is not None:
                line += f"{part.near:>12.4f}{part.loss - part.near:>+12.4f}"
            lines.append(line)
        return "\n".join(lines)


def windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield the positions of a window that slides over a text, and the first token that it predicts there.

    Each token but the first is predicted once: in the first window all, in each later one those that no
    earlier window had.

    Args:
        length: tokens of the text.
        window: tokens seen at once.
        stride: tokens that it moves by, below the window.

    Yields:
        Start, end, and first predicted token.

    Example:
        >>> list(windows(7, window=4, stride=2))
        [(0, 4, 1), (2, 6, 4), (3, 7, 6)]
    """
    end, first = min(window, length), 1
    while first < length:
        yield max(0, end - window), end, first
        first, end = end, min(end + stride, length)


def causal_score(
    model: FloaterForCausalLM,
    documents: Sequence[Document],
    *,
    window: int,
    stride: int,
    begin: int,
    max_tokens: int = 4096,
    record: Record | None = None,
) -> Score:
    """Measure the perplexity of tokens given those before them in a sliding window over their document.

    Args:
        model: a causal language model; it is left in the mode it is in.
        documents: token ids of their sentences; <s> comes before each document and is not predicted.
        window: tokens that the model sees at once.
        stride: tokens that it moves by, below the window.
        begin: id of <s>.
        max_tokens: tokens in a batch.
        record: gets what was predicted, batch by batch.
    """
    texts = [np.concatenate([[begin], *document]) for document in documents]
    seen = [(text, *place) for text in texts for place in windows(len(text), window, stride)]

    def batch(indices: Sequence[int]) -> dict[str, Tensor]:
        chosen = [seen[i] for i in indices]
        rows: list[Example] = [{"input_ids": t[a:b], "parts": [b - a]} for t, a, b, _ in chosen]
        made = collate(rows, pad=0)
        labels = torch.full_like(made["input_ids"], IGNORED)
        for row, (text, start, end, first) in zip(labels, chosen, strict=True):
            row[first - start : end - start] = torch.as_tensor(text[first:end])
        return made | {"labels": labels}

    lengths = [end - start for _, start, end, _ in seen]
    return _score(model, _batches(lengths, batch, max_tokens), record, later=True)


def remembering_score(
    model: FloaterForCausalLM,
    documents: Sequence[Document],
    *,
    window: int,
    memory: int,
    begin: int,
    max_tokens: int = 4096,
    record: Record | None = None,
) -> Score:
    """Measure the perplexity of tokens given their segment, and the blocks' memory of earlier ones.

    Dai et al. 2019, section 3.2, and Press et al. 2021, section 5. With a memory as long as the document that
    is a full pass over it.

    Args:
        model: a causal language model whose position model supports a memory; its mode is kept.
        documents: token ids of their sentences; <s> comes before each document and is not predicted.
        window: tokens of a segment.
        memory: tokens before a segment that are remembered.
        begin: id of <s>.
        max_tokens: tokens in a batch, remembered ones included.
        record: see `Record`.
    """
    texts = [np.concatenate([[begin], *document]) for document in documents]
    texts.sort(key=len, reverse=True)
    rows = max(1, max_tokens // (min(window, len(texts[0])) + memory))

    def batch(start: int) -> Iterator[Part]:
        chosen, held = texts[start : start + rows], Memory(memory)
        for first in range(0, len(chosen[0]) - 1, window):
            parts = [
                {
                    "input_ids": (part := text[first : first + window]),
                    "labels": np.append(text[first + 1 : first + 1 + len(part)], IGNORED)[: len(part)],
                    "document_ids": np.full(len(part), -1),
                }
                for text in chosen
            ]
            made = stream_batch(parts, pad=0)
            del made["document_ids"]
            which = [(start + i, first) for i in range(len(chosen))]
            labels = made.pop("labels")
            yield which, made | {"memory": held}, labels

    batches = [functools.partial(batch, start) for start in range(0, len(texts), rows)]
    return _score(model, batches, record)


def masked_score(
    model: PreTrainedModel,
    rows: Examples,
    masking: Masking,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    max_tokens: int = 4096,
    record: Record | None = None,
) -> Score:
    """Measure the perplexity of the masked tokens, always the same ones for a seed.

    Args:
        model: a masked language model; it is left in the mode it is in.
        rows: of the text.
        masking: how many tokens, and what is read instead.
        tokenizer: has <mask>.
        seed: of the tokens that are masked.
        max_tokens: tokens in a batch.
        record: gets what was predicted, batch by batch.
    """

    def batch(indices: Sequence[int]) -> dict[str, Tensor]:
        return masked_batch([rows[i] for i in indices], masking, tokenizer, seed)

    return _score(model, _batches(rows.lengths, batch, max_tokens), record)


Part = tuple[Sequence[RowKey], dict[str, Any], Tensor]
Batch = Callable[[], Iterable[Part]]
"""Makes parts of a batch, one after another: which rows they are, what the model gets, and labels."""


def _batches(
    lengths: Sequence[int], batch: Callable[[Sequence[int]], dict[str, Tensor]], max_tokens: int
) -> list[Batch]:
    """Make functions that make a batch each, of few tokens."""

    def made(indices: Sequence[int]) -> Iterator[Part]:
        given = batch(indices)
        labels = given.pop("labels")
        yield indices, given, labels

    sampler = TokenBatchSampler(lengths, max(max_tokens, max(lengths)), seed=0, shuffle=False)
    return [functools.partial(made, indices) for indices in sampler]


def _score(
    model: PreTrainedModel, batches: Sequence[Batch], record: Record | None, later: bool = False
) -> Score:
    """Sum the loss over batches, shared out among the processes; no random number of torch is used.

    `later`: whether logits are of the token that comes next, so that the last one has none.
    """
    state, began = PartialState(), time.perf_counter()
    nats, tokens = 0.0, 0
    uncached = {"use_cache": False} if isinstance(model, FloaterForCausalLM) else {}
    own = batches[state.process_index :: state.num_processes]
    with evaluating(model, baked=True):
        for indices, given, labels in itertools.chain.from_iterable(batch() for batch in own):
            labels = labels.to(model.device)
            if later:
                labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            places = labels != IGNORED
            logits = logits_at(model, places, **moved(given, model.device), **uncached)
            losses = F.cross_entropy(logits.float(), labels[places], reduction="none")
            nats += float(losses.sum())
            tokens += len(losses)
            if record is not None:
                rows = losses.new_zeros(labels.shape).masked_scatter(places, losses)
                last = -1 if later else None
                record(indices, rows[:, :last].cpu(), places[:, :last].cpu())
    parts = gather_object([(nats, tokens)]) if state.num_processes > 1 else [(nats, tokens)]
    nats, tokens = (sum(values) for values in zip(*parts, strict=True))
    if not tokens:
        raise DataError("the text has no token to predict")
    return Score(nats=nats, tokens=tokens, seconds=time.perf_counter() - began)
