"""Blocks and parts of changed models that are moved, copied, replaced, or put into other models."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlavaConfig, LlavaForConditionalGeneration

import floater
from floater.pretrained import PlugError

from . import zoo
from .changed import change, changed
from .extended import llava

KINDS = ("flow", "baked", "clock")


@pytest.mark.parametrize("how", KINDS)
def test_blocks_in_another_order_are_refused(how: str) -> None:
    """In memory the flow moves with a block; from a file it would come back by the block's number."""
    model = change(zoo.build("llama"), how)
    model.model.layers = nn.ModuleList(reversed(model.model.layers))
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    with pytest.raises(PlugError, match="has taken the place of"):
        zoo.output(model, **zoo.inputs("llama"))


@pytest.mark.parametrize("block", [0, 1])
def test_attention_that_is_replaced_has_no_clock_and_is_refused(block: int) -> None:
    model = change(zoo.build("llama"), "clock")
    layer = model.model.layers[block]
    layer.self_attn = type(layer.self_attn)(model.config, block)
    with pytest.raises(PlugError, match=f"place of model.layers.{block}.self_attn, without its clock"):
        zoo.output(model, **zoo.inputs("llama"))


def test_a_clock_moves_to_attention_that_is_replaced_as_the_refusal_says(tmp_path: Path) -> None:
    model, options = change(zoo.build("llama"), "clock"), zoo.inputs("llama")
    expected, layer = zoo.output(model, **options), model.model.layers[0]
    weights = layer.self_attn.state_dict()
    layer.self_attn = type(layer.self_attn)(model.config, 0).eval()
    layer.self_attn.load_state_dict(weights)
    floater.save(model, tmp_path)
    floater.unplug(model)
    floater.load(tmp_path, model)
    assert torch.equal(zoo.output(model, **options), expected)


@pytest.mark.parametrize("how", KINDS)
def test_fewer_blocks_run_and_are_not_saved(how: str, tmp_path: Path) -> None:
    model = change(zoo.build("llama"), how)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    actual = zoo.output(model, **zoo.inputs("llama"))
    assert bool(actual.isfinite().all())
    lora = LoraConfig(target_modules=["q_proj"])  # starts without effect
    adapted = get_peft_model(copy.deepcopy(model), lora)
    torch.testing.assert_close(zoo.output(adapted, **zoo.inputs("llama")), actual, atol=1e-6, rtol=1e-6)
    for save in (model.save_pretrained, lambda folder: floater.save(model, folder)):
        with pytest.raises(PlugError, match="has fewer blocks than when it was plugged"):
            save(tmp_path)
    assert not list(tmp_path.iterdir())


def copied(part: nn.Module) -> int:
    """Return the number of parameters that a deep copy of a part copies."""
    memo: dict[int, Any] = {}
    copy.deepcopy(part, memo)
    return len({id(each) for each in memo.values() if isinstance(each, nn.Parameter)})


@pytest.mark.parametrize("how", [*KINDS, "t5", "bloom", "mpt"])
def test_a_copy_of_a_block_copies_no_more(how: str) -> None:
    model = change(zoo.build("llama"), how) if how in KINDS else changed(how, "extend")
    blocks = next(part for part in model.modules() if isinstance(part, nn.ModuleList))
    assert copied(blocks[0]) == len([*blocks[0].parameters()])
    assert copied(model) == len([*model.parameters()])


@pytest.mark.parametrize("how", KINDS)
def test_a_block_may_be_replaced_by_a_copy(how: str) -> None:
    """The copy goes on with the flow of the model."""
    plain = zoo.build("llama")
    model, options = change(copy.deepcopy(plain), how), zoo.inputs("llama")
    expected = zoo.output(model, **options)
    model.model.layers[0] = copy.deepcopy(model.model.layers[0])
    assert torch.equal(zoo.output(model, **options), expected)
    with torch.no_grad():
        next(iter(model.floater.state_dict().values())).add_(1)
    assert not torch.equal(zoo.output(model, **options), expected)
    floater.unplug(model)
    assert torch.equal(zoo.output(model, **options), zoo.output(plain, **options))


