"""Positions of the tokens of a forward pass, from the arguments of the body of a model of Transformers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from floater._hf import cache_in
from floater.positions import Positions, build_positions
from floater.positions.inputs import visible_keys
from floater.positions.tracing import refuse_counting
from floater.pretrained.families import PlugError
from floater.transformer.base import cached_length


def refuse_positions(
    module: nn.Module, arguments: Mapping[str, Any], names: Container[str], error: type[Exception]
) -> None:
    """Refuse positions and times as models of this library read them, which a module would ignore.

    Args:
        module: the module that is called.
        arguments: its arguments by name.
        names: names of the arguments that it reads.
        error: exception to raise.
    """
    for name in ("positions", "times"):
        if name not in names and arguments.get(name) is not None:
            raise error(f"{type(module).__name__} does not take {name}; pass position_ids")


def token_positions(
    arguments: Mapping[str, Any],
    shape: Sequence[int],
    *,
    padding: int | None = None,
    first: int = 0,
    windowed: bool = False,
) -> Positions:
    """Return the positions of the tokens that a body reads by the rules of `build_positions`.

    The queries are the tokens. The keys are not to be used: with `position_ids` they lack the cached tokens.

    Args:
        arguments: arguments of the body's forward pass by name.
        shape: batch size and number T of tokens.
        padding: id of padding tokens in families whose first position is that after the id, as in RoBERTa.
        first: id of the first position in other families.
        windowed: True if a token attends only to the last tokens before it.

    Raises:
        PlugError: if the arguments do not determine the positions.

    Example:
        >>> mask = torch.tensor([[0, 0, 1, 1, 1]])
        >>> token_positions({"attention_mask": mask}, (1, 5)).query
        tensor([[0, 0, 0, 1, 2]])
        >>> token_positions({"position_ids": torch.tensor([[2, 3, 1]])}, (1, 3), padding=1).query
        tensor([[0, 1, 0]])
    """
    mask, words, cache = arguments.get("attention_mask"), arguments.get("input_ids"), cache_in(arguments)
    cached, first = cached_length(cache), first if padding is None else padding + 1
    ids = arguments.get("position_ids")
    if isinstance(ids, Tensor) and ids.ndim == 3 and len(ids) in (3, 4):
        ids = ids[0] if len(ids) == 4 else None  # beside time, height and width
    if ids is not None:
        if padding is None:
            ids = _without_padding(ids, mask, cached, shape, first, windowed=windowed)
        pairs = mask if isinstance(mask, Tensor) and mask.ndim == 4 and cache is not None else None
        mask = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
        # with a static cache, the last token sees all but padding
        seen = mask if pairs is None else visible_keys(pairs)[:, -1, : cached + shape[1]]
        # continuous batching counts from 0 for all models
        if padding is not None and (_joins_texts(arguments) or _counted(ids, seen, cached, shape)):
            padding, first, mask = None, 0, seen
        if mask is not None:
            mask = mask[:, -shape[1] :]
        elif padding is not None:
            mask = ids != padding
        return _built(shape, mask=mask, position_ids=ids, first=first)
    refuse_counting(PlugError)
    if isinstance(mask, Mapping) and "full_attention" in mask:  # a mask for each kind of layer, as in Gemma 3
        mask = mask["full_attention"]
        if isinstance(mask, Tensor) and mask.ndim == 4:  # the last token sees all but padding
            mask = visible_keys(mask)[:, -1, : cached + shape[1]]
    if isinstance(mask, Tensor) and mask.ndim == 4 and cache is not None and not windowed:
        return _built(shape, pairs=mask[..., : cached + shape[1]])  # a static cache has more slots
    if mask is not None:
        return _from_mask(mask, shape, cached, "attention_mask")
    if padding is not None and words is not None:
        valid = words != padding
        if torch.compiler.is_compiling() or not bool(valid.all()):
            ids = (valid.cumsum(1) + cached) * valid + padding  # as RoBERTa counts without a mask
            return _built(shape, mask=valid, position_ids=ids, first=first, below=cached + shape[1])
    return _built(shape, cached, device=_device(arguments))


def _without_padding(
    ids: Any, mask: Any, cached: int, shape: Sequence[int], first: int, *, windowed: bool
) -> Any:
    """Return `position_ids`; those that count a row with its padding, as without any, count each text.

    Models around a body, such as PaliGemma and Gemma 4, give it one row of ids for all texts, and leave
    padding to the mask.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2 or len(ids) != 1:
        return ids
    if isinstance(mask, Mapping):
        mask, windowed = mask.get("full_attention"), False
    if isinstance(mask, Tensor) and mask.ndim == 4 and not windowed:
        mask = visible_keys(mask)[..., : cached + shape[1]].any(1)  # no token sees padding
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] != cached + shape[1]:
        return ids
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return ids
    slots = torch.arange(cached + first, cached + first + shape[1], device=ids.device)
    counted = ((mask != 0).long().cumsum(1) - 1).clamp(min=0)[:, -shape[1] :] + first
    return torch.where((ids == slots).all(), counted, ids)


