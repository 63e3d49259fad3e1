"""The settings of a training: each acts, and those of Hugging Face may stand beside them."""

import re
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainerState, TrainingArguments

from floater.errors import DataError
from floater.lab.settings import SettingsError, dump, load, make
from floater.lab.training import FlowSchedule
from floater.lab.training.arguments import arguments
from floater.lab.training.other_arguments import ALLOWED
from floater.lab.training.run_trainer import RunTrainer
from floater.lab.training.settings import Flow, SmoothedTrainingSettings, TrainingSettings
from floater.transformer import FloaterConfig, FloaterForTokenClassification
from helpers import check_every_setting_acts

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
CHANGES: dict[str, dict[str, Any]] = {
    "learning_rate": {"learning_rate": 1e-3},
    "lr_scheduler_type": {"lr_scheduler_type": "linear", "warmup_steps": 2},
    "warmup_steps": {"warmup_steps": 3},
    "initial_learning_rate": {"initial_learning_rate": 1e-4},
    "max_tokens": {"max_tokens": 6},
    "per_device_train_batch_size": {"per_device_train_batch_size": 1},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "batches_per_step": {"batches_per_step": 2},
    "num_train_epochs": {"num_train_epochs": 7},
    "max_steps": {"max_steps": 9},
    "adam_beta1": {"adam_beta1": 0.5},
    "adam_beta2": {"adam_beta2": 0.5},
    "adam_epsilon": {"adam_epsilon": 1e-3},
    "weight_decay": {"weight_decay": 0.1},
    "max_grad_norm": {"max_grad_norm": 1.0},
    "seed": {"seed": 2},
    "eval_strategy": {"eval_strategy": "no"},
    "eval_steps": {"eval_steps": 3},
    "logging_steps": {"logging_steps": 7},
    "early_stopping_patience": {"early_stopping_patience": 2},
    "stop_score": {"stop_score": 1.0},
    "save_steps": {"save_steps": 4},
    "save_total_limit": {"save_total_limit": 6},
    "keep_steps": {"keep_steps": [4], "save_steps": 4},
    "average_last": {"average_last": 0},
    "keep_best": {"keep_best": True},
    "bf16": {"bf16": True},
    "flow": {"flow": Flow(lr_multiplier=0.5)},
    "others": {"others": {"dataloader_num_workers": 1}},
}


def observe(run: Path) -> Any:
    """Return a function of settings that returns arguments, batches, rates, groups and callbacks."""

    def of(settings: TrainingSettings) -> Any:
        torch.manual_seed(0)
        config = FloaterConfig.preset("tiny", vocab_size=9, position="floater", num_labels=2, **SIZES)
        trainer = RunTrainer(
            training=settings,
            run=run,
            model=FloaterForTokenClassification(config),
            lengths=[2, 2, 3, 3, 3, 3, 3],
            train_dataset=[{}] * 7,
            validate=dict,
            metric="accuracy",
            greater=True,
        )
        trainer.create_optimizer_and_scheduler(num_training_steps=5)
        rates = []
        for _ in range(5):
            rates.append(trainer.lr_scheduler.get_last_lr())
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
        schedules = [
            c.update_every for c in trainer.callback_handler.callbacks if isinstance(c, FlowSchedule)
        ]
        options = [{k: v for k, v in g.items() if k != "params"} for g in trainer.optimizer.param_groups]
        arguments = {k: v for k, v in trainer.args.to_dict().items() if k != "logging_dir"}
        validated = TrainerState(log_history=[{"eval_accuracy": 1.0}] * 3)
        others = trainer.stopped_early(validated), trainer.keep_steps, trainer.save_total_limit
        return arguments, list(trainer.sampler), rates, options, schedules, others

    return of


