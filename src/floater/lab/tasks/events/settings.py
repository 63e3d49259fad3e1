"""Settings of a run on events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from floater.lab.tasks import settings
from floater.lab.tasks.corpora.events import TIMES, TYPES, Columns
from floater.lab.tasks.corpora.splits import HUB
from floater.lab.training.contents import Part
from floater.lab.training.settings import TrainingSettings, check_numbers, check_read
from floater.transformer.events import EventsConfig

__all__ = ["Columns", "Data", "EventsSettings", "Model"]


@dataclass(frozen=True)
class Data(settings.SplitData):
    """Source of the sequences of events, and unit of their times.

    Attributes:
        train: CSV, JSON Lines or Parquet file with a row for each event, or for each sequence with lists of
            its times and its types or values; directory with time.txt and event.txt; or hf:NAME of a Hugging
            Face data set (hf:NAME:SPLIT).
        valid: source of the validation sequences; null takes valid_share of those of train.
        columns: names of the columns.
        max_events: maximum number of predicted events in a piece; longer sequences are cut into pieces, whose
            times are measured from their first event. Pieces of one event, with nothing to predict, are
            excluded.
        unit: unit of reported times and errors, in the data's unit of time (86400: days for data in seconds).
        time_per_position: time from one position to the next, in units; null takes the median time between
            events.
        resolution: minimum time between events, in units; shorter times are raised to it; required if events
            coincide.
        mask_ratio: share of a piece's events whose values are predicted: random events ("interpolate") or the
            last ones ("forecast").
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
        if self.valid:
            if self.valid_share:
                check_read(self, ["valid_share"], "a run without data.valid")
            if not self.test_share:
                check_read(self, ["split_seed"], "a split, by test_share,")

    def part(self, examples: Sequence[Any], part: str) -> list[Any]:
        """Return the sequences of a part; the share of "valid" is 0 if `valid` names other data."""
        shares = replace(self, valid_share=0.0) if self.valid else self
        return super(Data, shares).part(examples, part)


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer, its position model, and the heads.

    Attributes:
        goal: "next" (which event comes next, and when), "interpolate" or "forecast" (values).
        position_source: source of the positions: the "time" of events, or their "index".
        gap_feature: true to add the time since the last event to an event's embedding ("next").
        head: distribution of the time to the next event: "lognormal" (a mixture) or "hazard" (piecewise
            constant).
        components: number of components of the mixture, or of intervals of the hazard.
        max_length: number of positions that the training sequences span, which is the initial span of a flow;
            with "index", the size of a table of positions.
    """

    Config = EventsConfig
    output_embeddings = False

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
        if self.goal != "next":
            check_read(self, ["head", "components"], "the goal 'next'")


@dataclass(frozen=True, kw_only=True)
class EventsSettings(settings.RunSettings):
    """A run on events.

    Attributes:
        data: source of the sequences.
        model: settings of the Transformer, its position model, and the heads.
    """

    task: Literal["events"] = "events"
    data: Data
    model: Model = field(default_factory=Model)
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=2e-3, warmup_steps=200, max_tokens=4096, num_train_epochs=10, average_last=0
        )
    )

    def files_read(self) -> dict[str, Any]:
        files = settings.files_of(self.data, "train", "valid")
        return {
            name: Part(Path(path), (TIMES, TYPES)) if Path(path).is_dir() else path
            for name, path in files.items()
            if not path.startswith(HUB)
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model.goal == "next") != bool(self.data.columns.type):
            raise ValueError(
                f"model.goal is '{self.model.goal}', which goes with "
                + ("data.columns.type" if self.model.goal == "next" else "data.columns.values")
            )
        data, by_time = self.data, self.model.position_source == "time"
        if not by_time:
            check_read(data, ["time_per_position"], "model.position_source 'time'", "data.")
        if self.model.goal == "next":
            check_read(data, ["mask_ratio"], "a goal of values (interpolate, forecast)", "data.")
        elif not by_time or data.time_per_position is not None:
            reader = "model.goal 'next', or the median time between events where time_per_position is null,"
            check_read(data, ["resolution"], reader, "data.")
