"""Scores of models of events: of each predicted event or value, and their sums for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from floater.errors import DataError
from floater.lab.tasks.examples import Collate, Encoded, in_batches
from floater.lab.tasks.measurement import METRICS, Array, Measurement, check_edges, summed
from floater.lab.training.model import inference
from floater.transformer.events import FloaterForEvents, FloaterForSeries


@dataclass(frozen=True)
class Predictions:
    """Predicted events, or values, in the order of the pieces that they are in.

    Args:
        rows: indices of the pieces, in increasing order, (n,).
        contexts: number of events of the piece before each, (n,).
        terms: terms of each metric, (n,), by its name.
    """

    rows: Array
    contexts: Array
    terms: dict[str, Array]

    def where(self, chosen: Array) -> Predictions:
        """Return the chosen predictions, a mask."""
        terms = {name: values[chosen] for name, values in self.terms.items()}
        return Predictions(self.rows[chosen], self.contexts[chosen], terms)

    @property
    def scores(self) -> dict[str, float]:
        """Return the score of each metric over all predictions."""
        count = len(self.rows)
        return {
            name: METRICS[name].score(np.array([values.sum(), count])) for name, values in self.terms.items()
        }

    def line(self, what: str) -> str:
        """Return a readable text of the scores; `what` is a noun for the predictions, in the plural."""
        scores = ", ".join(f"{name} {score:.4f}" for name, score in self.scores.items())
        return f"{scores} ({len(self.rows):,} {what})"


def predictions(
    model: FloaterForEvents | FloaterForSeries, examples: Encoded, collate: Collate
) -> Predictions:
    """Predict the events or values of pieces; no random number is used.

    Args:
        model: the model.
        examples: encoded pieces.
        collate: function from encoded pieces to a batch.

    Raises:
        DataError: if nothing is predicted.
        PositionError: if the position model does not support a sequence.
    """
    parts: list[tuple[Array, Array, dict[str, Array]]] = []
    with inference(model):
        for indices, batch in in_batches(examples, collate, model.device, 4096):
            batch.pop("labels")
            if isinstance(model, FloaterForEvents):
                scored, values = _event_terms(model, batch)
            else:
                scored, values = _value_terms(model, batch)
            rows, contexts, *_ = scored.cpu().numpy().nonzero()
            scores = {name: value[scored].double().cpu().numpy() for name, value in values.items()}
            parts.append((np.array(indices)[rows], contexts, scores))
    rows, contexts = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    if not len(rows):
        raise DataError("no value that was observed is hidden, so there is nothing to score")
    order = np.argsort(rows, kind="stable")
    terms = {name: np.concatenate([part[2][name] for part in parts])[order] for name in parts[0][2]}
    return Predictions(rows[order], contexts[order], terms)


def by_sequence(predicted: Predictions, examples: Encoded, bins: Sequence[int], what: str) -> Measurement:
    """Return the scores of all predictions, and those of each sequence.

    Args:
        predicted: the predictions.
        examples: the pieces that they are in.
        bins: first contexts of the ranges in which events are scored, besides 1. With them an example is the
            part of a sequence whose events have a context within one range, its length is the least of these
            contexts, and its unit is the sequence; otherwise its length is the number of its predictions.
        what: noun for the predictions, in the plural.

    Raises:
        DataError: if the bins are not valid.
    """
    check_edges(bins)
    number = {id: index for index, id in enumerate(dict.fromkeys(piece.id for piece in examples.source))}
    sequence = np.array([number[piece.id] for piece in examples.source])[predicted.rows]
    part = np.searchsorted(bins, predicted.contexts, side="right") if bins else np.zeros_like(sequence)
    first, sums = summed(sequence * (len(bins) + 1) + part, *predicted.terms.values())
    report, records = [predicted.line(what)], []
    for i in np.unique(part) if bins else ():
        inside = predicted.where(part == i)
        low, high = int(inside.contexts.min()), int(inside.contexts.max())
        scores = {name: round(score, 4) for name, score in inside.scores.items()}
        records.append({"context": [low, high], what: len(inside.rows), **scores})
        report.append(f"after {low}-{high}: {inside.line(what)}")
    return Measurement(
        predicted.contexts[first] if bins else sums[:, -1].astype(np.int64),
        {name: sums[:, [i, -1]] for i, name in enumerate(predicted.terms)},
        units=sequence[first] if bins else np.zeros(0, dtype=np.int64),
        scores={name: round(score, 4) for name, score in predicted.scores.items()},
        bins=records,
        report="\n".join(report),
    )


def _event_terms(model: FloaterForEvents, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mask of the predicted events of a batch, (batch, T), and the terms of their scores."""
    out, scored = model(**batch), batch["mask"].clone()
    scored[:, 0] = False
    right = out.type_logits[:, :-1].argmax(-1) == batch["types"][:, 1:]
    error = (model.gaps(out.raw[:, :-1]).median() - batch["times"].diff() / model.config.unit).abs()
    nll, time = out.nll.double(), out.nll_gap.double()
    terms = {"nll": nll, "nll_time": time, "nll_type": nll - time}
    return scored, terms | {"accuracy": F.pad(right, (1, 0)), "mae": F.pad(error, (1, 0))}


def _value_terms(model: FloaterForSeries, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mask of the predicted values of a batch, (batch, T, features), and the terms."""
    out = model(**batch)
    error = out.mean - batch["values"]
    return batch["asked"], {"nll": out.nll, "rmse": error.square(), "mae": error.abs()}
