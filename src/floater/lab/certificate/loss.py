"""Loss at every position of one long text, without the logits of all tokens at once."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.lab.tasks.finetuning.text import special
from floater.lab.tasks.language_modeling.data import masked
from floater.lab.tasks.language_modeling.head import logits_at
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.tasks.measurement import Array
from floater.lab.training.model import inference

CHUNK = 512
"""Number of tokens whose logits exist at the same time."""
MASKING = Masking(mask=1.0, random=0.0)
"""Masking of the texts of masked models: 15 % of the tokens, all of them replaced by the mask."""


@dataclass(frozen=True)
class Read:
    """A text as one model reads it.

    Args:
        nats: loss of each token of the text, (length,); NaN where nothing is predicted.
        seconds: duration of the pass through the body.
    """

    nats: Array
    seconds: float


def causal_read(model: PreTrainedModel, ids: Array) -> Read:
    """Return the loss of each token of a text, from one pass through the body.

    The head runs on `CHUNK` tokens at a time: the logits of 12,288 tokens over 49,152 entries take 2.4 GB.

    Args:
        model: causal model with a head.
        ids: token ids (length,).

    Returns:
        Losses (length,), NaN at the first token.
    """
    tokens = torch.as_tensor(ids, dtype=torch.long, device=model.device)[None]
    nats = [torch.full((1,), torch.nan)]
    with inference(model):
        began = time.perf_counter()
        output = model.base_model(input_ids=tokens, use_cache=False)
        hidden = output.last_hidden_state
        seconds = time.perf_counter() - began
        for start in range(0, len(ids) - 1, CHUNK):
            stop = min(start + CHUNK, len(ids) - 1)
            with _body_replaced(model, output, hidden[:, start:stop]):
                logits = model(input_ids=tokens[:, start:stop], use_cache=False).logits[0]
            losses = F.cross_entropy(logits.float(), tokens[0, start + 1 : stop + 1], reduction="none")
            nats.append(losses.cpu())
    return Read(torch.cat(nats).numpy(), seconds)


class _Body(nn.Module):
    """A body whose output has been computed before."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        return self.output


@contextmanager
def _body_replaced(model: PreTrainedModel, output: Any, hidden: Tensor) -> Iterator[None]:
    """Let a model's forward pass start from hidden states, so that its own head computes the logits.

    Calling `get_output_embeddings` instead would miss what models do around it: soft caps, scales, biases.
    """
    output = copy.copy(output)
    output.last_hidden_state = hidden
    body = model.base_model
    setattr(model, model.base_model_prefix, _Body(output))
    try:
        yield
    finally:
        setattr(model, model.base_model_prefix, body)


def causal_windows(model: PreTrainedModel, ids: Array, first: int, old: int) -> Read:
    """Return the losses of the tokens beyond the trained length, read in windows of that length.

    The model reads windows of `old` tokens that advance by half of it, so that every token is predicted from
    at least old / 2 tokens. This is the loss that an extended model is compared with.

    Args:
        model: the model before its extension.
        ids: token ids (length,).
        first: number of special tokens at the beginning, which every window repeats.
        old: trained length.
    """
    nats, seconds, half = np.full(len(ids), np.nan, np.float32), 0.0, old // 2
    for start in range(old, len(ids), half):
        stop = min(start + half, len(ids))
        begin = stop - old + first
        read = causal_read(model, np.concatenate([ids[:first], ids[begin:stop]]))
        nats[start:stop] = read.nats[start - stop :]
        seconds += read.seconds
    return Read(nats, seconds)


def masked_read(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, ids: Array, part: int, seed: int
) -> Read:
    """Return the loss of the masked tokens of a text, read in parts; the parts have the same masked tokens.

    Args:
        model: masked language model.
        tokenizer: tokenizer of the model.
        ids: token ids of the text without special tokens, (length,).
        part: number of tokens of a part, special tokens included.
        seed: seed of the choice of the masked tokens.
    """
    before, after = special(tokenizer)
    inputs, labels = masked(ids, MASKING, tokenizer, seed)
    nats, seconds, room = np.full(len(ids), np.nan, np.float32), 0.0, part - len(before) - len(after)
    with inference(model):
        for start in range(0, len(ids), room):
            row = np.concatenate([before, inputs[start : start + room], after]).astype(np.int64)
            chosen = np.flatnonzero(labels[start : start + room] >= 0)
            if not len(chosen):
                continue
            asked = np.zeros((1, len(row)), bool)
            asked[0, chosen + len(before)] = True
            tokens = torch.from_numpy(row)[None].to(model.device)
            began = time.perf_counter()
            logits = logits_at(model, torch.from_numpy(asked).to(model.device), input_ids=tokens)
            seconds += time.perf_counter() - began
            expected = torch.from_numpy(labels[start + chosen]).to(model.device)
            nats[start + chosen] = F.cross_entropy(logits.float(), expected, reduction="none").cpu()
    return Read(nats, seconds)


def blocks(nats: Array, size: int) -> tuple[list[float], list[int]]:
    """Return the sum of the losses in each block of positions, and the number of predicted tokens there.

    Example:
        >>> blocks(np.array([np.nan, 1.0, 2.0, 4.0, 8.0]), 2)
        ([1.0, 6.0, 8.0], [1, 2, 1])
    """
    starts = range(0, len(nats), size)
    parts = [nats[start : start + size].astype(np.float64) for start in starts]
    return [round(float(np.nansum(part)), 4) for part in parts], [int((part == part).sum()) for part in parts]
