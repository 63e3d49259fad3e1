"""Adapters of a plugged or extended model need what their base had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model

import floater
from floater.pretrained import FAMILIES, PlugError

from . import zoo
from .changed import CHANGED, assert_same, auto, changed, inputs, trained

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_adapters_merge_and_come_back(tmp_path: Path, name: str, how: str) -> None:
    """On a flow that was saved with its model, and on one that the adapter brings along."""
    model = changed(name, how)
    model.save_pretrained(tmp_path / "base")
    named = {
        "bert2bert": "bert",
        "siglip-vision": "siglip_vision_model",
        "bloom": "gpt_neox",
        "mpt": "modernbert",
    }
    family = FAMILIES[named.get(name, model.config.model_type)]  # one with the same names of projections
    flows = ["floater"] if how == "plug" else None  # PEFT does not save a ModuleDict, as of extensions
    config = LoraConfig(target_modules=[family.attention[0].module], modules_to_save=flows, r=2)
    base = auto(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    lora: Any = get_peft_model(base, config)
    torch.manual_seed(4)
    for parameter in lora.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    lora.eval()
    options = inputs(name, how)
    expected = zoo.output(lora, **options)
    lora.save_pretrained(tmp_path / "adapter")
    base = auto(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    again = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(zoo.output(again, **options), expected, atol=1e-6, rtol=1e-6)
    merged: Any = lora.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded = auto(merged).from_pretrained(tmp_path / "merged", attn_implementation="eager")
    assert_same(name, loaded, merged, how)


def test_an_adapter_with_a_flow_needs_a_plugged_base(tmp_path: Path) -> None:
    zoo.build("llama").save_pretrained(tmp_path / "base")
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(tmp_path / "base")
    floater.plug(model)
    lora: Any = get_peft_model(
        model, LoraConfig(target_modules=["q_proj"], modules_to_save=["floater"], task_type="CAUSAL_LM")
    )
    lora.save_pretrained(tmp_path / "adapter")
    plain = kind.from_pretrained(tmp_path / "base")
    with pytest.raises(PlugError, match="not plugged"):
        PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    # its base is on no disk: neither may the plain one be taken for it
    with pytest.raises((OSError, ValueError), match="save_pretrained"):
        AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapter"))
    with pytest.raises((OSError, ValueError), match="save_pretrained"):
        kind.from_pretrained(tmp_path / "adapter")
    floater.plug(plain)
    PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))


def test_a_copy_of_a_projection_is_refused() -> None:
    """A flow would be added to the copy alone, and be gone when it is merged."""
    config = LoraConfig(target_modules=["o_proj"], modules_to_save=["q_proj"], r=2)
    model: Any = get_peft_model(zoo.build("llama"), config)
    with pytest.raises(PlugError, match=r"modules_to_save has a copy of .*q_proj"):
        floater.plug(model)
    plugged = zoo.build("llama")
    floater.plug(plugged)
    model = get_peft_model(plugged, config)
    with pytest.raises(PlugError, match=r"modules_to_save has a copy of .*q_proj"):
        model(input_ids=zoo.text())


@pytest.mark.parametrize("how", ["flow", "clock", "clex"])
def test_rows_with_adapters_of_their_own_are_refused(how: str) -> None:
    """All rows would be computed with the flow of the active adapter."""
    model = zoo.build("llama")
    if how == "clex":
        floater.extend(model, 128, "clex")
    else:
        floater.plug(model, clock={} if how == "clock" else None)
    part = "floater_extension" if how == "clex" else "floater"
    config = LoraConfig(target_modules=["o_proj"], modules_to_save=[part], r=2)
    adapted: Any = get_peft_model(model, config, adapter_name="a").eval()
    adapted.add_adapter("b", config)
    with pytest.raises(PlugError, match=r"adapter_names gives each row .* use set_adapter"):
        adapted(input_ids=zoo.text(2), adapter_names=["a", "b"])


def test_an_adapter_names_the_plugged_model_as_its_base(tmp_path: Path) -> None:
    model = trained("llama")
    model.save_pretrained(tmp_path / "base")
    base = type(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    get_peft_model(base, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(
        str(tmp_path / "adapter")
    )
    again = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapter"), attn_implementation="eager")
    assert_same("llama", again, model)


def adapted(model: Any, **options: Any) -> Any:
    """A model with random adapters."""
    lora: Any = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **options))
    torch.manual_seed(4)
    for parameter in lora.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return lora.eval()


def test_an_auto_class_that_is_given_an_adapter_brings_its_flow(tmp_path: Path) -> None:
    kind = transformers.AutoModelForCausalLM
    trained("llama").save_pretrained(tmp_path / "base")
    base = kind.from_pretrained(tmp_path / "base", attn_implementation="eager")
    lora = adapted(base, modules_to_save=["floater"])
    lora.save_pretrained(tmp_path / "adapter")
    again = kind.from_pretrained(tmp_path / "adapter", attn_implementation="eager")
    assert_same("llama", again, lora)


@pytest.mark.parametrize("change", ["plug", "clex", "self_extend", "yarn"])
def test_an_adapter_does_not_run_without_what_its_base_had(tmp_path: Path, change: str) -> None:
    """A base that was changed in memory, before or after the adapter was made, or is in a folder."""
    kind = transformers.AutoModelForCausalLM
    zoo.build("llama").save_pretrained(tmp_path / "plain")

    def changed(model: Any) -> Any:
        if change == "plug":
            floater.plug(model)
        else:
            floater.extend(model, 128, change)
        return model

    def plain() -> Any:
        return kind.from_pretrained(tmp_path / "plain")

    changed(plain()).save_pretrained(tmp_path / "changed")
    bases = [changed(plain()), kind.from_pretrained(tmp_path / "changed")]
    for i, lora in enumerate([*map(adapted, bases), changed(adapted(plain()))]):
        lora.save_pretrained(tmp_path / f"{i}")
        if i != 1:
            with pytest.raises((OSError, ValueError), match="save_pretrained it"):
                AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / f"{i}"))
        missing = (
            "rotates for 128 tokens, and this LlamaForCausalLM for 64"  # an ordinary model of Transformers
            if (change, i) == ("yarn", 1)
            else "neither plugged nor extended, but the adapter's base is"
        )
        with pytest.raises(PlugError, match=missing):
            PeftModel.from_pretrained(plain(), str(tmp_path / f"{i}"))
        with pytest.raises(PlugError, match=missing):
            plain().load_adapter(str(tmp_path / f"{i}"))
        PeftModel.from_pretrained(changed(plain()), str(tmp_path / f"{i}"))


@pytest.mark.parametrize("method", ["yarn", "clex"])
def test_an_adapter_trained_at_another_scale_is_refused(method: str, tmp_path: Path) -> None:
    """The configuration of LoRA says nothing about positions but the name of its base."""

    def longer(length: int, name: str) -> Any:
        model = zoo.build("llama")
        floater.extend(model, length, name)
        return model

    adapted(longer(256, method)).save_pretrained(tmp_path / "adapter")
    reason = (
        f"the adapter's base is extended from 64 to 256 by '{method}', and this LlamaForCausalLM is extended"
    )
    for other in (longer(128, method), longer(256, "linear")):
        with pytest.raises(PlugError, match=reason):
            PeftModel.from_pretrained(other, str(tmp_path / "adapter"))
    PeftModel.from_pretrained(longer(256, method), str(tmp_path / "adapter"))
    longer(256, "clex").save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted(base).save_pretrained(tmp_path / "of_folder")
    with pytest.raises(PlugError, match=r"is extended by .*'new': 256.* and this LlamaForCausalLM by .*128"):
        PeftModel.from_pretrained(longer(128, "clex"), str(tmp_path / "of_folder"))


def test_an_adapter_of_a_base_that_only_its_parameters_show_to_be_scaled(tmp_path: Path) -> None:
    """Shorter models and those of another scaling are refused, those that were extended since are not."""

    def longer(length: int, name: str) -> Any:
        model = zoo.build("llama")
        floater.extend(model, length, name)
        return model

    longer(256, "linear").save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted(base).save_pretrained(tmp_path / "adapter")
    for other in (longer(128, "linear"), longer(256, "yarn")):
        other.name_or_path = str(tmp_path / "elsewhere")
        with pytest.raises(PlugError, match="rotates for 256 tokens, and this LlamaForCausalLM for"):
            PeftModel.from_pretrained(other, str(tmp_path / "adapter"))
    for other in (longer(256, "linear"), longer(512, "linear")):
        PeftModel.from_pretrained(other, str(tmp_path / "adapter"))
