"""Models whose attention has a common layout are plugged without a description of their family."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import MllamaConfig, MllamaForConditionalGeneration, PreTrainedModel

import floater
from floater.pretrained import FAMILIES, PlugError
from floater.pretrained.plugged import plug_state

from . import zoo
from .tiny import accepted, tiny

LAYOUTS = (
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
)
PARTS = "query", "key", "value"
CROSS = {"crossattention", "encoder_attn", "EncDecAttention", "cross_attn", "cross_attention"}
SITES = {"tokens", "encoder", "decoder", "cross"}
LENGTH = 12


def inputs(model: Any) -> dict[str, Tensor]:
    """Two texts, one of them padded on the right."""
    ids = zoo.text(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    decoder = {"decoder_input_ids": ids[:, :6]} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **decoder}


@torch.no_grad()
def output(model: Any) -> Tensor:
    result: Tensor = model(**inputs(model))[0]
    return result


def attention_of_texts(model: nn.Module) -> list[tuple[str, nn.Module, tuple[str, ...]]]:
    """Return the attention modules with one of the layouts in models that read texts, with their paths."""
    bodies = {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}
    attentions = []
    for path, module in model.named_modules():
        layouts = [names for names in LAYOUTS if {*names} <= {name for name, _ in module.named_children()}]
        body = max((other for other in bodies if f"{path}.".startswith(f"{other}.".lstrip("."))), key=len)
        reads = inspect.signature(type(bodies[body]).forward).parameters
        recurrent = "cache_params" in inspect.signature(type(module).forward).parameters
        if layouts and "input_ids" in reads and not recurrent:
            attentions.append((path, module, layouts[0]))
    return attentions


@torch.no_grad()
def add_by_hooks(model: Any, flows: Any) -> None:
    """Add the vectors of the flows to the outputs of the projections of a model that was never plugged."""
    sites = {name: torch.arange(6 if name == "decoder" else LENGTH)[None] for name in flows.layout}
    vectors = {
        (site, *key): field.at(*key)
        for site, positions in sites.items()
        for field in flows(site, positions).values()
        for key in field.keys
    }
    blocks: dict[str, int] = {}
    for path, module, names in attention_of_texts(model):
        cross = not CROSS.isdisjoint(path.split("."))
        site = next((part for part in ("decoder", "encoder") if part in sites and part in path), "tokens")
        blocks[site] = blocks.get(site, -1) + (not cross)
        for name, part in zip(names, PARTS, strict=True):
            if cross and part == "query":
                added = vectors[site, blocks[site], "cross_query"]
            else:
                added = vectors["cross" if cross else site, blocks[site], part]
            module.get_submodule(name).register_forward_hook(lambda _, args, out, added=added: out + added)


def check(name: str) -> Any:
    """Return a plugged model, equal to one to whose projections the vectors are added by hooks."""
    model, other = tiny(name), tiny(name)
    plain = output(model)
    floater.plug(model)
    assert torch.equal(output(model), plain)
    zoo.noisy(model)
    actual = output(model)
    assert (actual - plain).abs().max() > 1e-4
    add_by_hooks(other, model.floater)
    torch.testing.assert_close(actual, output(other), atol=2e-5, rtol=1e-4)
    return model


@pytest.mark.parametrize(
    "name", ["mixtral", "camembert", "gptj", "granite", "mbart", "mt5", "opt", "smolvlm", "xlm"]
)
def test_every_projection_gets_its_vectors(name: str, tmp_path: Path) -> None:
    assert name not in FAMILIES
    model = check(name)
    expected = output(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(output(type(model).from_pretrained(tmp_path).eval()), expected)
    floater.bake(model, LENGTH)
    torch.testing.assert_close(output(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_every_class_that_is_plugged_by_its_names() -> None:
    """Two minutes of a core."""

    def plugged(name: str) -> Any:
        model = tiny(name)
        output(model)
        floater.plug(model)
        return model

    names = []
    for name, model in accepted(plugged):
        if model.config.model_type not in FAMILIES and {*model.floater.layout} <= SITES:
            check(name)
            names.append(name)
    assert len(names) > 150


def test_linear_attention_stays_as_it_is() -> None:
    """Its state would add up the vectors of padding, so that a text would depend on the others of a batch."""
    model, ids = tiny("olmo_hybrid"), zoo.text(1, LENGTH)
    floater.plug(model)
    zoo.noisy(model)
    padded = torch.cat((ids.new_ones(1, 3), ids), 1)
    mask = (torch.arange(LENGTH + 3)[None] >= 3).long()
    alone, beside = zoo.output(model, input_ids=ids), zoo.output(model, input_ids=padded, attention_mask=mask)
    torch.testing.assert_close(beside[:, 3:], alone, atol=1e-4, rtol=1e-4)
    blocks = {injection.path.split(".")[1] for _, injection in plug_state(model).injections}
    full = [i for i, kind in enumerate(model.config.layer_types) if kind == "full_attention"]
    assert blocks == {*map(str, full)} != {*map(str, range(len(model.config.layer_types)))}


@pytest.mark.parametrize(
    "name",
    [
        *("kimi_linear", "qwen3_next", "qwen3_5_text", "longformer", "deepseek_v3", "nystromformer"),
        "hrm_text",
    ],
)
def test_what_is_no_plain_projection_is_refused(name: str) -> None:
    """A recurrence, queries beside a gate, chunks, keys of low rank, landmarks, and blocks that run again."""
    with pytest.raises(PlugError, match=rf"the model types '{name}' in floater.*projections="):
        floater.plug(tiny(name))


def test_attention_to_images_stays_as_it_is() -> None:
    """Mllama's reads images in a layer of the text, which gets no positions of patches."""
    text = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "cross_attention_layers": [1], "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_global_layers": 1,
        "attention_heads": 2, "image_size": 8, "patch_size": 4, "max_num_tiles": 1, "vision_output_dim": 32,
        "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]],
    }  # fmt: skip
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(
        MllamaConfig(text_config=text, vision_config=vision, image_token_index=39)
    ).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    arguments = {
        "input_ids": torch.cat((torch.full((2, 1), 39), zoo.text(2, 8)), 1),
        "pixel_values": torch.randn(2, 1, 1, 3, 8, 8),
        "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(2, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(2, 9, 1, 1, dtype=torch.long),
    }
    before = zoo.output(model, **arguments)
    floater.plug(model)
    assert torch.equal(zoo.output(model, **arguments), before)
    zoo.noisy(model)
    assert not torch.allclose(zoo.output(model, **arguments), before)
    assert {injection.path.split(".")[1] for _, injection in plug_state(model).injections} == {"0"}


def test_parts_that_join_bytes_to_patches_stay_as_they_are() -> None:
    """BLT's patches have positions, and so have the bytes, but not the cross-attention between them."""
    model, arguments = tiny("blt"), {"input_ids": zoo.text(2, LENGTH), "use_cache": False}
    before = zoo.output(model, **arguments)
    report = floater.plug(model)
    assert [part.partition(" ")[0] for part in report.plain] == ["local_encoder", "local_decoder"]
    assert torch.equal(zoo.output(model, **arguments), before)
    zoo.noisy(model)
    assert not torch.equal(zoo.output(model, **arguments), before)
