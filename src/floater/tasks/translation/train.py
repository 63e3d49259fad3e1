"""Training a translation model, from its settings to its directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from floater.tasks.text import DataError
from floater.tasks.translation.data import Corpus, TokenPairs, load_corpus
from floater.tasks.translation.run import (
    MODEL,
    RESULT,
    begin_run,
    fill,
    find_run,
    load_run,
    save_whole,
    vocabulary,
    write_json,
)
from floater.tasks.translation.settings import TranslationSettings
from floater.tasks.translation.trainer import TranslationTrainer, check_lengths, make_trainer, patience_ends
from floater.tasks.translation.validation import validate
from floater.tasks.translation.warm import is_position, warm_started
from floater.training import average, checkpoints, last_checkpoint
from floater.transformer import FloaterForConditionalGeneration

Say = Callable[[str], None]


def train(settings: TranslationSettings) -> Path:
    """Train a translation model, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the warm start or the run directory is not what it must be.
    """
    state = PartialState(cpu=not torch.accelerator.is_available())
    say = _say if state.is_main_process else _quiet
    run = find_run(settings)
    if (run / MODEL).is_dir():
        say(f"{run} is finished; its model is in {run / MODEL}")
        return run
    corpus = load_corpus(settings.data, say)
    with state.main_process_first():
        tokenizer, model, examples = _parts(settings, run, corpus, say)
        begin_run(run, settings, tokenizer)
    trainer = make_trainer(settings.training, run, model, tokenizer, examples, corpus.valid, say)
    _train_on(trainer, last_checkpoint(run), settings.training.patience, say)

    chosen = _chosen(run, settings.training.average, trainer.state)
    fill(model, average(chosen), str(run))
    result = _result(trainer.state, chosen)
    if settings.training.validate_every != "never":
        found = validate(model, tokenizer, corpus.valid, settings.decoding)
        result |= found.metrics | {"cut_translations": found.cut}
    if state.is_main_process:
        write_json(run / RESULT, result)
        save_whole(run / MODEL, model, tokenizer)
    state.wait_for_everyone()
    say(f"{run / MODEL}: " + ", ".join(f"{k} {v}" for k, v in result.items()))
    return run


def _parts(
    settings: TranslationSettings, run: Path, corpus: Corpus, say: Say
) -> tuple[PreTrainedTokenizerFast, FloaterForConditionalGeneration, TokenPairs]:
    """The vocabulary, the model before its first step, and the encoded training pairs."""
    start, most = settings.training.warm_start, settings.data.max_tokens
    trained = None if start is None else load_run(start, "cpu")[0]
    tokenizer = vocabulary(settings, run, corpus.train)
    config = settings.model.config(len(tokenizer))
    set_seed(settings.training.seed)
    if start is None or trained is None:
        model = FloaterForConditionalGeneration(config)
    else:
        model = warm_started(config, trained, start)
    examples = TokenPairs(corpus.train, tokenizer, most)
    check_lengths(model, examples, TokenPairs(corpus.valid, tokenizer), settings.training.max_tokens)
    if examples.dropped:
        say(f"{examples.dropped:,} training pairs of more than {most} tokens left out")
    positions = sum(p.numel() for name, p in model.named_parameters() if is_position(name))
    say(f"{model.num_parameters():,} parameters, {positions:,} in position models; {len(tokenizer):,} tokens")
    return tokenizer, model, examples


def _train_on(trainer: TranslationTrainer, checkpoint: Path | None, patience: int, say: Say) -> None:
    """Train from a checkpoint or from the start, unless the checkpoint is where the patience ended."""
    if checkpoint is None:
        trainer.train()
        return
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    say(f"going on from {checkpoint}")
    if patience_ends(state.log_history, patience):
        trainer.state = state
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint))


def _chosen(run: Path, count: int, state: TrainerState) -> list[Path]:
    """The checkpoints whose mean is the final model: the last ones, or for 0 the best one."""
    if count:
        return checkpoints(run)[-count:]
    if state.best_model_checkpoint is None:
        raise DataError(f"{run}: training ended before a validation, so there is no best checkpoint")
    return [Path(state.best_model_checkpoint)]


def _result(state: TrainerState, chosen: list[Path]) -> dict[str, Any]:
    log = state.log_history
    return {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 3),
        "minutes": max((entry["minutes"] for entry in log), default=0.0),
        "averaged": [path.name for path in chosen],
        "best_valid_bleu": max((entry["eval_bleu"] for entry in log if "eval_bleu" in entry), default=None),
    }


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def _quiet(text: str) -> None:
    pass
