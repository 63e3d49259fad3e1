"""Training a translation model on the Hugging Face Trainer."""

from __future__ import annotations

import functools
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from floater.flow import FlowEncoder
from floater.tasks.text import Pairs
from floater.tasks.translation.data import IGNORED, TokenPairs, collate, load_corpus
from floater.tasks.translation.decode import CutTranslation, load_run, translate
from floater.tasks.translation.run import LOG, MODEL, open_run, save_whole, vocabulary, write_json
from floater.tasks.translation.settings import Decoding, TranslationSettings
from floater.tasks.translation.warm import warm_started
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
from floater.transformer import FloaterForConditionalGeneration

RESULT = "result.json"


def train(settings: TranslationSettings) -> Path:
    """Train a translation model, or go on with a run that was stopped.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the warm start or the run directory is not what it must be.
    """
    state = PartialState()
    say = _say if state.is_main_process else _quiet
    with state.main_process_first():
        run = open_run(settings)
    if (run / MODEL).is_dir():
        say(f"{run} is finished; its model is in {run / MODEL}")
        return run
    corpus = load_corpus(settings.data, say)
    with state.main_process_first():
        tokenizer = vocabulary(settings, run, corpus.train)
    training, data = settings.training, settings.data
    examples = TokenPairs(corpus.train, tokenizer, data.max_tokens)
    if examples.dropped:
        say(f"{examples.dropped:,} training pairs of more than {data.max_tokens} tokens left out")

    set_seed(training.seed)
    config = settings.model.config(len(tokenizer))
    if training.warm_start is None:
        model = FloaterForConditionalGeneration(config)
    else:
        model = warm_started(config, load_run(training.warm_start)[0], training.warm_start)
    say(f"{model.num_parameters():,} parameters, {_flow_parameters(model):,} in position models; {len(tokenizer):,} tokens")

    trainer = make_trainer(settings, run, model, tokenizer, examples, corpus.valid, say)
    resume = last_checkpoint(run)
    if resume is not None:
        say(f"going on from {resume}")
    began = time.perf_counter()
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    minutes = (time.perf_counter() - began) / 60

    if training.average:
        chosen = checkpoints(run)[-training.average :]
    else:
        chosen = [Path(str(trainer.state.best_model_checkpoint))]
    model.load_state_dict(average(chosen), strict=False)
    model.tie_weights()
    result = {
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "minutes": round(minutes, 2),
        "averaged": [path.name for path in chosen],
        "best_valid_bleu": trainer.state.best_metric,
    }
    if training.validate_every != "never":
        result |= trainer.validate(settings.decoding)
    if state.is_main_process:
        save_whole(run / MODEL, model, tokenizer)
        write_json(run / RESULT, result)
    state.wait_for_everyone()
    say(f"{run / MODEL}: " + ", ".join(f"{k} {v}" for k, v in result.items()))
    return run


