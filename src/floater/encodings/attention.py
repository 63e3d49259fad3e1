"""Attention with the hooks of a position model: the order in which they act, written once.

    q, k, v = qkv(projections of inputs(x), each plus its projection_bias)
    q', k'  = rotated(q, k)
    logits  = temperature * logits(scale * q' k'^T + bias(q, k)), -inf outside of the mask
    output  = weights(logits) v + value_bias(weights)

`project_qkv` is the first line and `AttentionCall` the others. The Transformer, the measurements of the
catalogue and the analyses call these; a kernel that computes the same in another way reads the parts of the
call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.context import AttentionContext, Projection
from floater.encodings.model import QKV, PositionModel
from floater.encodings.sharded import check_heads, follow_projection, is_plain, split_heads
from floater.encodings.terms import AttentionTerms
from floater.flow.autograd import in_transform


def project(linear: Callable[[Tensor], Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W + b + b(t), the positions' bias added by the product itself (Liu et al. 2020, equation 12).

    Args:
        linear: the projection; a linear layer with a bias b or none, or any other function.
        x: (batch, T, dim).
        bias: b(t), (batch or 1, T, width), or None.

    Returns:
        (batch, T, width); without b(t), or with one that is zero, exactly what the projection gives.

    Example:
        >>> linear = nn.Linear(2, 2)
        >>> x, bias = torch.randn(3, 4, 2), torch.ones(1, 4, 2)
        >>> torch.allclose(project(linear, x, bias), linear(x) + 1, atol=1e-6)
        True
    """
    if bias is None:
        return linear(x)
    if is_plain(linear):
        layer = cast(nn.Linear, linear)
        return added_product(bias.to(layer.weight.dtype), x, layer.weight.T, layer.bias)
    out = linear(x)
    if bias.shape[-1] != out.shape[-1]:  # else the projection itself has computed it
        bias = follow_projection(bias, linear)
    return out + bias.to(out.dtype)


