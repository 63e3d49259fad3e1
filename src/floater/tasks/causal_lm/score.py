"""Scores of causal models on long texts: loss by position, and recall of a number hidden in a text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.tasks.examples import Encoded, in_batches
from floater.tasks.finetuning.features import readable
from floater.tasks.finetuning.text import special
from floater.tasks.language_modeling.data import collate
from floater.tasks.measurement import Array, perplexity
from floater.training.run import evaluating
from floater.transformer.outputs import IGNORED

DIGITS = 5
"""Of the hidden number, as many as in Mohtashami and Jaggi 2023."""

_PROMPT = {
    "begin": "One number is hidden in this long text. Find it, as you will be asked for it at the end.",
    "filler": " Rain falls on the hills. The river runs to the sea. Clouds come back over the land.",
    "needle": " The number is {0}. Keep {0} in mind.",
    "question": " What was the hidden number? The number is",
}


def causal_batch(rows: Sequence[dict[str, Any]], *, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Return a padded batch, its tokens as labels but for padding."""
    batch = collate(rows, pad=int(tokenizer.pad_token_id))
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)}


def token_losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Encoded, max_tokens: int
) -> Iterator[Array]:
    """Compute the loss of each token of each row, from short to long rows.

    Args:
        model: left in the mode it is in.
        tokenizer: of the model.
        rows: `input_ids` each.
        max_tokens: tokens in a batch; a longer row is alone.

    Yields:
        Of a row of n tokens, the n - 1 losses in nats: of the token at position i, from the i before it.

    Raises:
        DataError: if the model has too few positions.
    """
    make = functools.partial(causal_batch, tokenizer=tokenizer)
    with evaluating(model, baked=True), readable(f"rows of {max(rows.lengths)} tokens", "their length"):
        for indices, batch in in_batches(rows, make, model.device, max_tokens):
            labels = batch.pop("labels")[:, 1:]
            logits = model(**batch, use_cache=False).logits[:, :-1].float()
            nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
            for index, row in zip(indices, nats.double().cpu().numpy(), strict=True):
                yield row[: rows.lengths[index] - 1]


def by_position(losses: Sequence[Array], edges: Sequence[int]) -> list[tuple[int, int, int, float]]:
    """Average losses over ranges of the number of tokens read before; a range without a token is skipped.

    Args:
        losses: of rows, as `token_losses` yields them.
        edges: rising; the first number of each range but the first.

    Returns:
        The first and the last number of each range, its tokens, and their loss in nats.

    Example:
        >>> by_position([np.array([3.0, 1.0, 1.0]), np.array([2.0])], [2])
        [(1, 1, 2, 2.5), (2, 3, 2, 1.0)]
    """
    longest = max(map(len, losses))
    bounds = [1, *(edge for edge in edges if 1 < edge <= longest), longest + 1]
    found = []
    for low, high in itertools.pairwise(bounds):
        inside = np.concatenate([row[low - 1 : high - 1] for row in losses])
        found.append((low, high - 1, len(inside), float(inside.mean())))
    return found


def prompt(
    tokenizer: PreTrainedTokenizerFast, length: int, depth: float, rng: np.random.Generator
) -> tuple[Array, int]:
    """Build a text that hides a number, asks for it and gives it, of a number of tokens.

    The task is that of Mohtashami and Jaggi 2023 ("Landmark Attention", section 4.2), in other words.

    Args:
        tokenizer: of the model.
        length: tokens of it all.
        depth: where the number stands in the filler, from 0 to 1.
        rng: generates the number.

    Returns:
        Token ids (length,), and how many of the last ones are the answer.

    Raises:
        DataError: if the length has no room for it.
    """
    key = " ".join(str(int(digit)) for digit in rng.integers(10, size=DIGITS))

    def ids(text: str) -> list[int]:
        encoded: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return encoded

    begin, filler, needle, question = (ids(text.format(key)) for text in _PROMPT.values())
    answer, first = ids(f" {key}"), special(tokenizer)[0]
    room = length - sum(map(len, (first, begin, needle, question, answer)))
    if room < 0:
        raise DataError(f"a passkey needs a text of at least {length - room} tokens, not {length}")
    before = round(room * depth)
    filled = [np.resize(filler, count).tolist() for count in (before, room - before)]
    return np.array([*first, *begin, *filled[0], *needle, *filled[1], *question, *answer]), len(answer)


def passkeys(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    length: int,
    depths: int,
    trials: int,
    max_tokens: int,
) -> list[float]:
    """Measure how often a model finds a number in texts of one length, by the depth at which it stands.

    A number counts if each of its tokens is the model's first choice after the right ones before it, which is
    when greedy generation writes it.

    Args:
        model: left in the mode it is in.
        tokenizer: of the model.
        length: tokens of a text.
        depths: number of depths, evenly spaced from the begin to the end.
        trials: texts for each depth, the same ones in every call.
        max_tokens: tokens in a batch.

    Returns:
        The share of the numbers that are found at each depth.
    """
    found = np.zeros(depths)
    for place in range(depths):
        rng = np.random.default_rng((length, place))
        texts = [prompt(tokenizer, length, place / max(1, depths - 1), rng) for _ in range(trials)]
        rows = Encoded([{"input_ids": text, "parts": [length]} for text, _ in texts], [length] * trials)
        make = functools.partial(causal_batch, tokenizer=tokenizer)
        with evaluating(model, baked=True), torch.no_grad():
            for indices, batch in in_batches(rows, make, model.device, max_tokens):
                wanted = batch.pop("labels")
                chosen = model(**batch, use_cache=False).logits[:, :-1].argmax(-1)
                for row, index in enumerate(indices):
                    last = texts[index][1]
                    found[place] += bool((chosen[row, -last:] == wanted[row, -last:]).all())
    return [round(float(share), 4) for share in found / trials]


def line(name: str, losses: Sequence[Array]) -> str:
    """Return a line of a report: the loss of some rows and its perplexity."""
    nats = np.concatenate(list(losses))
    return f"{name}: perplexity {perplexity(float(nats.mean())):.3f} (loss {nats.mean():.4f} nats a token)"