class TranslationTrainer(FloaterTrainer):
    """A `FloaterTrainer` that validates by translating.

    Args:
        tokenizer: the joint vocabulary.
        valid: validation pairs.
        search: how validation translations are searched for during training.
        samples: translations shown at each validation.
        say: where they are shown.
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
        self.tokenizer, self.valid, self.search, self.samples, self.say = tokenizer, valid, search, samples, say

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {f"eval_{name}": value for name, value in self.validate(self.search, self.samples).items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def validate(self, search: Decoding, samples: int = 0) -> dict[str, float]:
        """Loss per token (nats, not smoothed), perplexity and BLEU of the validation pairs.

        The pairs are shared out among the processes.
        """
        model = self.accelerator.unwrap_model(self.model)
        assert isinstance(model, FloaterForConditionalGeneration)
        rank, world = self.args.process_index, self.args.world_size
        mine = Pairs(self.valid.source[rank::world], self.valid.target[rank::world], 0)
        nats, count = 0.0, 0
        hypotheses: list[str] = []
        if mine.source:
            nats, count = token_loss(model, self.tokenizer, mine)
            with warnings.catch_warnings():
                # early in training many outputs do not end; the final scores say so where it matters
                warnings.simplefilter("ignore", CutTranslation)
                hypotheses = translate(model, self.tokenizer, mine.source, search)
        gathered = gather_object([(rank, nats, count, hypotheses)]) if world > 1 else [(rank, nats, count, hypotheses)]
        nats, count = sum(part[1] for part in gathered), sum(part[2] for part in gathered)
        ordered = [""] * len(self.valid.source)
        for part_rank, _, _, part in gathered:
            ordered[part_rank::world] = part
        for source, reference, hypothesis in list(zip(self.valid.source, self.valid.target, ordered, strict=True))[
            :samples
        ]:
            self.say(f"  source      {source}\n  reference   {reference}\n  translation {hypothesis}")
        loss = nats / count
        bleu = sacrebleu.corpus_bleu(ordered, [self.valid.target]).score
        return {"loss": round(loss, 4), "perplexity": round(math.exp(min(loss, 700)), 3), "bleu": round(bleu, 2)}


def make_trainer(
    settings: TranslationSettings,
    run: Path,
    model: FloaterForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    examples: TokenPairs,
    valid: Pairs,
    say: Callable[[str], None] = print,
) -> TranslationTrainer:
    """The Trainer of a run, ready to train."""
    training = settings.training
    validates = training.validate_every != "never"
    args = TrainingArguments(
        output_dir=str(run),
        per_device_eval_batch_size=64,
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
        seed=training.seed,
        logging_steps=50,
        report_to=["tensorboard"],
        eval_strategy=_strategy(training.validate_every),
        eval_steps=_steps(training.validate_every),
        save_strategy=_strategy(training.save_every),
        save_steps=_steps(training.save_every) or 500,
        save_total_limit=training.keep,
        metric_for_best_model="bleu" if validates else None,
        greater_is_better=True if validates else None,
        remove_unused_columns=False,
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
    callbacks: list[TrainerCallback] = [WholeLog()]
    if flow:
        callbacks.append(FlowSchedule(training.flow.update_every))
    if training.patience:
        callbacks.append(EarlyStoppingCallback(training.patience))
    return TranslationTrainer(
        tokenizer=tokenizer,
        valid=valid,
        search=Decoding(beam=training.validate_beam),
        samples=training.samples,
        say=say,
        model=model,
        args=args,
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=functools.partial(_batch, tokenizer.pad_token_id, model),
        train_batch_sampler=sampler,
        optimizers=(optimizer, inverse_sqrt(optimizer, warmup=training.warmup, initial=training.initial_lr)),
        callbacks=callbacks,
    )


@torch.no_grad()
def token_loss(
    model: FloaterForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, pairs: Pairs, max_tokens: int = 4096
) -> tuple[float, int]:
    """Sum of the cross-entropy (nats, not smoothed) over the target tokens, and their number."""
    training = model.training
    model.eval()
    examples = TokenPairs(pairs, tokenizer)
    budget = max(max_tokens, max(examples.lengths))
    loader = DataLoader(
        examples,
        batch_sampler=TokenBatchSampler(examples.lengths, budget, seed=0, shuffle=False),
        collate_fn=functools.partial(collate, pad=tokenizer.pad_token_id),
    )
    nats, count = 0.0, 0
    for batch in loader:
        batch = {name: value.to(model.device) for name, value in batch.items()}
        logits = model(**batch).logits.flatten(0, 1).float()
        nats += float(F.cross_entropy(logits, batch["labels"].flatten(), reduction="sum"))
        count += int((batch["labels"] != IGNORED).sum())
    model.train(training)
    return nats, count


class WholeLog(TrainerCallback):
    """Keep the whole log of a run in one JSON file."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            write_json(Path(str(args.output_dir)) / LOG, state.log_history)


def _batch(pad: int, model: FloaterForConditionalGeneration, examples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = collate(examples, pad=pad)
    return batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(batch["labels"])}


def _flow_parameters(model: FloaterForConditionalGeneration) -> int:
    from floater.tasks.translation.warm import is_position

    return sum(p.numel() for name, p in model.named_parameters() if is_position(name))


def _sometimes_unused(model: FloaterForConditionalGeneration) -> bool:
    """Whether some steps give some parameters no gradient, as a flow that is reused does."""
    return any(isinstance(module, FlowEncoder) and module.refresh_every > 1 for module in model.modules())


def _strategy(every: int | str) -> str:
    return "steps" if isinstance(every, int) else {"epoch": "epoch", "never": "no"}[every]


def _steps(every: int | str) -> int | None:
    return every if isinstance(every, int) else None


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def _quiet(text: str) -> None:
    pass