def _counted(ids: Any, mask: Tensor | None, cached: int, shape: Sequence[int]) -> bool:
    """Return whether ids count tokens from 0, as `generate` does for models that begin elsewhere, too."""
    if torch.compiler.is_compiling() or not isinstance(ids, Tensor):
        return False
    if mask is not None and mask.shape[1] != cached + shape[1]:
        return False
    counted = _built(shape, cached, mask=mask, device=ids.device).query
    same = ids == counted
    return bool((same if mask is None else same | (mask[:, -shape[1] :] == 0)).all())


def _joins_texts(arguments: Mapping[str, Any]) -> bool:
    """Return whether these are arguments of continuous batching, which joins texts in a row."""
    cache = arguments.get("cache")
    return cache is not None and not isinstance(cache, Cache)


def check_packed(arguments: Mapping[str, Any], config: Any, error: type[Exception]) -> None:
    """Refuse texts packed by FlashAttention's `cu_seq_lens_q` where a model would not tell them apart.

    Args:
        arguments: arguments of the body's forward pass by name.
        config: configuration of the body.
        error: type of the error.

    Raises:
        Exception: of that type, if there are no `position_ids`, or there is a cache, with which no attention
            but FlashAttention separates texts.
    """
    if arguments.get("cu_seq_lens_q") is None:
        return
    if arguments.get("position_ids") is None:
        raise error(
            "cu_seq_lens_q packs texts, whose tokens would be counted as those of one; pass position_ids, "
            "too, as DataCollatorWithFlattening does by return_position_ids=True"
        )
    attention, caches = str(getattr(config, "_attn_implementation", None)), arguments.get("use_cache")
    caches = getattr(config, "use_cache", False) if caches is None else caches
    if "flash" not in attention and (caches or cache_in(arguments) is not None):
        raise error(
            f"texts packed by cu_seq_lens_q see each other in {attention!r} attention with a cache; pass "
            "use_cache=False"
        )


def source_positions(arguments: Mapping[str, Any], shape: Sequence[int]) -> Positions:
    """Return the positions of the tokens that cross-attention reads: their indices among unpadded tokens.

    Args:
        arguments: arguments of the reading body's forward pass by name.
        shape: batch size and number S of tokens.

    Raises:
        PlugError: if the mask does not show which tokens are padding.

    Example:
        >>> source_positions({}, (1, 3)).query
        tensor([[0, 1, 2]])
    """
    mask = arguments.get("encoder_attention_mask")
    if mask is not None:
        return _from_mask(mask, shape, 0, "encoder_attention_mask")
    return _built(shape, device=_device(arguments))


def _built(*args: Any, **kwargs: Any) -> Positions:
    try:
        return build_positions(*args, **kwargs)
    except ValueError as error:
        raise PlugError(str(error)) from error


def _from_mask(mask: Any, shape: Sequence[int], cached: int, name: str) -> Positions:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        what = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise PlugError(
            f"{name} is {what}, which does not say which tokens are padding, so their positions are "
            "unknown; give a mask (batch, length), or position_ids where the model takes them"
        )
    if mask.shape[1] != cached + shape[1]:
        raise PlugError(
            f"{name} covers {mask.shape[1]} tokens; there are {shape[1]}, and {cached} in the cache before "
            "them"
        )
    return _built(shape, cached, mask=mask)


def _device(arguments: Mapping[str, Any]) -> torch.device | None:
    names = ("input_ids", "inputs_embeds", "encoder_hidden_states")
    return next((value.device for name in names if (value := arguments.get(name)) is not None), None)
