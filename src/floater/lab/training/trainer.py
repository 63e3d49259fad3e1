"""A Trainer with token batches, atomic checkpoints and exact token averages."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import get_last_checkpoint

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
    step_of,
)
from floater.lab.training.files import MANIFEST, damage
from floater.lab.training.loss import LossFunction, smoothed_loss, with_auxiliary_loss
from floater.lab.training.progress import TrainingProgress
from floater.lab.training.resuming import (
    check_complete,
    check_optimizer,
    check_scheduler,
    random_states,
    solver_states,
)
from floater.lab.training.throughput import Throughput
from floater.transformer.outputs import IGNORED

PRIVATE = {
    "_save_checkpoint": "the Trainer writes a checkpoint under its final name, and no event surrounds it",
    "_load_from_checkpoint": "the Trainer loads weights without comparing names, shapes and types",
    "_get_grad_norm": "nothing else has the norm of each step before clipping, a pass over all weights",
    "_get_collator_with_removed_columns": "called, as the batches of `train_batch_sampler` need it as well",
    "_loss_shifts_labels": "set by language models with a memory, whose labels are aligned with the logits",
}
"""The private members of `transformers.Trainer` that the Trainers of `floater.lab` override, call or set.

Any other difference from the Trainer is made by a public method, an event or an argument, as a minor release
may rename a private member. `tests/lab/training/test_transformers.py` holds this list and the signatures.
"""


class FloaterTrainer(Trainer):
    """A Trainer for sequence models, with these differences.

    - Training batches are those of ``train_batch_sampler``, which have a number of tokens, not of examples.
    - The loss is the mean over all label tokens of an update, over its accumulated parts on all processes.
      It is ``smoothed_loss(args.label_smoothing_factor)`` unless ``compute_loss_func`` is given. The
      auxiliary loss of the model's outputs, such as that of predicted lengths, is added. The labels are
      not given to the model, so an encoder-decoder needs ``decoder_input_ids`` in its batches.
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
        keep_best: whether the best checkpoint is kept in addition to them, too, and not as one of them.
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
        args: TrainingArguments,
        train_batch_sampler: BatchSampler | StreamSampler | None = None,
        compute_loss_func: LossFunction | None = None,
        keep_steps: Sequence[int] = (),
        keep_best: bool = False,
        **kwargs: Any,
    ) -> None:
        _check_arguments(args)
        # The Trainer removes old checkpoints file by file, which a kill may interrupt. Therefore it gets a
        # copy of the arguments without a limit.
        self.save_total_limit, self.keep_steps = args.save_total_limit, keep_steps
        self.keep_best = keep_best
        args = copy(args)
        args.save_total_limit = None
        loss = compute_loss_func or smoothed_loss(args.label_smoothing_factor)
        super().__init__(args=args, compute_loss_func=with_auxiliary_loss(loss), **kwargs)
        self.train_batch_sampler = train_batch_sampler
        self.throughput = Throughput()
        self._resumed_from: Path | None = None
        if compute_loss_func is None and _is_causal(self.model):
            raise ValueError(
                f"labels of {type(self.model).__name__} are not aligned with logits; give compute_loss_func"
            )
        if train_batch_sampler is not None:
            _check_sampler(train_batch_sampler, self.train_dataset, self.args)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(TrainingProgress)
        self.add_callback(LatestBest)
        self.add_callback(self.throughput)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train as ``transformers.Trainer.train`` does, after removing unfinished checkpoints.

        Raises:
            DataError: the checkpoint to resume from has changed since it was written or does not fit the
                optimizer, or a checkpoint cannot be written.
            ValueError: ``trial`` is not None: there is no hyperparameter search.
        """
        if trial is not None:
            raise ValueError(
                "trial is not None; hyperparameter search is not supported: start a run for each trial"
            )
        run = Path(str(self.args.output_dir))
        if self.args.should_save:
            clear_staging(run)
        self.accelerator.wait_for_everyone()
        self.throughput.reset()
        self.forget_steps()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(run)) or True
        self._resumed_from = None
        if not isinstance(resume_from_checkpoint, bool | None):
            self._resumed_from = Path(resume_from_checkpoint)
            # other Trainers write no manifest
            if (self._resumed_from / MANIFEST).exists() and (why := damage(self._resumed_from)):
                raise DataError(f"{resume_from_checkpoint} is damaged: {why}")
        self._seed_process()
        try:
            output = super().train(resume_from_checkpoint, ignore_keys_for_eval=ignore_keys_for_eval)
        finally:
            self.forget_steps()  # of which a later use of the model knows nothing
        best = self.state.best_model_checkpoint
        only_best = self.save_total_limit == 1 and not self.keep_best
        if self.args.should_save and only_best and best is not None:
            kept = {run / f"checkpoint-{step}" for step in self.keep_steps}
            remove(path for path in checkpoints(run) if not (path.samefile(best) or path in kept))
        self.accelerator.wait_for_everyone()
        return output

    def _seed_process(self) -> None:
        """Let each process use its own random numbers: dropout, and random times of texts.

        The first one continues with its generator, as a single process does. A checkpoint has the state of
        the generators of each process that wrote it.
        """
        rank, start = self.args.process_index, self._resumed_from
        states = random_states(self.args.world_size)
        if (start is None and rank == 0) or (start is not None and (start / states[rank]).is_file()):
            return
        step = 0 if start is None else step_of(start)
        set_seed(int(np.random.SeedSequence([self.args.seed, rank, step]).generate_state(1)[0]))

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader[Any]) -> Any:
        """Return the numbers of epochs, of steps and so on; no epoch for a checkpoint of the last step."""
        epochs, *numbers, max_steps = super().set_initial_training_values(args, dataloader)
        if self._resumed_from is not None:
            state = TrainerState.load_from_json(str(self._resumed_from / TRAINER_STATE_NAME))
            epochs = epochs if state.global_step < max_steps else 0
        return epochs, *numbers, max_steps

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Return the schedule, after checking the checkpoint to resume from.

        This is the last public method before the Trainer loads the states of optimizer and schedule. It would
        load those of other parameters, and continue without missing ones.
        """
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if (checkpoint := self._resumed_from) is not None:
            scaler = getattr(self.accelerator, "scaler", None) is not None
            check_complete(checkpoint, self.writers(checkpoint), scaler)
            check_optimizer(checkpoint, cast(Optimizer, self.optimizer))
            check_scheduler(checkpoint, scheduler)
            if (file := self.step_state_file(checkpoint)).is_file():
                saved = torch.load(file, map_location=self.args.device, weights_only=True)
                self.load_step_state(file, saved if isinstance(saved, dict) else {})
        return scheduler

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
        self.throughput.start()
        batches, labels = super().get_batch_samples(epoch_iterator, num_batches, device)
        synchronised = self.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
        shared = len(batches) > 1 and not (synchronised or self.args.ddp_static_graph)
        for flow in self.flows():
            flow.begin_step(max(map(_width, batches)) if shared else None)
        self.throughput.count(sum(map(self.tokens_of, batches)))
        return batches, labels

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch, after its backward pass; the flow gets its gradient with the last."""
        if not self.accelerator.sync_gradients:
            return super().training_step(*args, **kwargs)
        for flow in self.flows():
            flow.last_pass()
        loss = super().training_step(*args, **kwargs)
        for flow in self.flows():
            flow.end_step()
        return loss

    def tokens_of(self, batch: Mapping[str, Any]) -> Tensor | int:
        """Return the number of tokens in a batch that the model reads, for the log."""
        if "attention_mask" in batch and "decoder_input_ids" not in batch:
            read: Tensor = batch["attention_mask"].sum()
            return read
        labels = batch.get("labels")
        return 0 if labels is None else (labels != IGNORED).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values; those of training get the tokens per second since the last training log."""
        if "loss" in logs and self.throughput.has_started:
            tokens = torch.as_tensor(self.throughput.tokens, device=self.args.device)
            tokens = self.accelerator.reduce(tokens) if self.args.world_size > 1 else tokens
            logs["tokens_per_second"] = float(tokens) / self.throughput.take_seconds()
        super().log(logs, start_time)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(str(self.args.output_dir))
        self.forget_steps()
        self.write_checkpoint(run / f"checkpoint-{self.state.global_step}")
        if self.args.should_save:
            remove(interrupted_checkpoints(run))
            self._remove_old(run)
        self.accelerator.wait_for_everyone()

    def write_checkpoint(self, checkpoint: Path) -> None:
        """Write the checkpoint of this step to a directory in the run, completely or not at all.

        Raises:
            DataError: the checkpoint cannot be written.
        """
        run = checkpoint.parent
        written = staging(run / f"checkpoint-{self.state.global_step}")  # under the Trainer's own name
        with _writing(checkpoint):
            if self.args.should_save:
                clear_staging(run)
                written.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            # before the model is saved, which may refresh its flows
            torch.save(self.step_state(), written / self._step_state_name)
            self.args.output_dir = str(written.parent)
            try:
                super()._save_checkpoint(self.model_wrapped, None)
            finally:
                self.args.output_dir = str(run)
            self._point_to_best(run)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                # These were written with the hidden directory as that of the run and of the best checkpoint.
                torch.save(self.args, written / TRAINING_ARGS_NAME)
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                publish(written, checkpoint)
        self.accelerator.wait_for_everyone()

    def flows(self) -> list[FlowEncoder]:
        """Return the flows of the model."""
        return [part for part in cast(nn.Module, self.model).modules() if isinstance(part, FlowEncoder)]

    @property
    def _step_state_name(self) -> str:
        return f"step_state_{self.args.process_index}.pth"

    def writers(self, checkpoint: Path) -> int:
        """Return the number of processes that must have written a checkpoint: as many as now."""
        return int(self.args.world_size)

    def step_state_file(self, checkpoint: Path) -> Path:
        """Return the file of a checkpoint from which this process takes the state of `step_state`."""
        writer = min(self.args.process_index, max(self.writers(checkpoint), 1) - 1)
        return checkpoint / f"step_state_{writer}.pth"

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

    def _remove_old(self, run: Path) -> None:
        if self.save_total_limit is not None and self.save_total_limit > 0:
            best = self.state.best_model_checkpoint
            kept = [path for step in self.keep_steps if (path := run / f"checkpoint-{step}").is_dir()]
            always = [*kept, *([] if best is None else [Path(best)])]
            keep_last(run, self.save_total_limit + len(kept) + self.keep_best, always=always)


