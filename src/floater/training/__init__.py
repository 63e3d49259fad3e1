"""Recipes for training a Transformer with the Hugging Face Trainer."""

from floater.training.averaging import average
from floater.training.batches import BatchSampler, ExampleBatchSampler, StreamSampler, TokenBatchSampler
from floater.training.checkpoints import checkpoints, last_checkpoint
from floater.training.denormals import flush_denormals
from floater.training.flow import FlowSchedule, check_save_steps, parameter_groups
from floater.training.loss import smoothed_cross_entropy, smoothed_loss
from floater.training.optimizer import adam
from floater.training.schedule import constant, inverse_sqrt, linear
from floater.training.trainer import FloaterTrainer

__all__ = [
    "BatchSampler",
    "ExampleBatchSampler",
    "FloaterTrainer",
    "FlowSchedule",
    "StreamSampler",
    "TokenBatchSampler",
    "adam",
    "average",
    "check_save_steps",
    "checkpoints",
    "constant",
    "flush_denormals",
    "inverse_sqrt",
    "last_checkpoint",
    "linear",
    "parameter_groups",
    "smoothed_cross_entropy",
    "smoothed_loss",
]
