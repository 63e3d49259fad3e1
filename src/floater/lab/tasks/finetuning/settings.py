"""Settings shared by fine-tuning tasks: checkpoint, plug, training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.lab.training.settings import SchedulerName, TrainingSettings, check_read


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint that training starts from.

    Attributes:
        path: location of the checkpoint: a directory with a Hugging Face model and its tokenizer, a run
            directory of this library, "package:NAME/FOLDER" for a folder inside an installed Python package,
            a name on the Hugging Face hub, or one with a revision, as in
            "sentence-transformers/all-MiniLM-L6-v2@c9745ed".
        config: values that differ from the configuration of the checkpoint, as in {hidden_dropout_prob: 0.1}.
    """

    path: str
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plug:
    """FLOATER inside the checkpoint (Liu et al. 2020, section 3.3); by default the checkpoint is not changed.

    Attributes:
        options: arguments of `floater.plug`, as in {delta: 0.1}; {} takes its defaults.
        flow: run of masked_lm, or directory of `floater.save`, whose flow is plugged and trained further.
        train: trained parameters: "all", or only the "flow", or only the "model" around it.
    """

    options: dict[str, Any] | None = None
    flow: str | None = None
    train: Literal["all", "flow", "model"] = "all"


@dataclass(frozen=True)
class Training(TrainingSettings):
    """Optimisation. Defaults are those shared by all tasks in RoBERTa's fine-tuning (Liu et al. 2019)."""

    learning_rate: float = 1e-5
    lr_scheduler_type: SchedulerName = "linear"
    warmup_steps: int | float = 0.06
    initial_learning_rate: float = 0.0
    per_device_train_batch_size: int | None = 16
    num_train_epochs: int = 10
    adam_epsilon: float = 1e-6
    weight_decay: float = 0.1
    save_total_limit: int = 1
    average_last: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_device_train_batch_size is not None:
            check_read(self, ["max_tokens"], "per_device_train_batch_size null")
