"""Causal language modelling with a Hugging Face checkpoint, for example to train a longer context."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForCausalLM

from floater.errors import DataError
from floater.lab.tasks.causal import causal_loss
from floater.lab.tasks.causal_lm.score import causal_batch, passkeys
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.examples import Collate, Encoded
from floater.lab.tasks.finetuning.extension import Extend
from floater.lab.tasks.finetuning.text import TextSettings, TextTask, as_rows, documents_of, special
from floater.lab.tasks.language_modeling.data import Rows
from floater.lab.tasks.language_modeling.far import doubling, ranges
from floater.lab.tasks.measurement import Measurement, check_edges, perplexity
from floater.lab.tasks.prepared import Prepared
from floater.lab.tasks.registry import register
from floater.lab.training.files import read_record
from floater.lab.training.run import RESULT, RunPath
from floater.lab.training.settings import check_numbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluation.

    Attributes:
        max_tokens: maximum number of tokens in a batch.
        length: number of tokens of the long rows, in the result and in `floater evaluate`; null takes
            extend.length, or data.block if that is null.
        rows: maximum number of long rows that are scored, evenly spaced in the text.
        trials: number of texts with a hidden number for each length and depth, in `floater evaluate`; 0 for
            none.
        depths: number of depths of the hidden number, from the beginning of a text to its end.
    """

    max_tokens: int = 4096
    length: int | None = None
    rows: int = 64
    trials: int = 0
    depths: int = 5

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens", "rows", "depths"), length=2, trials=0)


@dataclass(frozen=True, kw_only=True)
class CausalLMSettings(TextSettings):
    """A causal_lm run.

    Attributes:
        evaluation: settings of the evaluation.
    """

    task: Literal["causal_lm"] = "causal_lm"
    evaluation: Evaluation = field(default_factory=Evaluation)

    @property
    def longest(self) -> int:
        """Return the number of tokens of the long rows."""
        return self.evaluation.length or self.extend.length or self.data.block


@register("causal_lm")
class CausalLM(TextTask):
    """Prediction of the next token by a checkpoint, extended or not.

    The result contains the loss of validation rows as `loss`, that before the first step as `loss_before`,
    and that of the checkpoint before its extension as `loss_original`. The loss of long rows is `long_loss`,
    and before the first step `long_loss_before`.
    """

    Settings = CausalLMSettings
    Auto = AutoModelForCausalLM
    later = True

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Rows:
        rows = rows_of(processor, examples, settings.data.block)
        return replace(rows, source=None if training else examples)

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        return functools.partial(causal_batch, tokenizer=processor)

    def loss(self, prepared: Prepared) -> Any:
        return causal_loss

    def before(self, prepared: Prepared) -> dict[str, Any]:
        losses = {f"{name}_before": value for name, value in self._losses(prepared).items()}
        settings = prepared.settings
        if settings.extend.length is not None:
            as_it_was = replace(settings, extend=Extend(), train="all")
            original = super().build(as_it_was, prepared.processor, prepared.train)
            rows = self.score(settings, original, prepared.processor, prepared.valid)
            losses["loss_original"] = rows.scores["loss"]
            prepared.processor.model_max_length = settings.extend.length
        logger.info("before training: %s", ", ".join(f"{k} {v}" for k, v in losses.items()))
        return losses

    def final(self, prepared: Prepared) -> dict[str, Any]:
        return super().final(prepared) | self._losses(prepared)

    def _losses(self, prepared: Prepared) -> dict[str, float]:
        """Return the loss of validation rows, and of long rows if these are longer."""
        settings = prepared.settings
        losses = {"loss": self.validate(prepared).scores["loss"]}
        if settings.longest > settings.data.block:
            rows = long_rows(prepared.processor, prepared.valid.source, settings.longest, settings.evaluation)
            long = self.score(settings, prepared.model, prepared.processor, rows)
            losses["long_loss"] = long.scores["loss"]
        return losses

    def evaluate(
        self,
        run: RunPath,
        source: Any = None,
        window: int | None = None,
        bins: Sequence[int] | None = None,
    ) -> Measurement:
        """Measure the final model of a run on short and long rows of a text, and on hidden numbers.

        Args:
            run: directory of a finished run.
            source: file or files of the text; None for the run's validation text.
            window: number of tokens of the long rows; None for that of the run.
            bins: bounds of the ranges of context (number of tokens read before) whose loss is reported: the
                first number of each range but the first; None for data.block, twice as much, and so on.

        Raises:
            DataError: if the run or a file is not valid, or the model has too few positions.
        """
        model, tokenizer, settings = self.load(run)
        evaluation, length = settings.evaluation, window or settings.longest
        edges = doubling(settings.data.block, length) if bins is None else list(bins)
        check_edges(edges)
        texts = self.read_test(settings, source or with_split(settings.data.valid, "valid"))
        rows = self.encode(settings, tokenizer, texts), long_rows(tokenizer, texts, length, evaluation)
        short, long = (self.score(settings, model, tokenizer, part) for part in rows)
        by_context = ranges(long.losses, None, edges, length)
        report = [
            *_history(Path(run) / RESULT),
            *(
                f"rows of up to {most:,} tokens: perplexity {score.perplexity:.3f} "
                f"(loss {score.loss:.4f} nats a token)"
                for most, score in ((settings.data.block, short), (length, long))
            ),
            f"{'context':<14}{'tokens':>10}{'loss':>9}{'perplexity':>13}",
            *(
                f"{f'{part.low}-{part.high}':<14}{part.tokens:>10,}{part.loss:>9.4f}"
                f"{perplexity(part.loss):>13.3f}"
                for part in by_context
            ),
        ]
        scores = {"loss": short.scores["loss"], "long_loss": long.scores["loss"]}
        scores |= {f"loss_{part.low}_{part.high}": round(part.loss, 4) for part in by_context}
        for size in (*edges, length) if evaluation.trials else ():
            recall = passkeys(
                model, tokenizer, size, evaluation.depths, evaluation.trials, evaluation.max_tokens
            )
            scores[f"passkey_{size}"] = round(100 * float(np.mean(recall)), 2)
            depths = ", ".join(f"{100 * share:.0f}" for share in recall)
            report.append(f"passkey in {size:,} tokens: {scores[f'passkey_{size}']:g} % (by depth: {depths})")
        return Measurement(scores=scores, report="\n".join(report), bins=[part.record for part in by_context])


