"""Contextual Position Encoding: Learning to Count What's Important (Golovneva et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("cope")
class Cope(PositionModel):
    """Positions count the tokens that the query selects by gates, not all of them (section 4).

    The position of key s for query t is p_ts = sum_{l=s}^t sigmoid(q_t k_l / sqrt(d_h)), a real number of at
    most `positions` - 1, and q_t e[p_ts] / sqrt(d_h) is added to the logit, e interpolated between whole
    positions. e (positions x d_h) belongs to a block, is shared by its heads and starts at zero, as in the
    appendix. Positions are not read, only the order of the tokens.

    The paper is causal; here the position of a later key counts the gates from the query to the key.

    Args:
        positions: rows of e, at least 2; farther tokens use the last.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = Cope(StackSpec(dim=4, heads=2, layers=1, max_length=16), positions=3)
        >>> q = torch.zeros(1, 2, 4, 2)
        >>> state = model.prepare(Positions.arange(4))
        >>> model.contextual_positions(q, q, state)[0, 0, 3].tolist()  # gates of 1/2
        [2.0, 1.5, 1.0, 0.5]
    """

    card = Card(
        paper="Golovneva et al. 2024",
        link="https://arxiv.org/abs/2405.18719",
        stacks={"causal": "language models, counting"},
        point="relative",
        equation="q_t (k_s + e[p_{ts}]) / sqrt(d_h), p_{ts} = sum_{l=s}^t sigmoid(q_t k_l / sqrt(d_h))",
        parameters="l * positions * (d // h)",
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, positions: int = 64) -> None:
        super().__init__(spec)
        if positions < 2:
            raise PositionError(f"positions is {positions}; it must be at least 2")
        self.table = nn.Parameter(torch.empty(spec.layers, positions, spec.dim // spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def prepare(self, positions: Positions) -> Tensor | None:
        visible = positions.visible
        return visible if visible is None or visible.ndim == 3 else visible[:, None]

    def contextual_positions(self, q: Tensor, k: Tensor, state: Tensor | None) -> Tensor:
        """Return p_ts, unbounded, of queries (batch, heads, T, head_dim) and keys of S tokens."""
        gate = (q @ k.transpose(-1, -2) * self.scale(q.shape[-1])).sigmoid()
        gate = gate.to(torch.promote_types(gate.dtype, torch.float32))
        if state is not None:
            gate = gate.masked_fill(~state[:, None], 0.0)
        length, slots = gate.shape[-2:]
        total = gate.cumsum(-1)
        query = torch.arange(slots - length, slots, device=gate.device)[:, None]
        key = torch.arange(slots, device=gate.device)
        index = query.expand(length, 1).expand(*gate.shape[:-1], 1)
        until, at_query = total.gather(-1, index), gate.gather(-1, index)
        return torch.where(key <= query, until - total + gate, total - until + at_query)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Tensor | None]) -> Tensor:
        table = self.table[context.layer]
        position = self.contextual_positions(q, k, context.state).clamp(0, len(table) - 1)
        low = position.floor().clamp(max=len(table) - 2).long()
        dots = (q @ table.to(q.dtype).T * self.scale(q.shape[-1])).to(position.dtype)
        below, above = dots.gather(-1, low), dots.gather(-1, low + 1)
        return below + (position - low) * (above - below)
