"""Training on events, from the settings of a run to its directory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn
from transformers import set_seed

from floater.encodings import PositionError
from floater.flow import SpanTooLong
from floater.tasks.events.data import EventSequence, gaps, longest, read_sequences, typical
from floater.tasks.events.examples import Pieces, next_batch, values_batch
from floater.tasks.events.model import EventsConfig, FloaterForEvents
from floater.tasks.events.score import Model, check_ties, kind_of, part_of, score
from floater.tasks.events.settings import Data, EventsSettings
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import VOCABULARY, Say, begin_run, trained
from floater.tasks.split import PARTS
from floater.tasks.text import DataError
from floater.tasks.trainer import TaskTrainer
from floater.transformer.outputs import per_item


class EventsTrainer(TaskTrainer):
    """A Trainer that validates by the likelihood of events.

    Args:
        settings: of the run.
        valid: validation pieces.
        **kwargs: as for `TaskTrainer`.
    """

    metric, greater = "nll", False

    def __init__(self, *, settings: EventsSettings, valid: Pieces, **kwargs: Any) -> None:
        super().__init__(
            training=settings.training,
            compute_loss_func=mean_nll,
            data_collator=next_batch if settings.model.goal == "next" else self._hidden,
            **kwargs,
        )
        self.settings, self.valid = settings, valid

    def validation(self, model: nn.Module) -> dict[str, float]:
        """Likelihood and errors of the validation pieces."""
        return score(model, self.valid, self.settings.data).metrics  # type: ignore[arg-type]

    def _hidden(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        # no random number of torch: a batch that is made ahead of a checkpoint is made again after it
        settings, seed = self.settings, (1 + self.settings.training.seed, self.sampler.epoch)
        return values_batch(examples, goal=settings.model.goal, hidden=settings.data.hidden, seed=seed)


def mean_nll(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The mean of the negative log-likelihoods of what is predicted: a loss function of a Trainer.

    Args:
        outputs: of a model, with `nll`.
        labels: -100 where nothing is predicted.
        num_items_in_batch: what the sum is divided by; None for the number of labels.
    """
    items = (labels >= 0).sum() if num_items_in_batch is None else num_items_in_batch
    return per_item(outputs["nll"].sum(), items)


def train(settings: EventsSettings) -> Path:
    """Train on events, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, log, checkpoints and the final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data or the run directory is not what it must be.
        PositionError: if the position model cannot serve the longest sequences.
        SpanTooLong: if the flow cannot be solved over the longest span of time.
    """
    return trained(settings, _train)


def check(settings: EventsSettings) -> None:
    """Refuse a position model that cannot serve any sequence, before any data are read.

    Raises:
        DataError: if it shows events what comes after them.
        PositionError: if it needs more than the places, or the times, of events.
    """
    data, count = settings.data, 3
    values = np.arange(count * len(data.columns.values), dtype=float).reshape(count, -1)
    types = ("x", "y", "x") if settings.model.goal == "next" else ()
    times = np.arange(count) * data.unit * (data.gap or 1.0)
    sequence = EventSequence("xyx", times, types, values, np.ones_like(values, dtype=bool))
    config = configured(settings, [sequence])
    with torch.random.fork_rng():
        model = kind_of(config.goal)(config)
    _check(model, Pieces([sequence], config, size=count, origin="toy"), "toy")


def _train(settings: EventsSettings, run: Path, state: PartialState, say: Say) -> Path:
    data = settings.data
    sequences, valid = _sequences(data)
    with state.main_process_first():
        if (run / VOCABULARY).is_dir():
            config = EventsConfig.from_pretrained(run / VOCABULARY)
        else:
            config = configured(settings, sequences)
        pieces = Pieces(sequences, config, size=data.max_events, origin=data.train)
        origin = data.valid or f"validation part of {data.train}"
        held = Pieces(valid, config, size=data.max_events, origin=origin)
        model = _model(settings, config, pieces, held, say)
        check_schedule(settings.training, pieces.lengths)
        begin_run(run, settings, config)
    trainer = EventsTrainer(
        settings=settings,
        valid=held,
        run=run,
        model=model,
        lengths=pieces.lengths,
        train_dataset=pieces,
    )
    measure = functools.partial(score, pieces=held, data=data)
    return trainer.finish(config, settings.training.average, lambda model: measure(model).metrics, say)


def _sequences(data: Data) -> tuple[list[EventSequence], list[EventSequence]]:
    """The training and the validation sequences."""
    every = read_sequences(data.train, data.columns)
    check_ties(every, data, data.train)
    parts = [part_of(every, part, data) for part in PARTS[:2]]
    if data.valid:
        parts[1] = read_sequences(data.valid, data.columns)
        check_ties(parts[1], data, data.valid)
    for name, part in zip(PARTS, parts, strict=False):
        if not part:
            raise DataError(
                f"{data.train}: none of its {len(every)} sequences is drawn for the part '{name}'"
            )
    return parts[0], parts[1]