def _history(file: Path) -> list[str]:
    """Return a line of a report: perplexity before the extension, after it, and after the training."""
    if not file.is_file():
        return []
    result = read_record(file)
    names = {"loss_original": "as it was", "loss_before": "before training", "loss": "after it"}
    perplexities = [
        f"{when} {perplexity(result[name]):.3f}" for name, when in names.items() if name in result
    ]
    return [f"perplexity of validation rows: {', '.join(perplexities)}"]


def rows_of(tokenizer: Any, texts: Sequence[Sequence[str]], block: int) -> Rows:
    """Encode documents in rows of at most `block` tokens, at least one of which can be predicted.

    Each row begins with the special tokens that the tokenizer puts before a text. The special tokens after a
    text are placed at the end of a document, not of a row; otherwise a model would learn to end a text at
    that position.

    Raises:
        DataError: if there is no such row.
    """
    before, after = special(tokenizer)
    room = block - len(before)
    ended = ([*ids, *after] for ids in documents_of(tokenizer, texts))
    rows = as_rows(
        [*before, *ids[start : start + room]]
        for ids in ended
        for start in range(0, len(ids), room)
        if len(before) + len(ids) - start > 1
    )
    if not len(rows):
        raise DataError("the text has no token to predict")
    return rows


def long_rows(tokenizer: Any, texts: Any, length: int, evaluation: Evaluation) -> Encoded:
    """Encode a text in rows of a length, and choose `evaluation.rows` evenly spaced ones if there are more.

    The documents are concatenated, because each of them may be shorter than a row.
    """
    whole = [[line for document in texts for line in document]]
    rows = rows_of(tokenizer, whole, length)
    every = [rows[i] for i in range(len(rows))]
    full = [row for row in every if len(row["input_ids"]) == length] or every
    chosen = np.unique(np.linspace(0, len(full) - 1, min(evaluation.rows, len(full))).round().astype(int))
    selected = [full[i] for i in chosen]
    return Encoded(selected, [len(row["input_ids"]) for row in selected])
