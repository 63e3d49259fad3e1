"""Language modelling, causal and masked: train on plain text, measure perplexity."""

from floater.tasks.language_modeling.score import Score
from floater.tasks.language_modeling.settings import LanguageModelingSettings
from floater.tasks.language_modeling.train import evaluate, load_run, train

__all__ = ["LanguageModelingSettings", "Score", "evaluate", "load_run", "train"]
