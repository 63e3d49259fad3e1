"""Training a checkpoint, or the flow in it alone, to predict masked tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast, set_seed

from floater.settings import load
from floater.tasks.finetuning import Head, load_finished
from floater.tasks.finetuning.checkpoint import load_tokenizer, start
from floater.tasks.finetuning.features import readable
from floater.tasks.finetuning.train import check_flow
from floater.tasks.language_modeling.data import read_documents
from floater.tasks.language_modeling.score import Score, masked_score
from floater.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.tasks.masked_lm.data import Blocks
from floater.tasks.masked_lm.settings import MaskedLMSettings
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import SETTINGS, Say, begin_run, evaluating, trained
from floater.tasks.text import DataError

HEAD = Head(AutoModelForMaskedLM)


def train(settings: MaskedLMSettings) -> Path:
    """Train a checkpoint, or the flow in it alone, or go on with a run that was stopped.

    Source: Liu et al. 2020, sections 4.4 and B.3 (the flow is trained alone, for one epoch on WikiText-103).
    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings, data and checkpoint are found good.

    Args:
        settings: of the run. The loss before the first step is in its result, too, as `loss_before`.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the checkpoint or the run directory is not what it must be.
    """
    return trained(settings, _train)


def _train(settings: MaskedLMSettings, run: Path, state: PartialState, say: Say) -> Path:
    data = settings.data
    texts, valid = (read_documents(files, data.documents) for files in (data.train, data.valid))
    with state.main_process_first():
        tokenizer = load_tokenizer(settings.model.path)
        rows = _blocks(settings, tokenizer, texts)
        say(f"{len(texts):,} training documents: {sum(rows.lengths):,} tokens in {len(rows):,} rows")
        set_seed(settings.training.seed)
        model = start(settings.model, settings.plug, HEAD, tokenizer, say)
        check_flow(model, settings.training)
        check_schedule(settings.training, rows.lengths)
    score = _scorer(settings, tokenizer, valid)
    before = score(model).loss
    with _readable(rows), evaluating(model):
        model(torch.from_numpy(max(rows.rows, key=len)).long()[None])
    say(f"loss before training {before:.4f} nats a token")
    with state.main_process_first():
        begin_run(run, settings, tokenizer)
    trainer = LanguageModelTrainer(
        settings=settings,
        tokenizer=tokenizer,
        score=score,
        run=run,
        model=model,
        lengths=rows.lengths,
        train_dataset=rows,
    )

    def measure(model: PreTrainedModel) -> dict[str, float]:
        return {"loss_before": round(before, 4)} | score(model).metrics

    return trainer.finish(tokenizer, settings.training.average, measure, say)


def evaluate(run: str | Path, source: str | list[str]) -> Score:
    """Measure how well a run's final model predicts the masked tokens of a text.

    Args:
        run: a finished run directory.
        source: the text, a file or several.

    Raises:
        DataError: if the run or a file is not what it must be, or the model has too few positions for a row.
    """
    settings = load(MaskedLMSettings, Path(run) / SETTINGS)
    model, tokenizer = load_finished(run, HEAD)
    return _scorer(settings, tokenizer, read_documents(source, settings.data.documents))(model)


def _scorer(
    settings: MaskedLMSettings, tokenizer: PreTrainedTokenizerFast, texts: Sequence[Sequence[str]]
) -> Callable[[PreTrainedModel], Score]:
    rows, asked = _blocks(settings, tokenizer, texts), settings.evaluation

    def score(model: PreTrainedModel) -> Score:
        with _readable(rows):
            return masked_score(
                model,
                rows,
                masking=settings.masking,
                tokenizer=tokenizer,
                seed=asked.seed,
                max_tokens=asked.max_tokens,
            )

    return score


def _readable(rows: Blocks) -> AbstractContextManager[None]:
    return readable(f"rows of {max(rows.lengths)} tokens", "data.block")


def _blocks(
    settings: MaskedLMSettings, tokenizer: PreTrainedTokenizerFast, texts: Sequence[Sequence[str]]
) -> Blocks:
    if tokenizer.mask_token_id is None:
        raise DataError(f"{settings.model.path}: the tokenizer has no token to mask with")
    rows = Blocks(tokenizer, texts, settings.data.block)
    if not rows:
        raise DataError(f"{settings.model.path}: the tokenizer makes no token of the text")
    return rows
