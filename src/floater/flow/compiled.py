"""Solves as operators that `torch.compile` puts into its graph whole, without tracing into them.

A solver looks at errors to decide what to do next, which no traced program can do, and traced as far as
possible it takes minutes to compile. The operator finds the encoder by a number and gets its parameters as
arguments, so that gradients flow. It keeps nothing for the backward pass, whose operator solves again, as
gradient checkpointing does, on the mesh that the forward pass left in the encoder's `SolverState`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._C import DispatchKey

if TYPE_CHECKING:
    from floater.flow.encoder import FlowEncoder


_encoders: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = count(1)


def number(encoder: object) -> int:
    """Number an encoder, for `opaque`; a copy needs a number of its own.

    Example:
        >>> class Nothing:
        ...     pass
        >>> nothing = Nothing()
        >>> number(nothing) < number(nothing)
        True
    """
    new = next(_numbers)
    _encoders[new] = encoder
    return new


def opaque(encoder: int, positions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the position vectors of an encoder by an operator that is not traced into.

    Args:
        encoder: Its number.
        positions: (N, T).
        parameters: Those that its vectors depend on, `start` (blocks, names, dim) first.

    Returns:
        Vectors (N T, blocks, names, dim), with gradients to parameters and real positions.
    """
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (positions, *parameters))
    vectors: Tensor = _flow(positions, list(parameters), encoder, learns)[0]
    return vectors


@torch.library.custom_op("floater::flow", mutates_args=())
def _flow(positions: Tensor, parameters: list[Tensor], encoder: int, learns: bool) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(learns), _autograd():
        vectors = _evaluate(_found(encoder), positions.detach(), parameters)
    return vectors.detach(), torch.tensor(vectors.requires_grad)


def _evaluate(encoder: FlowEncoder, positions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return all vectors (N T, blocks, names, dim), with gradients where they are on and none is reused."""
    pairs = zip(encoder.ordered_parameters(), parameters, strict=True)
    own = all(mine.data_ptr() == given.data_ptr() for mine, given in pairs)
    # Its cache belongs to the encoder's own parameters; a copy has leaves, whose graph ends with the
    # operator.
    used = own and (encoder.stores or not torch.is_grad_enabled())
    vectors = (encoder if used else encoder.with_parameters(parameters))(positions)
    values: Tensor = vectors.all().reshape(-1, *encoder.start.shape)
    return values


@_flow.register_fake
def _(positions: Tensor, parameters: list[Tensor], encoder: int, learns: bool) -> tuple[Tensor, Tensor]:
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
        return [torch.zeros_like(x) for x in (positions, *parameters)]
    with torch.enable_grad(), _autograd():
        copy = _found(encoder).with_parameters(parameters)
        copy.refresh_every = 1  # the forward pass has counted this call
        places = positions.detach().requires_grad_(to_positions)
        leaves = [places, *copy.ordered_parameters()]
        vectors = copy(places).all()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = torch.autograd.grad(vectors, wanted, cotangent.reshape(vectors.shape), allow_unused=True)
    gradients = dict(zip(map(id, wanted), found, strict=True))
    return [torch.zeros_like(x) if (g := gradients.get(id(x))) is None else g for x in leaves]


@_flow_backward.register_fake
def _(cotangent: Tensor, flows: Tensor, positions: Tensor, parameters: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in (positions, *parameters)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    positions, parameters, ctx.encoder, _ = inputs
    ctx.save_for_backward(output[1], positions, *parameters)


def _differentiate(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
    flows, positions, *parameters = ctx.saved_tensors
    wanted: bool = ctx.needs_input_grad[0]
    of_positions, *found = _flow_backward(cotangents[0], flows, positions, parameters, ctx.encoder, wanted)
    return of_positions if wanted else None, found, None, None


_flow.register_autograd(_differentiate, setup_context=_keep)


def _found(encoder: int) -> FlowEncoder:
    found: FlowEncoder | None = _encoders.get(encoder)
    if found is None:
        raise RuntimeError("the flow encoder of a compiled program is gone; compile the model that is run")
    return found


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd record inside an operator, where dispatch is past it: the encoder differentiates."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (
        DispatchKey.AutogradFunctionality,
        DispatchKey.AutogradOther,
        DispatchKey.AutogradNestedTensor,
    ):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