def test_every_setting_acts(tmp_path: Path) -> None:
    stated = {"save_strategy"}
    check_every_setting_acts(TrainingSettings(warmup_steps=2), CHANGES, observe(tmp_path), stated=stated)
    smoothed = {"label_smoothing_factor": {"label_smoothing_factor": 0.1}}
    changes = CHANGES | smoothed
    check_every_setting_acts(
        SmoothedTrainingSettings(warmup_steps=2), changes, observe(tmp_path), stated=stated
    )
    flows = TrainingSettings(save_steps=4), TrainingSettings(save_steps=4, flow=Flow(update_every=2))
    assert observe(tmp_path)(flows[0]) != observe(tmp_path)(flows[1])


def test_a_setting_that_does_nothing_is_found() -> None:
    @dataclass(frozen=True)
    class Two:
        first: int = 0
        second: int = 0

    changes = {"first": {"first": 1}, "second": {"second": 1}}
    check_every_setting_acts(Two(), changes, lambda settings: (settings.first, settings.second))
    with pytest.raises(AssertionError, match="second changes nothing"):
        check_every_setting_acts(Two(), changes, lambda settings: settings.first)
    with pytest.raises(AssertionError, match="say how these act: \\['second'\\]"):
        check_every_setting_acts(Two(), {"first": {"first": 1}}, lambda settings: settings.first)


def test_other_arguments_of_hugging_face_stand_beside_and_are_written_so(tmp_path: Path) -> None:
    config = tmp_path / "training.yaml"
    config.write_text("max_steps: 5\ndataloader_num_workers: 2\n")
    settings = load(TrainingSettings, config, ["gradient_checkpointing=true", "dataloader_num_workers=3"])
    whole = make_dataclass("Whole", [("training", TrainingSettings)])
    assert make(whole, {}, "here", ["training.use_cpu=true"]).training.others == {"use_cpu": True}
    assert settings.others == {"dataloader_num_workers": 3, "gradient_checkpointing": True}
    default = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": None}
    assert make(TrainingSettings, {"others": default}, "here").others == default
    assert "\ndataloader_num_workers: 3\n" in dump(settings)
    config.write_text(dump(settings))
    assert load(TrainingSettings, config) == settings


@pytest.mark.parametrize(
    "name",
    [
        *("output_dir", "optim", "report_to", "push_to_hub", "bf16_full_eval", "fp16_full_eval", "project"),
        *("dataloader_persistent_workers", "fsdp", "deepspeed", "enable_jit_checkpoint"),
    ],
)
def test_what_follows_from_the_run_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"here: {name} is not to be set"):
        make(TrainingSettings, {name: "x"}, "here")


