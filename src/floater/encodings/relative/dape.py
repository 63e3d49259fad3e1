"""DAPE: Data-Adaptive Positional Encoding for Length Extrapolation (Zheng et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import build_for, register
from floater.encodings.relative.bias import adds_bias_alone, describe_as
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_DEFAULTS = {
    "kerple": {"share_layers": False},  # the released code has a kernel for each block
    "t5": {"scaled": True},  # the dot products of the paper are scaled
}


@register("dape")
class Dape(PositionModel):
    """A bias of positions, corrected for each pair of tokens by an MLP over the logits of all heads.

    With the logits A (heads) and the bias B (heads) of a pair, A + B + f([A; B]), f from 2 h numbers to
    `width` leaky ReLU units to h, one f for each block, in torch's initialisation for linear layers (equation
    7 and the released code). It has no output bias, which would add one number to all logits of a query,
    which the softmax would cancel.

    Args:
        model: the bias, an encoding whose bias depends on positions alone, beside dot products that are
            divided by sqrt(head_dim): "kerple", the best one in the paper, "fire", "alibi", ...
        options: options of that encoding; for "kerple" every block has a kernel of its own unless they say
            otherwise, and "t5" is `scaled`.
        width: hidden units.

    Raises:
        PositionError: if `model` is not a bias of positions, or has another scale of the dot products, or an
            option is not valid.

    Example:
        >>> model = Dape(StackSpec(dim=8, heads=2, layers=1, max_length=16), model="alibi")
        >>> _ = nn.init.zeros_(model.out)
        >>> q = torch.randn(1, 2, 3, 4)
        >>> state, products = model.prepare(Positions.arange(3)), q @ q.mT
        >>> torch.equal(model.logits(products, q, q, AttentionContext(state, 0)), products + state.matrix)
        True
    """

    card = Card(
        paper="Zheng et al. 2024",
        link="https://arxiv.org/abs/2405.14722",
        stacks={"causal": "language models"},
        point="relative",
        equation="A + B + f([A; B]), A = q_t k_s / sqrt(d_h) and B of all heads, f an MLP",
        parameters="2 * h * l + (3 * h + 1) * width * l",
    )

    reads_content = False

    def __init__(
        self,
        spec: StackSpec,
        *,
        model: str = "kerple",
        options: Mapping[str, Any] | None = None,
        width: int = 32,
    ) -> None:
        super().__init__(spec)
        at_least_one(width=width)
        options = _DEFAULTS.get(model, {}) | dict(options or {})
        inner = build_for(model, replace(spec, site="self"), **options)
        if not adds_bias_alone(inner):
            raise PositionError(f"model is {model!r}; it must be an encoding that adds a bias of positions")
        head_dim = spec.dim // spec.heads
        if (scale := inner.scale(head_dim)) != self.scale(head_dim):
            raise PositionError(
                f"model is {model!r}, which scales the dot products by {scale:g}; it must divide them by "
                f"sqrt(head_dim), {head_dim**0.5:g}"
            )
        self.inner = inner
        describe_as(self, inner)
        self.weight = nn.Parameter(torch.empty(spec.layers, width, 2 * spec.heads))
        self.hidden_bias = nn.Parameter(torch.empty(spec.layers, width))
        self.out = nn.Parameter(torch.empty(spec.layers, spec.heads, width))
        self.reset_parameters()

    @property
    def max_positions(self) -> int | None:
        """Return the number of positions of the bias; None if there is no maximum."""
        return self.inner.max_positions

    def reset_parameters(self) -> None:
        self.inner.reset_parameters()
        for parameter, inputs in (
            (self.weight, self.weight.shape[-1]),
            (self.hidden_bias, self.weight.shape[-1]),
            (self.out, self.out.shape[-1]),
        ):
            nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5)

    def prepare(self, positions: Positions) -> Any:
        return self.inner.prepare(positions)

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> Tensor:
        bias = self.inner.correlation(context.state, context.layer).to(logits.dtype)
        bias = bias.expand(-1, logits.shape[1], -1, -1)
        weight, hidden_bias, out = (
            part[context.layer].to(logits.dtype) for part in (self.weight, self.hidden_bias, self.out)
        )
        content, position = weight.chunk(2, 1)  # a product of each is cheaper than one of their concatenation
        hidden = (
            torch.einsum("wh,bhts->bwts", content, logits)
            + torch.einsum("wh,bhts->bwts", position, bias)
            + hidden_bias[:, None, None]
        )
        return logits + bias + torch.einsum("hw,bwts->bhts", out, F.leaky_relu(hidden))
