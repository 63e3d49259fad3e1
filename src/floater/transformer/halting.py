"""Adaptive computation time: each position stops after a learned number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Pondered(NamedTuple):
    """Hidden states (batch, T, dim), how often each was revised (batch, T), and what was left of its last
    revision's weight (batch, T)."""

    hidden: Tensor
    updates: Tensor
    remainders: Tensor

    def cost(self, valid: Tensor | None) -> Tensor:
        """Return the mean of updates and remainders over the tokens (Graves 2016, equation 13).

        Args:
            valid: (batch or 1, T) bool, False at padding; None when all are tokens.
        """
        spent = self.updates + self.remainders
        if valid is None:
            return spent.mean() if spent.numel() else spent.sum()
        valid = valid.expand_as(spent)
        return (spent * valid).sum() / valid.sum().clamp(min=1)


class Halting(nn.Module):
    """Per-position halting of a recurrent block.

    Dehghani et al. 2019, "Universal Transformers", section 2.2 and appendix C; Graves 2016, "Adaptive
    Computation Time for Recurrent Neural Networks", section 2. Before each step a sigmoid of the state is the
    probability of halting. While their sum stays at most at the threshold, a step's output enters the result
    with its probability as weight, y = p s + (1 - p) y; the step that passes it enters with the remainder, 1
    less the sum, and is the last. After the last of all steps the weights are not normalised, as in the
    appendix.

    The text of section 2.2 says that the state of a position that halted is copied to the next step; the
    program of the appendix copies its result, and keeps updating its state, which others attend to. This is
    implemented here. The bias of the probability starts at 1, as in the authors' program.

    Args:
        dim: width of the states.
        threshold: between 0 and 1.

    Example:
        >>> halting = Halting(2, 0.99)
        >>> _ = nn.init.zeros_(halting.probability.weight)
        >>> out = halting(torch.zeros(1, 3, 2), 6, lambda x, step: x + 1.0, lambda x, step: x)
        >>> out.updates.tolist()  # sigmoid(1) = 0.73 at each step
        [[2.0, 2.0, 2.0]]
    """

    def __init__(self, dim: int, threshold: float) -> None:
        super().__init__()
        self.probability = nn.Linear(dim, 1)
        self.threshold = threshold
        nn.init.ones_(self.probability.bias)

    def forward(
        self,
        x: Tensor,
        steps: int,
        revise: Callable[[Tensor, int], Tensor],
        signal: Callable[[Tensor, int], Tensor],
        every: bool = False,
    ) -> Pondered:
        """Revise states until all positions halted.

        Args:
            x: (batch, T, dim).
            steps: the most revisions.
            revise: the block: states and number of the step, from 0, to states.
            signal: function that adds the positions of a step to its input: states and number of the step to
                states.
            every: take all steps, as a cache needs that later tokens read.
        """
        total = x.new_zeros(x.shape[:2])
        updates, remainders, result = torch.zeros_like(total), torch.zeros_like(total), torch.zeros_like(x)
        running = torch.ones_like(total, dtype=torch.bool)
        for step in range(steps):
            p = self.probability(signal(x, step)).sigmoid()[..., 0].to(total.dtype)
            last = running & (total + p > self.threshold)
            updates = updates + running
            rest = (1 - total) * last
            running = running & ~last
            weight = p * running + rest
            total, remainders = total + p * running, remainders + rest
            x = revise(x, step)
            result = x * weight[..., None] + result * (1 - weight[..., None])
            if not every and not bool(running.any()):
                break
        return Pondered(result, updates, remainders)
