"""Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (Raffel et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances
from floater.encodings.spec import StackSpec
from floater.positions import Positions


def bucket(distance: Tensor, buckets: int, max_distance: int, *, both: bool) -> Tensor:
    """Return the bucket of each distance key - query: one each if near, logarithmic beyond.

    Args:
        distance: (...); real ones are rounded towards 0, but with `both` those between 0 and 1 have a bucket
            of their own, as they are after the query.
        buckets: number of buckets; with `both` half of them are for keys after the query.
        max_distance: distance from which on all share the last bucket.
        both: whether keys after the query have buckets of their own; otherwise they share that of distance 0.

    Returns:
        (...), from 0 to buckets - 1. With `both`, no whole distance is in bucket buckets / 2.

    Example:
        >>> bucket(torch.tensor([-200, -20, -2, 0, 3]), 32, 128, both=True).tolist()
        [15, 10, 2, 0, 19]
    """
    start = torch.zeros_like(distance, dtype=torch.long)
    if both:
        buckets //= 2
        start = buckets * (distance > 0)
        back = distance.abs()
    else:
        back = (-distance).clamp(min=0)
    near = buckets // 2
    part = torch.log(back.clamp(min=near).float() / near) / math.log(max_distance / near)
    far = (near + (part * (buckets - near)).long()).clamp(max=buckets - 1)
    return start + torch.where(back < near, back.long(), far)


@register("t5")
class T5(PositionBias):
    """A learned scalar per head and bucket of distances, added to logits that are not scaled (section 2.1).

    All blocks of a stack share one table, as in the released models; the survey counts a scalar per
    distance.

    The table starts by Glorot's rule for its shape, heads by buckets, as in the authors' Mesh TensorFlow and
    T5X. Hugging Face's transformers starts it normal with a standard deviation of d^-1/2, which is a sixth of
    that for T5-base: start="transformers".

    T5 has no factor 1/sqrt(head_dim) and starts with query weights smaller by that factor: of std
    (d head_dim)^-1/2, where those of keys and values have d^-1/2. So the initial logits are those of the
    plain Transformer, but an optimizer with steps of equal size for all weights, such as Adam,
    changes the logits sqrt(head_dim) times as much. `scaled` applies the factor to the dot products, never to
    the bias. In T5 all of this holds for cross-attention too; here cross-attention is the plain
    Transformer's, whose initial logits are the same.

    Distances of max_distance and more share a bucket, so there is no maximum length.
    Positions may be real, as a bucket covers a range of distances.

    Args:
        directions: "both", "past" (later keys share the bucket of distance 0), or "auto": "past" in a causal
            stack, where half of the buckets of "both" are never used, else "both".
        buckets: number of buckets; even, at least 4.
        max_distance: distance at which the last bucket begins; above the number of exact buckets.
        scaled: whether dot products are divided by sqrt(head_dim).
        start: initial scalars: "released", uniform by Glorot's rule, or "transformers", normal with a
            standard deviation of d^-1/2.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> from floater.encodings import AttentionContext
        >>> model = T5(StackSpec(dim=8, heads=2, layers=2, max_length=16))
        >>> q = torch.zeros(1, 2, 3, 4)
        >>> model.bias(q, q, AttentionContext(model.prepare(Positions.arange(3)), 0)).shape, model.scale(4)
        (torch.Size([1, 2, 3, 3]), 1.0)
    """

    card = Card(
        paper="Raffel et al. 2020",
        link="https://arxiv.org/abs/1910.10683",
        stacks={"encoder": "T5", "causal": "language models, for comparison", "decoder": "T5"},
        point="relative",
        models="T5, mT5, Flan-T5",
        equation="q_t k_s + b_{bucket(s - t)}",
        parameters="buckets * h",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            parameters="(2*t_max-1)*h",
            differs={"parameters": "distances share buckets, 32 by default"},
        ),
    )

    def __init__(
        self,
        spec: StackSpec,
        *,
        directions: str = "auto",
        buckets: int = 32,
        max_distance: int = 128,
        scaled: bool = False,
        start: str = "released",
    ) -> None:
        super().__init__(spec)
        one_of("directions", directions, ("auto", "both", "past"))
        one_of("start", start, ("released", "transformers"))
        if buckets < 4 or buckets % 2:
            raise PositionError(f"buckets is {buckets}; it must be even and at least 4")
        self.both = directions == "both" or (directions == "auto" and not spec.causal)
        if max_distance <= buckets // (4 if self.both else 2):
            raise PositionError(
                f"max_distance is {max_distance}; it must be above the {buckets // (4 if self.both else 2)} "
                "exact buckets"
            )
        self.max_distance, self.scaled, self.start = max_distance, scaled, start
        self.table = nn.Embedding(buckets, spec.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.start == "released":
            nn.init.xavier_uniform_(self.table.weight)
        else:
            nn.init.normal_(self.table.weight, std=self.spec.dim**-0.5)

    def scale(self, head_dim: int) -> float:
        return super().scale(head_dim) if self.scaled else 1.0

    def query_gain(self, head_dim: int) -> float:
        return 1.0 if self.scaled else float(head_dim**-0.5)

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        if positions.query.is_floating_point():
            return self._scalars(positions.delta).movedim(-1, 1).contiguous()
        distances = Distances.of(positions, "t5", reach=self.max_distance)
        return DistanceBias(distances, self._scalars(distances.values).T)

    def _scalars(self, distances: Tensor) -> Tensor:
        scalars: Tensor = self.table(
            bucket(distances, self.table.num_embeddings, self.max_distance, both=self.both)
        )
        return scalars
