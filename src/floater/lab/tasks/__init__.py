"""Tasks: data in, scores out, on one skeleton; `task("translation").train(settings)`."""

from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.tasks.registry import register, task
from floater.lab.tasks.settings import Model, RunSettings
from floater.lab.tasks.task import Task

__all__ = ["Model", "Prepared", "RunSettings", "Splits", "Task", "register", "task"]
