"""Transformers over events: the next event and its time, and values at times between and after observed
ones."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from transformers import AutoConfig
from transformers.utils.generic import ModelOutput

from floater.flow.precision import wide_dtype
from floater.positions import Positions
from floater.transformer import FloaterConfig
from floater.transformer.base import FloaterPreTrainedModel, check_right_padding, embed, refuse
from floater.transformer.stacks import Encoder
from floater.transformer.time_distributions import NARROWEST, Gaps, LogNormalMixture, PiecewiseHazard

POSITION_SOURCES = ("time", "index")
GOALS = ("next", "interpolate", "forecast")
HEADS = ("lognormal", "hazard")


@strict
class EventsConfig(FloaterConfig):
    """Configuration of a Transformer over events: sizes, position model, statistics of the training set.

    Args:
        goal: "next" (which event comes next, and when), "interpolate" or "forecast" (values).
        position_source: source of the positions: "time", or "index" in the sequence.
        gap_feature: whether the time since the last event is part of an event's embedding.
        head: distribution of the time to the next event: "lognormal" or "hazard".
        components: number of components of the mixture, or of intervals of the hazard.
        types: names of the types of events.
        features: names of the values.
        unit: length of a unit of time in the data's time.
        time_per_position: units of time from one position to the next.
        resolution: shortest time between events, in units; a shorter one counts as this long.
        log_gap: mean and standard deviation of the logarithm of the times between training events.
        edges: edges of the hazard's intervals, in units.
        means: means of the values.
        scales: standard deviations of the values.

    Raises:
        ValueError: if a choice or a number is not valid.

    Example:
        >>> EventsConfig.preset("tiny", types=["badge"], time_per_position=5.4).model_type
        'floater_events'
    """

    model_type = "floater_events"

    vocab_size: int = 1
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None
    goal: str = "next"
    position_source: str = "time"
    gap_feature: bool = False
    head: str = "lognormal"
    components: int = 16
    types: list[str] | None = None
    features: list[str] | None = None
    unit: float | int = 1.0
    time_per_position: float | int = 1.0
    resolution: float | int = 0.0
    log_gap: list[float] | None = None
    edges: list[float] | None = None
    means: list[float] | None = None
    scales: list[float] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, valid in (("goal", GOALS), ("position_source", POSITION_SOURCES), ("head", HEADS)):
            if getattr(self, name) not in valid:
                raise ValueError(f"{name} is {getattr(self, name)!r}; valid: {', '.join(valid)}")
        mean, std = self.log_gap if self.log_gap and len(self.log_gap) == 2 else (math.nan, math.nan)
        edges, count = self.edges or [0.0, 1.0], len(self.features or ())
        fewest = 2 if self.head == "hazard" else 1
        for name, right, wanted in (
            ("components", self.components >= 1, "at least 1"),
            ("unit", 0 < self.unit < math.inf, "a positive number"),
            ("time_per_position", 0 < self.time_per_position < math.inf, "a positive number"),
            ("resolution", 0 <= self.resolution < math.inf, "a number of at least 0"),
            (
                "log_gap",
                self.log_gap is None or (abs(mean) < math.inf and 0 < std < math.inf),
                "a mean and a positive deviation",
            ),
            (
                "edges",
                len(edges) >= fewest and edges[0] == 0 and _grow(edges),
                f"at least {fewest} growing numbers, the first 0",
            ),
            ("means", _each(self.means, count, -math.inf), f"{count} numbers, one for each feature"),
            ("scales", _each(self.scales, count, 0.0), f"{count} positive numbers, one for each feature"),
        ):
            if not right:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {wanted}")
        super().__post_init__(**kwargs)


def _grow(edges: list[float]) -> bool:
    return all(low < high < math.inf for low, high in pairwise(edges))


def _each(values: list[float] | None, count: int, above: float) -> bool:
    return values is None or (len(values) == count and all(above < value < math.inf for value in values))


@dataclass
class EventsOutput(ModelOutput):
    """The output of a model of events.

    Args:
        nll: nats of each event (batch, T), zero where nothing is predicted: at the first event and padding;
            for values (batch, T, features), zero where a value is not asked, and at padding.
        nll_gap: the part of `nll` (batch, T) that belongs to the time.
        type_logits: (batch, T, types) of the event after each.
        raw: raw parameters of the distribution of the time to the next event (batch, T, ...).
        mean: expected values (batch, T, features), in their units.
        std: standard deviations of the values.
    """

    nll: Tensor | None = None
    nll_gap: Tensor | None = None
    type_logits: Tensor | None = None
    raw: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None


def event_positions(config: EventsConfig, times: Tensor, mask: Tensor) -> Positions:
    """Return the positions of events, from the source that the configuration names.

    Args:
        config: the configuration, with `position_source`, `unit` and `time_per_position`.
        times: (batch, T) as in the data, integer or float64.
        mask: (batch, T) bool.

    Raises:
        ValueError: see `Positions.events`.

    Example:
        >>> config = EventsConfig(position_source="index")
        >>> event_positions(config, torch.tensor([[3, 9]]), torch.ones(1, 2).bool()).query
        tensor([[0, 1]])
    """
    real = Positions.events(times, mask, time_per_position=config.time_per_position * config.unit)
    return real if config.position_source == "time" else Positions.from_mask(mask)


class FloaterForEvents(FloaterPreTrainedModel):
    """A causal Transformer that predicts the type of the next event and the time to it.

    The two are independent given the events so far. Events at the same time are read in the given order.

    Args:
        config: the configuration, with the types of events.

    Example:
        >>> config = EventsConfig.preset("tiny", types=["a", "b"])
        >>> model = FloaterForEvents(config)
        >>> model(torch.tensor([[0, 1, 0]]), torch.tensor([[10**9, 10**9 + 1, 10**9 + 4]])).nll.shape
        torch.Size([1, 3])
    """

    config_class = EventsConfig
    config: EventsConfig
    main_input_name = "types"

    def __init__(self, config: EventsConfig) -> None:
        super().__init__(config)
        count = len(config.types or ())
        self.event = nn.Embedding(count, config.hidden_size)
        self.gap = nn.Linear(1, config.hidden_size) if config.gap_feature else None
        self.encoder = Encoder(config, causal=True)
        self.type_head = nn.Linear(config.hidden_size, count)
        numbers = 3 * config.components if config.head == "lognormal" else len(config.edges or (0.0, 1.0))
        self.gap_head = nn.Linear(config.hidden_size, numbers)
        self.post_init()

    def gaps(self, raw: Tensor) -> Gaps:
        """Return the distribution of the time to the next event, in units, from `EventsOutput.raw`."""
        if self.config.head == "hazard":
            return PiecewiseHazard(raw, self.config.edges or (0.0, 1.0))
        mean, std = self.config.log_gap or (0.0, 1.0)
        return LogNormalMixture(raw, mean, std)

    def forward(
        self, types: Tensor, times: Tensor, mask: Tensor | None = None, **kwargs: Any
    ) -> EventsOutput:
        """Read sequences, and predict each event from those before it.

        Args:
            types: (batch, T) indices of the types.
            times: (batch, T), integer or float64, not decreasing, as in the data.
            mask: (batch, T), non-zero where there is an event; padding on the right only.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Raises:
            PositionError: if times are spaced by a reading rule, and positions exceed its length.
            TypeError: if an argument is unknown.
            ValueError: if times are not finite or decrease, two are the same and the resolution is 0, or the
                padding is not on the right.
        """
        refuse(self, kwargs)
        mask = torch.ones_like(types, dtype=torch.bool) if mask is None else mask.bool()
        check_right_padding(mask, "events")
        # no event attends to the padding after it, and attention without a mask is faster
        positions = event_positions(self.config, times, mask).but(key_valid=None)
        # spaced by a length that is declared: that of the sequence would tell how much time is to come
        rule = self.encoder.rule(None)
        (positions,) = self.encoder.timed(rule, positions, batch=len(types), apart=True)
        times = _exact(times).masked_fill(~mask, 0)
        elapsed = (times.diff() / self.config.unit).clamp(min=self.config.resolution).float()
        follows = mask[:, 1:]
        if bool((follows & (elapsed <= 0)).any()):
            row, index = (follows & (elapsed <= 0)).nonzero()[0].tolist()
            raise ValueError(
                f"row {row}: events {index} and {index + 1} are at one time, which has no density; "
                "set a resolution above 0"
            )
        x = embed(self.recipe, self.event, types.masked_fill(~mask, 0), None)
        if self.gap is not None:
            mean, std = self.config.log_gap or (0.0, 1.0)
            logs = (torch.where(follows, elapsed, 1.0).log() - mean) / std
            x = x + F.pad(self.gap(logs.unsqueeze(-1).to(x.dtype)), (0, 0, 1, 0))[:, : x.shape[1]]
        hidden = self.encoder(x, positions)
        logits, raw = self.type_head(hidden).float(), self.gap_head(hidden)
        gap = -self.gaps(raw[:, :-1]).log_prob(torch.where(follows, elapsed, 1.0))
        type_nll = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), types[:, 1:].masked_fill(~follows, 0).flatten(), reduction="none"
        )
        gap, type_nll = (
            F.pad(part.view_as(elapsed) * follows, (1, 0))[:, : types.shape[1]] for part in (gap, type_nll)
        )
        return EventsOutput(
            nll=gap + type_nll,
            nll_gap=gap,
            type_logits=logits,
            raw=raw,
        )


class FloaterForSeries(FloaterPreTrainedModel):
    """A Transformer that predicts values at any times from values observed at other times.

    Every event is a query at its own time; only events with a shown value are keys. The prediction at one
    time does not depend on the other requested times, unless one is before the first event, from which
    all times are measured. This is so with the position source "time": with "index" the rank of an event
    among all others is its position. Events are read in the order of their times, of equal ones in the
    given order.

    Args:
        config: the configuration, with the features.

    Example:
        >>> model = FloaterForSeries(EventsConfig.preset("tiny", goal="forecast", features=["x", "y"]))
        >>> values, shown = torch.randn(1, 3, 2), torch.tensor([[[1, 1], [1, 0], [0, 0]]])
        >>> model(values, torch.tensor([[0.0, 0.4, 2.5]]).double(), shown).mean.shape
        torch.Size([1, 3, 2])
    """

    config_class = EventsConfig
    config: EventsConfig
    main_input_name = "values"

    def __init__(self, config: EventsConfig) -> None:
        super().__init__(config)
        count = len(config.features or ())
        self.event = nn.Linear(2 * count, config.hidden_size)
        self.encoder = Encoder(config, causal=False)
        self.value_head = nn.Linear(config.hidden_size, 2 * count)
        self.post_init()

    def forward(
        self,
        values: Tensor,
        times: Tensor,
        shown: Tensor,
        mask: Tensor | None = None,
        asked: Tensor | None = None,
        **kwargs: Any,
    ) -> EventsOutput:
        """Predict values at all times given those that are shown.

        Args:
            values: (batch, T, features), real or whole numbers; values that are not shown are not read.
            times: (batch, T), integer or float64, as in the data; in any order where these are positions.
            shown: (batch, T, features), non-zero where a value may be read.
            mask: (batch, T), non-zero where there is an event.
            asked: (batch, T, features), non-zero where a value is scored.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Raises:
            TypeError: if an argument is unknown.
            ValueError: if times are not finite.
        """
        refuse(self, kwargs)
        config = self.config
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device) if mask is None else mask
        mask, shown = mask.bool(), shown.bool() & mask.bool().unsqueeze(-1)
        count = len(config.features or ())
        values = values if values.is_floating_point() else values.to(wide_dtype(values.device))
        mean = values.new_tensor(config.means or [0.0] * count)
        scale = values.new_tensor(config.scales or [1.0] * count)
        standard = ((values - mean) / scale).masked_fill(~shown, 0.0).to(self.event.weight.dtype)
        x = self.event(torch.cat((standard, shown.to(standard.dtype)), -1))
        order = time_order(times, mask)
        positions = event_positions(config, times.gather(1, order), mask.gather(1, order))
        positions = positions.but(key_valid=shown.any(-1).gather(1, order))
        slots = order[..., None].expand_as(x)
        hidden = self.encoder(x.gather(1, slots), positions)
        hidden = torch.empty_like(hidden).scatter(1, slots, hidden)
        middle, width = self.value_head(hidden).float().chunk(2, -1)
        width = F.softplus(width) + NARROWEST
        nll = None
        if asked is not None:
            asked = asked.bool() & mask.unsqueeze(-1)
            wanted = torch.where(asked, (values - mean) / scale, 0.0)
            density = Normal(middle, width, validate_args=False).log_prob(wanted) - scale.log()
            nll = torch.where(asked, -density, 0.0)
        return EventsOutput(nll=nll, mean=middle * scale + mean, std=width * scale)


def time_order(times: Tensor, mask: Tensor) -> Tensor:
    """Return the slots of events in the order of their times, (batch, T), those without an event last.

    Example:
        >>> time_order(torch.tensor([[7.0, 5.0, 6.5]]).double(), torch.tensor([[True, True, False]]))
        tensor([[1, 0, 2]])
    """
    exact = _exact(times)
    last = torch.inf if exact.is_floating_point() else torch.iinfo(exact.dtype).max
    return exact.masked_fill(~mask, last).argsort(dim=1, stable=True)


def _exact(times: Tensor) -> Tensor:
    """Return times as int64 or float64: nanoseconds since 1970 have 19 digits, of which float64 holds 16."""
    return times.to(torch.float64 if times.is_floating_point() else torch.int64)


AutoConfig.register("floater_events", EventsConfig)
