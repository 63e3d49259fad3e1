"""A run that takes seconds: a small corpus, a small Transformer, a few steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.translation import TranslationSettings
from helpers import write_run_config

TASK = task("translation")
train, evaluate, measure = TASK.train, TASK.evaluate, TASK.measure


def load_run(run: Path, device: str | None = None) -> tuple[Any, Any]:
    """The final model of a run and its vocabulary."""
    model, tokenizer, _ = TASK.load(run, device)
    return model, tokenizer


SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
SIZES |= {"num_hidden_layers": 1, "decoder_layers": 2, "dropout": 0.2}


def write_corpus(folder: Path) -> dict[str, tuple[Path, Path]]:
    parts = cldr.split(train=120, valid=7, test=8, mean_tokens=10, longest=200)
    return cldr.write(folder, parts, source="en", target="de")


def write_config(
    folder: Path, files: Mapping[str, tuple[Path, Path]], name: str = "run", **parts: Any
) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config: dict[str, Any] = {
        "data": {
            "train_source": str(files["train"][0]),
            "train_target": str(files["train"][1]),
            "valid_source": str(files["valid"][0]),
            "valid_target": str(files["valid"][1]),
            "vocabulary_size": 300,
        },
        "model": {"preset": "tiny", "max_length": 128, "changes": SIZES},
        "training": {
            "learning_rate": 3e-3,
            "warmup_steps": 3,
            "max_tokens": 600,
            "max_steps": 12,
            "save_steps": 4,
            "logging_steps": 1,
            "save_total_limit": 2,
            "average_last": 2,
        },
        "decoding": {"beam": 2},
    }
    if not {"eval_steps", "eval_strategy"} & parts.get("training", {}).keys():
        config["training"] |= {"eval_strategy": "no"}
    if "vocabulary" in parts.get("data", {}):
        del config["data"]["vocabulary_size"]
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(
    folder: Path, files: Mapping[str, tuple[Path, Path]], name: str, **parts: Any
) -> TranslationSettings:
    return load(TranslationSettings, write_config(folder, files, name, **parts))


def pairs(files: tuple[Path, Path]) -> Pairs:
    source, target = (file.read_text(encoding="utf-8").splitlines() for file in files)
    return Pairs(source, target, 0)


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
