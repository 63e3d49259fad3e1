"""Forward passes of a model's bodies, in which position vectors are added to the projections."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from floater._hf import cache_in
from floater.encodings.sharded import follow_projection
from floater.flow import FlowVectors
from floater.positions import Positions
from floater.positions.tracing import refuse_trace
from floater.pretrained.adapters import active, called_again, check_adapters
from floater.pretrained.arguments import check_packed, refuse_positions, source_positions, token_positions
from floater.pretrained.families import Family, PlugError, first_position, padding_of_table
from floater.pretrained.find import TEXT, is_inside, reads_text, text_advice
from floater.pretrained.flows import Trajectory
from floater.pretrained.forward import PerThread
from floater.pretrained.host import copy_or_share, part_at

SOURCE = "encoder_hidden_states"
"""Argument of a body with the tokens that its cross-attention reads."""

_ROWS = {"input_ids", "attention_mask", "position_ids"}


@dataclass
class BodyState:
    """The state of a body in one forward pass.

    Args:
        vectors: position vectors by site and field.
        calls: number of calls of each projection so far, by its path.
    """

    vectors: dict[tuple[str, str], FlowVectors] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


class Body:
    """The part of a model that reads the tokens of a text: a stack of blocks with one set of positions.

    Args:
        root: plugged model, whose `floater` computes the vectors.
        path: name of the body in the model.
        family: description of the body's family.
        site: name of the site of its own tokens.
        cross: name of the site of the tokens that its cross-attention reads.
    """

    def __init__(self, root: nn.Module, path: str, family: Family, site: str, cross: str) -> None:
        self.root, self.path, self.family = root, path, family
        self.site, self.cross = site, cross
        self.injections: list[Injection] = []
        self._local = PerThread()
        self.shared: BodyState | None = None
        module = root.get_submodule(path)
        self.names = list(inspect.signature(type(module).forward).parameters)[1:]
        if family.length is None and not reads_text(module):
            raise PlugError(
                f"{type(module).__name__} takes {', '.join(self.names)}; the positions of its "
                f"tokens need one of {', '.join(sorted(TEXT))}{text_advice(root)}"
            )
        self.padding = padding_of_table(module)
        around = [part for outer, part in root.named_modules() if is_inside(path, outer)]
        self.first = max((first_position(part) for part in around), default=0)
        config: Any = getattr(module, "config", None)
        layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
        self.windowed = any(getattr(each, "sliding_window", None) is not None for each in layers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Body:
        copied = copy_or_share(self, self.root, self.path, memo)
        for injection in copied.injections:
            injection.body = copied  # a block that was copied before its model kept the original
        return copied

    @property
    def current(self) -> BodyState | None:
        """Return the state of the forward pass of this thread.

        Dynamo cannot read thread-local attributes that were set by Python code, so compiled code reads an
        attribute of the body. It is None while two threads are in forward passes.
        """
        local: BodyState | None = None if torch.compiler.is_compiling() else self._local.current
        return local or self.shared

    @current.setter
    def current(self, current: BodyState | None) -> None:
        if torch.compiler.is_compiling():
            self.shared = current
            return
        before, self._local.current = self._local.current, current
        self.shared = current if self.shared is before else None

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a forward pass."""
        refuse_trace(PlugError, "a plugged model", "bake it and use torch.export")
        if getattr(module, "_is_replica", False):
            raise PlugError("a plugged model does not run in DataParallel; use DistributedDataParallel")
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        check_packed(arguments, getattr(module, "config", None), PlugError)
        refuse_positions(module, arguments, self.names, PlugError)
        if not torch.compiler.is_compiling():
            paths = [injection.path for injection in self.injections]
            check_adapters(self.root, module, paths)
            check_projections(module, paths)
        self.current = BodyState()
        if (positions := self.positions(module, arguments)) is not None:
            self.solve(self.site, positions)
        source = arguments.get(SOURCE)
        # is_updated: for each block, whether its keys of cross-attention are cached
        updated = getattr(cache_in(arguments), "is_updated", None)
        if self.reads_source and source is not None and not (updated and any(updated.values())):
            self.solve(self.cross, source_positions(arguments, source.shape[:2]))
        # in compiled code, checkpoints capture the vectors by themselves
        if module.training and not torch.compiler.is_compiling():
            for name, part in module.named_modules():
                function = part.__dict__.get("_gradient_checkpointing_func")
                if function is not None and not isinstance(function, GradientCheckpointing):
                    part._gradient_checkpointing_func = GradientCheckpointing(self, name, function)

    def leave(self, output: Any) -> None:
        """End a forward pass."""
        self.current = None

    def release(self) -> None:
        """Restore the original functions of gradient checkpointing."""
        for part in self.root.get_submodule(self.path).modules():
            function = part.__dict__.get("_gradient_checkpointing_func")
            if isinstance(function, GradientCheckpointing):
                part._gradient_checkpointing_func = function.function  # type: ignore[assignment]

    @contextmanager
    def running(self, current: BodyState) -> Iterator[None]:
        """Make a forward pass the current one until the end of the block."""
        outer, self.current = self.current, current
        try:
            yield
        finally:
            self.current = outer

    def trajectories(self, path: str) -> list[Trajectory]:
        """Return the trajectories that are used by the projections in one of the body's modules."""
        inside = [i for i in self.injections if i.path.startswith(f"{path}." if path else "")]
        used = (key for injection in inside for use in injection.uses for key in use if key is not None)
        return list(dict.fromkeys(used))

    def positions(self, module: nn.Module, arguments: Mapping[str, Any]) -> Positions | None:
        """Return the positions of the tokens; None if there are no tokens."""
        if self.family.length is not None and (length := self.family.length(module, arguments)) is not None:
            return Positions.arange(length)
        words = next((arguments[name] for name in ("input_ids", "inputs_embeds") if name in arguments), None)
        if words is None:
            return None
        if "input_ids" in arguments and words.ndim == 3:  # GPT-2's body makes rows of choices
            words = words.flatten(0, 1)
            arguments = {
                name: value.flatten(0, 1) if name in _ROWS and value.ndim == 3 else value
                for name, value in arguments.items()
            }
        return token_positions(
            arguments, words.shape[:2], padding=self.padding, first=self.first, windowed=self.windowed
        )

    def solve(self, site: str, positions: Positions) -> None:
        """Compute the vectors of a site for the current forward pass."""
        assert self.current is not None
        flows: Any = active(self.root.floater)
        for name, vectors in flows(site, positions.counted_query, positions.below).items():
            self.current.vectors[site, name] = vectors

    @property
    def reads_source(self) -> bool:
        """Return whether keys or values of cross-attention get vectors."""
        return any(key.site == self.cross for key in self.trajectories(""))


