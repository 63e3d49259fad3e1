"""The reference Transformer, compatible with Hugging Face."""

from floater._hf import OLDEST as _OLDEST  # noqa: F401  (it refuses a missing Transformers in one line)
from floater.transformer.classification import (
    FloaterForMultipleChoice,
    FloaterForQuestionAnswering,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
)
from floater.transformer.config import PRESETS, FloaterConfig
from floater.transformer.length_predictor import LengthPredictor
from floater.transformer.models import (
    FloaterForCausalLM,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.nonautoregressive import FloaterForNonAutoregressiveGeneration, encoder_decoder
from floater.transformer.recipe import RECIPES, Recipe
from floater.transformer.seq2seq import FloaterForConditionalGeneration

__all__ = [
    "PRESETS",
    "RECIPES",
    "FloaterConfig",
    "FloaterForCausalLM",
    "FloaterForConditionalGeneration",
    "FloaterForMaskedLM",
    "FloaterForMultipleChoice",
    "FloaterForNonAutoregressiveGeneration",
    "FloaterForQuestionAnswering",
    "FloaterForSequenceClassification",
    "FloaterForTokenClassification",
    "FloaterModel",
    "LengthPredictor",
    "Recipe",
    "encoder_decoder",
]
