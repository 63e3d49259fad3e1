"""Translation: train on aligned text, translate, score."""

from floater.tasks.translation.decode import CutTranslation, translate
from floater.tasks.translation.run import load_run
from floater.tasks.translation.score import Evaluation, evaluate
from floater.tasks.translation.settings import Decoding, TranslationSettings
from floater.tasks.translation.train import train

__all__ = [
    "CutTranslation",
    "Decoding",
    "Evaluation",
    "TranslationSettings",
    "evaluate",
    "load_run",
    "train",
    "translate",
]
