"""Translation of lines of text with a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, StoppingCriteria, StoppingCriteriaList

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.tasks.translation.data import Example, source_batch, source_example
from floater.lab.tasks.translation.fields import SourceFields
from floater.lab.tasks.translation.settings import Decoding
from floater.lab.text.bpe import encode
from floater.lab.training import TokenBatchSampler
from floater.lab.training.model import inference
from floater.lab.training.progress import watched
from floater.transformer import FloaterForConditionalGeneration
from floater.transformer.reading import Reading

MARGIN = 50


class CutTranslation(UserWarning):
    """Warning that a translation reached the maximum length before it ended."""


def translate(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    lines: Sequence[str],
    decoding: Decoding | None = None,
    fields: SourceFields | None = None,
) -> list[str]:
    """Translate lines by beam search (Vaswani et al. 2017, section 6.1) or non-autoregressively.

    A translation does not depend on the other lines of its batch. It has at most decoding.max_ratio x source
    tokens + 50 tokens, and at most as many as there are learned positions. If the spacing of tokens depends
    on a length (`floater.transformer.reading.Reading`), this is the greater of the source's length and that
    bound.

    Args:
        model: encoder-decoder.
        tokenizer: tokenizer with the joint vocabulary.
        lines: source sentences, in any order; an empty line gives an empty line.
        decoding: beam, length penalty and limits; a model that is not autoregressive does not use the beam.
        fields: fields of the positions of the lines, for encodings that read them.

    Returns:
        One translation per line, in the order of the lines.

    Raises:
        DataError: if the beam is larger than the vocabulary, or there is a target ratio and the model reads
            no target length.
        PositionError: if a line has more tokens than the model has learned positions.

    Warns:
        CutTranslation: if translations reached the maximum length; the message has their number.

    Example:
        >>> from floater.lab.text.bpe import train_bpe
        >>> from floater.transformer import FloaterConfig
        >>> tokenizer = train_bpe(["one two three"], 270)
        >>> model = FloaterForConditionalGeneration(FloaterConfig.preset("tiny", vocab_size=len(tokenizer)))
        >>> with warnings.catch_warnings(action="ignore"):  # an untrained model does not end its sentences
        ...     len(translate(model, tokenizer, ["one", "", "two three"], Decoding(beam=2)))
        3
    """
    decoding = decoding or Decoding()
    translations, cut = translate_and_count(model, tokenizer, lines, decoding, fields)
    if cut:
        table = model.encoder.position.max_positions
        bound = "" if table is None else f", at most {table}"
        warnings.warn(
            f"{cut} of {sum(bool(line.strip()) for line in lines)} translations reached the longest output "
            f"({decoding.max_ratio:g} x source tokens + {MARGIN}{bound}) before they ended",
            CutTranslation,
            stacklevel=2,
        )
    return translations


def translate_and_count(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    lines: Sequence[str],
    decoding: Decoding,
    fields: SourceFields | None = None,
) -> tuple[list[str], int]:
    """Translate as `translate` does; also return the number of translations of the maximum length."""
    order = [i for i, line in enumerate(lines) if line.strip()]
    out = [""] * len(lines)
    if not order:
        return out, 0
    if decoding.beam > (words := model.config.vocab_size):
        raise DataError(f"beam is {decoding.beam}; it must be at most {words}, the size of the vocabulary")
    if decoding.target_ratio is not None and model.length is None:
        name = model.config.position_name("decoder")
        raise DataError(f"position model '{name}' reads no target length, which target_ratio sets")
    texts = [lines[i] for i in order]
    ids = encode(tokenizer, texts)
    fields = None if fields is None else fields.take(order).spread_to_tokens(tokenizer, texts)
    lengths = [len(row) for row in ids]
    table = model.encoder.position.max_positions
    for line, length in zip(order, lengths, strict=True):
        if table is not None and length > table:
            raise PositionError(
                f"line {line + 1} has {length} tokens, but the model has {table} learned positions"
            )
    limits = torch.tensor([int(length * decoding.max_ratio) + MARGIN for length in lengths])
    limits = limits if table is None else limits.clamp(max=table)
    # If the spacing of tokens depends on a length, it is the greater of the maximum length of the translation
    # and that of the source; both are known before decoding and do not depend on other lines of the batch.
    configured = Reading.of(model.config.reading)
    spaces = model.config.times is not None or configured.interpolate
    reading = replace(configured, overrun=True) if spaces else None
    spaced = torch.maximum(torch.tensor(lengths), limits)
    if reading is not None and reading.length is not None:
        spaced = torch.as_tensor(reading.length).expand(len(lengths))
        for line, length, most in zip(order, lengths, spaced.tolist(), strict=True):
            if length > most:
                raise PositionError(f"line {line + 1} has {length} tokens, but reading.length is {most}")
        limits = torch.minimum(limits, spaced)
    budget = max(decoding.max_tokens // decoding.beam, max(lengths))
    cut = 0
    with inference(model):
        sampler = TokenBatchSampler(lengths, budget, seed=0, shuffle=False)
        for batch in watched(sampler, len(sampler), "batches"):
            rule = None if reading is None else replace(reading, length=spaced[batch])
            generated = _search(
                model,
                tokenizer,
                [source_example(ids, fields, i) for i in batch],
                limits[batch],
                decoding,
                rule,
            )
            allowed = torch.arange(generated.shape[1]) < limits[batch][:, None]
            ended = ((generated == tokenizer.eos_token_id) & allowed).any(1)
            cut += int((~ended).sum())
            for i, text in zip(
                batch, tokenizer.batch_decode(generated, skip_special_tokens=True), strict=True
            ):
                out[order[i]] = text.strip().replace("\r", " ").replace("\n", " ")
    return out, cut


def _search(
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    limits: Tensor,
    decoding: Decoding,
    reading: Reading | None,
) -> Tensor:
    """Return the best translation of each row: token ids, (batch, longest), without the start token."""
    inputs = source_batch(examples, pad=tokenizer.pad_token_id)
    if decoding.target_ratio is not None:
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        inputs["target_length"] = (lengths * decoding.target_ratio).round().long().clamp(min=1)
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    if not model.autoregressive:
        written: Tensor = model.generate(**inputs)[:, 1:].cpu()
        over = torch.arange(written.shape[1]) >= limits[:, None]
        return written.masked_fill(over, tokenizer.pad_token_id)
    several = decoding.beam > 1
    config = GenerationConfig(
        num_beams=decoding.beam,
        length_penalty=decoding.length_penalty if several else None,
        early_stopping=several or None,
        do_sample=False,
        use_cache=model.decoder.position.caches,
        max_new_tokens=int(limits.max()),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=model.config.decoder_start_token_id,
    )
    options = {} if reading is None else {"reading": reading}
    generated: Tensor = model.generate(
        **inputs,
        **options,
        generation_config=config,
        stopping_criteria=StoppingCriteriaList([_LongestOutput(limits.to(model.device))]),
    )
    return generated[:, 1:].cpu()


class _LongestOutput(StoppingCriteria):
    """Stopping criterion with a maximum length for each row of a batch."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        beams = len(input_ids) // len(self.limits)
        return self.limits.repeat_interleave(beams) <= input_ids.shape[1] - 1
