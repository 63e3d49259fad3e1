"""Models of which accelerate keeps weights in memory or on disk, until a layer runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import floater
from floater.encodings import PositionError
from floater.transformer import FloaterForCausalLM

from . import extended, zoo
from .changed import change

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


@pytest.mark.parametrize("how", ["flow", "clock", "clex"])
def test_what_is_changed_after_it_is_offloaded_or_kept_on_a_device(how: str, tmp_path: Path) -> None:
    ids = zoo.text(2, 100)
    whole = zoo.build("llama")
    change(whole, how)
    expected = zoo.output(whole, input_ids=ids)
    offloaded = cpu_offload(zoo.build("llama"), execution_device=torch.device("cpu"))
    change(offloaded, how)
    torch.testing.assert_close(zoo.output(offloaded, input_ids=ids), expected, atol=1e-5, rtol=1e-5)
    kept = {"floater": "cpu", "floater_extension": "cpu", "lm_head": "cpu", "model": "disk"}
    devices = {name: device for name, device in kept.items() if hasattr(whole, name)}
    spread = dispatch_model(whole, devices, main_device="cpu", offload_dir=tmp_path)
    torch.testing.assert_close(zoo.output(spread, input_ids=ids), expected, atol=1e-5, rtol=1e-5)


def test_a_clock_is_offloaded() -> None:
    model, ids = zoo.build("llama"), zoo.text()
    change(model, "clock")
    expected = zoo.output(model, input_ids=ids)
    model = cpu_offload(model, execution_device=torch.device("cpu"))
    assert {parameter.device.type for parameter in model.floater.parameters()} == {"meta"}
    torch.testing.assert_close(zoo.output(model, input_ids=ids), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("llama", lambda: change(zoo.build("llama"), "flow")),
        *((name, lambda name=name: extended.extended(name, "clex" if name == "llama" else None))
          for name in ("llama", "t5", "bloom", "mpt")),
        *(("llama", lambda name=name: zoo.model_of_this_library(FloaterForCausalLM, name))
          for name in ("floater", "cope")),
    ],
)  # fmt: skip
def test_weights_that_are_read_outside_of_a_forward_pass_are_not_offloaded(
    name: str, build: Callable[[], Any]
) -> None:
    model = cpu_offload(build(), execution_device=torch.device("cpu"))
    with pytest.raises(PositionError, match="accelerate has offloaded the weights of"):
        zoo.output(model, **extended.build_inputs(name, 100))


def test_a_model_spread_over_memory_and_disk(tmp_path: Path) -> None:
    """`device_map` puts hooks of its own around every forward pass."""
    zoo.build("bert").save_pretrained(tmp_path / "model")
    devices = {"bert.encoder.layer.1": "disk"} | dict.fromkeys(
        ("bert.embeddings", "bert.encoder.layer.0", "bert.pooler", "classifier"), "cpu"
    )
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "model", device_map=devices, offload_folder=tmp_path / "disk", attn_implementation="eager"
    ).eval()
    whole, options = change(zoo.build("bert"), "flow"), zoo.inputs("bert")
    before = zoo.output(model, **options)
    floater.plug(model)
    assert torch.equal(zoo.output(model, **options), before)
    zoo.noisy(model)
    expected = zoo.output(whole, **options)
    torch.testing.assert_close(zoo.output(model, **options), expected, atol=1e-6, rtol=1e-6)
    floater.bake(model, 8)
    torch.testing.assert_close(zoo.output(model, **options), expected, atol=1e-6, rtol=1e-6)


def test_the_flow_of_an_extension_is_where_parameters_are(tmp_path: Path) -> None:
    zoo.build("llama").save_pretrained(tmp_path / "model")
    parts = "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head"
    model: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model",
        device_map={"model.embed_tokens": "disk"} | dict.fromkeys(parts, "cpu"),
        offload_folder=tmp_path / "disk",
    ).eval()
    floater.extend(model, 2 * model.config.max_position_embeddings, "clex")
    assert {p.device.type for p in model.floater_extension.parameters()} == {"cpu"}
    ids = torch.arange(model.config.max_position_embeddings)[None] % 8 + 3
    assert bool(model(ids).logits.isfinite().all())
