"""Validation of a translation model: loss per token and BLEU of held-out pairs."""

from __future__ import annotations

import functools

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.examples import in_batches
from floater.lab.tasks.measurement import Array, Measurement, perplexity
from floater.lab.tasks.translation.bleu import bleu_of, normalised
from floater.lab.tasks.translation.data import TokenPairs, collate
from floater.lab.tasks.translation.decode import translate_and_count
from floater.lab.tasks.translation.settings import Decoding
from floater.lab.training.model import inference
from floater.transformer import FloaterForConditionalGeneration
from floater.transformer.outputs import IGNORED


def validate(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    examples: TokenPairs,
    search: Decoding,
    language: str | None,
) -> Measurement:
    """Translate held-out pairs and measure the loss of their references.

    The pairs are distributed among the processes, and every process gets the complete result. No random
    number is used, so that the training is unaffected.

    Args:
        model: encoder-decoder; its mode (training or evaluation) is restored.
        tokenizer: tokenizer with the joint vocabulary.
        examples: held-out pairs.
        search: settings of the decoding.
        language: code of the target language, which the tokens of BLEU depend on.

    Returns:
        Loss (nats per target token, not smoothed, given the earlier tokens; for a model that is not
        autoregressive, given the length and the reference order), perplexity, BLEU (see `bleu_of`; of both
        sides in NFC), and the number of translations that reached the maximum length; `lines` are the
        translations.
    """
    state, pairs = PartialState(), examples.pairs
    rank, world = state.process_index, state.num_processes
    fields = None if pairs.fields is None else pairs.fields.take(range(rank, len(pairs.source), world))
    mine = Pairs(pairs.source[rank::world], pairs.target[rank::world], 0, fields)
    losses = token_losses(model, tokenizer, mine)
    texts, cut = translate_and_count(model, tokenizer, mine.source, search, fields)
    nats, count = sum(float(row.sum()) for row in losses), sum(map(len, losses))
    part = {"rank": rank, "nats": nats, "count": count, "texts": texts, "cut": cut}
    parts = gather_object([part]) if world > 1 else [part]
    translations = [""] * len(pairs.source)
    for other in parts:
        translations[other["rank"] :: world] = other["texts"]
    total = {name: sum(other[name] for other in parts) for name in ("nats", "count", "cut")}
    loss = total["nats"] / total["count"]
    bleu, (ours, theirs, mark) = bleu_of(language), normalised(translations, pairs.target)
    scores = {
        "loss": round(loss, 4),
        "perplexity": round(perplexity(loss), 3),
        "bleu": round(bleu.corpus_score(ours, [theirs]).score, 2),
        "cut_translations": total["cut"],
    }
    signatures = {"bleu": f"{bleu.get_signature()}{mark}"}
    return Measurement(scores=scores, lines=translations, signatures=signatures)


def token_losses(
    model: FloaterForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, pairs: Pairs
) -> list[Array]:
    """Compute the cross-entropy (nats, not smoothed) of each token of each target sentence.

    Args:
        model: encoder-decoder; its mode (training or evaluation) is restored.
        tokenizer: tokenizer with the joint vocabulary.
        pairs: aligned sentences.
    """
    losses: list[Array] = [np.zeros(0)] * len(pairs.source)
    if not losses:
        return losses
    make = functools.partial(collate, pad=tokenizer.pad_token_id)
    with inference(model):
        for indices, batch in in_batches(TokenPairs.of(pairs, tokenizer), make, model.device, 4096):
            logits, labels = model(**batch).logits.flatten(0, 1).float(), batch["labels"]
            nats = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none")
            scored = (labels != IGNORED).cpu()
            for index, row, there in zip(indices, nats.view_as(labels).cpu(), scored, strict=True):
                losses[index] = row[there].double().numpy()
    return losses
