"""Every kind of model, generating in every way that servers have, writes what it writes without a cache."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, ContinuousBatchingConfig, GenerationConfig
from transformers.cache_utils import QuantizedLayer
from transformers.generation.continuous_batching import ContinuousBatchingManager

import floater
from floater.pretrained import ExtendError, PlugError
from floater.transformer import FloaterForCausalLM

from . import zoo
from .extended import build, extended

OLD, NEW = 58, 12
"""Tokens of the longest prompt and tokens that are generated: the text crosses 64, the training length."""

GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
CACHED: dict[str, Any] = {**GREEDY, "use_cache": True}  # the default of MPT is False


def plugged(name: str, length: int | None = None) -> Any:
    model = zoo.build(name)
    if name == "gpt2":
        floater.extend(model, 128)
    floater.plug(model, start="small", max_length=128)
    zoo.noisy(model)
    if length is not None:
        floater.bake(model, length)
    return model


GROUPED = {"window": 5, "group": 8, "temperature": True}
PLAIN = ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "clipped", "dropped")
KINDS: dict[str, Callable[[], Any]] = {
    **{
        f"ours, {name}": functools.partial(zoo.model_of_this_library, FloaterForCausalLM, name)
        for name in ("floater", "rotary")
    },
    "ours, baked": functools.partial(zoo.model_of_this_library, FloaterForCausalLM, "floater_relative", 128),
    **{f"{name}, plugged": functools.partial(plugged, name) for name in ("gpt2", "llama", "gemma3")},
    "llama, plugged and baked": functools.partial(plugged, "llama", 128),
    **{f"llama, {name}": functools.partial(extended, "llama", name) for name in (*PLAIN, "clex", "log_n")},
    "llama, self_extend": functools.partial(extended, "llama", "self_extend", **GROUPED),
    "gemma3, self_extend": functools.partial(extended, "gemma3", "self_extend", **GROUPED),
    **{f"{name}, yarn": functools.partial(extended, name, "yarn") for name in ("gemma3", "gpt_neox")},
    **{f"{name}, flow": functools.partial(extended, name, "flow") for name in ("gpt2", "bloom", "mpt")},
}
READS_TEXTS = ("ours", "clex", "log_n", "self_extend", "bloom", "mpt")
"""Parts of the names of models that would not know the texts of one row apart."""

model_of = functools.cache(lambda kind: KINDS[kind]())


@pytest.fixture(autouse=True)
def _few_steps(few_steps_for_biases: None) -> None:
    """Fit biases in no time."""


def prompts() -> tuple[Tensor, Tensor]:
    """Two texts, one of them with padding on the left, and their mask."""
    ids, mask = zoo.text(2, OLD, seed=5), torch.ones(2, OLD, dtype=torch.long)
    mask[0, :7] = 0
    return ids.masked_fill(mask == 0, zoo.PADDING), mask


def repetitive() -> tuple[Tensor, Tensor]:
    """A text that repeats itself, for lookup in the prompt."""
    ids = zoo.text(1, OLD // 2).repeat(1, 2)
    return ids, torch.ones_like(ids)


@functools.cache
def expected(kind: str, texts: Callable[[], tuple[Tensor, Tensor]], beams: int) -> Tensor:
    ids, mask = texts()
    tokens: Tensor = model_of(kind).generate(
        ids, attention_mask=mask, **GREEDY, num_beams=beams, use_cache=False
    )
    assert tokens.shape == (len(ids), ids.shape[1] + NEW)
    return tokens


WAYS: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "prefill in chunks": {"prefill_chunk_size": 8},
    "static cache, prefill in chunks": {
        "cache_implementation": "static",
        "disable_compile": True,
        "prefill_chunk_size": 8,
    },
    "beams": {"num_beams": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_caches_and_beams(kind: str, way: str) -> None:
    ids, mask = prompts()
    actual = model_of(kind).generate(ids, attention_mask=mask, **CACHED, **WAYS[way])
    assert torch.equal(actual, expected(kind, prompts, WAYS[way].get("num_beams", 1)))


class Lossless(QuantizedLayer):
    """A cache's layer that keeps old keys and values apart from new ones, as quantized ones do, and exact."""

    def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor

    def _dequantize(self, q_tensor: Tensor) -> Tensor:
        return q_tensor


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_caches(kind: str, beams: int) -> None:
    model, (ids, mask) = model_of(kind), prompts()
    layers = [Lossless(residual_length=5) for _ in range(model.config.num_hidden_layers)]
    options = {**CACHED, "num_beams": beams, "past_key_values": Cache(layers=layers)}
    assert torch.equal(model.generate(ids, attention_mask=mask, **options), expected(kind, prompts, beams))


