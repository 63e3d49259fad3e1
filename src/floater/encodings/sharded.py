"""Attention whose heads several processes share (tensor parallelism)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, distributed, nn

from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.precise import Precise
from floater.encodings.spec import StackSpec


def is_plain(linear: Any) -> bool:
    """Return whether a projection is a product with its weights and nothing else.

    A module that replaces a linear layer, has hooks or another `forward`, or weights of another kind
    (sharded, quantized), computes more or must be called.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = layer.register_forward_hook(lambda module, args, out: 2 * out)
        >>> is_plain(nn.Linear(2, 2)), is_plain(layer)
        (True, False)
    """
    if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks:
        return False
    return "forward" not in vars(linear) and is_plain_tensor(linear.weight)


def is_plain_tensor(weight: Any) -> bool:
    """Return whether a weight is no tensor of another kind, such as a sharded or a quantized one.

    Example:
        >>> import torch
        >>> is_plain_tensor(nn.Linear(2, 2).weight), is_plain_tensor(torch.ones(2)), is_plain_tensor(None)
        (True, True, False)
    """
    return type(weight) in (Tensor, nn.Parameter)


def follow_projection(vectors: Tensor, projection: Any) -> Tensor:
    """Return the components of vectors that a projection computes on this process.

    Args:
        vectors: (..., width), the same on all processes.
        projection: the projection. One that is sharded by columns, as by PyTorch's `ColwiseParallel` or the
            `tp_plan` of Transformers, computes a part of the width on each process.

    Returns:
        (..., part of the width), with the whole gradient on each process; the vectors themselves where the
        projection is not sharded.

    Example:
        >>> import torch
        >>> follow_projection(torch.ones(2), nn.Linear(3, 2))
        tensor([1., 1.])
    """
    weight = getattr(projection, "weight", None)
    if weight is None or is_plain_tensor(weight):
        return vectors
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(weight, DTensor) or weight.placements != (Shard(0),):
        return vectors
    whole = DTensor.from_local(vectors, weight.device_mesh, [Replicate()], run_check=False)
    part: Tensor = whole.redistribute(placements=[Shard(vectors.ndim - 1)]).to_local()
    return part


def split_heads(y: Tensor, spec: StackSpec) -> Tensor:
    """Split projections into the heads that there are on this process.

    Args:
        y: (batch, T, width), of all heads or of some of them.
        spec: the stack of blocks.

    Returns:
        (batch, T, heads, head_dim).

    Raises:
        PositionError: if the width is not a multiple of a head's width.

    Example:
        >>> import torch
        >>> split_heads(torch.zeros(1, 3, 4), StackSpec(dim=8, heads=4, layers=1, max_length=16)).shape
        torch.Size([1, 3, 2, 2])
    """
    width, head_dim = y.shape[-1], spec.dim // spec.heads
    if width % head_dim:
        raise PositionError(
            f"a projection has {width} components on this process, which are no whole heads of {head_dim}"
        )
    return y.view(*y.shape[:-1], width // head_dim, head_dim)


def check_heads(heads: int, position: PositionModel) -> None:
    """Refuse some of the heads for a position model that needs all of them.

    Args:
        heads: number of heads on this process.
        position: the position model of the attention.

    Raises:
        PositionError: if heads are missing, and the model treats heads in different ways or has parameters
            in attention, whose gradient would be a part on each process.

    Example:
        >>> from floater.encodings import build
        >>> check_heads(2, build("alibi", dim=8, heads=4, layers=1, max_length=16))
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: 2 of 4 heads are on this process, but ALiBi needs all; ...
    """
    if heads != position.spec.heads and not position.serves_some_heads:
        raise PositionError(
            f"{heads} of {position.spec.heads} heads are on this process, but {type(position).__name__} "
            "needs all; tensor parallelism goes with 'rotary' and with encodings that act before attention"
        )


def check_present(model: nn.Module) -> None:
    """Refuse a position model whose weights accelerate has offloaded.

    They come back within `forward` of the part that has them, and a position model reads them elsewhere, too.

    Raises:
        PositionError: if weights of a part are offloaded.

    Example:
        >>> check_present(nn.Linear(2, 2))
    """
    if torch.compiler.is_compiling():
        return
    for part in model.modules():
        if "_hf_hook" in vars(part) and any(weight.is_meta for weight in part.parameters(recurse=False)):
            raise PositionError(
                f"accelerate has offloaded the weights of {type(part).__name__}, a part of a position model: "
                "keep the position model ('floater' or 'floater_extension' in a pretrained model) on a "
                "device in device_map, or plug or extend the model after it is offloaded"
            )


def gather_weights(*models: nn.Module) -> None:
    """Make the weights of position models whole on this process, where FSDP2 has wrapped such a model.

    FSDP gathers weights within `forward` of the module that is wrapped. The hooks of a position model are
    other methods, so one that is wrapped by itself, for a precision of its own, is gathered here, until the
    backward pass has reduced its gradients. Solvers, buckets and rotations read the weights of parts, such
    as a field, outside of their `forward`, and would compute with what this process holds.

    Args:
        models: the position models, or modules with flows.

    Raises:
        PositionError: if accelerate has offloaded weights of a part, or FSDP wraps a part that is not a
            position model, as wrapping by size does.

    Warns:
        UserWarning: if mixed precision has rounded the frequencies of a model.

    Example:
        >>> gather_weights(nn.Linear(2, 2))
    """
    for model in models:
        check_present(model)
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    for part in (part for model in models for part in model.modules()):
        if isinstance(part, FSDPModule) and isinstance(part, PositionModel):
            part.unshard()
        elif isinstance(part, FSDPModule | FullyShardedDataParallel):
            raise PositionError(
                f"FSDP wraps {type(part).__name__}, a part of a position model whose weights are read from "
                "outside of it; wrap by class, not by size: the blocks in _no_split_modules, and the model"
            )
        if isinstance(part, Precise) and any(x.itemsize < 4 for x in part.precise_parameters()):
            warnings.warn(
                f"mixed precision rounds the frequencies of {type(part).__name__}, or what it sums along a "
                "text: call fully_shard on the position model by itself, without param_dtype",
                stacklevel=2,
            )


def whole_gradient(values: Tensor, model: nn.Module) -> Tensor:
    """Return values whose gradient is summed over the processes that share the heads of a model.

    Args:
        values: what all heads read, such as rotary frequencies, the same on all processes.
        model: the model, whose outputs of attention are sharded by rows where heads are shared.

    Returns:
        The values.

    Example:
        >>> import torch
        >>> whole_gradient(torch.ones(2), nn.Linear(3, 2))
        tensor([1., 1.])
    """
    if not (distributed.is_available() and distributed.is_initialized() and values.requires_grad):
        return values
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    for parameter in model.parameters():
        # by rows: FSDP shards weights, too, but along their first axis
        if not isinstance(parameter, DTensor) or Shard(1) not in parameter.placements:
            continue
        mesh = parameter.device_mesh
        if mesh.ndim > 1:
            names = mesh.mesh_dim_names or ()
            mesh = mesh[names[parameter.placements.index(Shard(1))]]
        same = DTensor.from_local(values, mesh, [Replicate()], run_check=False)
        part: Tensor = same.to_local(grad_placements=[Partial()])
        return part
    return values
