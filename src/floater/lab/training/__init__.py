"""Recipes for training a Transformer with the Hugging Face Trainer."""

from floater.lab.training.averaging import average
from floater.lab.training.batches import BatchSampler, ExampleBatchSampler, StreamSampler, TokenBatchSampler
from floater.lab.training.checkpoints import checkpoints, last_checkpoint
from floater.lab.training.denormals import flush_denormals
from floater.lab.training.flow import FlowSchedule
from floater.lab.training.freed_memory import keep_freed_memory
from floater.lab.training.loss import smoothed_cross_entropy, smoothed_loss
from floater.lab.training.optimizer import adam, parameter_groups
from floater.lab.training.schedule import inverse_sqrt
from floater.lab.training.trainer import FloaterTrainer

__all__ = [
    "BatchSampler",
    "ExampleBatchSampler",
    "FloaterTrainer",
    "FlowSchedule",
    "StreamSampler",
    "TokenBatchSampler",
    "adam",
    "average",
    "checkpoints",
    "flush_denormals",
    "inverse_sqrt",
    "keep_freed_memory",
    "last_checkpoint",
    "parameter_groups",
    "smoothed_cross_entropy",
    "smoothed_loss",
]
