"""Training and testing on a generated task, from its settings to its directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import PreTrainedTokenizerFast, set_seed

from floater.settings import load
from floater.tasks.causal import causal_loss, check_causal
from floater.tasks.generated.data import Examples, collate, draw, vocabulary
from floater.tasks.generated.problems import PROBLEMS
from floater.tasks.generated.score import Score, Solver, by_length, count, measured
from floater.tasks.generated.settings import Data, GeneratedSettings
from floater.tasks.measurement import Measurement
from floater.tasks.optimisation import check_schedule
from floater.tasks.run import SETTINGS, Say, begin_run, load_model, read_by, trained
from floater.tasks.text import DataError, first_line
from floater.tasks.trainer import TaskTrainer
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterForSequenceClassification


class GeneratedTrainer(TaskTrainer):
    """A Trainer that validates by exact match.

    Args:
        valid: validation examples.
        **kwargs: as for `TaskTrainer`.
    """

    metric, greater = "exact", True

    def __init__(self, *, valid: Examples, **kwargs: Any) -> None:
        causal = isinstance(kwargs["model"], FloaterForCausalLM)
        super().__init__(compute_loss_func=causal_loss if causal else None, **kwargs)
        self.valid = valid

    def validation(self, model: nn.Module) -> dict[str, float]:
        """Loss, exact match and right tokens of the validation examples."""
        assert isinstance(model, FloaterForCausalLM | FloaterForSequenceClassification)
        return count(model, self.valid).metrics


def train(settings: GeneratedSettings) -> Path:
    """Train on a generated task, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings and data are found good.

    Args:
        settings: of the run; `settings.run` gets the configuration, vocabulary, log, checkpoints and the
            final model.

    Returns:
        The run directory.

    Raises:
        DataError: if the run directory is not what it must be, there are too few questions of the lengths, or
            the position model shows a causal model the tokens to come.
        PositionError: if the position model needs more than positions, as one over trees does.
    """
    return trained(settings, _train)


def _train(settings: GeneratedSettings, run: Path, state: PartialState, say: Say) -> Path:
    data = settings.data
    with state.main_process_first():
        tokenizer = vocabulary(data)
        examples = _examples(data, tokenizer, "train", data.train, data.lengths)
        valid = _examples(data, tokenizer, "valid", data.valid, data.lengths)
        model = _model(settings, tokenizer, examples)
        check_schedule(settings.training, examples.lengths)
        begin_run(run, settings, tokenizer)
    positions = sum(p.numel() for p in model.model.encoder.position.parameters())
    say(
        f"{len(examples):,} training examples of '{data.problem}', lengths {data.lengths[0]} to "
        f"{data.lengths[1]}; {model.num_parameters():,} parameters, {positions:,} in the position model"
    )
    bound, needed = model.model.encoder.position.bound, data.tokens(data.most)
    if bound is not None and bound < needed:
        say(
            f"'{settings.model.position}' has {bound} positions and the longest test needs {needed}: bins "
            "that it does not reach will be refused; raise model.max_length"
        )
    trainer = GeneratedTrainer(
        valid=valid,
        training=settings.training,
        run=run,
        model=model,
        lengths=examples.lengths,
        train_dataset=examples,
        data_collator=collate,
    )
    return trainer.finish(
        tokenizer, settings.training.average, lambda model: count(model, valid).metrics, say
    )


def load_run(
    run: str | Path, device: str | torch.device | None = None
) -> tuple[Solver, Any, GeneratedSettings]:
    """The final model of a run, its vocabulary and its settings.

    Args:
        run: the run directory.
        device: where to put the model; by default a GPU if there is one.

    Raises:
        DataError: if the directory holds no finished run, or a broken one.
        SettingsError: if it has no settings that can be read.
    """
    settings = load(GeneratedSettings, Path(run) / SETTINGS)
    found: tuple[Solver, Any] = load_model(_kind(settings.data), run, device, _load_symbols)
    return *found, settings


def _load_symbols(folder: Path) -> PreTrainedTokenizerFast:
    try:
        found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: no tokenizer can be read ({first_line(error)})") from error
    return found


def evaluate(run: str | Path, edges: tuple[int, ...] = (), reading: Any = None) -> Score:
    """Test a run's final model on lengths trained on and longer ones.

    Args:
        run: a finished run directory.
        edges: the first length of every bin but the first; by default one after the greatest length trained
            on, after twice as much, and so on.
        reading: how to read long examples, see `Reading.of`; by default as the model does.

    Raises:
        DataError: if the run is not what it must be, or there are too few questions of such lengths.
        PositionError: if the model cannot read so.
    """
    model, tokenizer, settings = load_run(run)
    read_by(model, reading)
    data = settings.data
    parts = [(bin, _examples(data, tokenizer, "test", data.test, bin)) for bin in data.bins(edges)]
    return by_length(model, parts, data.lengths)


def measure(run: str | Path, edges: tuple[int, ...] = ()) -> Measurement:
    """What a test finds of a run's final model, example by example; see `evaluate` for the arguments."""
    model, tokenizer, settings = load_run(run)
    data = settings.data
    drawn = [(bin, draw(data, "test", data.test, bin)) for bin in data.bins(tuple(edges))]
    parts = [(bin, Examples(examples, tokenizer, data.classifies)) for bin, examples in drawn]
    return measured(model, parts, [example.length for _, examples in drawn for example in examples])


def check_test(settings: GeneratedSettings, edges: tuple[int, ...] = ()) -> None:
    """Refuse what `measure` would, before the training.

    Raises:
        DataError: if there are no such bins, or a bin has hardly any questions.
    """
    for lengths in settings.data.bins(tuple(edges)):
        draw(settings.data, "test", 1, lengths)


def check(settings: GeneratedSettings) -> None:
    """Refuse a position model that cannot serve the task, before the training examples are drawn.

    Raises:
        DataError: if it shows a causal model the tokens to come.
        PositionError: if it needs more than positions, as one over trees does.
    """
    tokenizer, data = vocabulary(settings.data), settings.data
    with torch.random.fork_rng():
        _model(settings, tokenizer, _examples(data, tokenizer, "valid", 4, data.lengths))


def _examples(
    data: Data, tokenizer: PreTrainedTokenizerFast, split: Any, number: int, lengths: tuple[int, int]
) -> Examples:
    return Examples(draw(data, split, number, lengths), tokenizer, data.classifies)


def _kind(data: Data) -> Callable[[FloaterConfig], Solver]:
    return FloaterForSequenceClassification if data.classifies else FloaterForCausalLM


def _model(settings: GeneratedSettings, tokenizer: PreTrainedTokenizerFast, examples: Examples) -> Solver:
    """The model before its first step, after a look at whether its position model can serve the task."""
    config = settings.model.config(len(tokenizer))
    if settings.data.classifies:
        config.num_labels = PROBLEMS[settings.data.problem].classes
    set_seed(settings.training.seed)
    model = _kind(settings.data)(config)
    model.train(False)
    batch = collate([examples[examples.lengths.index(max(examples.lengths))]])
    batch.pop("labels")
    with torch.no_grad():
        model(**batch)
    if isinstance(model, FloaterForCausalLM):
        check_causal(model)
    model.train(True)
    return model