def configured(settings: EventsSettings, sequences: Sequence[EventSequence]) -> EventsConfig:
    """The configuration of a model for training sequences: their types or features, and what is typical.

    Raises:
        DataError: if the sequences do not tell a median gap, or a feature was never observed.
    """
    data, model = settings.data, settings.model
    between = gaps(sequences, data.unit)
    if data.resolution:
        between = np.maximum(between, data.resolution)
    positive = between[between > 0]
    if not len(positive):
        raise DataError(f"{data.train}: no sequence has two events at different times")
    gap = float(np.median(positive)) if data.gap is None else data.gap
    found: dict[str, Any] = {"unit": data.unit, "gap": gap, "resolution": data.resolution}
    if model.goal == "next":
        found["types"] = sorted({name for sequence in sequences for name in sequence.types})
        found["log_gap"] = list(typical(positive, data.resolution))
        quantiles = np.quantile(positive, np.arange(model.components) / model.components)
        # edges that are equal in the model's precision would enclose a hazard without end
        found["edges"] = np.unique(np.array([0.0, *quantiles[1:]], dtype=np.float32)).tolist()
        return model.config(**found)
    values = np.concatenate([sequence.values for sequence in sequences])
    observed = np.concatenate([sequence.observed for sequence in sequences])
    for i, name in enumerate(data.columns.values):
        if not observed[:, i].any():
            raise DataError(f"{data.train}: no value of '{name}' was observed in a training sequence")
    columns = [values[observed[:, i], i] for i in range(values.shape[1])]
    found["features"] = list(data.columns.values)
    found["means"] = [float(column.mean()) for column in columns]
    # the deviation of equal numbers is not 0 where their mean is rounded
    found["scales"] = [float(column.std()) if np.ptp(column) > 0 else 1.0 for column in columns]
    return model.config(**found)


def _model(settings: EventsSettings, config: EventsConfig, pieces: Pieces, valid: Pieces, say: Say) -> Model:
    """The model before its first step, after it has read the hardest pieces."""
    most = settings.training.max_tokens
    if settings.training.batch_size is None and max(pieces.lengths) > most:
        raise DataError(
            f"a training piece has {max(pieces.lengths)} events, more than training.max_tokens, {most}; "
            "raise that, or lower data.max_events"
        )
    set_seed(settings.training.seed)
    model = kind_of(config.goal)(config)
    for name, part in (("training", pieces), ("validation", valid)):
        _check(model, part, name)
    span = max(float(np.ptp(piece.times)) for piece in pieces.pieces) / (config.unit * config.gap)
    events, positions = sum(pieces.lengths), sum(p.numel() for p in model.encoder.position.parameters())
    say(
        f"{events:,} training events in {len(pieces):,} pieces, {sum(valid.lengths):,} validation events; "
        f"a gap is {config.gap:.6g} units, the longest span {span:.6g} gaps"
    )
    say(f"{model.num_parameters():,} parameters, {positions:,} in the position model")
    if config.clock == "time" and span > 4 * config.training_length:
        say(
            f"the longest span is {span:.6g} gaps, model.max_length {config.training_length}: a flow starts "
            "of order one over max_length only; raise it, or data.gap"
        )
    return model


def _check_causal(model: FloaterForEvents, batch: dict[str, Tensor]) -> None:
    """Refuse a model that sees what it predicts: a later event, or padding, changes what it says before."""
    last, padded = {name: part.clone() for name, part in batch.items()}, {}
    last["types"][:, -1] = (last["types"][:, -1] + 1) % len(model.config.types or ())
    last["times"][:, -1] += round(100 * model.config.gap * model.config.unit) + 1
    for name, part in batch.items():
        empty = part[:, -1:] if name == "times" else torch.zeros_like(part[:, :1])
        padded[name] = torch.cat((part, empty), 1)
    plain = model(**batch)
    for other in (last, padded):
        found = model(**other)
        for name in ("type_logits", "raw"):
            before, after = (getattr(out, name)[:, : batch["times"].shape[1] - 1] for out in (plain, found))
            if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
                raise DataError(
                    f"the position model '{model.config.position}' shows events what comes after them; "
                    "predicting the next one needs another, or other options (model.position_options)"
                )


@torch.no_grad()
def _check(model: Model, pieces: Pieces, name: str) -> None:
    """Let the position model see the longest pieces, so that it may refuse them before the training."""
    model.train(False)
    most = pieces.lengths.index(max(pieces.lengths))
    last = pieces.pieces.index(longest(pieces.pieces))
    for index in sorted({most, last}):
        piece = pieces[index]
        if isinstance(model, FloaterForEvents):
            batch = next_batch([piece])
        else:
            batch = values_batch([piece], goal=model.config.goal, hidden=0.5, seed=(0,))
        batch.pop("labels")
        try:
            model(**batch)
            if isinstance(model, FloaterForEvents):
                _check_causal(model, batch)
        except PositionError as error:
            raise PositionError(f"{name} sequence '{piece['piece'].id}': {error}") from error
        except SpanTooLong as error:
            where = f"{name} sequence '{piece['piece'].id}'"
            raise DataError(f"{where}: {error} (model.position_options.time_scale, data.gap)") from error
    model.train()
