"""Checks of gradients: finite, and at every parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floater.testing.case import Case
from floater.testing.inputs import MASK, embeddings, mask_positions

_PAST_THE_LAST_BUCKET = 160
_ROUNDING = 1e-12
"""The remainder of a gradient that is zero but for the rounding of kernels, in shares of the largest one."""
_MOSTLY = 0.25
"""A share of the rows: some units of a network may be idle."""


def gradients(case: Case, causal: bool = False) -> None:
    """Gradients are finite and reach the tokens and the weights of every head of every block."""
    stack = case.stack(causal=causal).train()
    x = embeddings(*MASK.shape).requires_grad_()
    out = stack(x, mask_positions(stack.position, MASK))
    (out * torch.randn(out.shape))[MASK.bool()].sum().backward()
    assert x.grad is not None, "no gradient reaches the tokens"
    assert bool(x.grad.isfinite().all()), "gradients of the tokens are not finite"
    for key, parameter in stack.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), f"{key}: not finite"
    for block in stack.blocks:
        query, value = (
            linear.weight.grad.view(stack.position.spec.heads, -1).any(1)
            for linear in (block.attention.query, block.attention.value)
        )
        assert bool(value.all()), "values of a head do not learn"
        assert bool(query.all() | ~query.any()), "queries of a head do not learn"  # some read positions alone


def gradients_causal(case: Case) -> None:
    """Gradients in a causal stack are finite and reach the tokens and the weights of every head."""
    gradients(case, causal=True)


def parameters(case: Case) -> None:
    """Every parameter of the encoding learns, unless the card excepts "gradients"; gradients are finite."""
    stack = case.stack().train()
    x = embeddings(*MASK.shape).requires_grad_()
    out = stack(x, mask_positions(stack.position, MASK))
    (out * torch.randn(out.shape))[MASK.bool()].sum().backward()
    assert x.grad is not None, "no gradient reaches the tokens"
    assert bool(x.grad.isfinite().all()), "gradients of the tokens are not finite"
    idle = []
    for key, parameter in stack.position.named_parameters():
        if parameter.grad is None or not bool(parameter.grad.any()):
            idle.append(key)
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), f"{key}: not finite"
    excepted = "gradients" in stack.position.card.exceptions
    assert bool(idle) == excepted, f"parameters that do not learn: {idle}"


def rows(case: Case) -> None:
    """Every row of a table learns in a causal stack as in a full one, unless the card excepts "rows"."""
    if hasattr(case.encoding, "needs"):
        return
    stacks = [case.stack(causal=causal) for causal in (False, True)]
    full, causal = map(_idle_rows, stacks)
    idle = [key for key in full if causal[key] > full[key] + _MOSTLY]
    excepted = "rows" in stacks[1].position.card.exceptions
    assert bool(idle) == excepted, f"tables with rows that a causal stack never reads: {idle}"


def _idle_rows(stack: Any) -> dict[str, float]:
    """Return the share of the numbers of each parameter of the encoding that have no gradient."""
    length = min(stack.position.max_positions or _PAST_THE_LAST_BUCKET, _PAST_THE_LAST_BUCKET)
    out = stack(embeddings(1, length), mask_positions(stack.position, torch.ones(1, length)))
    (out * torch.randn(out.shape)).sum().backward()
    gradients: dict[str, Tensor] = {
        key: parameter.grad
        for key, parameter in stack.position.named_parameters()
        if parameter.grad is not None
    }
    largest = max((float(x.abs().max()) for x in gradients.values()), default=0.0)
    return {key: float((x.abs() <= _ROUNDING * largest).double().mean()) for key, x in gradients.items()}
