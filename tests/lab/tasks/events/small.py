"""Toy sequences whose types follow from their times, and runs of seconds."""

import csv
import math
import random
from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.events import EventsSettings
from helpers import write_run_config

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}


def clocks(count: int, seed: int) -> list[tuple[str, float, str]]:
    """Rows (id, time, type): eight units "tick", eight units "tock", told one event late."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        first, elapsed, kind = draw.uniform(0, 1e9), 0.0, "tick"
        for _ in range(draw.randint(6, 14)):
            rows.append((f"u{number}", first + elapsed, kind))
            kind = ("tick", "tock")[int(elapsed // 8) % 2]
            elapsed += draw.uniform(0.5, 8.0)
    return rows


def waves(count: int, seed: int) -> list[tuple[str, float, float | None, float | None]]:
    """Rows (id, time, x, y): a circle at irregular times, each value observed nine times in ten."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        phase, time = draw.uniform(0, 2 * math.pi), 0.0
        for _ in range(draw.randint(12, 20)):
            angle = phase + time
            values = [v if draw.random() < 0.9 else None for v in (math.sin(angle), 5 + 2 * math.cos(angle))]
            rows.append((f"s{number}", time, *values))
            time += draw.expovariate(3.0) + 1e-3
    return rows


def write_csv(path: Path, rows: list[tuple[Any, ...]], *names: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "time", *names))
        writer.writerows(rows)
    return path


def write_config(folder: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config: dict[str, Any] = {
        "task": "events",
        "data": {"train": str(folder / "clocks.csv"), "valid_share": 0.2, "max_events": 16},
        "model": {"position_options": {}, "max_length": 64, "components": 4, "changes": SIZES},
        "training": {
            "learning_rate": 5e-3,
            "warmup_steps": 5,
            "max_tokens": 300,
            "max_steps": 12,
            "save_steps": 4,
            "logging_steps": 1,
            "save_total_limit": 2,
            "average_last": 2,
        },
    }
    if parts.get("model", {}).get("goal", "next") != "next":
        del config["model"]["components"]
    if "valid" in parts.get("data", {}):
        del config["data"]["valid_share"]
    return write_run_config(folder / f"{name}.yaml", config, **parts)


VALUES = {"columns": {"type": None, "values": ["x", "y"]}}


def settings(folder: Path, name: str = "run", **parts: Any) -> EventsSettings:
    return load(EventsSettings, write_config(folder, name, **parts))