class LatestBest(TrainerCallback):
    """Take the last of several checkpoints with equal scores as the best one.

    It was trained longer, which a coarse score does not show. The Trainer takes the first.

    Example:
        >>> args = TrainingArguments("run", metric_for_best_model="exact")
        >>> state = TrainerState(global_step=8, best_metric=0.5, best_global_step=4)
        >>> LatestBest().on_evaluate(args, state, TrainerControl(), metrics={"eval_exact": 0.5})
        >>> state.best_global_step
        8
    """

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Set the best step to this one if its score equals the best one."""
        metric = args.metric_for_best_model
        if metric is None or metrics is None or state.best_global_step is None:
            return
        if metrics.get(f"eval_{metric.removeprefix('eval_')}") == state.best_metric:
            state.best_global_step = state.global_step


def _width(batch: Mapping[str, Any]) -> int:
    """Return the number of columns of a batch's ids: the positions that its flows are solved for."""
    ids = (each for each in batch.values() if isinstance(each, Tensor) and each.dim() == 2)
    return max((each.shape[1] for each in ids if not each.is_floating_point()), default=1)


@contextmanager
def _writing(checkpoint: Path) -> Iterator[None]:
    """Raise errors in writing a checkpoint, such as a full disk, as a message of one line."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, RuntimeError):
            # `torch.save` has no class of its own for a file that cannot be written
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") != "torch.serialization":
                raise
            reason = f"{first_line(error)}; is the disk full?"
        raise DataError(
            f"{checkpoint} cannot be written ({reason}); start the training again to resume from the "
            "checkpoint before it"
        ) from error


def _is_causal(model: Any) -> bool:
    """Return whether a model, of Hugging Face or registered with it, predicts next tokens."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # of PEFT
    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING  # from the class of a configuration
    return any(
        isinstance(base, mapping.get(kind, ())) for kind in type(getattr(base, "config", None)).__mro__
    )


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
