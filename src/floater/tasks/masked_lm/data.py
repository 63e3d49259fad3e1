"""From documents to rows of token ids as a Hugging Face checkpoint reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from floater.tasks.bpe import ENCODED_AT_ONCE
from floater.tasks.language_modeling.data import Example


class Blocks(Dataset[Example]):
    """Rows of at most `block` tokens, each a part of one document between the checkpoint's special tokens.

    Args:
        tokenizer: of the checkpoint.
        documents: their lines, which are joined with spaces.
        block: the most tokens of a row.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[str]], block: int
    ) -> None:
        before, after = special(tokenizer)
        room = block - len(before) - len(after)
        lines = [f" {line.strip()}" if i else line.strip() for d in documents for i, line in enumerate(d)]
        encoded: list[list[int]] = []
        for start in range(0, len(lines), ENCODED_AT_ONCE):
            part = lines[start : start + ENCODED_AT_ONCE]
            # not verbose: a line that is longer than the model reads is cut below
            options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
            encoded += tokenizer(part, **options)["input_ids"]
        self.rows: list[np.ndarray] = []
        rest = iter(encoded)
        for document in documents:
            ids = list(chain.from_iterable(next(rest) for _ in document))
            self.rows += [
                np.array([*before, *ids[start : start + room], *after], dtype=np.int32)
                for start in range(0, len(ids), room)
            ]
        self.lengths = [len(row) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        row = self.rows[index]
        return {"input_ids": row, "parts": [len(row)], "index": index}


def special(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["special_tokens_mask"]
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
