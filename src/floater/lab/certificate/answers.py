"""Greedy answers to several questions on one long text, which is read once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from floater._hf import CACHE
from floater.lab.training.model import inference

SPEED_TOKENS = 9
"""Number of tokens whose generation is timed."""


@dataclass(frozen=True)
class Answers:
    """Answers to the questions on a text, and their cost.

    Args:
        ids: token ids of each answer.
        prefill: seconds to read the text.
        decode: seconds for each further token.
        cache: MiB of the cached keys and values of the text; None if the model keeps none.
    """

    ids: list[list[int]]
    prefill: float
    decode: float
    cache: float | None


def answer(
    model: PreTrainedModel, text: Sequence[int], questions: Sequence[Sequence[int]], tokens: Sequence[int]
) -> Answers:
    """Generate an answer to each question on a text.

    All questions use the cached keys and values of the text: a text of 12,288 tokens takes minutes on a
    processor, an answer seconds. Where the model has no cache that can be cropped, the text is read again.

    Args:
        model: causal model.
        text: token ids of the text.
        questions: token ids of each question, at least one token each.
        tokens: maximum number of tokens of each answer.
    """
    with inference(model):
        began = time.perf_counter()
        cache = _generate(model, text, 1)[CACHE]
        prefill = time.perf_counter() - began
        size = _mebibytes(cache)
        if not _can_crop(cache):
            cache = None
        ids = []
        decode, unit = 0.0, [*text, *questions[0]]
        for count in (1, SPEED_TOKENS):
            began = time.perf_counter()
            _generate(model, unit, count, cache, least=count)
            decode = time.perf_counter() - began - decode
            _crop(cache, len(text))
        for question, count in zip(questions, tokens, strict=True):
            row = [*text, *question]
            ids.append(_generate(model, row, count, cache).sequences[0, len(row) :].tolist())
            _crop(cache, len(text))
    return Answers(ids, prefill, max(decode, 0.0) / (SPEED_TOKENS - 1), size)


def _generate(model: Any, ids: Sequence[int], tokens: int, cache: Any = None, least: int = 1) -> Any:
    """Generate greedily, whatever the generation settings of the checkpoint."""
    end = model.generation_config.eos_token_id
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=least,
        eos_token_id=end,
        pad_token_id=end[0] if isinstance(end, list) else end,
        return_dict_in_generate=True,
    )
    rows = torch.tensor([[*ids]], device=model.device)
    return model.generate(
        rows, attention_mask=torch.ones_like(rows), generation_config=config, **{CACHE: cache}
    )


def _can_crop(cache: Any) -> bool:
    return isinstance(cache, Cache) and all(type(layer) is DynamicLayer for layer in cache.layers)


def _crop(cache: Any, length: int) -> None:
    if cache is not None:
        cache.crop(length - cache.get_seq_length())  # a negative number: tokens to remove


def _mebibytes(cache: Any) -> float | None:
    """Return the size of the cached keys and values."""
    if not isinstance(cache, Cache):
        return None
    tensors = [t for layer in cache.layers for t in vars(layer).values() if isinstance(t, torch.Tensor)]
    return round(sum(t.numel() * t.element_size() for t in tensors) / 2**20, 1)
