"""Solvers of other packages on the problems of `flow.py`: torchode and diffrax (the extra `bench`).

Both are dopri5 at a tolerance of 1e-6 with gradients of the discrete solution, as they ship: torchode steps
each row separately, diffrax is compiled and stores checkpoints of its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from floater.flow import MLPField

Run = Callable[[MLPField, Tensor, Tensor], tuple[Tensor, list[Tensor], float]]
TOLERANCE = 1e-6


def torchode_dopri5(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """Return p (length, rows, dim) by torchode; each row is one of its independent problems."""
    import torchode

    def velocity(t: Tensor, p: Tensor) -> Tensor:
        inner = nn.functional.linear(p, field.inner.weight[:, :-1], field.inner.bias)
        s = torch.tanh(inner + t.unsqueeze(1).to(p) * field.inner.weight[:, -1])
        outer = nn.functional.linear(s, field.outer.weight[:, :-1], field.outer.bias)
        return outer + t.unsqueeze(1).to(p) * field.outer.weight[:, -1]

    term = torchode.ODETerm(velocity)
    controller = torchode.IntegralController(atol=TOLERANCE, rtol=TOLERANCE, term=term)
    solver = torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), controller)
    wanted = times.to(start).expand(len(start), -1)
    problem = torchode.InitialValueProblem(y0=start, t_eval=wanted)
    solution: Tensor = solver.solve(problem).ys
    return solution.transpose(0, 1)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """Return a jitted function of weights, start and times that returns p and the gradients."""
    import diffrax
    import jax
    import jax.numpy as jnp

    def velocity(t: Any, p: Any, weights: Any) -> Any:
        w1, b1, w2, b2 = weights
        s = jnp.tanh(p @ w1[:, :-1].T + t * w1[:, -1] + b1)
        return s @ w2[:, :-1].T + t * w2[:, -1] + b2

    def loss(weights: Any, start: Any, times: Any) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            diffrax.Dopri5(),
            t0=times[0],
            t1=times[-1],
            dt0=None,
            y0=start,
            args=weights,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
            max_steps=2**14,
        )
        p = solution.ys
        share = jnp.linspace(0, 1, p.shape[0] * p.shape[1]).reshape(*p.shape[:2], 1)
        return (share * p).mean(), p

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


def diffrax_dopri5(field: MLPField, start: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor], float]:
    """Return vectors, gradients and seconds of one forward and backward pass of diffrax on the CPU."""
    import jax

    tensors = (field.inner.weight, field.inner.bias, field.outer.weight, field.outer.bias)
    weights = tuple(jax.numpy.asarray(x.detach().numpy()) for x in tensors)
    arguments = (weights, jax.numpy.asarray(start.detach().numpy()), jax.numpy.asarray(times.float().numpy()))
    began = time.perf_counter()
    (weight_gradients, start_gradient), p = jax.block_until_ready(_compiled()(*arguments))
    elapsed = time.perf_counter() - began
    order = {id(x): gradient for x, gradient in zip(tensors, weight_gradients, strict=True)}
    gradients = [start_gradient, *(order[id(parameter)] for parameter in field.parameters())]
    return _tensor(p), [_tensor(x) for x in gradients], elapsed


def _tensor(x: Any) -> Tensor:
    return torch.from_dlpack(x).clone()
