"""Models that are plugged, or extended by what this library adds to their weights."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

import floater

from . import extended, zoo
from .extended import ROTARY, build, noisy

AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "EncoderDecoderModel": "AutoModelForSeq2SeqLM",
}


def auto(model: Any) -> Any:
    """The Auto class of a model's head."""
    if "SiglipText" in type(model).__name__:
        return type(model)  # there is none
    if "Whisper" in type(model).__name__:
        return transformers.AutoModelForSpeechSeq2Seq
    name = next(name for ending, name in AUTO.items() if type(model).__name__.endswith(ending))
    return getattr(transformers, name)


def trained(name: str) -> Any:
    model = zoo.build(name)
    floater.plug(model, delta=0.2)
    zoo.noisy(model)
    return model


UNBOUNDED = ("deberta-v2", "marian")  # these declare no length to extend


EXTENDED = [name for name in (*zoo.NAMES, "bloom", "mpt") if name not in UNBOUNDED]


CHANGED = [*((name, "plug") for name in zoo.NAMES), *((name, "extend") for name in EXTENDED)]


def changed(name: str, how: str) -> Any:
    """A plugged model, or one that is extended by what this library adds to its weights, where it can be."""
    return copy.deepcopy(_changed(name, how))


@cache  # as fits take seconds
def _changed(name: str, how: str) -> Any:
    if how == "plug":
        return trained(name)
    model = build(name)
    floater.extend(
        model,
        16 if name in zoo.IMAGES else 600,
        "clex" if name in ROTARY else None,
        **({"trained": 32} if name == "t5" else {}),
    )
    noisy(model)
    return model


def change(model: Any, how: str) -> Any:
    """Plug or extend a model, the new weights away from their start.

    Args:
        model: the model.
        how: "flow", "baked" or "clock" to plug it, "clex" or "extend", by the default method, to extend it.
    """
    if how in ("clex", "extend"):
        floater.extend(model, 128, "clex" if how == "clex" else None)
        noisy(model)
        return model
    floater.plug(model, **({"clock": {}} if how == "clock" else {}))
    zoo.noisy(model)
    if how == "baked":
        floater.bake(model, 16)
    return model


def assert_same(name: str, again: Any, model: Any, how: str = "plug") -> None:
    options = inputs(name, how)
    assert torch.equal(zoo.output(again.eval(), **options), zoo.output(model.eval(), **options))


def inputs(name: str, how: str) -> dict[str, Tensor]:
    return zoo.inputs(name) if how == "plug" else extended.build_inputs(name, 100)


TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSpeechSeq2Seq": "automatic-speech-recognition",
}


def task(model: Any) -> Any:
    """Return the name of the pipeline of a model's head, or that of feature extraction."""
    return TASKS.get(auto(model).__name__, "feature-extraction")