@pytest.mark.parametrize("kind", KINDS)
def test_lookup_in_the_prompt(kind: str) -> None:
    ids, mask = repetitive()
    actual = model_of(kind).generate(ids, attention_mask=mask, **CACHED, prompt_lookup_num_tokens=3)
    assert torch.equal(actual, expected(kind, repetitive, 1))


def draft(kind: str) -> Any:
    """A model whose tokens are partly wrong: without the extension, or with other weights."""
    name, _, how = kind.partition(", ")
    model = build(name) if how in (*PLAIN, "self_extend", "clex", "log_n") else copy.deepcopy(model_of(kind))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_of_the_old_length_assists(kind: str) -> None:
    ids, mask = repetitive()
    actual = model_of(kind).generate(ids, attention_mask=mask, **CACHED, assistant_model=draft(kind))
    assert torch.equal(actual, expected(kind, repetitive, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_continuous_batching(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Texts of several lengths in one row, or one line that refuses them."""
    model, (ids, _) = model_of(kind), prompts()
    texts = [ids[0, 7:].tolist(), ids[1].tolist(), ids[1, :20].tolist()]
    options: dict[str, Any] = {
        "generation_config": GenerationConfig(**{**GREEDY, "eos_token_id": -1}),
        "continuous_batching_config": ContinuousBatchingConfig(
            num_blocks=16, page_size=16, max_batch_tokens=48
        ),
    }
    if any(part in kind for part in READS_TEXTS):
        with pytest.raises(PlugError, match="no continuous batching, which joins texts in a row"):
            model.generate_batch(texts, **options)
        return
    before = model.config._attn_implementation
    with caplog.at_level(logging.CRITICAL):
        results = model.generate_batch(texts, **options)
    assert model.config._attn_implementation == before
    alone = [
        model.generate(torch.tensor([text]), **GREEDY, use_cache=False)[0, len(text) :].tolist()
        for text in texts
    ]
    assert [result.generated_tokens for result in results.values()] == alone


@pytest.mark.parametrize("name", ["bloom", "mpt", "llama"])
def test_continuous_batching_by_a_manager_is_refused(name: str) -> None:
    """MPT wrote other tokens in a batch of a manager that was made by hand."""
    model, method = build(name), "clex" if name == "llama" else None
    before = model.config._attn_implementation
    settings = GenerationConfig(eos_token_id=-1), ContinuousBatchingConfig(num_blocks=4, page_size=16)
    manager = ContinuousBatchingManager(model, *settings)
    model.set_attn_implementation(before)
    floater.extend(model, 128, method)
    with pytest.raises(PlugError, match=r"has no continuous batching.*'yarn'"):
        manager.start()  # it was made before the extension
    before = model.config._attn_implementation
    with pytest.raises(PlugError, match="has no continuous batching"):
        ContinuousBatchingManager(model, *settings)
    assert model.config._attn_implementation == before
    assert not manager.is_running()


@pytest.mark.parametrize("method", ["dynamic", "clex"])
def test_one_rotation_for_the_longest_text_keeps_no_keys_across_the_training_length(method: str) -> None:
    model, (ids, mask) = extended("llama", method, declared=False), prompts()
    tokens = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(model.generate(ids, attention_mask=mask, **GREEDY, use_cache=False), tokens)
    for way in WAYS.values():
        with pytest.raises(ExtendError, match="use_cache=False"):
            model.generate(ids, attention_mask=mask, **CACHED, **way)
