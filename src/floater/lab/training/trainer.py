"""A Trainer with token batches, atomic checkpoints and exact token averages."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.data_loader import prepare_data_loader
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import ProgressCallback, Trainer, TrainingArguments
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.trainer import TRAINER_STATE_NAME

from floater.errors import DataError, first_line
from floater.flow import FlowEncoder
from floater.lab.interruption import ignore_in_worker
from floater.lab.training.batches import BatchSampler, StreamSampler
from floater.lab.training.checkpoints import (
    checkpoints,
    clear_staging,
    interrupted_checkpoints,
    keep_last,
    publish,
    remove,
    staging,
)
from floater.lab.training.files import MANIFEST, damage
from floater.lab.training.loss import LossFunction, smoothed_loss, with_auxiliary_loss
from floater.lab.training.progress import TrainingProgress
from floater.lab.training.resuming import check_complete, check_optimizer, check_scheduler, solver_states
from floater.transformer.outputs import IGNORED


class FloaterTrainer(Trainer):
    """A Trainer for sequence models, with these differences.

    - Training batches are those of ``train_batch_sampler``, which have a number of tokens, not of examples.
    - The loss is the mean over all label tokens of an update, over its accumulated parts on all processes.
      It is ``smoothed_loss(args.label_smoothing_factor)`` unless ``compute_loss_func`` is given. The
      auxiliary loss of the model's outputs, such as the ponder cost of models that halt, is added. The
      labels are not given to the model, so an encoder-decoder needs ``decoder_input_ids`` in its batches.
    - Among checkpoints with equal scores the last one is the best.
    - A checkpoint is on the disk completely or not at all, even if the process is killed while it is
      written or removed. ``args.save_total_limit`` keeps the last checkpoints, and the best one. A
      checkpoint that has changed since it was written, lacks a state, or has the states of other parameters
      is refused before the first step.
    - The solver of a ``FlowEncoder`` is reset at each checkpoint of the schedule, so that a resumed run
      equals one that was not stopped. A checkpoint between these contains the state of the solver.
    - Logs have ``tokens_per_second``: the number of tokens that the model reads (those with a label, in a
      batch with ``decoder_input_ids`` or without an ``attention_mask``) divided by the time in training,
      without evaluation.
    - Resuming a run that has reached its last step trains no further step.

    Args:
        train_batch_sampler: batches of ``train_dataset`` for this process, that is with
            ``args.world_size`` and ``args.process_index``. None for the Trainer's own batches.
        compute_loss_func: loss function of the outputs and labels, which divides by
            ``num_items_in_batch``.
        keep_steps: steps whose checkpoints are kept in addition to those of ``args.save_total_limit``.
        **kwargs: arguments of ``transformers.Trainer``.

    Raises:
        ValueError: the sampler is for other data or processes than the Trainer's, or a setting in
            ``args`` conflicts with the properties above.

    Example:
        >>> import tempfile
        >>> from floater.lab.training import TokenBatchSampler
        >>> from transformers import BartConfig, BartForConditionalGeneration
        >>> config = BartConfig(
        ...     vocab_size=8, d_model=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        ...     decoder_attention_heads=1, encoder_ffn_dim=4, decoder_ffn_dim=4, max_position_embeddings=8,
        ... )
        >>> sampler = TokenBatchSampler([2, 3], max_tokens=6, seed=0, shuffle=True)
        >>> args = TrainingArguments(tempfile.mkdtemp(), disable_tqdm=True, use_cpu=True)
        >>> trainer = FloaterTrainer(
        ...     model=BartForConditionalGeneration(config), args=args, train_dataset=[{}, {}],
        ...     train_batch_sampler=sampler,
        ... )
        >>> len(trainer.get_train_dataloader())
        1
    """

    args: TrainingArguments

    def __init__(
        self,
        *,
        train_batch_sampler: BatchSampler | StreamSampler | None = None,
        compute_loss_func: LossFunction | None = None,
        keep_steps: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        own_loss = compute_loss_func is None
        smoothing = getattr(kwargs.get("args"), "label_smoothing_factor", 0.0)
        super().__init__(
            compute_loss_func=with_auxiliary_loss(compute_loss_func or smoothed_loss(smoothing)), **kwargs
        )
        self.train_batch_sampler, self.keep_steps = train_batch_sampler, keep_steps
        self._saving_to: Path | None = None
        self._tokens: Tensor | int = 0
        self._since: float | None = None
        self._seconds = 0.0
        _check_arguments(self.args)
        if own_loss and _is_causal(self.model):
            raise ValueError(
                f"labels of {type(self.model).__name__} are not aligned with logits; give compute_loss_func"
            )
        if train_batch_sampler is not None:
            _check_sampler(train_batch_sampler, self.train_dataset, self.args)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(TrainingProgress)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as ``transformers.Trainer.train`` does, after removing unfinished checkpoints.

        Raises:
            DataError: the checkpoint to resume from has changed since it was written or does not fit the
                optimizer, or a checkpoint cannot be written.
        """
        if self.args.should_save:
            clear_staging(str(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        self._tokens, self._since, self._seconds = 0, None, 0.0
        self.forget_steps()
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of the batch sampler, or the Trainer's own batches if there is none."""
        if self.train_batch_sampler is None:
            return super().get_train_dataloader()
        loader = DataLoader(
            cast(Dataset[Any], self.train_dataset),
            batch_sampler=self.train_batch_sampler,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            in_order=self.args.dataloader_in_order,
            worker_init_fn=ignore_in_worker,
        )
        # As if there were one process: the sampler already returns each process's share.
        prepared = prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=self.accelerator.device_placement,
            non_blocking=self.accelerator.non_blocking,
        )
        return cast(DataLoader[Any], prepared)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return the batches of one update and the number of their label tokens on all processes."""
        if self._since is None:
            self._since = time.perf_counter()
        for flow in self.flows():
            flow.begin_step()
        batches, labels = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._tokens = sum(map(self.tokens_of, batches), self._tokens)
        return batches, labels

    def tokens_of(self, batch: Mapping[str, Any]) -> Tensor | int:
        """Return the number of tokens in a batch that the model reads, for the log."""
        if "attention_mask" in batch and "decoder_input_ids" not in batch:
            read: Tensor = batch["attention_mask"].sum()
            return read
        labels = batch.get("labels")
        return 0 if labels is None else (labels != IGNORED).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values; those of training get the tokens per second since the last training log."""
        if "loss" in logs and (self._since is not None or self._seconds):
            tokens = torch.as_tensor(self._tokens, device=self.args.device)
            tokens = self.accelerator.reduce(tokens) if self.args.world_size > 1 else tokens
            self._pause()
            logs["tokens_per_second"] = float(tokens) / self._seconds
            self._tokens, self._seconds = 0, 0.0
        super().log(logs, start_time)

    def _pause(self) -> None:
        """Stop measuring the training time until the next batch."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._pause()
        found: dict[str, float] = super()._evaluate(*args, **kwargs)
        return found

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if super()._determine_best_metric(metrics=metrics, trial=trial):
            return True
        # Of equal scores take the later one: it was trained longer, which a coarse score does not show.
        name = self.args.metric_for_best_model
        if name is None or metrics[f"eval_{name.removeprefix('eval_')}"] != self.state.best_metric:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:
            self.control.should_training_stop = True

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving_to or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(super()._get_output_dir(trial))
        self.forget_steps()
        self._write_checkpoint(run / f"checkpoint-{self.state.global_step}", model, trial)
        if self.args.should_save:
            remove(interrupted_checkpoints(run))
            self._remove_old(run, self.args.save_total_limit)
        self.accelerator.wait_for_everyone()

    def _write_checkpoint(self, checkpoint: Path, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint of this step to the given directory."""
        self._pause()
        run = checkpoint.parent
        written = staging(run / f"checkpoint-{self.state.global_step}")  # under the Trainer's own name
        with _writing(checkpoint):
            if self.args.should_save:
                clear_staging(run)
                written.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            with _torch_saving():  # before the model is saved, which may refresh its flows
                torch.save(self.step_state(), written / self._step_state_name)
            self._saving_to = written.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saving_to = None
            self._point_to_best(run)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                # The state was written with the hidden directory as the path of the best checkpoint.
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                publish(written, checkpoint)
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with _torch_saving():
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with _torch_saving():
            super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        # other Trainers write no manifest
        if Path(resume_from_checkpoint, MANIFEST).exists() and (why := damage(resume_from_checkpoint)):
            raise DataError(f"{resume_from_checkpoint} is damaged: {why}")
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.optimizer is not None and self.lr_scheduler is not None:
            scaler = getattr(self.accelerator, "scaler", None) is not None
            check_complete(Path(checkpoint), self.args.world_size, scaler)
            check_optimizer(Path(checkpoint), self.optimizer)
            check_scheduler(Path(checkpoint), self.lr_scheduler)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (file := Path(checkpoint, self._step_state_name)).is_file():
            saved = torch.load(file, map_location=self.args.device, weights_only=True)
            self.load_step_state(file, saved if isinstance(saved, dict) else {})

    def _finalize_training(self, trial: Any, *args: Any) -> Any:
        # The Trainer would remove all checkpoints but the best here, but not atomically.
        best = self.state.best_model_checkpoint
        if self.args.should_save and self.args.save_total_limit == 1 and best is not None:
            run = Path(self._get_output_dir(trial))
            kept = {run / f"checkpoint-{step}" for step in self.keep_steps}
            remove(path for path in checkpoints(run) if not (path.samefile(best) or path in kept))
        return super()._finalize_training(trial, *args)  # type: ignore[no-untyped-call]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of weights that are missing in a checkpoint, except those that are tied to others."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    def flows(self) -> list[FlowEncoder]:
        """Return the flows of the model."""
        return [part for part in cast(nn.Module, self.model).modules() if isinstance(part, FlowEncoder)]

    @property
    def _step_state_name(self) -> str:
        return f"step_state_{self.args.process_index}.pth"

    def step_state(self) -> dict[str, Any]:
        """Return the state that this process carries from step to step: tensors, numbers and strings."""
        return {"solvers": [asdict(flow.solver_state) for flow in self.flows()]}

    def load_step_state(self, file: Path, saved: dict[str, Any]) -> None:
        """Load the state that `step_state` returned in the process that wrote a checkpoint.

        Args:
            file: file from which the state was read, for messages.
            saved: the state.

        Raises:
            DataError: the state does not fit the model.
        """
        flows = self.flows()
        for flow, state in zip(flows, solver_states(file, saved.get("solvers"), len(flows)), strict=True):
            flow.solver_state = state

    def forget_steps(self) -> None:
        """Reset the state between steps to that of a model that was just loaded."""
        for flow in self.flows():
            flow.refresh()

    def _point_to_best(self, run: Path) -> None:
        """Set the path of the best checkpoint to its present or future path in the run."""
        step = self.state.best_global_step
        if step is None:
            return
        best = run / f"checkpoint-{step}"
        if step == self.state.global_step or best.exists():
            self.state.best_model_checkpoint = str(best)

    def _remove_old(self, run: Path, limit: int | None) -> None:
        if limit is not None and limit > 0:
            best = self.state.best_model_checkpoint
            kept = [path for step in self.keep_steps if (path := run / f"checkpoint-{step}").is_dir()]
            keep_last(run, limit + len(kept), always=[*kept, *([] if best is None else [Path(best)])])


@contextmanager
def _writing(checkpoint: Path) -> Iterator[None]:
    """Raise errors in writing a checkpoint, such as a full disk, as a message of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{checkpoint} cannot be written ({reason}); a training that is started again resumes from the "
            "checkpoint before it"
        ) from error


@contextmanager
def _torch_saving() -> Iterator[None]:
    """Raise the RuntimeError by which `torch.save` reports a file that cannot be written as an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{first_line(error)}; is the disk full?") from error


def _is_causal(model: Any) -> bool:
    """Return whether a model, of Hugging Face or registered with it, predicts next tokens."""
    names = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    names |= {kind.__name__ for kind in MODEL_FOR_CAUSAL_LM_MAPPING._extra_content.values()}
    within = model.get_base_model() if hasattr(model, "get_base_model") else model  # of PEFT
    return any(kind.__name__ in names for kind in type(within).__mro__)


def _check_arguments(args: TrainingArguments) -> None:
    if args.n_gpu > 1:
        raise ValueError(f"one process has {args.n_gpu} GPUs; start one process for each with torchrun")
    if args.world_size > 1 and not args.average_tokens_across_devices:
        raise ValueError("average_tokens_across_devices is False; with several processes it must be True")
    if args.push_to_hub:
        raise ValueError("push_to_hub is True; it must be False, push a checkpoint after training")


def _check_sampler(sampler: BatchSampler | StreamSampler, dataset: Any, args: TrainingArguments) -> None:
    if dataset is None or len(sampler.lengths) != len(dataset):
        examples = "no" if dataset is None else len(dataset)
        raise ValueError(
            f"train_batch_sampler is for {len(sampler.lengths)} examples, but train_dataset has {examples}"
        )
    if (sampler.rank, sampler.world_size) != (args.process_index, args.world_size):
        raise ValueError(
            f"train_batch_sampler is for process {sampler.rank} of {sampler.world_size}, "
            f"but this is process {args.process_index} of {args.world_size}"
        )
