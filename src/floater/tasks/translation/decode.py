"""Translating lines of text with a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from floater.tasks.bpe import load_bpe
from floater.tasks.text import DataError
from floater.tasks.translation.settings import Decoding
from floater.training import TokenBatchSampler
from floater.transformer import FloaterForConditionalGeneration

MODEL = "model"
MARGIN = 50


class CutTranslation(UserWarning):
    """A translation reached the longest output allowed before it ended."""


@torch.no_grad()
def translate(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    lines: Sequence[str],
    decoding: Decoding | None = None,
) -> list[str]:
    """Translate lines by beam search (Vaswani et al. 2017, section 6.1).

    Args:
        model: an encoder-decoder.
        tokenizer: its joint vocabulary.
        lines: source sentences, in any order; an empty line gives an empty line.
        decoding: beam, length penalty and limits.

    Returns:
        One translation a line, in the order of the lines.

    Warns:
        CutTranslation: with the number of translations that reached the limit.
    """
    decoding = decoding or Decoding()
    order = [i for i, line in enumerate(lines) if line.strip()]
    out = [""] * len(lines)
    if not order:
        return out
    ids = tokenizer([lines[i] for i in order])["input_ids"]
    lengths = [len(x) for x in ids]
    budget = max(decoding.max_tokens // decoding.beam, max(lengths))
    training = model.training
    model.eval()
    cut = 0
    for batch in TokenBatchSampler(lengths, budget, seed=0, shuffle=False):
        inputs = tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt").to(model.device)
        longest = int(inputs["input_ids"].shape[1] * decoding.max_ratio) + MARGIN
        generated = model.generate(
            **inputs,
            num_beams=decoding.beam,
            length_penalty=decoding.length_penalty,
            early_stopping=decoding.beam > 1,
            do_sample=False,
            max_new_tokens=longest,
        )
        ended = (generated[:, 1:] == tokenizer.eos_token_id).any(1)
        cut += int((~ended).sum())
        for i, text in zip(batch, tokenizer.batch_decode(generated, skip_special_tokens=True), strict=True):
            out[order[i]] = text.strip().replace("\n", " ")
    model.train(training)
    if cut:
        warnings.warn(
            f"{cut} of {len(order)} translations reached the longest output "
            f"({decoding.max_ratio:g} x source tokens + {MARGIN}) before they ended",
            CutTranslation,
            stacklevel=2,
        )
    return out


def load_run(run: str | Path, device: str | torch.device = "cpu") -> tuple[Any, PreTrainedTokenizerFast]:
    """The final model and the vocabulary of a run.

    Args:
        run: the run directory, or a directory with a saved model and tokenizer.
        device: where to put the model.

    Returns:
        The model in evaluation mode, and its tokenizer.

    Raises:
        DataError: if the directory holds no finished run.
    """
    folder = Path(run) / MODEL if (Path(run) / MODEL).is_dir() else Path(run)
    if not (folder / "config.json").is_file():
        raise DataError(f"{run} holds no trained model; a finished run has {Path(run) / MODEL}/config.json")
    tokenizer = load_bpe(folder)
    model = FloaterForConditionalGeneration.from_pretrained(folder).to(device).eval()
    return model, tokenizer
