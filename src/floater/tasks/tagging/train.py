"""Training a tagger, from its settings to its directory."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from floater.tasks.conllu import Sentence
from floater.tasks.tagging.data import TaggedSentences, Vocabulary, collate, read_sentences
from floater.tasks.tagging.run import structured
from floater.tasks.tagging.score import tag
from floater.tasks.tagging.settings import TaggingSettings, Training
from floater.tasks.text import DataError
from floater.tasks.translation.run import (
    MODEL,
    RESULT,
    VOCABULARY,
    begin_run,
    fill,
    find_run,
    save_whole,
    write_json,
)
from floater.tasks.translation.trainer import TENSORBOARD, WholeLog, sometimes_unused
from floater.training import (
    FloaterTrainer,
    FlowSchedule,
    TokenBatchSampler,
    adam,
    average,
    checkpoints,
    inverse_sqrt,
    last_checkpoint,
)
from floater.transformer import FloaterForTokenClassification

Say = Callable[[str], None]


class TaggingTrainer(FloaterTrainer):
    """A `FloaterTrainer` that validates by tagging and logs the minutes of a run.

    Args:
        vocabulary: of the model.
        valid: validation sentences.
        **kwargs: as for `FloaterTrainer`.
    """

    def __init__(self, *, vocabulary: Vocabulary, valid: Sequence[Sentence], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary, self.valid = vocabulary, valid
        self._began = time.perf_counter()
        self._minutes_before: float | None = None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Loss and accuracy of the validation sentences, logged."""
        found = tag(self.accelerator.unwrap_model(self.model), self.vocabulary, self.valid)
        metrics = {f"eval_{name}": value for name, value in found.metrics.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values, and with them the minutes of the run, those of earlier processes included."""
        if self._minutes_before is None:
            self._minutes_before = next((x["minutes"] for x in reversed(self.state.log_history)), 0.0)
        logs["minutes"] = round(self._minutes_before + (time.perf_counter() - self._began) / 60, 3)
        super().log(logs, start_time)


def train(settings: TaggingSettings) -> Path:
    """Train a tagger, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data or the run directory is not what it must be.
        PositionError: if the position model cannot serve the longest sentences, or those with the most words
            under one head.
    """
    state = PartialState(cpu=not torch.accelerator.is_available())
    say = _say if state.is_main_process else _quiet
    run = find_run(settings)
    if (run / MODEL).is_dir():
        say(f"{run} is finished; its model is in {run / MODEL}")
        return run
    trees = structured(settings.model.position)
    sentences = read_sentences(settings.data.train, structured=trees)
    valid = read_sentences(settings.data.valid, structured=trees)
    say(f"{len(sentences):,} training sentences, {len(valid):,} validation sentences")
    with state.main_process_first():
        vocabulary, model, examples = _parts(settings, run, sentences, valid, say)
        begin_run(run, settings, vocabulary)
    trainer = make_trainer(settings.training, run, model, examples, valid)
    checkpoint = last_checkpoint(run)
    if checkpoint is not None:
        say(f"going on from {checkpoint}")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    best = trainer.state.best_model_checkpoint
    chosen = checkpoints(run)[-settings.training.average :] if best is None else [Path(best)]
    fill(model, average(chosen), str(run))
    log = trainer.state.log_history
    result = {
        "steps": trainer.state.global_step,
        "epochs": round(trainer.state.epoch or 0.0, 3),
        "minutes": max((entry["minutes"] for entry in log), default=0.0),
        "averaged": [path.name for path in chosen],
        **tag(model, vocabulary, valid).metrics,
    }
    if state.is_main_process:
        write_json(run / RESULT, result)
        save_whole(run / MODEL, model, vocabulary)
    state.wait_for_everyone()
    say(f"{run / MODEL}: " + ", ".join(f"{k} {v}" for k, v in result.items()))
    return run


def _parts(
    settings: TaggingSettings, run: Path, sentences: list[Sentence], valid: list[Sentence], say: Say
) -> tuple[Vocabulary, FloaterForTokenClassification, TaggedSentences]:
    """The vocabulary, the model before its first step, and the encoded training sentences."""
    data, most = settings.data, settings.training.max_tokens
    if (run / VOCABULARY).is_dir():
        vocabulary = Vocabulary.from_pretrained(run / VOCABULARY)
    else:
        vocabulary = Vocabulary.of(sentences, data.min_count, data.suffix)
    examples = TaggedSentences(sentences, vocabulary, data.max_tokens)
    if max(examples.lengths) > most:
        raise DataError(
            f"a training sentence has {max(examples.lengths)} words, more than training.max_tokens, {most}; "
            "raise that, or leave long sentences out with data.max_tokens"
        )
    config = settings.model.config(len(vocabulary), vocabulary.tags, 1 + len(vocabulary.relations))
    set_seed(settings.training.seed)
    model = FloaterForTokenClassification(config)
    _check_positions(model, examples, TaggedSentences(valid, vocabulary))
    if examples.dropped:
        say(f"{examples.dropped:,} training sentences of more than {data.max_tokens} words left out")
    positions = sum(p.numel() for p in model.model.encoder.position.parameters())
    say(
        f"{model.num_parameters():,} parameters, {positions:,} in the position model; "
        f"{len(vocabulary):,} words, {len(vocabulary.tags)} tags, {len(vocabulary.relations)} relations"
    )
    return vocabulary, model, examples


@torch.no_grad()
def _check_positions(model: FloaterForTokenClassification, *parts: TaggedSentences) -> None:
    """Let the position model see the hardest sentences, so that it may refuse them before the training."""
    trees = structured(model.config.position)
    model.train(False)
    for examples in parts:
        for index in examples.extremes():
            batch = collate([examples[index]], structured=trees)
            batch.pop("labels")
            model(**batch)
    model.train()


def make_trainer(
    training: Training,
    run: Path,
    model: FloaterForTokenClassification,
    examples: TaggedSentences,
    valid: Sequence[Sentence],
) -> TaggingTrainer:
    """The Trainer of a run, ready to train.

    Args:
        training: the settings of the optimisation.
        run: directory of the run.
        model: to train.
        examples: encoded training sentences.
        valid: validation sentences.
    """
    every = training.save_every
    when = {"epoch": "epoch"}.get(str(every), "steps")
    steps = every if isinstance(every, int) else 500
    args = TrainingArguments(
        output_dir=str(run),
        num_train_epochs=training.epochs,
        max_steps=training.max_steps or -1,
        learning_rate=training.lr,
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.eps,
        max_grad_norm=training.clip,
        label_smoothing_factor=training.label_smoothing,
        bf16=training.bf16,
        use_cpu=not torch.accelerator.is_available(),
        seed=training.seed,
        logging_steps=training.log_every,
        report_to="none",
        eval_strategy=when,
        eval_steps=steps,
        save_strategy=when,
        save_steps=steps,
        save_total_limit=training.keep,
        # the best checkpoint is kept beyond the last ones, so one is named only where it is wanted
        metric_for_best_model=None if training.average else "accuracy",
        greater_is_better=None if training.average else True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=sometimes_unused(model),
    )
    sampler = TokenBatchSampler(
        examples.lengths,
        training.max_tokens,
        seed=training.seed,
        shuffle=True,
        world_size=args.world_size,
        rank=args.process_index,
    )
    flow = {name for name, _ in model.named_parameters() if ".flows." in name}
    optimizer = adam(model, args, is_flow=flow.__contains__, flow_lr_multiplier=training.flow.lr_multiplier)
    callbacks: list[TrainerCallback] = [WholeLog()]
    if args.process_index == 0:
        callbacks.append(TensorBoardCallback(SummaryWriter(str(run / TENSORBOARD))))
    if flow:
        callbacks.append(FlowSchedule(training.flow.update_every))
    return TaggingTrainer(
        vocabulary=examples.vocabulary,
        valid=valid,
        model=model,
        args=args,
        train_dataset=examples,
        eval_dataset=examples,  # the Trainer wants one; `evaluate` has its own
        data_collator=functools.partial(collate, structured=structured(model.config.position)),
        train_batch_sampler=sampler,
        optimizers=(optimizer, inverse_sqrt(optimizer, warmup=training.warmup, initial=training.initial_lr)),
        callbacks=callbacks,
    )


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def _quiet(text: str) -> None:
    pass
