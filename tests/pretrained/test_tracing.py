"""A trace would keep the positions of its example: it is refused, and what is exported reads any text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floater
from floater import FloaterConfig
from floater.transformer import FloaterForMaskedLM

from . import zoo
from .extended import extended

IDS = zoo.text(2, 8)


def _traced(model: Any) -> Any:
    return torch.jit.trace(model.eval(), (IDS, torch.ones_like(IDS)), strict=False, check_trace=False)


@pytest.mark.parametrize("baked", [False, True])
def test_a_plugged_model_is_not_traced(baked: bool) -> None:
    model = zoo.build("bert")
    floater.plug(model, start="small")
    if baked:
        floater.bake(model, 16)
    with pytest.raises(floater.pretrained.PlugError, match="a plugged model cannot be traced"):
        _traced(model)
    floater.unplug(model)
    _traced(model)


@pytest.mark.parametrize(("name", "method"), [("llama", "clex"), ("llama", "log_n"), ("t5", "flow"),
                                              ("bloom", "flow")])  # fmt: skip
def test_what_reads_positions_in_an_extended_model_is_not_traced(name: str, method: str) -> None:
    model = extended(name, method)
    model.config.use_cache = False
    with pytest.raises(floater.pretrained.ExtendError, match="cannot be traced"):
        torch.jit.trace(
            (model.encoder if name == "t5" else model).eval(), example_kwarg_inputs={"input_ids": IDS},
            strict=False, check_trace=False,
        )  # fmt: skip


@pytest.mark.parametrize("position", ["floater", "sinusoidal", "rotary", "alibi"])
def test_a_model_of_this_library_is_not_traced(position: str) -> None:
    model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=50, position=position))
    with pytest.raises(ValueError, match="a model with positions cannot be traced"):
        _traced(model)


@pytest.mark.parametrize(("method", "options"), [("clex", {}), ("dynamic", {"declared": False})])
def test_an_extension_that_reads_positions_is_not_exported(method: str, options: dict[str, bool]) -> None:
    model = extended("llama", method, **options).eval()
    model.config.use_cache = False
    with pytest.raises(floater.pretrained.ExtendError, match="cannot be exported"):
        torch.export.export(model, (IDS,), strict=False)
