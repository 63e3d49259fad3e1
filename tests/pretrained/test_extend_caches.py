"""Extended models and the operations on rows of caches: the positions of keys follow."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
)
from transformers.cache_utils import StaticCache

import floater
from floater.pretrained import ExtendError

from . import zoo
from .extended import BIASES, build, noisy

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")

GROUPED = {"window": 5, "group": 8, "temperature": True}
CASES: list[tuple[str, str | None, dict[str, Any]]] = [
    ("llama", "self_extend", GROUPED),
    ("llama", "log_n", {}),
    ("llama", "clex", {}),
    ("llama", "yarn", {}),
    ("gemma3", "self_extend", GROUPED),
    ("gpt_neox", "self_extend", {}),
    ("bloom", None, {}),
    ("mpt", None, {}),
]
OLD = 90


def crop(cache: Cache) -> Cache:
    cache.crop(-20)
    return cache


def reorder(cache: Cache) -> Cache:
    cache.reorder_cache(torch.tensor([1, 0]))
    return cache


def select(cache: Cache) -> Cache:
    cache.batch_select_indices(torch.tensor([1]))
    return cache


def repeat(cache: Cache) -> Cache:
    cache.batch_repeat_interleave(2)
    return cache


OPERATIONS: list[tuple[Callable[[Cache], Cache], list[int]]] = [
    (reorder, [1, 0]),
    (select, [1]),
    (repeat, [0, 0, 1, 1]),
    (crop, [0, 1]),
    (copy.deepcopy, [0, 1]),
    (lambda cache: pickle.loads(pickle.dumps(cache)), [0, 1]),
    (lambda cache: reorder(repeat(select(crop(copy.deepcopy(cache))))), [1, 1]),
]


def extended(name: str, method: str | None, options: dict[str, Any]) -> Any:
    model = build(name)
    floater.extend(model, 128, method, **options)
    noisy(model)
    return model


def position_arguments(model: Any, mask: Tensor, begin: int = 0) -> dict[str, Tensor]:
    """The arguments that tell positions; BLOOM and MPT take none but the mask."""
    if model.config.model_type in BIASES:
        return {"attention_mask": mask}
    at = (mask.cumsum(1) - 1).clamp(min=0)
    return {"attention_mask": mask, "position_ids": at[:, begin:]}


def rows() -> tuple[Tensor, Tensor]:
    """Two texts, one of them with padding on the left, and their mask."""
    ids, mask = zoo.text(2, OLD), torch.ones(2, OLD, dtype=torch.long)
    mask[0, :13] = 0
    return ids, mask


def check(model: Any, cache: Cache, ids: Tensor, mask: Tensor) -> None:
    """Compare the logits of three more tokens after cached ones with those of a pass over the whole."""
    more = zoo.text(1, 3, seed=8).expand(len(ids), -1)
    mask = torch.cat((mask, torch.ones_like(more)), 1)
    count = ids.shape[1]
    actual = zoo.output(
        model, input_ids=more, past_key_values=cache, **position_arguments(model, mask, count)
    )
    whole = zoo.output(
        model, input_ids=torch.cat((ids, more), 1), use_cache=False, **position_arguments(model, mask)
    )
    torch.testing.assert_close(actual, whole[:, count:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("operation", "kept"), OPERATIONS)
@pytest.mark.parametrize(("name", "method", "options"), CASES)
def test_rows_of_a_dynamic_cache(
    name: str,
    method: str | None,
    options: dict[str, Any],
    operation: Callable[[Cache], Cache],
    kept: list[int],
) -> None:
    model, (ids, mask) = extended(name, method, options), rows()
    cache: Cache = DynamicCache(config=model.config)
    cache.activate_past_recording()  # windows can only be cropped with it
    zoo.output(model, input_ids=ids, past_key_values=cache, **position_arguments(model, mask))
    cache = operation(cache)
    count = cache.get_seq_length()
    check(model, cache, ids[kept, :count], mask[kept, :count])


@pytest.mark.parametrize("kind", ["windows", "static"])
@pytest.mark.parametrize(("name", "method", "options"), [case for case in CASES if case[0] not in BIASES])
def test_rows_of_other_caches(name: str, method: str | None, options: dict[str, Any], kind: str) -> None:
    """Of the operations those that the cache has."""
    model, (ids, mask) = extended(name, method, options), rows()
    for operation, kept in OPERATIONS[: 3 if kind == "windows" else 1]:
        cache: Cache = DynamicCache(config=model.config)
        if kind == "static":
            cache = StaticCache(config=model.config, max_cache_len=128)
        zoo.output(model, input_ids=ids, past_key_values=cache, **position_arguments(model, mask))
        assert isinstance(cache, DynamicCache if kind == "windows" else StaticCache)
        check(model, operation(cache), ids[kept], mask[kept])
        cache.reset()
        count = len(kept)  # a static cache has as many rows as before
        zoo.output(
            model, input_ids=ids[:count], past_key_values=cache, **position_arguments(model, mask[:count])
        )
        check(model, cache, ids[:count], mask[:count])


def test_a_prompt_is_cached_once_for_several_questions() -> None:
    """Copies of the cache go different ways, as Transformers' documentation shows."""
    model, (ids, mask) = extended("llama", "self_extend", GROUPED), rows()
    with torch.no_grad():
        prompt = model(ids, use_cache=True, **position_arguments(model, mask)).past_key_values
    for operation, kept in ((select, [1]), (repeat, [0, 0, 1, 1])):
        check(model, operation(copy.deepcopy(prompt)), ids[kept], mask[kept])
    check(model, prompt, ids, mask)


