"""The Trainer of a run: its log, early stopping, resuming, and the final model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from signal import Signals
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from floater.errors import DataError, first_line
from floater.flow import FlowError, SpanTooLong
from floater.lab.interruption import Interrupted, StopRequest, deferred
from floater.lab.training.arguments import arguments, batches, schedule
from floater.lab.training.averaging import average
from floater.lab.training.batches import StreamSampler
from floater.lab.training.checkpoints import (
    checkpoints,
    interrupted_checkpoints,
    last_checkpoint,
    remove,
    set_aside_damaged,
    step_of,
)
from floater.lab.training.divergence import DivergenceError, DivergenceMonitor, diverged, is_finite
from floater.lab.training.early_stopping import stops
from floater.lab.training.files import discard, save_whole, write_json
from floater.lab.training.final_model import final_checkpoints
from floater.lab.training.flow import FlowSchedule
from floater.lab.training.model import load_weights
from floater.lab.training.optimizer import adam, flow_parameters
from floater.lab.training.peak_memory import peak_memory
from floater.lab.training.processes import main_process_first
from floater.lab.training.resuming import check_trainer_state, check_weights, processes_of
from floater.lab.training.run import BEST, LOG, LONGEST, MODEL, RESULT
from floater.lab.training.schedule import learning_rates
from floater.lab.training.settings import TrainingSettings
from floater.lab.training.tensorboard import TolerantTensorBoard
from floater.lab.training.trainer import FloaterTrainer

logger = logging.getLogger(__name__)


class SaveAfterValidation(TrainerCallback):
    """Save a checkpoint that is due at an epoch's end after the validation there, as by epochs.

    The Trainer saves it before, and a run that resumes from it would not have the score.

    Example:
        >>> args = TrainingArguments("run", eval_strategy="epoch", save_steps=3)
        >>> callback, control = SaveAfterValidation(), TrainerControl(should_save=True)
        >>> callback.on_step_end(args, TrainerState(epoch=2.0), control)
        >>> control.should_save
        False
        >>> callback.on_epoch_end(args, TrainerState(epoch=2.0), control)
        >>> control.should_save
        True
    """

    def __init__(self) -> None:
        self._is_due = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Postpone a checkpoint if this step ends an epoch or the training."""
        ends = control.should_training_stop or float(state.epoch or 0.0).is_integer()
        if control.should_save and ends and args.eval_strategy == "epoch":
            control.should_save, self._is_due = False, True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the postponed checkpoint after the validation that follows."""
        control.should_save, self._is_due = control.should_save or self._is_due, False


class RunTrainer(FloaterTrainer):
    """A `FloaterTrainer` that trains a run to its end: it logs, stops early, resumes and writes the result.

    SIGINT, SIGTERM and SIGUSR1 end training after the current step, with a checkpoint. A run that is resumed
    from it ends with the weights of an uninterrupted run, bit for bit.

    Args:
        training: the settings.
        run: directory of the run.
        model: model to train.
        lengths: number of tokens of each training example.
        validate: function that returns the scores of the model on the validation set, by name.
        metric: score by which validations are compared.
        greater: True if higher scores are better.
        sampler: batches of the examples; None for the batches of the settings in random order.
        callbacks: callbacks in addition to those of every run.
        supersede: function that is called once, after the first checkpoint or at the end of a training
            without one, to replace a shorter run; None for none.
        **kwargs: arguments of `FloaterTrainer`.
    """

    def __init__(
        self,
        *,
        training: TrainingSettings,
        run: Path,
        model: PreTrainedModel,
        lengths: Sequence[int],
        validate: Callable[[], dict[str, float]],
        metric: str,
        greater: bool,
        sampler: StreamSampler | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        supersede: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> None:
        self.training, self.validate = training, validate
        self.metric, self.greater = metric, greater
        self._supersede = supersede
        best = metric if training.keep_best or not training.average_last else None
        args = arguments(training, run, model, best, greater)
        self.sampler = sampler or batches(training, lengths, args.world_size, args.process_index)
        callbacks = [SaveAfterValidation(), *callbacks]
        if args.process_index == 0:
            callbacks += TolerantTensorBoard.of(run)
        if any(model.get_parameter(name).requires_grad for name in flow_parameters(model)):
            callbacks.append(FlowSchedule(training.flow.update_every))
        self._monitor = DivergenceMonitor()
        self._stop = StopRequest()
        self._has_stepped = False
        self._losses: list[Tensor] = []
        self.saved_steps: list[int] = []
        self._began = time.perf_counter()
        self._minutes_before: float | None = None
        super().__init__(
            model=model,
            args=args,
            eval_dataset=kwargs["train_dataset"],  # required by the Trainer; `evaluate` does not use it
            train_batch_sampler=self.sampler,
            keep_steps=training.keep_steps,
            keep_best=training.keep_best,
            callbacks=callbacks,
            **kwargs,
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return the scores on the validation set, and log them.

        Raises:
            DivergenceError: if the flow cannot be solved any more; the message names the learning rates.
        """
        with self._naming_rates(f"in the validation after step {self.state.global_step}"):
            metrics = {f"eval_{name}": value for name, value in self.validate().items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.stopped_early(self.state):
            # there may be no checkpoint yet
            self.control.should_training_stop = self.control.should_save = True
        return metrics

    def stopped_early(self, state: TrainerState) -> bool:
        """Return whether validations ended the training, by the log alone: a resumed run stops equally."""
        rules = self.training.early_stopping_patience, self.training.stop_score
        return stops(state.log_history, *rules, f"eval_{self.metric}", self.greater)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values, to a file as well, with the run's minutes in all processes so far and memory in MiB."""
        self._check_divergence()
        if self._minutes_before is None:
            self._minutes_before = next((x["minutes"] for x in reversed(self.state.log_history)), 0.0)
        logs["minutes"] = round(self._minutes_before + (time.perf_counter() - self._began) / 60, 3)
        logs["memory_mib"] = peak_memory()
        super().log(logs, start_time)
        if self.args.process_index == 0:
            write_json(Path(str(self.args.output_dir)) / LOG, self.state.log_history)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch after its backward pass.

        Raises:
            DivergenceError: if the flow cannot be solved any more; the message names the learning rates.
        """
        self._has_stepped = True
        with self._naming_rates(f"at step {self.state.global_step + 1}"):
            self._losses.append(super().training_step(*args, **kwargs))
        return self._losses[-1]

    @contextmanager
    def _naming_rates(self, when: str) -> Iterator[None]:
        """Convert the failure of a solve after an update to a divergence that names the learning rates."""
        try:
            yield
        except FlowError as error:
            if isinstance(error, SpanTooLong) or not self.state.global_step:
                raise  # the data or the settings are the cause, as no update has changed the flow yet
            raise self._diverged(f"{error} {when}") from error

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        skips = getattr(self.accelerator, "scaler", None) is not None
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        self._monitor.observe(self.state.global_step + 1, loss, norm, skips_steps=skips)
        if loss.device.type == "cpu":  # a check at each step would wait for any other device
            self._check_divergence()
        return norm

    def _check_divergence(self) -> None:
        """Stop after a loss or a gradient that is not finite."""
        if (failure := self._monitor.failure) is not None:
            raise self._diverged(failure, int(self._monitor.step) - 1)

    def _diverged(self, what: str, updates: int | None = None) -> DivergenceError:
        """Return the error of a divergence, with the learning rates now or after a number of updates."""
        if self.lr_scheduler is None:  # the training had stopped early
            self.create_optimizer_and_scheduler(self.state.max_steps)
        rates = learning_rates(cast(LambdaLR, self.lr_scheduler), updates)
        run = Path(str(self.args.output_dir))
        return diverged(what, rates, self._monitor, run, clips=self.args.max_grad_norm > 0)

    def write_checkpoint(self, checkpoint: Path) -> None:
        """Write the checkpoint of this step, unless the training diverged: it must not replace a usable one.

        Raises:
            DataError: the checkpoint cannot be written.
            DivergenceError: if a loss, a gradient or weights are not finite.
        """
        self._check_divergence()
        if not is_finite(cast(nn.Module, self.model)):
            step = self.state.global_step
            raise self._diverged(f"weights are not finite after step {step}", step - 1)
        super().write_checkpoint(checkpoint)
        self._supersede_run()

    def _supersede_run(self) -> None:
        """Replace the shorter run that this training continues, once."""
        if self._supersede is not None:
            self._supersede()
        self._supersede = None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.state.global_step not in self.saved_steps[-1:]:
            self.saved_steps.append(self.state.global_step)
        super()._save_checkpoint(model, trial)

    def step_state(self) -> dict[str, Any]:
        """Return the state of `FloaterTrainer` and the steps of the checkpoints of the schedule so far."""
        return super().step_state() | {"saved_steps": self.saved_steps}

    def load_step_state(self, file: Path, saved: dict[str, Any]) -> None:
        """Load the state of `FloaterTrainer` and the steps of the checkpoints."""
        super().load_step_state(file, saved)
        self._load_saved_steps(file, saved)

    def _load_saved_steps(self, file: Path, saved: Any) -> None:
        step = step_of(file.parent)
        there = [each for each in map(step_of, checkpoints(file.parent.parent)) if each <= step]
        # a checkpoint of an earlier version does not have them
        steps = saved.get("saved_steps", there) if isinstance(saved, dict) else None
        if not isinstance(steps, list) or not all(isinstance(each, int) for each in steps):
            raise DataError(f"{file} does not fit the training: its saved_steps is {steps!r}")
        self.saved_steps = [*steps]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Tensor | int | None]:
        """Return the batches of the next step, unless a signal requested a stop.

        Scores, logs and checkpoints of the step before are complete by then, also those of an epoch's end.

        Raises:
            Interrupted: with the number of the signal and, in the main process, a message for the user.
        """
        if self._has_stepped and (number := self._requested_signal()):
            self._stop_with_checkpoint(number)
        return super().get_batch_samples(*args, **kwargs)

    def _stop_with_checkpoint(self, number: int) -> None:
        """End training with a checkpoint, as soon as one determines the steps that follow.

        A resumed run must end like an uninterrupted one. A checkpoint has neither the accumulated gradients
        of a flow that is updated less often than the rest, nor vectors that several steps use.
        """
        step = self.state.global_step
        run = Path(str(self.args.output_dir))
        checkpoint = run / f"checkpoint-{step}"
        if step not in self.saved_steps[-1:]:
            if step % self.training.flow.update_every or any(flow.holds_vectors for flow in self.flows()):
                return
            checkpoint = run / f"interrupted-{step}"
            self.write_checkpoint(checkpoint)
            if self.args.should_save:
                remove(path for path in interrupted_checkpoints(run) if path != checkpoint)
        self.callback_handler.on_train_end(self.args, self.state, self.control)
        raise self._interrupted(number, checkpoint)

    def _interrupted(self, number: int, checkpoint: Path | None) -> Interrupted:
        line = (
            f"stopped by {Signals(number).name} after step {self.state.global_step:,} of "
            f"{self.state.max_steps:,}; start the training again to resume from {checkpoint}"
        )
        return Interrupted(number, line if self.args.process_index == 0 else "")

    def _requested_signal(self) -> int:
        """Return the number of the signal that any of the processes received; 0 for none."""
        if self.args.world_size == 1:
            return self._stop.number
        numbers = self.accelerator.gather(torch.tensor([self._stop.number], device=self.args.device))
        return int(cast(Tensor, numbers).max())

    def _train_on(self, run: Path) -> None:
        """Train from the run's last undamaged checkpoint or from the start, unless it stopped early there.

        Raises:
            DataError: if there are checkpoints, but all are damaged, or the last one does not fit the run.
            Interrupted: if the process received a signal to stop.
        """
        self._set_aside_damaged(run)
        with deferred() as self._stop:
            if (checkpoint := last_checkpoint(run)) is None:
                self.train()
            else:
                self._resume(checkpoint)
        if number := self._requested_signal():
            raise self._interrupted(number, last_checkpoint(run))

    def _set_aside_damaged(self, run: Path) -> None:
        with main_process_first():
            if self.args.process_index == 0:
                for path, why in set_aside_damaged(run).items():
                    logger.warning("%s is damaged and not used: %s", path, why)

    def _resume(self, checkpoint: Path) -> None:
        logger.info("resuming from %s", checkpoint)
        before, now = processes_of(checkpoint), self.args.world_size
        if before and before != self.writers(checkpoint):
            raise DataError(
                f"{checkpoint} is of {before} process{'es' * (before > 1)}, and {now} would read other "
                f"batches; start it with {before}"
            )
        if before not in (0, now) and self.args.process_index == 0:
            wrote = "1 process" if before == 1 else f"{before} processes"
            go_on = "1 continues" if now == 1 else f"{now} continue"
            logger.warning("%s wrote it; %s with other random numbers", wrote, go_on)
        try:
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            check_trainer_state(checkpoint, step_of(checkpoint), state)
            if self.stopped_early(state):
                names = ("early_stopping_patience", "stop_score")
                rules = [f"training.{name}={getattr(self.training, name)}" for name in names]
                rule = rules[self.training.stop_score is not None]
                logger.warning("%s ended the training there: no further step is trained", rule)
                self.state = state
                file = self.step_state_file(checkpoint)
                self._load_saved_steps(file, torch.load(file, map_location="cpu", weights_only=True))
            else:
                self.train(resume_from_checkpoint=str(checkpoint))
        except (DataError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if self._has_stepped:
                raise
            code = isinstance(error, UnpicklingError)  # its own message explains how to run code in the file
            reason = "a file holds more than tensors and numbers" if code else first_line(error)
            raise DataError(
                f"{checkpoint} cannot be loaded ({reason}); remove it to resume from the checkpoint before it"
            ) from error

    def writers(self, checkpoint: Path) -> int:
        """Return the number of processes that must have written a checkpoint.

        Any number, where batches_per_step fixes the batches of a step, and as many are read in an epoch.
        """
        before, now = processes_of(checkpoint), int(self.args.world_size)
        if not before or self.training.batches_per_step is None or isinstance(self.sampler, StreamSampler):
            return now
        return before if self.sampler.shared_by(before) == self.sampler.shared_by(now) else now

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        whole = cast(PreTrainedModel, self.accelerator.unwrap_model(model or self.model))
        check_weights(Path(resume_from_checkpoint), whole)
        load_weights(whole, average([resume_from_checkpoint]), resume_from_checkpoint)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Return Adam, in which the flow has parameter groups of its own."""
        if self.optimizer is None:
            trained = cast(nn.Module, self.model if model is None else model)
            is_flow, multiplier = flow_parameters(trained).__contains__, self.training.flow.lr_multiplier
            self.optimizer = adam(trained, self.args, is_flow=is_flow, flow_lr_multiplier=multiplier)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Return the schedule; logs and checkpoints follow the settings instead of the checkpoint's state."""
        if self.lr_scheduler is None:
            rates = cast(Optimizer, self.optimizer if optimizer is None else optimizer)
            self.lr_scheduler = schedule(self.training, rates, len(self.sampler))
        self.state.compute_steps(self.args, num_training_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def finish(self, processor: Any, measure: Callable[[], dict[str, Any]]) -> Path:
        """Train to the end, and write the final model and its scores into the run's directory.

        Args:
            processor: vocabulary or tokenizer, saved with the model.
            measure: function that returns the scores of the final model; when it is called, the trained
                model has the final weights.

        Returns:
            The run directory.

        Raises:
            DataError: if the checkpoint to resume from does not fit, or was written by another number of
                processes, or if there was no validation to choose the final model by.
            DivergenceError: if a loss or weights are not finite.
            Interrupted: if the process received a signal to stop.
        """
        run = Path(str(self.args.output_dir))
        model = cast(PreTrainedModel, self.accelerator.unwrap_model(self.model))
        self._train_on(run)
        self._supersede_run()
        self._set_aside_damaged(run)
        if self.training.keep_best and self.args.process_index == 0:
            load_weights(model, average(self._final_checkpoints(run, 0)), str(run))
            discard(run / BEST)
            save_whole(run / BEST, model, processor)
        sources = self._final_checkpoints(run, self.training.average_last)
        load_weights(model, average(sources), str(run))
        if not is_finite(model):
            raise self._diverged("weights of the final model are not finite")
        result = self.result(sources) | measure()
        if self.args.process_index == 0:
            write_json(run / RESULT, result)
            save_whole(run / MODEL, model, processor)
        self.accelerator.wait_for_everyone()
        logger.info("the final model is in %s, its scores in %s", run / MODEL, run / RESULT)
        return run

    def result(self, sources: Sequence[Path]) -> dict[str, Any]:
        """Return steps, minutes, the longest example, the averaged checkpoints and the best validation."""
        log, metric = self.state.log_history, f"eval_{self.metric}"
        best = (max if self.greater else min)((x[metric] for x in log if metric in x), default=None)
        return {
            "steps": self.state.global_step,
            "epochs": round(self.state.epoch or 0.0, 3),
            "minutes": max((entry["minutes"] for entry in log), default=0.0),
            LONGEST: int(max(self.sampler.lengths)),
            "averaged": [path.name for path in sources],
            f"best_valid_{self.metric}": best,
        }

    def _final_checkpoints(self, run: Path, average_last: int) -> list[Path]:
        metric = f"eval_{self.metric}"
        return final_checkpoints(
            run,
            average_last=average_last,
            saved_steps=self.saved_steps,
            best_step=self.state.best_global_step,
            scores={int(entry["step"]): entry[metric] for entry in self.state.log_history if metric in entry},
            greater=self.greater,
        )
