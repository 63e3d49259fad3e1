"""On the Relation between Position Information and Sentence Length in Neural Machine Translation (Neishi,
Yoshinaga 2019): the RR-Transformer."""

from __future__ import annotations

from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances
from floater.encodings.relative.rnn_transformer import RNNTransformer
from floater.encodings.relative.shaw import Shaw
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("rr_transformer")
class RRTransformer(RNNTransformer):
    """A GRU over the embeddings, and attention with relative positions: `rnn_transformer` with `shaw`.

    Dufter et al. 2022, section 4.1.2 and figure 5, are the specification. The vectors of distances start from
    a standard normal distribution, as in the released program.

    Args:
        clip: the farthest distance with a vector of its own, at least 1; farther ones share that vector.
        values: whether values get vectors too.

    Raises:
        PositionError: if clip is not valid, positions are real, or decoding has a cache.

    Example:
        >>> model = RRTransformer(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.overrides("embed", "bias", "value_bias"), model.shaw.keys.shape
        (True, torch.Size([1, 33, 4]))
    """

    card = Card(
        paper="Neishi and Yoshinaga 2019",
        link="https://doi.org/10.18653/v1/K19-1031",
        stacks={"encoder": "translation", "decoder": "translation"},
        point="relative",
        equation="h_t = GRU(x_t, h_{t-1}) instead of x_t; q_t (k_s + a^K_{clip(s-t)}) / sqrt(d_h); "
        "sum_s w_ts (v_s + a^V_{clip(s-t)})",
        parameters="6 * d * d + 6 * d + 2 * (2 * clip + 1) * (d // h) * l",
        exceptions={
            **RNNTransformer.card.exceptions,
            "rows": "rows of later keys are never read in a causal stack",
        },
    )

    def __init__(self, spec: StackSpec, *, clip: int = 16, values: bool = True) -> None:
        super().__init__(spec)
        self.shaw = Shaw(spec, clip=clip, values=values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for table in self.shaw.parameters():
            nn.init.normal_(table)

    def prepare(self, positions: Positions) -> tuple[Tensor | None, Distances]:  # type: ignore[override]
        return super().prepare(positions), self.shaw.prepare(positions)

    def embed(self, x: Tensor, state: tuple[Tensor | None, Distances]) -> Tensor:  # type: ignore[override]
        return super().embed(x, state[0])

    def bias(
        self, q: Tensor, k: Tensor, context: AttentionContext[tuple[Tensor | None, Distances]]
    ) -> Tensor | None:
        return self.shaw.bias(q, k, context.with_state(context.state[1]))

    def value_bias(
        self, weights: Tensor, context: AttentionContext[tuple[Tensor | None, Distances]]
    ) -> Tensor | None:
        return self.shaw.value_bias(weights, context.with_state(context.state[1]))
