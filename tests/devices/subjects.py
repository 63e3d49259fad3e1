"""Whole models with inputs that the tests of devices share: heads, plugged and extended families."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import floater
from floater import transformer

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]
from pretrained import extended, zoo  # noqa: E402
from small_models import small_config  # noqa: E402

MASK = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
IDS = 3 + torch.arange(21).view(3, 7) % 8
BATCH = {"input_ids": IDS, "attention_mask": MASK}
LABEL = torch.tensor([1, 0, 1])
HEADS: dict[str, dict[str, Tensor]] = {
    "CausalLM": {"labels": IDS},
    "MaskedLM": {"labels": IDS},
    "SequenceClassification": {"labels": LABEL},
    "TokenClassification": {"labels": IDS % 2},
    "QuestionAnswering": {"start_positions": LABEL, "end_positions": LABEL + 2},
    "MultipleChoice": {"labels": LABEL[:1]},
    "ConditionalGeneration": {"decoder_input_ids": IDS, "labels": IDS},
}
PLUGGED = ("bert", "vit", "gpt2", "gemma2", "t5", "whisper")
BAKED = ("floater", "floater_relative", "alibi", "rotary", "t5", "plug bert", "plug llama")
EXTENDED = {
    "gpt2": ("flow", "repeat", "hierarchical"),
    "whisper": ("interpolation",),
    "t5": ("flow",),
    "bloom": ("flow",),
    "modernbert": ("linear",),
    "llama": ("dynamic", "yarn", "longrope", "clex", "self_extend", "log_n", "dropped"),
}


def head(name: str) -> nn.Module:
    """Build a small model of this library with FLOATER."""
    kind: Any = getattr(transformer, f"FloaterFor{name}")
    return kind(small_config("floater", num_labels=2, decoder_layers=1))  # type: ignore[no-any-return]


def plugged(name: str) -> nn.Module:
    """Build a pretrained family's small model with a flow whose vectors differ from place to place."""
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    return model  # type: ignore[no-any-return]


def subjects() -> dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]]:
    """Return the models with their inputs."""
    choices = {key: part[None] for key, part in BATCH.items()}
    models: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {}
    for name, labels in HEADS.items():
        models[name] = partial(head, name), (choices if name == "MultipleChoice" else BATCH) | labels
    for name in PLUGGED:
        models[f"plug {name}"] = partial(plugged, name), zoo.inputs(name)
    for name, methods in EXTENDED.items():
        for method in methods:
            build = partial(extended.extended, name, method)
            models[f"extend {name} {method}"] = build, extended.build_inputs(name, 70)
    return models


def baked(name: str) -> nn.Module:
    """Build a small language model, or a plugged one, without flows to solve."""
    if name.startswith("plug "):
        model: Any = plugged(name.removeprefix("plug "))
        floater.bake(model, 16)
    else:
        model = transformer.FloaterForCausalLM(small_config(name))
        if name.startswith("floater"):
            model.bake(16)
    return model.eval()  # type: ignore[no-any-return]
