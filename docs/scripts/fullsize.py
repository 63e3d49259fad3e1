"""Write the table of fullsize.md, what the papers' tables need, from the configurations: `make docs`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tables import table as markdown
from transformers import RobertaConfig, RobertaForMaskedLM

from floater.lab.settings import load
from floater.lab.study.grid import planned
from floater.lab.study.needs import disk_of
from floater.lab.study.settings import StudySettings
from floater.lab.study.variants import Trial
from floater.lab.training.needs import needs_of, size

DOCS = Path(__file__).parents[1]
PAGE, STUDIES = DOCS / "fullsize.md", DOCS.parent / "configs" / "study"
GPUS = 8
RATE = {True: 100e12, False: 15e12}
"""Assumed floating-point operations of a GPU in a second, with and without bfloat16."""
LEAST = 0.05
"""Assumed least seconds of a batch."""
CHECKPOINTS = {
    "roberta-base": RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    "roberta-large": RobertaConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
    ),
}
GLUE = {
    "MNLI": 392_702,
    "QNLI": 104_743,
    "QQP": 363_846,
    "SST-2": 67_349,
    "CoLA": 8_551,
    "MRPC": 3_668,
    "RTE": 2_490,
    "STS-B": 5_749,
}
"""Training examples of GLUE (Wang et al. 2019)."""


class Data(NamedTuple):
    """Training data: number of examples, and assumed number of tokens of each."""

    examples: int
    tokens: int


@dataclass(frozen=True)
class Table:
    """A table or a figure of a paper: its study, and its data."""

    name: str
    study: str
    data: Data | None = None


WMT_DE, WMT_FR = Data(4_500_000, 30), Data(36_000_000, 30)
TABLES = (
    Table("Liu et al., Table 2, En-De, base", "floater_table2_en_de_base", WMT_DE),
    Table("Liu et al., Table 2, En-De, large", "floater_table2_en_de_large", WMT_DE),
    Table("Liu et al., Table 2, En-Fr, base", "floater_table2_en_fr_base", WMT_FR),
    Table("Liu et al., Table 2, En-Fr, large", "floater_table2_en_fr_large", WMT_FR),
    Table("Liu et al., Table 3, base", "floater_table3_base"),
    Table("Liu et al., Table 3, large", "floater_table3_large"),
    Table("Liu et al., Table 4", "floater_table4", Data(87_866, 4 * 400)),
    Table("Liu et al., Table 5, SQuAD 1.1", "floater_table5_v1", Data(87_599, 200)),
    Table("Liu et al., Table 5, SQuAD 2.0", "floater_table5_v2", Data(130_319, 200)),
    Table("Liu et al., Table 6 and Figure 3", "floater_table6", WMT_DE),
    Table("Liu et al., Figure 2", "floater_figure2", WMT_DE),
    Table("Ke et al., Table 2, pre-training, Figures 4a and 5", "tupe_table2"),
    Table("Ke et al., Table 2, GLUE, Figures 4b and 4c", "tupe_glue"),
)
PAIR = 40
"""Assumed tokens of an example of GLUE."""


def read(name: str) -> StudySettings:
    """Return the settings of a shipped study."""
    return load(StudySettings, STUDIES / f"{name}.yaml")


@functools.cache
def checkpoint(path: str) -> Any:
    """Return a checkpoint of the papers without its weights: RoBERTa, or a trial of the pre-training."""
    if path in CHECKPOINTS:
        with torch.device("meta"):
            return RobertaForMaskedLM(CHECKPOINTS[path])
    grid = planned(read("tupe_table2"), "tupe_table2")
    trial = next(trial for trial in grid.trials if trial.run in (Path(path), *Path(path).parents))
    assert grid.task is not None
    return grid.task.empty(trial.settings)


class Checkpoints:
    """Stand-in for a task that starts from checkpoints, which are not here."""

    @staticmethod
    def empty(settings: Any) -> Any:
        """Return the checkpoint of a trial without its weights."""
        return checkpoint(settings.model.path)


def work(trial: Trial, data: Data | None) -> tuple[float, float]:
    """Return the batches of a trial's training, and the tokens of a batch."""
    settings = trial.settings
    training = settings.training
    examples, length = data or Data(GLUE.get(getattr(settings.data, "task", ""), 0), PAIR)
    batches = training.batches_per_step or training.gradient_accumulation_steps
    in_batch = training.per_device_train_batch_size
    tokens = training.max_tokens if in_batch is None else in_batch * length
    if training.max_steps:
        return training.max_steps * batches, tokens
    return training.num_train_epochs * examples * length / tokens, tokens


def hours(trial: Trial, parameters: int, data: Data | None) -> float:
    """Return the hours of a trial on a GPU: 6 operations a parameter and token (Kaplan et al. 2020)."""
    batches, tokens = work(trial, data)
    return batches * max(LEAST, 6 * parameters * tokens / RATE[trial.settings.training.bf16]) / 3600


@functools.cache
def needs(table: Table) -> dict[str, Any]:
    """Return what a study needs, by arithmetic from its configuration."""
    settings = read(table.study)
    grid = planned(settings, table.study)
    if settings.task in ("glue", "race", "squad"):
        grid = replace(grid, task=Checkpoints())  # type: ignore[arg-type]
    sizes: dict[str, int] = {}
    state, time = 0, 0.0
    for trial in grid.trials:
        key = trial.variant.name
        if key not in sizes:
            model = grid.task.empty(trial.settings)  # type: ignore[union-attr]
            sizes[key] = sum(parameter.numel() for parameter in model.parameters())
            state = max(state, needs_of(model, trial.settings.training).state)
        time += hours(trial, sizes[key], table.data)
    disk, unknown = disk_of(grid, grid.trials, GPUS)
    assert not unknown
    return {
        "trials": len(grid.trials),
        "parameters": max(sizes.values()),
        "state": state,
        "disk": disk,
        "hours": time,
    }


def row(table: Table) -> dict[str, str]:
    """Return the row of a table."""
    each = needs(table)
    return {
        "table or figure": table.name,
        "study": f"`{table.study}`",
        "trials": str(each["trials"]),
        "parameters": f"{each['parameters'] / 1e6:.0f} M",
        "memory a GPU": size(each["state"]),
        "disk": size(each["disk"]),
        "GPU hours": f"{each['hours']:,.0f}",
        "days": f"{each['hours'] / GPUS / 24:.1f}",
    }


def written() -> dict[str, str]:
    """Return the table of the page by its name."""
    return {"needs": markdown([row(table) for table in TABLES])}
