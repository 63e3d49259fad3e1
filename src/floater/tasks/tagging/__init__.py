"""Part-of-speech tagging: train on CoNLL-U files, with or without their dependency trees."""

from floater.tasks.tagging.run import load_run
from floater.tasks.tagging.score import Tagging, evaluate, tag
from floater.tasks.tagging.settings import TaggingSettings
from floater.tasks.tagging.train import train

__all__ = ["Tagging", "TaggingSettings", "evaluate", "load_run", "tag", "train"]