def added_product(rows: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute rows + bias + x W, the first two in the memory of the product, which adds to them.

    Args:
        rows: (1 or batch, T, width) of the dtype of the weight.
        x: (batch, T, dim).
        weight: (dim, width).
        bias: (width,) or None.

    Returns:
        (batch, T, width).

    Example:
        >>> added_product(torch.ones(1, 2, 1), torch.zeros(3, 2, 4), torch.zeros(4, 1)).sum()
        tensor(6.)
    """
    shape, flat = (*x.shape[:-1], rows.shape[-1]), x.flatten(0, -2)
    trained = torch.is_grad_enabled() and (rows.requires_grad or (bias is not None and bias.requires_grad))
    transformed = in_transform()
    if trained or transformed or torch.compiler.is_compiling():
        # No view may be added to in place: its backward pass would copy the gradient four times.
        addend = rows.flatten(0, 1).clone() if bias is None else rows.flatten(0, 1) + bias
        # Sizes, as len() of a symbolic size would become a constant of an exported program.
        if addend.shape[0] != flat.shape[0]:
            addend = addend.expand(x.shape[0], *addend.shape).reshape(flat.shape[0], shape[-1]).contiguous()
    else:
        addend = rows.new_empty(flat.shape[0], shape[-1])
        if bias is None:
            addend.view(shape).copy_(rows)
        else:
            torch.add(rows.expand(shape), bias, out=addend.view(shape))
    # Autocast and vmap support only the product that copies its addend.
    kind = x.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    product = torch.addmm if autocast or transformed else Tensor.addmm_
    return product(addend, flat, weight).view(shape)


def project_qkv(position: PositionModel, context: AttentionContext[Any]) -> QKV:
    """Return queries, keys and values of self-attention, (batch, heads, T, head_dim).

    Args:
        position: the position model.
        context: its input and its projections.

    Example:
        >>> from floater import Positions, build
        >>> model, x = build("rotary", dim=8, heads=2, layers=1, max_length=16), torch.zeros(1, 3, 8)
        >>> linear = {name: nn.Linear(8, 8) for name in ("query", "key", "value")}
        >>> state = model.prepare(Positions.arange(3))
        >>> [y.shape for y in project_qkv(model, AttentionContext(state, 0, x, linear))][0]
        torch.Size([1, 2, 3, 4])
    """
    xq, xk, xv = position.inputs(context)
    inputs: tuple[tuple[Projection, Tensor], ...] = (("query", xq), ("key", xk), ("value", xv))
    q, k, v = (
        split_heads(
            project(context.projections[name], x, position.projection_bias(name, context)), position.spec
        )
        for name, x in inputs
    )
    check_heads(q.shape[2], position)
    q, k, v = position.qkv(q, k, v, context)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def mask_of_pairs(visible: Tensor | None) -> Tensor | None:
    """Return the mask of `Positions.visible`, (batch, S) or (batch, T, S), with axes for heads and queries.

    Example:
        >>> mask_of_pairs(torch.ones(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 1, 1, 5])
    """
    if visible is None:
        return None
    return visible[:, None, None] if visible.ndim == 2 else visible[:, None]


@dataclass(eq=False)
class AttentionCall:
    """One attention, after the projections: its tensors, and the results of its hooks.

    Args:
        position: the position model.
        context: what its hooks read.
        q: (batch, heads, T, head_dim), as `project_qkv` returns them.
        k: (batch, heads, S, head_dim), cached ones first.
        v: (batch, heads, S, head_dim).
        key_mask: bool mask of the keys that are not padding, broadcastable to (batch, heads, T, S).
        causal: whether query t, counted from 0, may attend to the first S - T + 1 + t keys only.
        dropout: probability of dropping a weight.
        temperature: function from the logarithm of the number of keys that each query sees to the factor of
            its logits; None for no factor.

    Example:
        >>> from floater import Positions, build
        >>> model, x = build("alibi", dim=8, heads=2, layers=1, max_length=16), torch.zeros(1, 2, 3, 4)
        >>> call = AttentionCall(model, AttentionContext(model.prepare(Positions.arange(3)), 0), x, x, x)
        >>> call.logits()[0, 1, 0].tolist()
        [0.0, -0.00390625, -0.0078125]
    """

    position: PositionModel
    context: AttentionContext[Any]
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None = None
    causal: bool = False
    dropout: float = 0.0
    temperature: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        # What several kernels may ask for; torch.compile does not support the lock of cached_property.
        self._mask: list[Tensor | None] = []
        self._terms: list[AttentionTerms | None] = []

    @property
    def queries(self) -> int:
        """Return the number of queries T."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Return the number of keys S."""
        return self.k.shape[2]

    @property
    def scale(self) -> float:
        """Return the factor of the dot products."""
        return self.position.scale(self.q.shape[-1])

    @property
    def mask(self) -> Tensor | None:
        """Return the keys that each query may attend to, but for the causal order; None for all."""
        if not self._mask:
            masks = [mask for mask in (self.key_mask, self.position.mask(self.context)) if mask is not None]
            self._mask.append(masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None)
        return self._mask[0]

    @property
    def terms(self) -> AttentionTerms | None:
        """Return the terms of the distance in place of `bias` and `value_bias`; None where there are none."""
        if not self._terms:
            model = self.position
            self._terms.append(
                model.attention_terms(self.q, self.k, self.context) if model.has_terms else None
            )
        return self._terms[0]

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of the dot products."""
        return self.position.rotated(self.q, self.k, self.context)

    def bias(self) -> Tensor | None:
        """Return what is added to the products."""
        return self.position.bias(self.q, self.k, self.context)

    def visible(self) -> Tensor | None:
        """Return the keys that each query may attend to, in causal order if it is causal; None for all."""
        if not self.causal or self.queries == 1:
            return self.mask
        shape = self.queries, self.keys
        earlier = torch.ones(shape, dtype=torch.bool, device=self.q.device).tril(self.keys - self.queries)
        return earlier if self.mask is None else self.mask & earlier

    def factor(self, visible: Tensor | None) -> Tensor | None:
        """Return the factor of the logits, by the number of keys that each query sees.

        Args:
            visible: the result of `visible`, or None also for a call that is causal and has no other mask.

        Returns:
            Broadcastable to (batch, heads, T, 1); None for no factor.
        """
        if self.temperature is None:
            return None
        if visible is not None:
            count = visible.expand(*visible.shape[:-1], self.keys).sum(-1, keepdim=True)
        else:
            first = self.keys - self.queries + 1 if self.causal else self.keys
            count = torch.arange(first, self.keys + 1, device=self.q.device)[:, None]
        return self.temperature(count.clamp(min=1).log()).to(self.q.dtype)

    def logits(self) -> Tensor:
        """Return the logits (batch, heads, T, S), -inf where a query may not attend."""
        q, k = self.rotated()
        logits, bias = q @ k.transpose(-1, -2) * self.scale, self.bias()
        if bias is not None:
            logits = logits + bias.to(logits.dtype)
        logits = self.position.logits(logits, self.q, self.k, self.context)
        visible = self.visible()
        factor = self.factor(visible)
        if factor is not None:
            logits = logits * factor
        return logits if visible is None else logits.masked_fill(~visible, -torch.inf)

    def attend(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs (batch, heads, T, head_dim) and the weights (batch, heads, T, S) of logits."""
        weights = self.position.weights(logits, self.context)
        dropped = F.dropout(weights, self.dropout)
        out, added = dropped @ self.v, self.position.value_bias(dropped, self.context)
        return out if added is None else out + added, weights
