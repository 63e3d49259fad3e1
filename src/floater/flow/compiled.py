"""Solves as operators that `torch.compile` puts into its graph whole, without tracing into them.

A solver reads errors to decide its next step, which no traced program can do; traced as far as possible it
takes minutes to compile. The operator finds the encoder by a number and gets its parameters as
arguments, so that gradients flow. It keeps nothing for the backward pass, whose operator solves again, as
gradient checkpointing does, on the mesh that the forward pass left in the encoder's `SolverState`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._C import DispatchKey


class CompilableEncoder(Protocol):
    """The interface of a `FlowEncoder` to the operators.

    Attributes:
        start: Starting vectors (blocks, names, dim).
        refresh_every: The number of calls with gradients of which one solves.
        __call__: Function from positions (N, T) to `FlowVectors`.
    """

    start: nn.Parameter
    refresh_every: int
    __call__: Any

    @property
    def stores(self) -> bool:
        """Return whether vectors come from the cache, without gradient."""

    def ordered_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the vectors depend on, the starting vectors first."""

    def with_parameters(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy with other parameters, in their order."""


_encoders: WeakValueDictionary[int, CompilableEncoder] = WeakValueDictionary()
_numbers = count(1)


def number(encoder: CompilableEncoder) -> int:
    """Return a new number for an encoder, by which `opaque` finds it; a copy needs another one."""
    new = next(_numbers)
    _encoders[new] = encoder
    return new


def opaque(encoder: int, positions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the position vectors of an encoder by an operator that is not traced into.

    Args:
        encoder: The encoder's number.
        positions: (N, T).
        parameters: The parameters that its vectors depend on, `start` (blocks, names, dim) first.

    Returns:
        Vectors (N T, blocks, names, dim), with gradients to parameters and real positions.
    """
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (positions, *parameters))
    moves = learns and positions.requires_grad
    vectors: Tensor = _flow(positions, list(parameters), encoder, learns, moves)[0]
    return vectors


@torch.library.custom_op("floater::flow", mutates_args=())
def _flow(
    positions: Tensor, parameters: list[Tensor], encoder: int, learns: bool, moves: bool
) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(learns), _autograd():
        vectors = _evaluate(_registered(encoder), positions.detach().requires_grad_(moves), parameters)
    return vectors.detach(), torch.tensor(vectors.requires_grad)


def _evaluate(encoder: CompilableEncoder, positions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return all vectors (N T, blocks, names, dim), with gradients if they are on and no vector is reused."""
    pairs = zip(encoder.ordered_parameters(), parameters, strict=True)
    same = all(parameter.data_ptr() == argument.data_ptr() for parameter, argument in pairs)
    # The encoder's cache belongs to its parameters; a copy has leaves, whose graph ends with the operator.
    used = same and (encoder.stores or not torch.is_grad_enabled())
    vectors = (encoder if used else encoder.with_parameters(parameters))(positions)
    values: Tensor = vectors.all().reshape(-1, *encoder.start.shape)
    return values


@_flow.register_fake
def _(positions: Tensor, parameters: list[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    vectors = parameters[0].new_empty(positions.numel(), *parameters[0].shape)
    return vectors, torch.empty((), dtype=torch.bool)


@torch.library.custom_op("floater::flow_backward", mutates_args=())
def _flow_backward(
    cotangent: Tensor,
    flows: Tensor,
    positions: Tensor,
    parameters: list[Tensor],
    encoder: int,
    to_positions: bool,
) -> list[Tensor]:
    if not bool(flows):
        _leave_without_gradient(_registered(encoder).ordered_parameters())
        return [torch.zeros_like(x) for x in (positions, *parameters)]
    with torch.enable_grad(), _autograd():
        copy = _registered(encoder).with_parameters(parameters)
        copy.refresh_every = 1  # the forward pass has counted this call
        leaf_positions = positions.detach().requires_grad_(to_positions)
        leaves = [leaf_positions, *copy.ordered_parameters()]
        vectors = copy(leaf_positions).all()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        derivatives = torch.autograd.grad(
            vectors, wanted, cotangent.reshape(vectors.shape), allow_unused=True
        )
    gradients = dict(zip(map(id, wanted), derivatives, strict=True))
    return [torch.zeros_like(x) if (g := gradients.get(id(x))) is None else g for x in leaves]


def _leave_without_gradient(parameters: Sequence[nn.Parameter]) -> None:
    """Remove the zeros that the current backward pass will give parameters as gradients, as it ends.

    Without the compiler there is no gradient where vectors are reused. An optimizer passes over such
    parameters, and moves those whose gradient is zero, by momentum and weight decay.
    """
    absent = [parameter for parameter in parameters if parameter.requires_grad and parameter.grad is None]

    def remove() -> None:
        for parameter in absent:
            if parameter.grad is not None and not bool(parameter.grad.any()):
                parameter.grad = None

    torch.autograd.Variable._execution_engine.queue_callback(remove)


@_flow_backward.register_fake
def _(cotangent: Tensor, flows: Tensor, positions: Tensor, parameters: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in (positions, *parameters)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    positions, parameters, ctx.encoder, *_ = inputs
    ctx.save_for_backward(output[1], positions, *parameters)


def _differentiate(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
    flows, positions, *parameters = ctx.saved_tensors
    wanted: bool = ctx.needs_input_grad[0]
    position_gradient, *parameter_gradients = _flow_backward(
        cotangents[0], flows, positions, parameters, ctx.encoder, wanted
    )
    return position_gradient if wanted else None, parameter_gradients, None, None, None


_flow.register_autograd(_differentiate, setup_context=_keep)


def _registered(number: int) -> CompilableEncoder:
    """Return the encoder of a number."""
    encoder = _encoders.get(number)
    if encoder is None:
        raise RuntimeError("the flow encoder of a compiled program is gone; compile the model that is run")
    return encoder


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd record inside an operator, where dispatch is past it, as the encoder differentiates."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (
        DispatchKey.AutogradFunctionality,
        DispatchKey.AutogradOther,
        DispatchKey.AutogradNestedTensor,
    ):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
