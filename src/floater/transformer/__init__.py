"""The reference Transformer, compatible with Hugging Face."""

from floater.transformer.config import PRESETS, FloaterConfig
from floater.transformer.models import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterModel,
)

__all__ = [
    "PRESETS",
    "FloaterConfig",
    "FloaterForCausalLM",
    "FloaterForConditionalGeneration",
    "FloaterForMaskedLM",
    "FloaterForSequenceClassification",
    "FloaterModel",
]
