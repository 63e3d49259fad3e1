"""Perplexity of causal models with a sliding window, and of masked models with a fixed seed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, send_to_device
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from floater.errors import DataError
from floater.lab.tasks.examples import Collate, Encoded, Examples
from floater.lab.tasks.language_modeling.data import Document, Example, collate, stream_batch
from floater.lab.tasks.language_modeling.head import logits_at
from floater.lab.tasks.measurement import Array, Measurement, perplexity
from floater.lab.training import TokenBatchSampler
from floater.lab.training.model import inference
from floater.transformer import FloaterForCausalLM
from floater.transformer.memory import Memory
from floater.transformer.outputs import IGNORED

RowKey = int | tuple[int, int]
Part = tuple[Sequence[RowKey], dict[str, Any], Tensor]
"""Keys of the rows of a batch, or of a part of one, the inputs of the model, and labels."""


@dataclass(frozen=True)
class Losses:
    """Loss of each predicted token of a text, in the order of the text.

    Args:
        rows: indices of the windows or rows that predict the tokens, in increasing order, (n,).
        positions: positions in their row of the tokens whose logits predict, or of the masked tokens, (n,).
        nats: cross-entropy of the tokens, (n,).
    """

    rows: Array
    positions: Array
    nats: Array

    @property
    def contexts(self) -> Array:
        """Return the number of tokens that a causal model has read before each token in its window."""
        return self.positions + 1


@dataclass(frozen=True)
class Range:
    """Loss of the tokens of a text whose context, the number of tokens read before, is in a range.

    Args:
        low: least context.
        high: greatest context.
        tokens: number of predicted tokens.
        loss: loss in nats per token.
        near: loss of the same tokens in windows of the training length; None if the window is not longer.
    """

    low: int
    high: int
    tokens: int
    loss: float
    near: float | None

    @property
    def record(self) -> dict[str, Any]:
        """Return the range for other programs, as an entry of `Measurement.bins`."""
        record = {"context": [self.low, self.high], "tokens": self.tokens, "loss": round(self.loss, 4)}
        return record | ({} if self.near is None else {"loss_as_trained": round(self.near, 4)})


@dataclass(frozen=True, kw_only=True)
class Score(Measurement):
    """The loss, the perplexity and the number of tokens of a model on a text.

    Args:
        nats: cross-entropy, summed over the tokens.
        tokens: number of predicted tokens.
        seconds: duration of the measurement.
        losses: losses of the tokens; with several processes, of those that this process scored.
        ranges: loss by context, if requested.
        **kwargs: fields of `Measurement`.
    """

    nats: float
    tokens: int
    seconds: float
    losses: Losses = field(default_factory=lambda: Losses(*[np.zeros(0, dtype=np.int64)] * 3))
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
        """Return a readable text of the score, with a table of the ranges.

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
    """Yield the positions of a window that slides over a text, and the first token predicted in each.

    Each token but the first is predicted once: the first window predicts all its tokens, and each later
    window those that no earlier window contained.

    Args:
        length: number of tokens of the text.
        window: number of tokens of the window.
        stride: number of tokens that the window moves by, smaller than the window.

    Yields:
        Start, end, and index of the first predicted token.

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
) -> Score:
    """Measure the perplexity of tokens given the tokens before them in a sliding window over their document.

    Args:
        model: causal language model; its mode (training or evaluation) is restored.
        documents: token ids of the sentences of each document; <s> comes before each document and is not
            predicted.
        window: number of tokens in the model's input.
        stride: number of tokens that the window moves by, smaller than the window.
        begin: token id of <s>.
        max_tokens: maximum number of tokens in a batch.
    """
    texts = [np.concatenate([[begin], *document]) for document in documents]
    seen = [(text, *span) for text in texts for span in windows(len(text), window, stride)]

    def batch(chosen: Sequence[tuple[np.ndarray, int, int, int]]) -> dict[str, Tensor]:
        rows: list[Example] = [{"input_ids": t[a:b], "parts": [b - a]} for t, a, b, _ in chosen]
        inputs = collate(rows, pad=0)
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        for row, (text, start, end, first) in zip(labels, chosen, strict=True):
            row[first - start : end - start] = torch.as_tensor(text[first:end])
        return inputs | {"labels": labels}

    rows = Encoded(seen, [end - start for _, start, end, _ in seen])
    return rows_score(model, rows, batch, max_tokens, later=True)


def remembering_score(
    model: FloaterForCausalLM,
    documents: Sequence[Document],
    *,
    window: int,
    memory: int,
    begin: int,
    max_tokens: int = 4096,
) -> Score:
    """Measure the perplexity of tokens given their segment, and the blocks' memory of earlier segments.

    The method is that of Dai et al. 2019, section 3.2, and Press et al. 2021, section 5. A memory as long as
    the document makes it equivalent to one pass over the document.

    Args:
        model: causal language model whose position model supports a memory; its mode is restored.
        documents: token ids of the sentences of each document; <s> comes before each document and is not
            predicted.
        window: number of tokens of a segment.
        memory: number of tokens before a segment in the memory.
        begin: token id of <s>.
        max_tokens: maximum number of tokens in a batch, those of the memory included.
    """
    texts = [np.concatenate([[begin], *document]) for document in documents]
    texts.sort(key=len, reverse=True)
    rows = max(1, max_tokens // (min(window, len(texts[0])) + memory))

    def parts() -> Iterator[Part]:
        for start in _process_share(range(0, len(texts), rows)):
            chosen, held = texts[start : start + rows], Memory(memory)
            for first in range(0, len(chosen[0]) - 1, window):
                segments = [
                    {
                        "input_ids": (part := text[first : first + window]),
                        "labels": np.append(text[first + 1 : first + 1 + len(part)], IGNORED)[: len(part)],
                        "document_ids": np.full(len(part), -1),
                    }
                    for text in chosen
                ]
                inputs: dict[str, Any] = stream_batch(segments, pad=0)
                del inputs["document_ids"]
                labels = inputs.pop("labels")
                which = [(start + i, first) for i in range(len(chosen))]
                yield which, inputs | {"memory": held, "use_cache": False}, labels

    return _score(model, parts())


def rows_score(
    model: PreTrainedModel, rows: Examples, collate: Collate, max_tokens: int = 4096, *, later: bool = False
) -> Score:
    """Measure the perplexity of the labels of batches of rows.

    Args:
        model: language model; its mode (training or evaluation) is restored.
        rows: encoded rows of the text.
        collate: deterministic function from a list of rows to a batch.
        max_tokens: maximum number of tokens in a batch.
        later: True if the logits at a token predict the next token.
    """

    def parts() -> Iterator[Part]:
        most = max(max_tokens, max(rows.lengths))
        for indices in _process_share([*TokenBatchSampler(rows.lengths, most, seed=0, shuffle=False)]):
            batch = collate([rows[i] for i in indices])
            labels = batch.pop("labels")
            if later:
                labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
                batch["use_cache"] = False
            yield indices, batch, labels

    return _score(model, parts())


def _process_share(batches: Sequence[Any]) -> Sequence[Any]:
    """Return the batches that this process scores."""
    state = PartialState()
    return batches[state.process_index :: state.num_processes]


def _score(model: PreTrainedModel, parts: Iterable[Part]) -> Score:
    """Sum the loss over parts of batches and over processes; no random number of torch is used."""
    state, began = PartialState(), time.perf_counter()
    nats, tokens = 0.0, 0
    losses_by_row: dict[RowKey, tuple[Array, Array]] = {}
    with inference(model, baked=True):
        for indices, inputs, labels in parts:
            asked = (labels != IGNORED).to(model.device)
            logits = logits_at(model, asked, **send_to_device(inputs, model.device))
            losses = F.cross_entropy(logits.float(), labels.to(model.device)[asked], reduction="none")
            nats += float(losses.sum())
            tokens += len(losses)
            ends = asked.sum(1).cumsum(0).tolist()
            by_row = np.split(losses.cpu().double().numpy(), ends[:-1])
            for index, row, there in zip(indices, by_row, asked.cpu().numpy(), strict=True):
                if len(row):
                    losses_by_row[index] = there.nonzero()[0], row
    sums = gather_object([(nats, tokens)]) if state.num_processes > 1 else [(nats, tokens)]
    nats, tokens = (sum(values) for values in zip(*sums, strict=True))
    if not tokens:
        raise DataError("the text has no token to predict")
    order = sorted(losses_by_row)
    positions = np.concatenate([np.zeros(0, dtype=np.int64), *(losses_by_row[index][0] for index in order)])
    token_nats = np.concatenate([np.zeros(0), *(losses_by_row[index][1] for index in order)])
    rows = np.repeat(np.arange(len(order)), [len(losses_by_row[index][1]) for index in order])
    seconds, each = time.perf_counter() - began, Losses(rows, positions, token_nats)
    return Score(nats=nats, tokens=tokens, seconds=seconds, losses=each)
