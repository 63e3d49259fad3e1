"""Fine-tuning of checkpoints, plugged or not: what GLUE, SQuAD and RACE share."""

from floater.tasks.finetuning.checkpoint import Head
from floater.tasks.finetuning.extension import Adapter, Extend
from floater.tasks.finetuning.features import Features, predict
from floater.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.tasks.finetuning.task import CheckpointTask, FineTuning, FineTuningSettings

__all__ = [
    "Adapter",
    "Checkpoint",
    "CheckpointTask",
    "Extend",
    "Features",
    "FineTuning",
    "FineTuningSettings",
]
__all__ += ["Head", "Plug", "Training", "predict"]