@pytest.mark.parametrize("how", KINDS)
def test_a_copied_block_does_not_run_twice_or_in_another_model(how: str) -> None:
    model, other, options = change(zoo.build("llama"), how), zoo.build("llama"), zoo.inputs("llama")
    other.model.layers[0] = copy.deepcopy(model.model.layers[0])
    with pytest.raises(
        PlugError, match=r"outside of the forward pass|a copy of model.layers.0.self_attn runs"
    ):
        zoo.output(other, **options)
    model.model.layers.append(copy.deepcopy(model.model.layers[1]))
    model.model.layers[2].self_attn.layer_idx = 2
    model.config.num_hidden_layers, model.config.layer_types = 3, None
    with pytest.raises(PlugError, match="copy blocks before the model is plugged"):
        zoo.output(model, **options)


@pytest.mark.parametrize("how", ["flow", "baked"])
def test_a_model_is_copied_whole_after_one_of_its_blocks(how: str) -> None:
    model, options = change(zoo.build("llama"), how), zoo.inputs("llama")
    expected = zoo.output(model, **options)
    _, body, twin = copy.deepcopy((model.model.layers[0], model.model, model))
    assert body is twin.model
    with torch.no_grad():
        next(iter(model.floater.state_dict().values())).add_(1)
    assert torch.equal(zoo.output(twin, **options), expected)
    assert not torch.equal(zoo.output(model, **options), expected)


@pytest.mark.parametrize("how", ["flow", "clock", "clex"])
def test_a_part_or_another_head_is_not_saved_without_the_weights_of_the_whole(
    how: str, tmp_path: Path
) -> None:
    model, other = change(zoo.build("llama"), how), llava()
    other.model.language_model, other.config.text_config = model.model, model.config
    head = zoo.build("llama")
    head.model = model.model
    for each in (model.model, other, head):
        with pytest.raises(PlugError, match=r"runs with the .* of a LlamaForCausalLM, which"):
            each.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["flow", "clock", "clex"])
def test_a_part_whose_weights_are_missing_is_refused(how: str, tmp_path: Path) -> None:
    """Transformers would leave them as they are in memory that was not written."""
    plain = llava()
    plain.save_pretrained(tmp_path)
    text = change(copy.deepcopy(plain.model.language_model), how).config
    config = LlavaConfig(text_config=text, vision_config=plain.config.vision_config, image_token_index=49)
    with pytest.raises(PlugError, match=r"lacks model.language_model.floater\w*\.\S+, a weight of the flow"):
        LlavaForConditionalGeneration.from_pretrained(tmp_path, config=config)


@pytest.mark.parametrize("method", ["self_extend", "log_n"])
def test_a_copied_block_is_extended(method: str, tmp_path: Path) -> None:
    model, ids = zoo.build("llama"), zoo.text(2, 100)
    layer = copy.deepcopy(model.model.layers[1])
    layer.self_attn.layer_idx = 2
    model.model.layers.append(layer)
    model.config.num_hidden_layers = 3
    floater.extend(model, 128, method)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert torch.equal(zoo.output(again, input_ids=ids), zoo.output(model, input_ids=ids))


def test_a_plain_model_with_another_configuration_is_saved_as_it_is(tmp_path: Path) -> None:
    model = zoo.build("llama")
    model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = 128
    model.save_pretrained(tmp_path)
    assert "fusion" not in (tmp_path / "config.json").read_text()
    assert type(model).from_pretrained(tmp_path).config.max_position_embeddings == 128


def test_threads_that_load_plugged_models_leave_the_class_as_it_was(tmp_path: Path) -> None:
    model = change(zoo.build("llama"), "flow")
    model.save_pretrained(tmp_path)
    kind = type(model)
    with ThreadPoolExecutor(4) as pool:
        for loaded in pool.map(kind.from_pretrained, [tmp_path] * 12):
            assert hasattr(loaded, "floater")
    assert not kind._keys_to_ignore_on_load_unexpected
