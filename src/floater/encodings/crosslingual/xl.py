"""Self-Attention with Cross-Lingual Position Representation (Ding, Wang, Tao 2020): XL PE."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import name_of, register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.positions import Positions


def both(positions: Positions, model: PositionModel) -> tuple[Tensor, Tensor]:
    """Return the sinusoids of a token's own and of its second position, (batch or 1, T, dim) each.

    Only a source is reordered: in the decoder of an encoder-decoder the second position is the token's own.

    Raises:
        PositionError: if the positions have no second ones.
    """
    spec = model.spec
    if spec.site == "decoder":
        primary = sinusoid(positions.query, spec.dim, dtype=model.dtype)
        return primary, primary
    if positions.reordered is None:
        raise PositionError(f"no reordered in the positions; '{name_of(model)}' reads second positions")
    pair = positions.query, positions.reordered
    rows = torch.broadcast_shapes(*(at.shape for at in pair))  # type: ignore[no-untyped-call]
    primary, second = (sinusoid(at.expand(rows), spec.dim, dtype=model.dtype) for at in pair)
    return primary, second


@register("xl")
class CrossLingual(AddedVectors):
    """Sinusoids of a token's position and of its position in the order of the other language.

    Dufter et al. 2022, section 4.5, are the specification; they leave open how the two are joined: here as a
    sum, or by a learned map of both. The second positions are `Positions.reordered`; the reordering itself is
    not part of this encoding. The paper's variant that gives them to some heads only is `xl_heads`. The
    decoder of an encoder-decoder reads the sinusoids of its own positions.

    Args:
        join: "sum", or "learned": tanh(W p + V r), W and V (dim, dim).

    Raises:
        PositionError: if dim is odd, an option is not valid, or there are no second positions.

    Example:
        >>> model = CrossLingual(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> order = torch.tensor([[0, 1, 2]])
        >>> model.prepare(Positions(order, order, reordered=order.flip(1)))[0, 1]
        tensor([1.6829, 1.0806])
    """

    card = Card(
        paper="Ding et al. 2020",
        link="https://arxiv.org/abs/2004.13310",
        stacks={"encoder": "translation"},
        point="absolute",
        equation="x_t + p_t + p_{r(t)}, r the order of the other language",
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, join: str = "sum") -> None:
        super().__init__(spec)
        even(spec)
        one_of("join", join, ("sum", "learned"))
        self.maps = nn.ParameterList(
            nn.Parameter(torch.empty(spec.dim, spec.dim))
            for _ in range(2 * (join == "learned" and spec.site != "decoder"))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.maps:
            nn.init.xavier_uniform_(weight)

    def prepare(self, positions: Positions) -> Tensor:
        pair = both(positions, self)
        if self.spec.site == "decoder":
            return pair[0]
        if not self.maps:
            return pair[0] + pair[1]
        return torch.tanh(sum(p.to(w.dtype) @ w.T for p, w in zip(pair, self.maps, strict=True)))


@register("xl_heads")
class CrossLingualHeads(PositionModel):
    """Some heads read a token's position, the others its position in the other language's order.

    The paper's variant at the level of heads. Head i projects x_t + p to its queries, keys and values, with p
    the sinusoid of the token's own position, in the last `reordered` heads that of its second. The survey and
    the available text of the paper do not specify the blocks; here it acts in every block, since the outputs
    of blocks contain no positions. In the decoder of an encoder-decoder all heads read the tokens' own
    positions.

    Args:
        reordered: number of heads that read second positions; None means half of them, of at least two.

    Raises:
        PositionError: if dim is odd, an option is not valid, one head would be halved, or heads read second
            positions and there are none.

    Example:
        >>> model = CrossLingualHeads(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> order = torch.tensor([[0, 1, 2]])
        >>> state = model.prepare(Positions(order, order, reordered=order.flip(1)))
        >>> context = AttentionContext(state, 0, projections={"query": lambda x: x})
        >>> model.projection_bias("query", context)[0, 0].tolist()  # of position 0, then of position 2
        [0.0, 1.0, 0.019998665899038315, 0.9998000264167786]
    """

    card = Card(
        paper="Ding et al. 2020",
        link="https://arxiv.org/abs/2004.13310",
        stacks={"encoder": "translation"},
        point="absolute",
        equation="(x_t + p_t) W_i in some heads i, (x_t + p_{r(t)}) W_i in others, r the other order",
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, reordered: int | None = None) -> None:
        super().__init__(spec)
        even(spec)
        if reordered is None and spec.heads == 1:
            raise PositionError(
                "heads is 1, half of which cannot read second positions: set reordered to 0 or 1"
            )
        self.reordered = spec.heads // 2 if reordered is None else reordered
        if not 0 <= self.reordered <= spec.heads:
            raise PositionError(f"reordered is {reordered}; it must be from 0 to {spec.heads}")

    @property
    def serves_some_heads(self) -> bool:
        return False  # the others read other positions

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        if not self.reordered:
            positions = positions.but(reordered=positions.query)
        return both(positions, self)

    def projection_bias(
        self, name: Projection, context: AttentionContext[tuple[Tensor, Tensor]]
    ) -> Tensor | None:
        linear = context.projections.get(name)
        if linear is None:  # the queries of cross-attention
            return None
        # of one dtype with the projection; its bias comes with the tokens
        dtype = next((p.dtype for p in linear.parameters()), None) if isinstance(linear, nn.Module) else None
        primary, second = (linear(p.to(dtype)) for p in context.state)
        bias = linear(torch.zeros_like(context.state[0][:1, :1], dtype=dtype))
        first = (self.spec.heads - self.reordered) * (self.spec.dim // self.spec.heads)
        return torch.cat([primary[..., :first], second[..., first:]], -1) - bias
