"""Observation of the forward passes of a module."""

from __future__ import annotations

import inspect
import threading
from types import CodeType
from typing import Any, Protocol

import torch
from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_FORWARD = "_floater_forward"
"""Attribute of a module with its `Forward`, which other libraries may surround by a function of their own."""


class Observer(Protocol):
    """An object that sees the beginning and the end of every forward pass of a module."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Begin a pass; return other arguments, or None to keep them."""

    def leave(self, output: Any) -> None:
        """End a pass, whose output is None if it failed."""


class PerThread(threading.local):
    """A value of each thread; several threads may run one model at the same time."""

    current: Any = None

    def __reduce__(self) -> tuple[type[PerThread], tuple[()]]:
        return PerThread, ()  # a copy of a model is in no forward pass


class Forward:
    """The forward function of a module, surrounded by observers.

    It is the attribute `forward` of the module itself. Hooks would not do: PEFT, sentence-transformers and
    others call `model.forward(...)`, which runs no hooks.

    Args:
        module: observed module; its attribute is set.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.inner = module, module.__dict__.get("forward")
        self.observers: list[Observer] = []
        self._replica = PerThread()
        self._hook = module.register_forward_pre_hook(self._note)
        module.forward = module.__dict__[_FORWARD] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own function between the observers."""
        module, output = self.module, None
        if not torch.compiler.is_compiling():
            module, self._replica.current = self._replica.current or module, None
        try:
            for observer in self.observers:
                args, kwargs = observer.enter(module, args, kwargs) or (args, kwargs)
            if self.inner is None:
                output = type(module).forward(module, *args, **kwargs)
            else:
                output = self.inner(*args, **kwargs)
            return output
        finally:
            for observer in self.observers:
                observer.leave(output)

    def _note(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note a copy of the module by `DataParallel`, which has this same function; a forward pre-hook."""
        if module.__dict__.get("_is_replica", False):
            self._replica.current = module

    def remove(self, observer: Observer) -> None:
        """Remove an observer, and with the last one the function itself, unless another one surrounds it."""
        self.observers.remove(observer)
        if not self.observers and self.module.__dict__.get("forward") is self:
            self._hook.remove()
            del self.module.forward, self.module.__dict__[_FORWARD]
            if self.inner is not None:
                self.module.forward = self.inner

    @property
    def _function(self) -> Any:
        return self.inner or type(self.module).forward.__get__(self.module)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)  # Transformers reads the names of a model's inputs

    @property
    def __code__(self) -> CodeType:
        code: CodeType = inspect.unwrap(self._function).__code__  # torch.export reads it
        return code


def observe(module: nn.Module, observer: Observer) -> Forward:
    """Make an observer see all forward passes of a module, those of `module.forward(...)`, too.

    Args:
        module: module to observe.
        observer: observer, after those that the module has already.

    Returns:
        The function that runs the observers.
    """
    forward: Forward = module.__dict__.get(_FORWARD) or Forward(module)
    forward.observers.append(observer)
    return forward


def unobserve(module: nn.Module, observer: Observer) -> None:
    """Remove an observer of a module."""
    module.__dict__[_FORWARD].remove(observer)


def observers(module: nn.Module) -> list[Observer]:
    """Return the observers of a module."""
    forward: Forward | None = module.__dict__.get(_FORWARD)
    return [] if forward is None else list(forward.observers)