def test_every_argument_beside_is_one_of_hugging_face_and_no_setting() -> None:
    assert {field.name for field in fields(TrainingArguments)} >= ALLOWED
    assert not ALLOWED & {field.name for field in fields(SmoothedTrainingSettings)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("others={bf16: true}", "others has bf16, which is a setting beside it: training.bf16"),
        ("others={weight_decy: 1}", "TrainingArguments has no 'weight_decy'; did you mean 'weight_decay'?"),
        ("dataloader_num_worker=1", "did you mean 'dataloader_num_workers'?"),
        ("use_cpu=maybe", "'use_cpu' must be bool, not 'maybe'"),
        ("dataloader_num_workers=-1", "dataloader_num_workers is -1; it must be a finite number, at least 0"),
        (
            "torch_compile_backend=tensorrt",
            "torch_compile_backend is 'tensorrt'; it must be one of: inductor",
        ),
        ("torch_compile_mode=fast", "torch_compile_mode is 'fast'; it must be one of: default, reduce-over"),
        ("log_level=loud", "log_level is 'loud'; it must be one of: debug, info"),
        ("include_num_input_tokens_seen=some", "include_num_input_tokens_seen is 'some'; it must be one of"),
        (
            "liger_kernel_config={rope: true}",
            "which only use_liger_kernel reads; set that, or leave this out",
        ),
        (
            "activation_checkpointing_kwargs={use_reentrant: false}",
            "which only activation_checkpointing reads",
        ),
        ("dataloader_multiprocessing_context=spawn", "which only dataloader_num_workers reads"),
        ("dataloader_prefetch_factor=2", "which only dataloader_num_workers reads"),
        ("others={dataloader_num_workers: 1, dataloader_prefetch_factor: 0}", "it must be at least 1"),
        (
            "others={activation_checkpointing: true, activation_checkpointing_kwargs: {use_entrant: 1}}",
            "activation_checkpointing_kwargs has 'use_entrant'; did you mean 'use_reentrant'?",
        ),
        (
            "others={gradient_checkpointing: true, gradient_checkpointing_kwargs: {use_reentrant: true}}",
            "gradient_checkpointing_kwargs has use_reentrant true; the blocks share",
        ),
        (
            "others={gradient_checkpointing: true, gradient_checkpointing_kwargs: all}",
            "gradient_checkpointing_kwargs is 'all'; it must be a mapping",
        ),
        ("ddp_backend=foo", "ddp_backend is 'foo'; it must be one of: gloo, nccl"),
        ("neftune_noise_alpha=.nan", "neftune_noise_alpha is nan; it must be a finite number"),
    ],
)
def test_a_wrong_other_argument_is_refused(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        make(TrainingSettings, {}, "here", [override])


def test_arguments_that_the_trainer_refuses_together_are_one_error(tmp_path: Path) -> None:
    settings = TrainingSettings(bf16=True, others={"fp16": True})
    with pytest.raises(DataError, match="training: At most one of fp16 and bf16"):
        arguments(settings, tmp_path, nn.Linear(1, 1), None, False)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"use_liger_kernel": True}, "training.use_liger_kernel is True, which needs liger-kernel"),
        ({"fp16": True, "use_cpu": True}, "training.fp16 is True, which only a GPU reads"),
        ({"debug": "tpu_metrics_debug"}, "training.debug is 'tpu_metrics_debug', which only a TPU reads"),
        ({"accelerator_config": {"split": True}}, "training: .*unexpected keyword argument 'split'"),
    ],
)
def test_what_this_machine_cannot_serve_is_one_error(
    tmp_path: Path, others: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floater.lab.training.other_arguments.is_liger_kernel_available", lambda: False)
    with pytest.raises(DataError, match=message):
        arguments(TrainingSettings(others=others), tmp_path, nn.Linear(1, 1), None, False)


def test_a_step_is_the_same_on_any_number_of_processes() -> None:
    training = TrainingSettings(batches_per_step=16)
    assert [training.accumulation(processes) * processes for processes in (1, 2, 4, 8, 16)] == [16] * 5
    with pytest.raises(ValueError, match="which 3 processes cannot share"):
        training.accumulation(3)
    assert TrainingSettings(gradient_accumulation_steps=2).accumulation(4) == 2
    with pytest.raises(ValueError, match="give one of them"):
        TrainingSettings(batches_per_step=16, gradient_accumulation_steps=2)


@pytest.mark.parametrize("event", ["eval", "save"])
def test_steps_that_the_strategy_does_not_read_are_refused(event: str) -> None:
    steps = {f"{event}_steps": 4}
    for strategy in ("epoch",) if event == "save" else ("epoch", "no"):
        with pytest.raises(ValueError, match=f"{event}_steps is 4, and {event}_strategy '{strategy}' would"):
            make(TrainingSettings, steps | {f"{event}_strategy": strategy}, "here")
    for stated in ({}, {f"{event}_strategy": "steps"}):
        settings = make(TrainingSettings, steps | stated, "here")
        assert (settings.evaluates if event == "eval" else settings.saves) == 4


@pytest.mark.parametrize("saves", [{}, {"save_steps": 300}])
def test_a_checkpoint_that_will_not_be_saved_cannot_be_kept(saves: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="keep_steps has 1000, which is not a checkpoint"):
        TrainingSettings(keep_steps=[1000], **saves)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_score_that_none_would_reach_stops_no_training(value: str) -> None:
    with pytest.raises(SettingsError, match=r"stop_score is .*; it must be a finite number, or null"):
        make(TrainingSettings, {}, "here", [f"stop_score={value}"])
