"""Attention of a trained model where every token is the same word, so that positions alone differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floater.errors import DataError
from floater.lab.study.analyses.probe import random_tokens
from floater.lab.study.analyses.subject import (
    Source,
    example_inputs,
    foreign,
    label,
    load_subject,
    reader,
)
from floater.lab.training.model import eval_mode
from floater.transformer.base import FloaterPreTrainedModel

LONGEST, WORDS = 64, 8


@torch.no_grad()
def same_word_logits(source: Source, length: int | None = None, *, words: int = WORDS) -> dict[str, Tensor]:
    """Return the logits of each block where every token is the same word, less the mean of each query.

    They are logarithms of the attention weights, mean over some words of the vocabulary. A constant that is
    added to all logits of a query changes no weight, so the mean over the keys is subtracted. Every encoding
    has them, since the model itself computes them, including encodings that act on words and those in the
    decoder, whose source is the same word. Trees and graphs are a binary tree; second positions are another
    order than the first, and the target is as long as the source.

    Args:
        source: a model that reads text; see `floater.lab.study.analyses.subject.load_subject`.
        length: number of positions; by default the training length, at most 64.
        words: number of words, sampled uniformly from the vocabulary.

    Returns:
        (heads, T, S) by block; NaN where a query does not attend.

    Raises:
        DataError: if the model reads no tokens or not as many, or its attention has no weights.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> config = FloaterConfig.preset("tiny", vocab_size=9, position="alibi")
        >>> same_word_logits(FloaterModel(config), 3)["block 1"][0, 0].tolist()
        [0.25, 0.0, -0.25]
    """
    subject = load_subject(source)
    model, width = subject.model, subject.length(length, LONGEST)
    body, has_decoder = reader(model), False
    if isinstance(model, FloaterPreTrainedModel):
        if model.config.attention != "softmax":
            raise DataError(f"{subject.name} has linear attention: it has no logits")
        has_decoder = bool(model.config.is_encoder_decoder and getattr(model, "autoregressive", False))
        body = model if has_decoder else body
    maps: dict[str, list[Tensor]] = {}
    before = model.config._attn_implementation
    with eval_mode(model), foreign(f"{subject.name} cannot be run on {width} tokens"):
        model.set_attn_implementation("eager")  # others keep no weights
        try:
            for token in random_tokens(subject, 1, words).flatten().tolist():
                inputs = example_inputs(model, torch.full((1, width), token))
                if has_decoder:
                    inputs["decoder_input_ids"] = inputs["input_ids"]
                out = body(**inputs, output_attentions=True, return_dict=True)
                for location, weights in _weights(out).items():
                    maps.setdefault(location, []).append(weights[0].float().cpu().log())
        finally:
            model.set_attn_implementation(before)
    if not maps:
        raise DataError(f"{subject.name} returns no attention weights")
    logits = {location: torch.stack(each).mean(0) for location, each in maps.items()}
    seen = {location: each.masked_fill(each == -torch.inf, torch.nan) for location, each in logits.items()}
    return {location: each - each.nanmean(-1, keepdim=True) for location, each in seen.items()}


def _weights(outputs: Any) -> dict[str, Tensor]:
    """Return the attention weights of the outputs of a model by block."""
    stacks = {"": "attentions", "encoder": "encoder_attentions"}
    stacks |= {"decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {
        label(stack, f"block {layer}"): weights
        for stack, name in stacks.items()
        for layer, weights in enumerate(getattr(outputs, name, None) or (), start=1)
        if weights is not None
    }
