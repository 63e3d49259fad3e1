"""Rethinking Positional Encoding in Language Pre-training: TUPE (Ke, He, Liu 2021, section 3)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_zero, one_of
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PairBias, PositionBias, ProductBias
from floater.encodings.relative.distances import pairs
from floater.encodings.relative.t5 import T5
from floater.encodings.spec import StackSpec
from floater.encodings.untied.reset import CLS, Reset, untied
from floater.positions import Positions

_LINK = "https://arxiv.org/abs/2006.15595"


@register("tupe_a")
class TupeA(PositionBias):
    """Correlations of words with words and of positions with positions, with separate projections (equation
    10).

    q_t k_s / sqrt(2 head_dim) + reset((p_t U_Q) (p_s U_K) / sqrt(2 head_dim)). The position vectors go
    through a layer norm; U_Q and U_K (d x d, a slice for each head) have no bias, as in the paper, where the
    released code gives them one. All of it is computed once per forward pass and added in every block.

    [CLS] is untied by equation 9. theta_1 and theta_2 are products of projected learned vectors, scaled
    equally (section 3.3), not free numbers; each has a vector here, while the released code takes theta_2's
    from a token's row. The survey's row of TUPE is that of `tupe_r`. Bounded.

    As in the released code everything starts like the Transformer's weights, normal with one standard
    deviation, BERT's 0.02.

    Args:
        spec: the stack of blocks; max_length positions.
        cls: the token that is [CLS]: "first" (position 0), "special" (`Positions.special`), or "none" (TUPE
            without untying it).
        matrix: of positions: "factored", products of projected vectors, or "free", a scalar per head and pair
            of positions and free thetas (section 5, a failed attempt).
        std: standard deviation of the initial weights, at least 0; None means that of the Transformer's, 0.02
            where these have none.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real or past the table.

    Example:
        >>> model = TupeA(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> state = model.prepare(Positions.arange(5))
        >>> model.correlation(state, 0).shape, model.correlation(state, 0) is model.correlation(state, 2)
        (torch.Size([1, 2, 5, 5]), True)
    """

    card = Card(
        paper="Ke et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT"},
        point="absolute",
        equation="q_t k_s / sqrt(2 d_h) + reset((p_t U_Q) (p_s U_K) / sqrt(2 d_h))",
        parameters="2 * d * d + t_max * d + 4 * d",
        recipe="bert",
        exceptions={"real": "a table has nothing between whole positions"},
    )
    name = "tupe_a"
    bounded = True

    def __init__(
        self, spec: StackSpec, *, cls: str = "first", matrix: str = "factored", std: float | None = None
    ) -> None:
        super().__init__(spec)
        one_of("cls", cls, CLS)
        one_of("matrix", matrix, ("factored", "free"))
        at_least_zero(std=std)
        self.cls, self.matrix = cls, matrix
        self.std = spec.weight_std(0.02) if std is None else std
        dim, length = spec.dim, spec.max_length
        if matrix == "factored":
            self.table = nn.Embedding(length, dim)
            self.norm = nn.LayerNorm(dim)
            self.query, self.key = (nn.Linear(dim, dim, bias=False) for _ in range(2))
            self.reset = None if cls == "none" else nn.Parameter(torch.empty(2, dim))
        else:
            self.free = nn.Parameter(torch.empty(spec.heads, length, length))
            self.reset = None if cls == "none" else nn.Parameter(torch.empty(2, spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.reset is not None:
            nn.init.normal_(self.reset, std=self.std)
        if self.matrix == "free":
            nn.init.normal_(self.free, std=self.std)
            return
        nn.init.normal_(self.table.weight, std=self.std)
        self.norm.reset_parameters()
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=self.std)

    def scale(self, head_dim: int) -> float:
        return super().scale(2 * head_dim)

    def positions(self, positions: Positions) -> ProductBias | Tensor:
        """Return the correlation of positions before the reset, (batch or 1, heads, T, S) if a matrix."""
        if self.matrix == "free":
            return pairs(self.free, positions)
        query, key = (
            self.split(linear(self.norm(self.table(at))))
            for linear, at in ((self.query, positions.query), (self.key, positions.key))
        )
        return ProductBias(query * self.scale(query.shape[-1]), key)

    def prepare(self, positions: Positions) -> PairBias | Tensor:
        at = positions.timed if self.reads_times else positions
        whole_numbers(at, self.name, self.spec.max_length)
        reset = Reset.at(positions, self.cls)
        bias = self.positions(at)
        return bias if reset is None else untied(bias, reset, self.theta())

    def prepared(self, positions: Positions) -> PairBias | Tensor:
        return self.prepare(positions)  # [CLS] is found by its position, not by its time

    def theta(self) -> Tensor:
        """Return theta_1 and theta_2 of every head, (2, heads)."""
        assert self.reset is not None
        if self.matrix == "free":
            return self.reset
        vectors = self.norm(self.reset)
        query, key = self.split(self.query(vectors)), self.split(self.key(vectors))
        return (query * key).sum(-1).T * self.scale(query.shape[-1])

    def split(self, x: Tensor) -> Tensor:
        """Split (..., T, dim) into (..., heads, T, head_dim)."""
        heads = self.spec.heads
        return x.view(*x.shape[:-1], heads, self.spec.dim // heads).transpose(-3, -2)


class FactoredBias(nn.Embedding):
    """A vector for each bucket of distances, projected to a scalar per head (appendix D).

    b_{s-t} = (r_{s-t} F_Q) (r_{s-t} F_K), a slice of the projections for each head, where T5 has a table of
    scalars. Not scaled, as the bias that it replaces.

    Args:
        buckets: number of buckets of distances.
        dim: width of a vector.
        heads: number of scalars of each bucket.

    Example:
        >>> FactoredBias(32, 8, 2)(torch.tensor([[0, 3]])).shape
        torch.Size([1, 2, 2])
    """

    def __init__(self, buckets: int, dim: int, heads: int) -> None:
        super().__init__(buckets, dim)
        self.heads = heads
        self.query, self.key = (nn.Linear(dim, dim, bias=False) for _ in range(2))

    def forward(self, bucket: Tensor) -> Tensor:
        products = self.query(self.weight) * self.key(self.weight)
        scalars: Tensor = products.unflatten(-1, (self.heads, -1)).sum(-1)
        return scalars[bucket]


@register("tupe_r")
class TupeR(TupeA):
    """TUPE-A plus T5's bias, with [CLS] untied from their sum (equation 11).

    The bias is not scaled; its scalars start with a standard deviation of 1, as in the released code, where
    the rest starts like the Transformer's weights. That code resets the two parts one by one, which gives
    theta one more scalar per head; here the sum is reset, as in the paper.

    Args:
        spec: the stack of blocks; max_length positions.
        cls: the token that is [CLS]: "first" (position 0), "special" (`Positions.special`), or "none" (TUPE
            without untying it).
        matrix: of absolute positions: "factored", products of projected vectors, or "free", a scalar per head
            and pair of positions and free thetas (section 5, a failed attempt).
        buckets: number of buckets of distances, even, at least 4: one for each near distance, logarithmic
            ones beyond.
        max_distance: distance at which the last bucket begins.
        relative: "free", a scalar per head and bucket, or "factored", by `FactoredBias` (appendix D, a failed
            attempt).
        std: standard deviation of the initial weights but the scalars of T5's bias, at least 0; None means
            that of the Transformer's, 0.02 where these have none.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real or past the table.

    Example:
        >>> TupeR(StackSpec(dim=8, heads=2, layers=3, max_length=16)).relative.table.weight.shape
        torch.Size([32, 2])
    """

    card = Card(
        paper="Ke et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT"},
        point="both",
        equation="q_t k_s / sqrt(2 d_h) + reset((p_t U_Q) (p_s U_K) / sqrt(2 d_h) + b_{bucket(s-t)})",
        parameters="2 * d * d + t_max * d + 4 * d + buckets * h",
        recipe="bert",
        survey=SurveyRow(
            "MAM",
            parameters="2*d^2 + t_max*(d+2)",
            differs={
                "recurring": "the survey has it in the first block; section 3.3 reuses it in all of them",
                "parameters": "a layer norm, two vectors for [CLS], and T5's buckets in every head",
            },
        ),
        exceptions={"real": "a table has nothing between whole positions or distances"},
    )
    name = "tupe_r"

    def __init__(
        self,
        spec: StackSpec,
        *,
        cls: str = "first",
        matrix: str = "factored",
        buckets: int = 32,
        max_distance: int = 128,
        relative: str = "free",
        std: float | None = None,
    ) -> None:
        super().__init__(spec, cls=cls, matrix=matrix, std=std)
        one_of("relative", relative, ("free", "factored"))
        self.relative = T5(spec, buckets=buckets, max_distance=max_distance)
        if relative == "factored":
            self.relative.table = FactoredBias(buckets, spec.dim, spec.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not hasattr(self, "relative"):
            return
        table = self.relative.table
        if isinstance(table, FactoredBias):
            for part in (table, table.query, table.key):
                nn.init.normal_(part.weight, std=self.std)
        else:
            nn.init.normal_(table.weight)

    def positions(self, positions: Positions) -> ProductBias | Tensor:
        relative, absolute = self.relative.prepare(positions), super().positions(positions)
        assert isinstance(relative, DistanceBias)  # positions are whole
        return (
            absolute + relative.matrix if isinstance(absolute, Tensor) else replace(absolute, more=relative)
        )
