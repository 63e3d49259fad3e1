"""Scores of causal models on long texts: recall of a number hidden in a text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.examples import Encoded, in_batches
from floater.lab.tasks.finetuning.text import special
from floater.lab.tasks.language_modeling.data import collate
from floater.lab.tasks.measurement import Array
from floater.lab.training.model import inference
from floater.transformer.outputs import IGNORED

DIGITS = 5
"""Number of digits of the hidden number, as in Mohtashami and Jaggi 2023."""

_PROMPT = {
    "begin": "One number is hidden in this long text. Find it, as you will be asked for it at the end.",
    "filler": " Rain falls on the hills. The river runs to the sea. Clouds come back over the land.",
    "needle": " The number is {0}. Keep {0} in mind.",
    "question": " What was the hidden number? The number is",
}


def causal_batch(rows: Sequence[dict[str, Any]], *, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Return a padded batch whose labels are its tokens, except for padding."""
    batch = collate(rows, pad=int(tokenizer.pad_token_id))
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)}


def prompt(
    tokenizer: PreTrainedTokenizerFast, length: int, depth: float, rng: np.random.Generator
) -> tuple[Array, int]:
    """Build a text of `length` tokens that hides a number, asks for it, and ends with the answer.

    The task is that of Mohtashami and Jaggi 2023 ("Landmark Attention", section 4.2), in a different wording.

    Args:
        tokenizer: tokenizer of the model.
        length: number of tokens of the text, the answer included.
        depth: relative position of the number in the filler, from 0 to 1.
        rng: random number generator of the number.

    Returns:
        Token ids (length,), and the number of tokens of the answer at their end.

    Raises:
        DataError: if the length is too small for question and answer.
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
    """Measure the share of hidden numbers that a model finds in texts of one length, for each depth.

    A number is found if each of its tokens is the most probable one after the correct tokens before it, that
    is, if greedy generation writes it.

    Args:
        model: model to measure; its mode (training or evaluation) is restored.
        tokenizer: tokenizer of the model.
        length: number of tokens of a text.
        depths: number of depths, evenly spaced from the beginning to the end.
        trials: number of texts for each depth; every call uses the same texts.
        max_tokens: maximum number of tokens in a batch.

    Returns:
        The share of the numbers found at each depth.
    """
    recalled = np.zeros(depths)
    for depth in range(depths):
        rng = np.random.default_rng((length, depth))
        texts = [prompt(tokenizer, length, depth / max(1, depths - 1), rng) for _ in range(trials)]
        rows = Encoded([{"input_ids": text, "parts": [length]} for text, _ in texts], [length] * trials)
        make = functools.partial(causal_batch, tokenizer=tokenizer)
        with inference(model, baked=True):
            for indices, batch in in_batches(rows, make, model.device, max_tokens):
                wanted = batch.pop("labels")
                chosen = model(**batch, use_cache=False).logits[:, :-1].argmax(-1)
                for row, index in enumerate(indices):
                    last = texts[index][1]
                    recalled[depth] += bool((chosen[row, -last:] == wanted[row, -last:]).all())
    return [round(float(share), 4) for share in recalled / trials]
