"""How well a model tells events: likelihood, accuracy and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from floater.settings import load
from floater.tasks.events.data import EventSequence, read_sequences
from floater.tasks.events.examples import Pieces, next_batch, values_batch
from floater.tasks.events.model import EventsConfig, FloaterForEvents, FloaterForSeries
from floater.tasks.events.settings import Data, EventsSettings
from floater.tasks.run import SETTINGS, evaluating, load_model
from floater.tasks.split import split
from floater.tasks.text import DataError
from floater.training import TokenBatchSampler

Model = FloaterForEvents | FloaterForSeries


@dataclass(frozen=True)
class Score:
    """What a model says of events that it did not see.

    Args:
        count: events, or values, that were predicted.
        parts: means over them, by name: `nll` (nats, with the density of times and values in their units)
            first; of events also its parts `nll_time` and `nll_type`, the `accuracy` of types in percent and
            the mean absolute error `mae` of the median time to them; of values `rmse` and `mae`.
        what: "events" or "values".
    """

    count: int
    parts: dict[str, float]
    what: str

    @property
    def metrics(self) -> dict[str, float]:
        """The means, rounded for a log."""
        return {name: round(value, 4) for name, value in self.parts.items()}

    def __str__(self) -> str:
        """One line for a person.

        Example:
            >>> print(Score(1200, {"nll": 3.25, "accuracy": 45.5}, "events"))
            nll 3.2500, accuracy 45.5000 (1,200 events)
        """
        said = ", ".join(f"{name} {value:.4f}" for name, value in self.parts.items())
        return f"{said} ({self.count:,} {self.what})"


def score(model: Model, pieces: Pieces, data: Data, max_tokens: int = 4096) -> Score:
    """Predict the events of pieces; no random number is drawn, so that training goes on as without it.

    Args:
        model: it is left in the mode it is in.
        pieces: of sequences.
        data: its `hidden`.
        max_tokens: events in a batch, with padding.

    Raises:
        PositionError: if the position model cannot serve a sequence.
    """
    sums: dict[str, float] = {}
    count, budget = 0, max(max_tokens, max(pieces.lengths))
    with evaluating(model):
        for indices in TokenBatchSampler(pieces.lengths, budget, seed=0, shuffle=False):
            rows = [pieces[i] for i in indices]
            found, more = (
                _of_events(model, rows)
                if isinstance(model, FloaterForEvents)
                else _of_values(model, rows, data)
            )
            count += more
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
    if not count:
        raise DataError("no value that was observed is hidden, so there is nothing to score")
    means = {name: value / count for name, value in sums.items()}
    if "accuracy" in means:
        means["accuracy"] *= 100
        return Score(count, means, "events")
    return Score(count, means | {"rmse": means["rmse"] ** 0.5}, "values")


def _of_events(model: FloaterForEvents, rows: Sequence[dict[str, Any]]) -> tuple[dict[str, float], int]:
    batch = _moved(next_batch(rows), model)
    batch.pop("labels")
    out = model(**batch)
    follows = batch["mask"][:, 1:]
    right = (out.type_logits[:, :-1].argmax(-1) == batch["types"][:, 1:]) & follows
    unit = model.config.unit
    error = (model.gaps(out.raw[:, :-1]).median() - batch["times"].diff() / unit).abs()
    nll, of_time = float(out.nll.double().sum()), float(out.nll_gap.double().sum())
    found = {"nll": nll, "nll_time": of_time, "nll_type": nll - of_time}
    found |= {"accuracy": float(right.sum()), "mae": float(error[follows].sum())}
    return found, int(follows.sum())


def _of_values(
    model: FloaterForSeries, rows: Sequence[dict[str, Any]], data: Data
) -> tuple[dict[str, float], int]:
    batch = _moved(values_batch(rows, goal=model.config.goal, hidden=data.hidden, seed=(0,)), model)
    batch.pop("labels")
    out, asked = model(**batch), batch["asked"]
    error = (out.mean - batch["values"])[asked]
    nll = float(out.nll.double().sum())
    return {"nll": nll, "rmse": float(error.square().sum()), "mae": float(error.abs().sum())}, int(
        asked.sum()
    )


def _moved(batch: dict[str, Any], model: Model) -> dict[str, Any]:
    return {name: part.to(model.device) for name, part in batch.items()}


def load_run(run: str | Path, device: str | torch.device | None = None) -> tuple[Model, EventsSettings]:
    """The final model and the settings of a run.

    Args:
        run: the run directory.
        device: where to put the model; by default a GPU if there is one.

    Returns:
        The model in evaluation mode, and the run's settings.

    Raises:
        DataError: if the directory holds no finished run, or a broken one.
        SettingsError: if its settings cannot be read.
    """
    settings = load(EventsSettings, Path(run) / SETTINGS)
    kind: type[Any] = kind_of(settings.model.goal)
    model, _ = load_model(kind, run, device, EventsConfig.from_pretrained)
    return model, settings


def kind_of(goal: str) -> type[FloaterForEvents] | type[FloaterForSeries]:
    """The class of model that a goal needs.

    Example:
        >>> kind_of("forecast").__name__
        'FloaterForSeries'
    """
    return FloaterForEvents if goal == "next" else FloaterForSeries


def evaluate(
    run: str | Path, source: str | Path, part: str | None = None, window: int | None = None
) -> Score:
    """Score a run's final model on sequences of events, in pieces.

    Args:
        run: a finished run directory.
        source: as for `read_sequences`.
        part: "train", "valid" or "test" of the source, as the run splits its own data; None is all of it.
        window: the most predicted events in a piece; None is that of the training.

    Raises:
        DataError: if the run or the data are not what they must be, or the window is below 1.
        PositionError: if the position model cannot serve a sequence.
    """
    model, settings = load_run(run)
    data = settings.data
    size = data.max_events if window is None else window
    if size < 1:
        raise DataError(f"--window is {size}; it must be at least 1 event")
    sequences = read_sequences(source, data.columns)
    sequences = part_of(sequences, part, data) if part else sequences
    check_ties(sequences, settings.data, str(source))
    return score(model, Pieces(sequences, model.config, size=size, origin=str(source)), data)


def part_of(sequences: Sequence[EventSequence], part: str, data: Data) -> list[EventSequence]:
    """The sequences of "train", "valid" or "test"; "valid" has no share where it has data of its own."""
    shares = {"valid": 0.0 if data.valid else data.valid_share, "test": data.test_share}
    return split(sequences, part, **shares, seed=data.split_seed, name=lambda sequence: sequence.id)


def check_ties(sequences: Sequence[Any], data: Data, origin: str) -> None:
    """Refuse events at one time where gaps have a density and no resolution.

    Raises:
        DataError: it names the sequence and the events.
    """
    if data.resolution or data.columns.values:
        return
    for sequence in sequences:
        same = (sequence.times[1:] == sequence.times[:-1]).nonzero()[0]
        if len(same):
            raise DataError(
                f"{origin}, sequence '{sequence.id}': events {same[0]} and {same[0] + 1} are at one time, "
                "which has no density; set data.resolution, the shortest gap that the times can tell"
            )
