"""Exact match and token accuracy by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from floater.encodings import PositionError
from floater.flow import FlowError
from floater.tasks.generated.data import Examples, collate
from floater.tasks.measurement import Measurement, positions
from floater.tasks.run import evaluating
from floater.training import TokenBatchSampler, smoothed_cross_entropy
from floater.transformer import FloaterForCausalLM, FloaterForSequenceClassification
from floater.transformer.outputs import IGNORED

Solver = FloaterForCausalLM | FloaterForSequenceClassification
Record = Callable[[Sequence[int], Tensor, Tensor], None]
"""Indices of examples, logits (batch, T, K) and the labels (batch, T) that they are for."""


@dataclass(frozen=True)
class Counts:
    """How many answers are right.

    Args:
        examples: how many there are, and
        exact: how many have every scored token of the answer right, its end included.
        tokens: scored tokens of the answers, and
        right: how many are right, after the right tokens before them.
        nats: cross-entropy, summed over the tokens.
    """

    examples: int
    exact: int
    tokens: int
    right: int
    nats: float

    @property
    def metrics(self) -> dict[str, float]:
        """Percentages of examples and tokens, and nats per token, rounded for a log.

        Example:
            >>> Counts(examples=8, exact=6, tokens=40, right=38, nats=4.0).metrics
            {'loss': 0.1, 'exact': 75.0, 'tokens': 95.0}
        """
        return {
            "loss": round(self.nats / self.tokens, 4),
            "exact": round(100 * self.exact / self.examples, 2),
            "tokens": round(100 * self.right / self.tokens, 2),
        }


@dataclass(frozen=True)
class Bin:
    """Scores of one bin of lengths.

    Args:
        low: least length, and
        high: greatest.
        counts: of the answers; None if the position model refuses such lengths.
        refused: why, in its own words.
    """

    low: int
    high: int
    counts: Counts | None
    refused: str = ""


@dataclass(frozen=True)
class Score:
    """Scores of a test.

    Args:
        bins: by length.
        trained: least and greatest length that was trained on.
    """

    bins: list[Bin]
    trained: tuple[int, int] = field(default=(1, 1))

    def __str__(self) -> str:
        """A table for a person.

        Example:
            >>> known = Bin(1, 16, Counts(examples=8, exact=6, tokens=40, right=38, nats=4.0))
            >>> print(Score([known, Bin(17, 32, None, "it ends there")], (1, 16)))
            length  examples  exact match %  tokens right %
            1-16           8          75.00           95.00
            17-32          -          refused: it ends there
            trained on 1-16; tokens are those after a right beginning
        """
        rows = [f"{'length':<8}{'examples':>8}  {'exact match %':>13}  {'tokens right %':>14}"]
        for part in self.bins:
            name = f"{part.low}-{part.high}"
            if part.counts is None:
                rows.append(f"{name:<8}{'-':>8}          refused: {part.refused}")
                continue
            found = part.counts.metrics
            rows.append(
                f"{name:<8}{part.counts.examples:>8,}  {found['exact']:>13.2f}  {found['tokens']:>14.2f}"
            )
        low, high = self.trained
        return "\n".join([*rows, f"trained on {low}-{high}; tokens are those after a right beginning"])


def count(model: Solver, examples: Examples, max_tokens: int = 8192, record: Record | None = None) -> Counts:
    """Hold what a model says against the answers; no random number is drawn.

    A causal model reads the right answer as it goes. Whether it says all of the answer by itself, greedily,
    is known from that: it does exactly if every token is its first choice after the right ones before.

    Args:
        model: it is left in the mode it is in.
        examples: to answer.
        max_tokens: tokens in a batch, with padding.
        record: gets the answers batch by batch.

    Raises:
        PositionError: if the position model cannot serve an example.
        FlowError: if a flow does not reach as far.
    """
    exact = tokens = right = 0
    nats = 0.0
    sampler = TokenBatchSampler(
        examples.lengths, max(max_tokens, max(examples.lengths)), seed=0, shuffle=False
    )
    with evaluating(model, baked=True):
        for indices in sampler:
            batch = {
                name: part.to(model.device) for name, part in collate([examples[i] for i in indices]).items()
            }
            logits, labels = aligned(model, batch)
            asked = labels != IGNORED
            good = (logits.argmax(-1) == labels) | ~asked
            exact += int(good.all(-1).sum())
            tokens += int(asked.sum())
            right += int((good & asked).sum())
            nats += float(smoothed_cross_entropy(logits, labels, 0.0, 1))
            if record is not None:
                record(indices, logits.cpu(), labels.cpu())
    return Counts(len(examples), exact, tokens, right, nats)


def aligned(model: Solver, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits (batch, T, K) and the labels (batch, T) that they are for."""
    given = dict(batch)
    labels = given.pop("labels")
    if isinstance(model, FloaterForCausalLM):
        return model(**given, use_cache=False).logits[:, :-1].float(), labels[:, 1:]
    return model(**given).logits[:, None].float(), labels[:, None]


def by_length(
    model: Solver, parts: Sequence[tuple[tuple[int, int], Examples]], trained: tuple[int, int]
) -> Score:
    """Score bins of lengths; one that the position model does not reach is refused as a whole, not cut.

    Args:
        model: to score.
        parts: least and greatest length of each bin, and its examples.
        trained: least and greatest length that was trained on.
    """
    bins: list[Any] = []
    for (low, high), examples in parts:
        try:
            bins.append(Bin(low, high, count(model, examples)))
        except (PositionError, FlowError) as error:
            bins.append(Bin(low, high, None, str(error)))
    return Score(bins, trained)


def measured(
    model: Solver, parts: Sequence[tuple[tuple[int, int], Examples]], lengths: Sequence[int]
) -> Measurement:
    """Exact matches, right tokens and losses, example by example.

    Args:
        model: to score.
        parts: least and greatest length of each bin, and its examples.
        lengths: of the questions of all bins, one after the other.

    Returns:
        The statistics; those of a bin that the position model does not reach are not numbers, and a note
        says so. The position of a loss is that of its token in the answer.
    """
    names = ("exact", "tokens", "loss")
    statistics = {name: np.full((len(lengths), 2), np.nan) for name in names}
    nats: list[np.ndarray] = []
    notes, first = [], 0
    for (low, high), examples in parts:
        found: list[np.ndarray] = []

        def record(indices: Sequence[int], logits: Tensor, labels: Tensor) -> None:
            losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
            good = logits.argmax(-1) == labels
            for index, row, right, asked in zip(indices, losses, good, labels != IGNORED, strict=True):
                place, tokens = first + index, int(asked.sum())  # noqa: B023 # used in this round only
                statistics["exact"][place] = bool((right | ~asked).all()), 1
                statistics["tokens"][place] = int((right & asked).sum()), tokens
                statistics["loss"][place] = float(row.sum()), tokens
                found.append(row[asked].double().numpy())  # noqa: B023

        try:
            count(model, examples, record=record)
            nats += found
        except (PositionError, FlowError) as error:
            for values in statistics.values():
                values[first : first + len(examples)] = np.nan
            notes.append(f"lengths {low} to {high} are refused: {error}")
        first += len(examples)
    sums, counts = positions(nats)
    return Measurement(
        lengths=np.array(lengths),
        statistics=statistics,
        position_nats=sums,
        position_tokens=counts,
        notes=notes,
    )