def test_rows_that_were_changed_otherwise_are_refused() -> None:
    model, (ids, mask) = extended("llama", "self_extend", GROUPED), rows()
    with torch.no_grad():
        cache = model(ids, use_cache=True, **position_arguments(model, mask)).past_key_values
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:1], layer.values[:1]
    with pytest.raises(
        ExtendError, match="positions of 90 keys of 2 texts, but 90 keys, and 1 texts are read"
    ):
        model(zoo.text(1, 1), past_key_values=cache)


def test_caches_of_encoders_and_decoders() -> None:
    """Moonshine's decoder is rotated; its cache is inside of one with the keys of cross-attention."""
    torch.manual_seed(0)
    config = MoonshineConfig(
        vocab_size=40, hidden_size=32, intermediate_size=20,
        encoder_num_hidden_layers=1, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=2, pad_token_id=1, decoder_start_token_id=0, partial_rotary_factor=0.5,
    )  # fmt: skip
    model: Any = MoonshineForConditionalGeneration(config).eval()
    floater.extend(model.model.decoder, 128, "clex")
    noisy(model.model.decoder)
    sound, ids = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0)), zoo.text(2, OLD)
    with torch.no_grad():
        encoded = model.model.encoder(sound)
        cache = model(encoder_outputs=encoded, decoder_input_ids=ids, use_cache=True).past_key_values
        assert isinstance(cache, EncoderDecoderCache)
        cache.reorder_cache(torch.tensor([1, 0]))
        encoded.last_hidden_state = encoded.last_hidden_state.flip(0)
        more = zoo.text(2, 3, seed=8)
        actual = model(encoder_outputs=encoded, decoder_input_ids=more, past_key_values=cache).logits
        whole = model(encoder_outputs=encoded, decoder_input_ids=torch.cat((ids.flip(0), more), 1)).logits
    torch.testing.assert_close(actual, whole[:, OLD:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("operation", "kept"), OPERATIONS)
def test_plugged_models_need_no_positions_of_keys(
    operation: Callable[[Cache], Cache], kept: list[int]
) -> None:
    """Vectors are in the keys before these are cached."""
    model, (ids, mask) = zoo.build("llama"), rows()
    floater.plug(model)
    zoo.noisy(model)
    with torch.no_grad():
        cache = model(ids, use_cache=True, **position_arguments(model, mask)).past_key_values
    cache = operation(cache)
    count = cache.get_seq_length()
    check(model, cache, ids[kept, :count], mask[kept, :count])
