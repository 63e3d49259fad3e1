"""Exact match and token accuracy by length."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from floater.encodings import PositionError
from floater.flow import FlowError
from floater.tasks.examples import Encoded, in_batches
from floater.tasks.generated.data import collate
from floater.tasks.measurement import Measurement, positions
from floater.training import smoothed_cross_entropy
from floater.training.run import evaluating
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


def count(model: Solver, examples: Encoded, max_tokens: int = 8192, record: Record | None = None) -> Counts:
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
    with evaluating(model, baked=True):
        for indices, batch in in_batches(examples, collate, model.device, max_tokens):
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


def score_bins(
    model: Solver, parts: Sequence[tuple[tuple[int, int], Encoded]], trained: tuple[int, int]
) -> Measurement:
    """Score exact matches, right tokens and losses, example by example, and report them by bins of length.

    A bin that the position model does not reach is refused as a whole, not cut.

    Args:
        model: to score.
        parts: least and greatest length of each bin, and its examples.
        trained: least and greatest length that was trained on.

    Returns:
        The statistics; those of a refused bin are not numbers, and a note says so. The position of a loss is
        that of its token in the answer.
    """
    names = ("exact", "tokens", "loss")
    statistics: dict[str, list[np.ndarray]] = {name: [] for name in names}
    nats: list[np.ndarray] = []
    notes = []
    table = [f"{'length':<8}{'examples':>8}  {'exact match %':>13}  {'tokens right %':>14}"]
    for (low, high), examples in parts:
        own = {name: np.full((len(examples), 2), np.nan) for name in names}
        found: list[np.ndarray] = []
        try:
            counts = count(model, examples, record=functools.partial(_record, own, found))
            nats += found
            scores = counts.metrics
            numbers = f"{scores['exact']:>13.2f}  {scores['tokens']:>14.2f}"
            table.append(f"{f'{low}-{high}':<8}{counts.examples:>8,}  {numbers}")
        except (PositionError, FlowError) as error:
            own = {name: np.full((len(examples), 2), np.nan) for name in names}
            notes.append(f"lengths {low} to {high} are refused: {error}")
            table.append(f"{f'{low}-{high}':<8}{'-':>8}          refused: {error}")
        for name in names:
            statistics[name].append(own[name])
    table.append(f"trained on {trained[0]}-{trained[1]}; tokens are those after a right beginning")
    sums, counted = positions(nats)
    return Measurement(
        lengths=np.array([drawn.length for _, examples in parts for drawn in examples.source]),
        statistics={name: np.concatenate(rows) for name, rows in statistics.items()},
        position_nats=sums,
        position_tokens=counted,
        notes=notes,
        report="\n".join(table),
    )


def _record(
    statistics: dict[str, np.ndarray],
    nats: list[np.ndarray],
    indices: Sequence[int],
    logits: Tensor,
    labels: Tensor,
) -> None:
    """Note the answers of a batch, for `count`."""
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    good = logits.argmax(-1) == labels
    for index, row, right, asked in zip(indices, losses, good, labels != IGNORED, strict=True):
        tokens = int(asked.sum())
        statistics["exact"][index] = bool((right | ~asked).all()), 1
        statistics["tokens"][index] = int((right & asked).sum()), tokens
        statistics["loss"][index] = float(row.sum()), tokens
        nats.append(row[asked].double().numpy())
