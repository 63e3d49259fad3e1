"""Validating a translation model: loss per token and BLEU of held-out pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sacrebleu
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from floater.tasks.measurement import perplexity
from floater.tasks.run import evaluating
from floater.tasks.text import Pairs
from floater.tasks.translation.data import TokenPairs, collate
from floater.tasks.translation.decode import translate_and_count
from floater.tasks.translation.settings import Decoding
from floater.training import TokenBatchSampler
from floater.transformer import FloaterForConditionalGeneration
from floater.transformer.outputs import IGNORED


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Args:
        loss: nats per target token, not smoothed, given the earlier tokens; in a model that is not
            autoregressive, given the length and the reference order.
        bleu: of the translations, sacrebleu's default settings.
        translations: in the order of the pairs.
        cut: how many of them reached the longest output before they ended.
    """

    loss: float
    bleu: float
    translations: list[str]
    cut: int

    @property
    def metrics(self) -> dict[str, float]:
        """Loss, perplexity and BLEU, rounded for a log.

        Example:
            >>> Validation(loss=1.0, bleu=12.345, translations=[], cut=0).metrics
            {'loss': 1.0, 'perplexity': 2.718, 'bleu': 12.35}
        """
        return {
            "loss": round(self.loss, 4),
            "perplexity": round(perplexity(self.loss), 3),
            "bleu": round(self.bleu, 2),
        }


def validate(
    model: FloaterForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, pairs: Pairs, search: Decoding
) -> Validation:
    """Translate held-out pairs and measure the loss of their references.

    The pairs are shared out among the processes, and every process gets the whole result. No random number
    is drawn, so that training goes on as without a validation.

    Args:
        model: an encoder-decoder; it is left in the mode it is in.
        tokenizer: its joint vocabulary.
        pairs: the held-out pairs.
        search: how translations are searched for.
    """
    state = PartialState()
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
    bleu = sacrebleu.corpus_bleu(translations, [pairs.target]).score
    return Validation(total["nats"] / total["count"], bleu, translations, total["cut"])


def token_loss(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Pairs,
    max_tokens: int = 4096,
) -> tuple[float, int]:
    """Sum of the cross-entropy (nats, not smoothed) over the target tokens, and their number."""
    nats, count = 0.0, 0
    with evaluating(model):
        for _, losses, there in token_losses(model, tokenizer, pairs, max_tokens):
            nats += float(losses.sum())
            count += int(there.sum())
    return nats, count


@torch.no_grad()
def token_losses(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Pairs,
    max_tokens: int = 4096,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """The cross-entropy (nats, not smoothed) of each target token, batch by batch.

    Args:
        model: in evaluation mode.
        tokenizer: its joint vocabulary.
        pairs: the sentences.
        max_tokens: in a batch, with padding.

    Yields:
        The indices of the pairs of a batch, the losses of their tokens (batch, longest), 0 where there is
        none, and where there is one, bool of the same shape.
    """
    if not pairs.source:
        return
    examples = TokenPairs(pairs, tokenizer)
    budget = max(max_tokens, max(examples.lengths))
    # no DataLoader: even one that does not shuffle draws from torch's random numbers
    for indices in TokenBatchSampler(examples.lengths, budget, seed=0, shuffle=False):
        batch = collate([examples[i] for i in indices], pad=tokenizer.pad_token_id)
        batch = {name: value.to(model.device) for name, value in batch.items()}
        logits, labels = model(**batch).logits.flatten(0, 1).float(), batch["labels"]
        losses = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none")
        yield indices, losses.view_as(labels), labels != IGNORED
