"""The Hugging Face Trainer of a translation run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from floater.tasks.text import DataError, Pairs
from floater.tasks.trainer import TaskTrainer
from floater.tasks.translation.data import Example, TokenPairs, collate
from floater.tasks.translation.settings import Decoding, Training
from floater.tasks.translation.validation import validate
from floater.transformer import FloaterForConditionalGeneration


class TranslationTrainer(TaskTrainer):
    """A `TaskTrainer` that validates by translating.

    Args:
        tokenizer: the joint vocabulary.
        valid: validation pairs.
        search: how validation translations are searched for during training.
        samples: translations shown at each validation.
        say: where they are shown.
        **kwargs: as for `TaskTrainer`.
    """

    metric, greater = "bleu", True

    def __init__(
        self,
        *,
        tokenizer: PreTrainedTokenizerFast,
        valid: Pairs,
        search: Decoding,
        samples: int,
        say: Callable[[str], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tokenizer, self.valid, self.search = tokenizer, valid, search
        self.samples, self.say = samples, say

    def validation(self, model: Any) -> dict[str, float]:
        """Loss, perplexity and BLEU of the validation pairs; shows a few translations."""
        found = validate(model, self.tokenizer, self.valid, self.search)
        shown = zip(self.valid.source, self.valid.target, found.translations, strict=True)
        for source, reference, translation in list(shown)[: self.samples]:
            self.say(f"  source      {source}\n  reference   {reference}\n  translation {translation}")
        return found.metrics


def make_trainer(
    training: Training,
    run: Path,
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    examples: TokenPairs,
    valid: Pairs,
    say: Callable[[str], None] = print,
) -> TranslationTrainer:
    """The Trainer of a run, ready to train.

    Args:
        training: the settings of the optimisation.
        run: directory of the run.
        model: to train.
        tokenizer: the joint vocabulary.
        examples: encoded training pairs; see `check_lengths`.
        valid: validation pairs.
        say: where a person is told about the training.
    """
    return TranslationTrainer(
        tokenizer=tokenizer,
        valid=valid,
        search=Decoding(beam=training.validate_beam),
        samples=training.samples,
        say=say,
        training=training,
        run=run,
        model=model,
        lengths=examples.lengths,
        label_smoothing=training.label_smoothing,
        train_dataset=examples,
        data_collator=functools.partial(_batch, tokenizer.pad_token_id, model),
    )


def check_lengths(
    model: FloaterForConditionalGeneration, examples: TokenPairs, valid: TokenPairs, max_tokens: int | None
) -> None:
    """Check that the pairs fit into a batch, into learned positions and below the horizon of random times.

    Args:
        model: to train.
        examples: encoded training pairs.
        valid: encoded validation pairs.
        max_tokens: the most tokens of a training batch; None for any number.

    Raises:
        DataError: if a pair does not fit.
    """
    table, times = model.encoder.position.bound, model.encoder.times
    horizon = None if times is None else times.horizon
    for name, pairs, bound, what in (
        ("training", examples, max_tokens, "training.max_tokens"),
        ("training", examples, table, "the learned positions of model.max_length"),
        ("training", examples, horizon, "the horizon of random times, times.max_scale x model.max_length"),
        ("validation", valid, table, "the learned positions of model.max_length"),
    ):
        longest = max(pairs.lengths)
        if bound is not None and longest > bound:
            raise DataError(
                f"a {name} pair has {longest} tokens, more than {what}, {bound}; raise that"
                + (", or leave long pairs out with data.max_tokens" if name == "training" else "")
            )


def _batch(
    pad: int, model: FloaterForConditionalGeneration, examples: Sequence[Example]
) -> dict[str, Tensor]:
    batch = collate(examples, pad=pad)
    return batch | model.training_inputs(batch["labels"])
