"""Events at irregular times: prediction of the next event, and interpolation and forecast of values."""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from floater.errors import DataError
from floater.lab.tasks.corpora.events import EventSequence, read_sequences
from floater.lab.tasks.events.examples import next_batch, pieces, values_batch
from floater.lab.tasks.events.score import by_sequence, predictions
from floater.lab.tasks.events.settings import Columns, Data, EventsSettings
from floater.lab.tasks.examples import Collate, Encoded
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Prepared, Splits, warn_of_shared
from floater.lab.tasks.registry import register
from floater.lab.tasks.task import Task
from floater.lab.training.run import RunPath
from floater.transformer.events import EventsConfig, FloaterForEvents, FloaterForSeries
from floater.transformer.outputs import per_item

__all__ = ["Columns", "Data", "Events", "EventsSettings"]
logger = logging.getLogger(__name__)
Model = FloaterForEvents | FloaterForSeries
MOST_RATIO = 20
"""Largest ratio of mean times between events without a note; 24 hours are a day."""
LEAST_SPREAD = 1e-2
"""Minimum standard deviation of the logarithm of gaps, for events at (nearly) equal intervals."""


@register("events")
class Events(Task):
    """Prediction of events in continuous time, or of values at given times.

    The processor is the model's configuration: types, features, and statistics of the training set.
    """

    Settings = EventsSettings
    metric, greater, example, unit = "nll", False, "piece", "events"
    metrics = ("nll", "nll_time", "nll_type", "accuracy", "mae", "rmse")
    validation_loss = "nll"
    load_processor = staticmethod(EventsConfig.from_pretrained)
    shorten = ", or lower data.max_events"

    def read(self, settings: EventsSettings) -> Splits:
        data = settings.data
        every = _read(data.train, data)
        train = data.part(every, "train")
        if not data.valid:
            return Splits(train, data.part(every, "valid"))
        valid = _read(data.valid, data)
        warn_of_shared(train, valid, lambda each: (each.id, each.times.tobytes()), "sequences")
        return Splits(train, valid)

    def question(self, settings: EventsSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        data, options = settings.data, test or {}
        split = data.valid_share, data.test_share, data.split_seed
        source: Any = data.valid or (data.train, split)
        if test is not None:
            source = split if options.get("part") else None
        asked = data.columns, data.unit, data.resolution, data.mask_ratio
        return source, asked, options.get("window") or data.max_events, settings.model.goal

    def lengths(self, settings: EventsSettings) -> str:
        return "events read before" if settings.model.goal == "next" else "predicted values of a sequence"

    def toy(self, settings: EventsSettings) -> list[EventSequence]:
        data, count = settings.data, 3
        values = np.arange(count * len(data.columns.values), dtype=float).reshape(count, -1)
        types = ("x", "y", "x") if settings.model.goal == "next" else ()
        times = np.arange(count) * data.unit * (data.time_per_position or 1.0)
        return [EventSequence("xyx", times, types, values, np.ones_like(values, dtype=bool))]

    def make_processor(self, settings: EventsSettings, train: Sequence[EventSequence]) -> EventsConfig:
        return configured(settings, train)

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Encoded:
        data = settings.data
        origin = data.train if training else data.valid or f"validation part of {data.train}"
        if not training and (note := note_on_unit(examples, processor, origin)):
            logger.warning("%s", note)
        return pieces(examples, processor, size=data.max_events, origin=origin)

    def kind(self, settings: EventsSettings) -> Any:
        return FloaterForEvents if settings.model.goal == "next" else FloaterForSeries

    def build(self, settings: Any, processor: EventsConfig, train: Any) -> Model:
        model: Model = self.kind(settings)(processor)
        return model

    def collate(self, settings: Any, processor: Any, model: Any, seed: Sequence[int] = (0,)) -> Collate:
        if settings.model.goal == "next":
            return next_batch
        mask = {"goal": settings.model.goal, "mask_ratio": settings.data.mask_ratio}
        return functools.partial(values_batch, seed=seed, **mask)

    def loss(self, prepared: Prepared) -> Any:
        return mean_nll

    def training_collate(self, prepared: Prepared, epoch: int) -> Collate:
        seed = 1 + prepared.settings.training.seed, epoch
        return self.collate(prepared.settings, prepared.processor, prepared.model, seed)

    def hardest(self, examples: Encoded) -> Sequence[int]:
        spans = [np.ptp(piece.times) for piece in examples.source]
        return [int(np.argmax(sizes)) for sizes in (examples.lengths, spans)]

    def where(self, settings: Any, examples: Encoded, index: int, name: str) -> str:
        piece = examples.source[index]
        return f"{name} sequence '{piece.id}' (times {piece.times[0]:.15g} to {piece.times[-1]:.15g})"

    def check_model(
        self, settings: Any, model: Any, processor: EventsConfig, examples: Encoded, name: str
    ) -> None:
        """Check as every task does, and refuse training times at which a flow's gradient is not finite.

        Raises:
            DataError: if the gradient is not finite; the message names the sequence and its times.
        """
        super().check_model(settings, model, processor, examples, name)
        if name != "training" or processor.position_source != "time":
            return
        twin = copy.deepcopy(model).train(False)  # a flow keeps the meshes of its solves with gradients
        index = self.hardest(examples)[-1]
        batch = self.collate(settings, processor, twin)([examples[index]])
        batch.pop("labels")
        twin(**batch).nll.sum().backward()
        gradients = [part.grad for part in twin.parameters() if part.grad is not None]
        if not get_total_norm(gradients).isfinite():
            step = settings.data.unit * processor.time_per_position
            span = float(np.ptp(examples.source[index].times)) / step
            raise DataError(
                f"{self.where(settings, examples, index, name)}: the norm of the gradient is not finite over "
                f"its {span:.6g} positions of {step:.6g} each; a time far from the others may be missing or "
                "in another unit; otherwise raise model.max_length or data.time_per_position"
            )

    def try_batch(self, model: Any, batch: dict[str, Any]) -> None:
        model(**batch)
        if isinstance(model, FloaterForEvents):
            _check_causal(model, batch)

    def summary(self, prepared: Prepared) -> str:
        config, train = prepared.processor, prepared.train
        span = max(float(np.ptp(piece.times)) for piece in train.source) / (
            config.unit * config.time_per_position
        )
        text = (
            f"{sum(train.lengths):,} training events in {len(train):,} pieces, "
            f"{sum(prepared.valid.lengths):,} validation events; a position is "
            f"{config.time_per_position:.6g} units, the longest span {span:.6g} positions"
        )
        if config.position_source == "time" and span > 4 * config.training_length:
            text += (
                f"\nthe longest span is {span:.6g} positions, model.max_length {config.training_length}: "
                "a flow starts of order one over max_length only; raise it, or data.time_per_position"
            )
        return text

    def score(
        self, settings: Any, model: Any, processor: Any, examples: Encoded, bins: tuple[int, ...] = ()
    ) -> Measurement:
        """Predict the events of pieces; no random number is used, so that the training is unaffected.

        Args:
            settings: settings of the run.
            model: the model.
            processor: its configuration.
            examples: encoded pieces.
            bins: see `by_sequence`.

        Returns:
            Means over the predicted events or values: first `nll` (nats, with the density of times and values
            in their units). For events also its parts `nll_time` and `nll_type`, the `accuracy` of types in
            percent, and the mean absolute error `mae` of the median time to the next event; for values `rmse`
            and `mae`. The statistics are those of each sequence.

        Raises:
            DataError: if nothing is predicted, or the bins are not valid.
            PositionError: if the position model does not support a sequence.
        """
        predicted = predictions(model, examples, self.collate(settings, processor, model))
        what = "events" if settings.model.goal == "next" else "values"
        return by_sequence(predicted, examples, bins, what)

    def evaluate(
        self,
        run: RunPath,
        source: str,
        part: str | None = None,
        window: int | None = None,
        bins: tuple[int, ...] = (),
    ) -> Measurement:
        """Score the final model of a run on sequences of events, in pieces.

        Args:
            run: directory of a finished run.
            source: location of the sequences, as for `read_sequences`.
            part: part of the source to score, "train", "valid" or "test", split as the run splits its own
                data; None for all of it.
            window: maximum number of predicted events in a piece; None for that of the training.
            bins: first numbers of events read before of the ranges in which the next event is scored, besides
                1, as in 32, 128; a piece restarts the count.

        Returns:
            The scores of `score`, over all predictions, in each range, and for each sequence.

        Raises:
            DataError: if the run, the data or the bins are not valid, or the window is below 1.
            PositionError: if the position model does not support a sequence; the message names it.
        """
        model, config, settings = self.load(run)
        sequences = _test_sequences(settings, source, part, window, bins)
        values, features = settings.data.columns.values, config.features or []
        if len(values) != len(features):
            raise DataError(
                f"data.columns.values names {', '.join(values)}; the model reads {', '.join(features)}, in "
                "this order"
            )
        size = settings.data.max_events if window is None else window
        examples = pieces(sequences, config, size=size, origin=str(source))
        self.check_model(settings, model, config, examples, "evaluated")
        score = self.score(settings, model, config, examples, bins)
        if (note := note_on_unit(sequences, config, str(source))) is None:
            return score
        logger.warning("%s", note)
        return replace(score, notes=[note])

    measure = evaluate

    def check_test(self, settings: EventsSettings, **test: Any) -> None:
        _test_sequences(settings, **test)


def _test_sequences(
    settings: EventsSettings,
    source: str,
    part: str | None = None,
    window: int | None = None,
    bins: tuple[int, ...] = (),
) -> list[EventSequence]:
    """Read the sequences of a test; the arguments are those of `Events.evaluate`."""
    if window is not None and window < 1:
        raise DataError(f"window is {window}; it must be at least 1 event")
    if bins and settings.model.goal != "next":
        raise DataError(f"bins {list(bins)}: only the goal 'next' is scored by the events read before")
    sequences = _read(str(source), settings.data)
    return settings.data.part(sequences, part) if part else sequences


def mean_nll(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Return the mean negative log-likelihood of the predictions, as a loss function of a Trainer.

    Args:
        outputs: outputs of a model, with `nll`.
        labels: labels of the events or values, -100 where nothing is predicted.
        num_items_in_batch: divisor of the summed loss; None for the number of labels.
    """
    items = (labels >= 0).sum() if num_items_in_batch is None else num_items_in_batch
    return per_item(outputs["nll"].sum(), items)


def _read(source: str, data: Data) -> list[EventSequence]:
    """Read sequences; refuse times between events that have no density, and no number of the model."""
    sequences = read_sequences(source, data.columns)
    for sequence in sequences if not data.columns.values else ():
        with np.errstate(over="ignore"):
            gaps = np.maximum(np.diff(sequence.times) / data.unit, data.resolution)
            kept = gaps.astype(np.float32)
        for wrong, what in (
            (
                gaps == 0,
                "are at one time, which has no density; set data.resolution, the shortest time that the data "
                "resolve",
            ),
            (kept == 0, f"are {{:.6g}} units apart, 0 in float32; lower data.unit, {data.unit:g}"),
            (
                np.isinf(kept),
                f"are {{:.6g}} units apart, infinite in float32; raise data.unit, {data.unit:g}",
            ),
        ):
            if wrong.any():
                index = int(wrong.argmax())
                raise DataError(
                    f"{source}, sequence '{sequence.id}': events {index} and {index + 1} "
                    + what.format(gaps[index])
                )
    return sequences


def _gaps(sequences: Sequence[EventSequence], unit: float, resolution: float | None) -> np.ndarray:
    """Return the positive times between events, in units, at least the resolution."""
    between = np.concatenate([np.diff(sequence.times) / unit for sequence in sequences])
    between = np.maximum(between, resolution or 0.0)
    return np.asarray(between[between > 0])


def note_on_unit(sequences: Sequence[EventSequence], config: EventsConfig, origin: str) -> str | None:
    """Return a note on times that are probably in another unit than those of the training, None for none.

    Args:
        sequences: sequences of events.
        config: configuration of the model, with the mean logarithm of the times between training events.
        origin: source of the sequences, for the note.
    """
    positive = _gaps(sequences, config.unit, config.resolution)
    if config.log_gap is None or not len(positive):
        return None
    difference = float(np.log(positive).mean()) - config.log_gap[0]
    if abs(difference) < math.log(MOST_RATIO):
        return None
    ratio = math.exp(min(abs(difference), 700))
    size = f"about {ratio:,.0f} times {'longer' if difference > 0 else 'shorter'}"
    return (
        f"{origin}: times between events are {size} than those of the training; if they are in another unit, "
        "convert them (dates are seconds)"
    )


def configured(settings: EventsSettings, sequences: Sequence[EventSequence]) -> EventsConfig:
    """Return the configuration of a model: types or features of training sequences, and their statistics.

    Raises:
        DataError: if the sequences have no median time between events, or a feature was never observed.
    """
    data, model = settings.data, settings.model
    positive = _gaps(sequences, data.unit, data.resolution)
    if not len(positive):
        raise DataError(f"{data.train}: no sequence has two events at different times")
    logs = np.log(positive)
    step = float(np.median(positive)) if data.time_per_position is None else data.time_per_position
    fields: dict[str, Any] = {"unit": data.unit, "time_per_position": step, "resolution": data.resolution}
    fields["log_gap"] = [float(logs.mean()), max(float(logs.std()), LEAST_SPREAD)]
    if model.goal == "next":
        fields["types"] = sorted({name for sequence in sequences for name in sequence.types})
        quantiles = np.quantile(positive, np.arange(model.components) / model.components)
        # edges that are equal in the model's precision would make a hazard infinite
        fields["edges"] = np.unique(np.array([0.0, *quantiles[1:]], dtype=np.float32)).tolist()
    else:
        values = np.concatenate([sequence.values for sequence in sequences])
        observed = np.concatenate([sequence.observed for sequence in sequences])
        for i, name in enumerate(data.columns.values):
            if not observed[:, i].any():
                raise DataError(f"{data.train}: no value of '{name}' was observed in a training sequence")
        columns = [values[observed[:, i], i] for i in range(values.shape[1])]
        fields["features"] = list(data.columns.values)
        fields["means"] = [float(column.mean()) for column in columns]
        # rounding of the mean can make the deviation of equal numbers nonzero
        fields["scales"] = [float(column.std()) if np.ptp(column) > 0 else 1.0 for column in columns]
    config: EventsConfig = model.config(**fields)
    return config


def _check_causal(model: FloaterForEvents, batch: dict[str, Tensor]) -> None:
    """Refuse a model whose predictions depend on later events or on padding."""
    whole, half, padded = model(**batch), (batch["times"].shape[1] + 1) // 2, {}
    for name, part in batch.items():
        empty = part[:, -1:] if name == "times" else torch.zeros_like(part[:, :1])
        padded[name] = torch.cat((part, empty), 1)
    for other in ({name: part[:, :half] for name, part in batch.items()}, padded):
        changed = model(**other)
        for name in ("type_logits", "raw"):
            before, after = getattr(whole, name), getattr(changed, name)
            count = min(before.shape[1], after.shape[1])
            before, after = before[:, :count], after[:, :count]
            if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
                raise DataError(
                    f"the position model '{model.config.position}' lets events attend to later ones; "
                    "predicting the next one needs another, or other options (model.position_options)"
                )
