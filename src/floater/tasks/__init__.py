"""Tasks: data in, scores out, on one skeleton; `task("translation").train(settings)`."""

from floater.tasks.registry import register, task
from floater.tasks.settings import Model, RunSettings
from floater.tasks.task import Prepared, Splits, Task

__all__ = ["Model", "Prepared", "RunSettings", "Splits", "Task", "register", "task"]
