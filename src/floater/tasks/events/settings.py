"""The settings of a run on events: what a configuration file may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from floater.tasks import settings
from floater.tasks.corpora.events import Columns
from floater.training.settings import TrainingSettings, check_numbers
from floater.transformer.events import EventsConfig

__all__ = ["Columns", "Data", "EventsSettings", "Model"]


@dataclass(frozen=True)
class Data(settings.SplitData):
    """The sequences of events, and the unit of their times.

    Attributes:
        train: a CSV or Parquet file with a row for each event, a directory with time.txt and event.txt, or
            hf:NAME of a Hugging Face data set (hf:NAME:SPLIT).
        valid: validation sequences; null takes valid_share of those of train.
        columns: names of the columns.
        max_events: longer sequences are cut into pieces of this many predicted events, each measured from
            its first one; a piece of one event, from which nothing can be predicted, is excluded.
        unit: how much of the data's time one unit of reported times and errors is (86400: days of seconds).
        time_per_position: units from one position to the next; null is the median time between events.
        resolution: units; a shorter time between events counts as this; needed where events coincide.
        mask_ratio: share of a piece's events whose values are predicted: any ("interpolate") or the last ones
            ("forecast").
    """

    valid: str | None = None
    columns: Columns = field(default_factory=Columns)
    max_events: int = 256
    unit: float = 1.0
    time_per_position: float | None = None
    resolution: float = 0.0
    mask_ratio: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("unit", "time_per_position", "max_events"), resolution=0)
        if not self.valid and not self.valid_share:
            raise ValueError("valid is null and valid_share 0; one of them must say what validates")
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"mask_ratio is {self.mask_ratio}; it must be above 0 and below 1")

    def part(self, examples: Sequence[Any], part: str) -> list[Any]:
        """Return the sequences of a part; "valid" has no share where it has data of its own."""
        shares = replace(self, valid_share=0.0) if self.valid else self
        return super(Data, shares).part(examples, part)


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer, its position model, and the heads.

    Attributes:
        goal: "next" (which event comes next, and when), "interpolate" or "forecast" (values).
        position_source: what positions are: the "time" of events, or their "index".
        gap_feature: whether the time since the last event is part of an event's embedding ("next").
        head: of the time to the next event: "lognormal" (a mixture) or "hazard" (constant in intervals).
        components: of the mixture, or intervals of the hazard.
        max_length: positions that the training sequences span: the span of a starting flow; or, with
            "index", the size of a table of positions.
    """

    Config = EventsConfig

    preset: str = "tiny"
    max_length: int = 256
    goal: Literal["next", "interpolate", "forecast"] = "next"
    position_source: Literal["time", "index"] = "time"
    gap_feature: bool = False
    head: Literal["lognormal", "hazard"] = "lognormal"
    components: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, components=2)
        if self.gap_feature and self.goal != "next":
            raise ValueError(f"gap_feature goes with the goal 'next', not with '{self.goal}'")


@dataclass(frozen=True, kw_only=True)
class EventsSettings(settings.RunSettings):
    """A run on events.

    Attributes:
        data: where the sequences come from.
        model: the Transformer, its position model, and the heads.
    """

    task: Literal["events"] = "events"
    data: Data
    model: Model = field(default_factory=Model)
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=2e-3, warmup_steps=200, max_tokens=4096, num_train_epochs=10, average_last=0
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model.goal == "next") != bool(self.data.columns.type):
            raise ValueError(
                f"model.goal is '{self.model.goal}', which goes with "
                + ("data.columns.type" if self.model.goal == "next" else "data.columns.values")
            )