class Injection:
    """A forward hook that adds position vectors to the output of one projection.

    Args:
        body: body that contains the projection.
        path: name of the projection in the body.
        uses: for each call in a forward pass, the trajectory that is added to each part of the output, None
            for no trajectory. Nothing is added in later calls, which only some families allow.
        widths: widths of the parts.
        head: width of a head if each head consists of all parts in turn, else None.
    """

    def __init__(
        self,
        body: Body,
        path: str,
        uses: Sequence[Sequence[Trajectory | None]],
        widths: Sequence[int],
        head: int | None,
    ) -> None:
        self.body, self.path, self.uses, self.widths, self.head = body, path, uses, widths, head

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if not isinstance(output, Tensor):
            raise PlugError(f"{self.path} returns a {type(output).__name__}; a projection returns one tensor")
        use = self.next_use(output.shape)
        if use is None:
            return output
        vectors = self.vectors(use, output.shape)
        if vectors.shape[-1] != output.shape[-1] and len(self.widths) == 1:
            vectors = follow_projection(vectors, module)
        if vectors.shape[-1] != output.shape[-1]:
            raise PlugError(
                f"{self.path} computes {output.shape[-1]} of {sum(self.widths)} components on this process; "
                "tensor parallelism goes with plugged models whose projections are linear layers of one part"
            )
        return output + vectors.to(output)

    def next_use(self, shape: torch.Size) -> Sequence[Trajectory | None] | None:
        """Return the trajectories of the next call, by parts of its output; None if nothing is added.

        Args:
            shape: shape (batch, T, ...) of the call's input or output.

        Raises:
            PlugError: if the projection is called outside of its body's forward pass, or more often than is
                expected in one pass.
        """
        current = self.body.current
        if current is None:
            raise PlugError(
                f"{self.body.path}.{self.path} was called outside of the forward pass of "
                f"{self.body.path or 'the model'}, so the positions of its tokens are unknown; call the "
                "model itself, not a part of it, and checkpoint it by gradient_checkpointing_enable()"
            )
        call = 0
        # one use needs no count, and a compiled checkpoint must not change what lies outside of it
        if len(self.uses) > 1 or self.body.family.again or not torch.compiler.is_compiling():
            call = current.calls.get(self.path, 0)
            current.calls[self.path] = call + 1
        if call >= len(self.uses):
            if self.body.family.again:
                return None
            raise called_again(self.body.root.get_submodule(self.body.path), self.path, len(self.uses))
        if len(shape) != 3:
            raise PlugError(f"{self.path} projects {tuple(shape)}; it must be (batch, length, width)")
        return self.uses[call] if any(self.uses[call]) else None

    def vectors(self, use: Sequence[Trajectory | None], shape: torch.Size) -> Tensor:
        """Return the vectors of a call's tokens, in the order of the projection: (batch or 1, T, width).

        Args:
            use: trajectories of the call, as `next_use` returns them.
            shape: shape (batch, T, ...) of the call's input or output.

        Raises:
            PlugError: if the numbers of texts and tokens are not those of the body's positions.
        """
        parts = [None if key is None else self._field_vectors(key).at(*key[2:]) for key in use]
        texts, tokens, _ = next(part for part in parts if part is not None).shape
        if tokens != shape[1] or texts not in (1, shape[0]):
            raise PlugError(
                f"{self.path} projects {shape[1]} tokens of {shape[0]} texts; the positions given are those "
                f"of {tokens} tokens of {texts}"
            )
        return self._joined(parts)

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Join the parts of an output, (batch or 1, T, width) each, in the order of the projection."""
        present = next(part for part in parts if part is not None)
        if len(parts) == 1:
            return present
        filled = [
            present.new_zeros(1, 1, width).expand(*present.shape[:2], width) if part is None else part
            for part, width in zip(parts, self.widths, strict=True)
        ]
        if self.head is None:
            return torch.cat(filled, -1)
        return torch.stack([part.view(*part.shape[:2], -1, self.head) for part in filled], -2).flatten(-3)

    def _field_vectors(self, key: Trajectory) -> FlowVectors:
        assert self.body.current is not None
        vectors = self.body.current.vectors.get(key[:2])
        if vectors is None:
            raise PlugError(f"{self.path} projects tokens whose positions {self.body.path} was not given")
        return vectors


def check_projections(body: nn.Module, paths: Iterable[str]) -> None:
    """Refuse a body in which a module without a flow has taken the place of a projection.

    Args:
        body: the body.
        paths: names in the body of the projections that a flow is added to; one that is missing, as in a
            body with fewer blocks, is not called.

    Raises:
        PlugError: if there is one.

    Example:
        >>> check_projections(nn.Sequential(nn.Linear(2, 2)), ["0"])
        Traceback (most recent call last):
        floater.pretrained.families.PlugError: another Linear has taken the place of 0, without its flow, ...
    """
    for path in paths:
        part = part_at(body, path)
        if part is not None and not any(_injects(module, path) for module in part.modules()):
            raise PlugError(
                f"another {type(part).__name__} has taken the place of {path}, without its flow, as after "
                "dequantize() or in another order of blocks; floater.save the flow, unplug the model and "
                "floater.load the flow into it"
            )


def _injects(module: nn.Module, path: str) -> bool:
    hooks = module.__dict__.get("_baked"), *module._forward_hooks.values()
    return any(isinstance(hook, Injection) and hook.path == path for hook in hooks)


class GradientCheckpointing:
    """A gradient checkpointing function that passes position vectors as arguments of the checkpoint.

    A checkpoint runs again in the backward pass, when the forward pass of the body has ended, and with
    `use_reentrant` only its arguments get gradients.

    Args:
        body: body that contains the checkpointed module.
        path: name of the checkpointed module in the body.
        function: original function of gradient checkpointing.
    """

    def __init__(self, body: Body, path: str, function: Callable[..., Any]) -> None:
        self.body, self.path, self.function = body, path, function

    def __call__(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        body, current = self.body, self.body.current
        if current is None or torch.compiler.is_compiling():  # without a pass, projections raise
            return self.function(run, *args, **kwargs)
        solved = dict(current.vectors)
        keys = [key for key in body.trajectories(self.path) if key[:2] in solved]
        flat = [solved[key[:2]].of(*key[2:]) for key in keys]

        def again(*inputs: Any) -> Any:
            rows = inputs[len(args) :]
            indices: dict[tuple[str, str], dict[tuple[int, str], int]] = {}
            for i, key in enumerate(keys):
                indices.setdefault(key[:2], {})[key[2:]] = i
            vectors = {
                field: replace(solved[field], rows=rows, keys=index) for field, index in indices.items()
            }
            with body.running(BodyState(vectors)):
                return run(*inputs[: len(args)])

        return self.function(again, *args, *flat, **kwargs)
