"""Validating a translation model: loss per token and BLEU of held-out pairs."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import sacrebleu
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from floater.tasks.corpora.text import Pairs
from floater.tasks.examples import in_batches
from floater.tasks.measurement import Measurement, perplexity
from floater.tasks.translation.data import TokenPairs, collate
from floater.tasks.translation.decode import translate_and_count
from floater.tasks.translation.settings import Decoding
from floater.training.run import evaluating
from floater.transformer import FloaterForConditionalGeneration
from floater.transformer.outputs import IGNORED


def validate(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    examples: TokenPairs,
    search: Decoding,
) -> Measurement:
    """Translate held-out pairs and measure the loss of their references.

    The pairs are shared out among the processes, and every process gets the whole result. No random number
    is used, so that a training is not changed.

    Args:
        model: an encoder-decoder; it is left in the mode it is in.
        tokenizer: its joint vocabulary.
        examples: the held-out pairs.
        search: how translations are searched for.

    Returns:
        Loss (nats per target token, not smoothed, given the earlier tokens; in a model that is not
        autoregressive, given the length and the reference order), perplexity, BLEU (sacrebleu's default
        settings), and how many translations reached the longest output; the lines are the translations.
    """
    state, pairs = PartialState(), examples.pairs
    rank, world = state.process_index, state.num_processes
    mine = Pairs(pairs.source[rank::world], pairs.target[rank::world], 0)
    nats, count = token_loss(model, tokenizer, mine)
    texts, cut = translate_and_count(model, tokenizer, mine.source, search)
    part = {"rank": rank, "nats": nats, "count": count, "texts": texts, "cut": cut}
    parts = gather_object([part]) if world > 1 else [part]
    translations = [""] * len(pairs.source)
    for other in parts:
        translations[other["rank"] :: world] = other["texts"]
    total = {name: sum(other[name] for other in parts) for name in ("nats", "count", "cut")}
    loss = total["nats"] / total["count"]
    scores = {
        "loss": round(loss, 4),
        "perplexity": round(perplexity(loss), 3),
        "bleu": round(sacrebleu.corpus_bleu(translations, [pairs.target]).score, 2),
        "cut_translations": total["cut"],
    }
    return Measurement(scores=scores, lines=translations)


def token_loss(
    model: FloaterForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, pairs: Pairs
) -> tuple[float, int]:
    """Return the sum of the cross-entropy (nats, not smoothed) over the target tokens, and their number."""
    if not pairs.source:
        return 0.0, 0
    with evaluating(model):
        found = token_losses(model, TokenPairs(pairs, tokenizer), tokenizer)
        sums = [(float(losses.sum()), int(there.sum())) for _, losses, there in found]
    return sum(nats for nats, _ in sums), sum(count for _, count in sums)


@torch.no_grad()
def token_losses(
    model: FloaterForConditionalGeneration, examples: TokenPairs, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Compute the cross-entropy (nats, not smoothed) of each target token, batch by batch.

    Args:
        model: in evaluation mode.
        examples: encoded pairs.
        tokenizer: the joint vocabulary.

    Yields:
        The indices of the pairs of a batch, the losses of their tokens (batch, longest), 0 where there is
        none, and where there is one, bool of the same shape.
    """
    make = functools.partial(collate, pad=tokenizer.pad_token_id)
    for indices, batch in in_batches(examples, make, model.device, 4096):
        logits, labels = model(**batch).logits.flatten(0, 1).float(), batch["labels"]
        losses = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none")
        yield indices, losses.view_as(labels), labels != IGNORED
