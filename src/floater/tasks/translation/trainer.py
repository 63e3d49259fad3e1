"""The Hugging Face Trainer of a translation run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import (
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback

from floater.flow import FlowEncoder
from floater.tasks.text import DataError, Pairs
from floater.tasks.translation.data import Example, TokenPairs, collate
from floater.tasks.translation.run import LOG, write_json
from floater.tasks.translation.settings import Decoding, Training
from floater.tasks.translation.validation import validate
from floater.training import FloaterTrainer, FlowSchedule, TokenBatchSampler, adam, inverse_sqrt
from floater.transformer import FloaterForConditionalGeneration

TENSORBOARD = "tensorboard"


class TranslationTrainer(FloaterTrainer):
    """A `FloaterTrainer` that validates by translating and logs the minutes of a run.

    Args:
        tokenizer: the joint vocabulary.
        valid: validation pairs.
        search: how validation translations are searched for during training.
        samples: translations shown at each validation.
        say: where they are shown.
        **kwargs: as for `FloaterTrainer`.
    """

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
        self._began = time.perf_counter()
        self._minutes_before: float | None = None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Loss, perplexity and BLEU of the validation pairs, logged, and a few translations."""
        model = self.accelerator.unwrap_model(self.model)
        found = validate(model, self.tokenizer, self.valid, self.search)
        shown = zip(self.valid.source, self.valid.target, found.translations, strict=True)
        for source, reference, translation in list(shown)[: self.samples]:
            self.say(f"  source      {source}\n  reference   {reference}\n  translation {translation}")
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
    average_only = training.average > 0
    args = TrainingArguments(
        output_dir=str(run),
        use_cache=True,  # else the Trainer turns the key/value cache off in the model's configuration
        num_train_epochs=training.epochs,
        max_steps=training.max_steps or -1,
        learning_rate=training.lr,
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.eps,
        max_grad_norm=training.clip,
        gradient_accumulation_steps=training.accumulation,
        label_smoothing_factor=training.label_smoothing,
        bf16=training.bf16,
        use_cpu=not torch.accelerator.is_available(),
        seed=training.seed,
        logging_steps=training.log_every,
        report_to="none",
        eval_strategy=_strategy(training.validate_every),
        eval_steps=_steps(training.validate_every),
        save_strategy=_strategy(training.save_every),
        save_steps=_steps(training.save_every) or 500,
        save_total_limit=training.keep,
        # the best checkpoint is kept beyond the last ones, so one is named only where it is wanted
        metric_for_best_model=None if average_only else "bleu",
        greater_is_better=None if average_only else True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=_sometimes_unused(model),
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
    callbacks: list[TrainerCallback] = [WholeLog(), Patience(training.patience)]
    if args.process_index == 0:
        callbacks.append(TensorBoardCallback(SummaryWriter(str(run / TENSORBOARD))))
    if flow:
        callbacks.append(FlowSchedule(training.flow.update_every))
    return TranslationTrainer(
        tokenizer=tokenizer,
        valid=valid,
        search=Decoding(beam=training.validate_beam),
        samples=training.samples,
        say=say,
        model=model,
        args=args,
        train_dataset=examples,
        eval_dataset=examples,  # the Trainer wants one; `evaluate` has its own
        data_collator=functools.partial(_batch, tokenizer.pad_token_id, model),
        train_batch_sampler=sampler,
        optimizers=(optimizer, inverse_sqrt(optimizer, warmup=training.warmup, initial=training.initial_lr)),
        callbacks=callbacks,
    )


def check_lengths(
    model: FloaterForConditionalGeneration, examples: TokenPairs, valid: TokenPairs, max_tokens: int
) -> None:
    """Check that the pairs fit into a batch and into learned positions.

    Args:
        model: to train.
        examples: encoded training pairs.
        valid: encoded validation pairs.
        max_tokens: the most tokens of a training batch.

    Raises:
        DataError: if a pair does not fit.
    """
    table = model.encoder.position.bound
    for name, pairs, bound, what in (
        ("training", examples, max_tokens, "training.max_tokens"),
        ("training", examples, table, "the learned positions of model.max_length"),
        ("validation", valid, table, "the learned positions of model.max_length"),
    ):
        longest = max(pairs.lengths)
        if bound is not None and longest > bound:
            raise DataError(
                f"a {name} pair has {longest} tokens, more than {what}, {bound}; raise that"
                + (", or leave long pairs out with data.max_tokens" if name == "training" else "")
            )


class WholeLog(TrainerCallback):
    """Keep the whole log of a run in one JSON file."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write it anew."""
        if state.is_world_process_zero:
            write_json(Path(str(args.output_dir)) / LOG, state.log_history)


class Patience(TrainerCallback):
    """Stop training after a number of validations without a better BLEU; 0 never stops it.

    It reads the log, which a checkpoint holds, so that a resumed run stops where a whole one does.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if the patience is at its end."""
        control.should_training_stop |= patience_ends(state.log_history, self.patience)


def patience_ends(log: Sequence[dict[str, float]], patience: int) -> bool:
    """Whether the last `patience` validations brought no better BLEU than one before them.

    Example:
        >>> log = [{"eval_bleu": 1.0}, {"eval_bleu": 3.0}, {"loss": 2.0}, {"eval_bleu": 3.0}]
        >>> patience_ends(log, 1), patience_ends(log, 2), patience_ends(log, 0)
        (True, False, False)
    """
    bleu = [entry["eval_bleu"] for entry in log if "eval_bleu" in entry]
    return bool(bleu) and 0 < patience < len(bleu) - bleu.index(max(bleu))


def _batch(
    pad: int, model: FloaterForConditionalGeneration, examples: Sequence[Example]
) -> dict[str, torch.Tensor]:
    batch = collate(examples, pad=pad)
    return batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(batch["labels"])}


def _sometimes_unused(model: FloaterForConditionalGeneration) -> bool:
    """Whether some steps give some parameters no gradient, as a flow that is reused does."""
    return any(isinstance(module, FlowEncoder) and module.refresh_every > 1 for module in model.modules())


def _strategy(every: int | str) -> str:
    return "steps" if isinstance(every, int) else {"epoch": "epoch", "never": "no"}[every]


def _steps(every: int | str) -> int | None:
    return every if isinstance(every, int) else None
