"""A flow over the logarithm of distance: the relative form of FLOATER (Liu et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.baked import check_baked
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one, is_number, one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances, spacing
from floater.encodings.relative.knots import fraction, interpolate, knots
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.encodings.timed import time_differences
from floater.flow import FlowEncoder, FlowVectors, MLPField, init_small_
from floater.positions import Positions


class BiasVectors(NamedTuple):
    """Biases at a list of distances.

    Args:
        vectors: W psi(u) of each block and direction, for all heads.
        delta: (1, U) the distances, positive for keys after the query.
        shape: (batch or 1, T, S) if the distances are those of all pairs, else (1, U).
    """

    vectors: FlowVectors
    delta: Tensor
    shape: tuple[int, ...]


class BiasTable(NamedTuple):
    """Biases (U, blocks, heads) at the U distances that occur, and these distances."""

    biases: Tensor
    distances: Distances


@register("floater_relative")
class FloaterRelative(PositionBias):
    """A bias for every head and block, computed by a flow over the logarithm of distance.

    dpsi/du = h(u, psi; theta) with u = log(1 + min(|s - t|, clip)) (equation 5 of Liu et al. 2020, with
    distance in the place of position); the bias of head h is w_h . psi(u). All blocks share theta; each
    block has a start for keys before the query (and the query itself) and, unless the stack is causal, one
    for keys after it. With h = 0 and a linear psi this is KERPLE's logarithmic kernel (Chi et al. 2022);
    FIRE (Li et al. 2024) is another function of the same u. w = 0 is the plain Transformer.

    Training sees few pairs at distances near the training length, and none beyond it, so the flow is not
    trained there: `clip` limits the distance, as Shaw et al. (2018) do. Positions may be
    real. Without `normalise` the bias depends on the distance of query and key alone.

    Args:
        spec: the stack of blocks; log(1 + min(max_length, clip)) is the span over which vectors
            start of order one.
        width: width of psi.
        hidden: width of the field; None means `width`.
        clip: distance, in tokens, to which larger ones are clipped; None for no limit; "auto"
            means max_length // 2, with `normalise` None.
        start: "small" (psi(0) normal, w of order one) or "zero" (w = 0: no change until trained).
        tail: subtract r_h log(1 + a_h |s - t|), r, a > 0 learned for each head and block (KERPLE), so that
            the weights of distant keys certainly decrease.
        normalise: beyond max_length L divide u by log(1 + max(t, s)) / log(1 + L) (FIRE's normaliser), so
            that u stays within the training range.
        solver: a method of `floater.flow.solve`.

    Raises:
        PositionError: if an option is not valid, or start="zero" is combined with a tail, which is not zero.

    Example:
        >>> model = FloaterRelative(StackSpec(dim=8, heads=2, layers=3, max_length=16), start="zero")
        >>> q = torch.zeros(1, 2, 4, 4)
        >>> bias = model.bias(q, q, AttentionContext(model.prepare(Positions.arange(4)), 2))
        >>> bias.shape, bool(bias.any())
        (torch.Size([1, 2, 4, 4]), False)
    """

    name = "floater_relative"
    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="relative",
        equation="q_t k_s / sqrt(d_h) + w_h psi(u); dpsi/du = h(u, psi), u = log(1 + min(|s - t|, clip))",
        parameters="2 * width * (width + 2) + 2 * l * width * (1 + h)",
    )

    biases: Tensor

    def __init__(
        self,
        spec: StackSpec,
        *,
        width: int = 32,
        hidden: int | None = None,
        clip: float | str | None = "auto",
        start: str = "small",
        tail: bool = False,
        normalise: bool = False,
        solver: str = "auto",
    ) -> None:
        super().__init__(spec)
        one_of("start", start, ("small", "zero"))
        at_least_one(width=width, hidden=hidden)
        if isinstance(clip, str):
            one_of("clip", clip, ("auto",))
            clip = None if normalise else max(1, spec.max_length // 2)
        if clip is not None and not (is_number(clip) and clip >= 1):
            raise PositionError(f"clip is {clip!r}; it must be at least 1, 'auto' or None")
        if tail and start == "zero":
            raise PositionError("start='zero' goes with tail=False: a tail changes the logits from the start")
        self.start, self.normalise = start, normalise
        if normalise:
            why = "past max_length a distance is divided by the place in the text"
            self.card = replace(self.card, exceptions={**self.card.exceptions, "shift": why})
        self.clip = math.inf if clip is None else clip
        self.span = math.log1p(min(spec.max_length, self.clip))
        names = ("past",) if spec.causal else ("past", "future")
        rows = spec.layers * len(names)
        try:
            self.flow = FlowEncoder(
                MLPField(width, hidden),
                width,
                blocks=range(spec.layers),
                names=names,
                delta=1.0,
                method=solver,
            )
        except ValueError as error:
            raise PositionError(str(error)) from error
        self.readout = nn.Parameter(torch.empty(rows, width, spec.heads))
        shape = 2, spec.layers, spec.heads
        self.decay = nn.Parameter(torch.empty(shape)) if tail else None  # of r and a, through softplus
        self.baked: int | None = None  # number of positions whose biases are stored
        self.reset_parameters()

    def check_bake(self) -> None:
        if self.normalise:
            raise PositionError(
                "normalise=True scales distances by the place in the text: there are no biases to bake that "
                "depend on distances alone"
            )

    @torch.no_grad()
    def bake(self, length: int) -> None:
        super().bake(length)
        # the distances of a text of this length, as `Distances.of` counts them
        values = torch.arange(1 - length, length + 1, device=self.readout.device)
        shape = len(values), self.spec.layers, self.spec.heads
        biases = self.readout.new_empty(shape)
        if not biases.is_meta:  # else its weights are still to be loaded
            biases = self.eval().bias_table(Distances(values, None, (length, length))).biases
        self.register_buffer("biases", biases)
        self.baked, self.endless = length, self.decay is None and self.clip < length
        del self.flow, self.readout, self.decay

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.baked is not None:
            return
        init_small_(self.flow.field, self.span)  # type: ignore[arg-type]
        nn.init.normal_(self.flow.start)
        nn.init.normal_(self.readout, std=self.readout.shape[1] ** -0.5)
        if self.start == "zero":
            nn.init.zeros_(self.readout)
        if self.decay is not None:
            self.decay.copy_(torch.tensor([-2.0, 0.0])[:, None, None].expand_as(self.decay))

    def prepare(self, positions: Positions) -> BiasVectors | BiasTable:
        if self.baked is not None or not (positions.query.is_floating_point() or self.normalise):
            return self.bias_table(Distances.of(positions, self.name))
        if not self.normalise and (step := spacing(positions)) is not None:
            return self.bias_table(Distances.from_spacing(positions, step))
        delta = positions.delta.double()
        u = self._log(delta)
        if self.normalise:
            last = torch.maximum(positions.query[:, :, None], positions.key[:, None, :]).double()
            longest = self.spec.max_length
            u = u * math.log1p(longest) / torch.log1p(last.clamp(min=longest))
        return self._solved(u, delta)

    def bias_table(self, distances: Distances) -> BiasTable:
        """Return the biases at a list of distances, each computed once."""
        if self.baked is not None:
            return BiasTable(self._stored(distances), distances)
        return BiasTable(
            self._listed(distances.values.double(), self.decay, distances.counted.double()), distances
        )

    def _listed(self, delta: Tensor, decay: Tensor | None, counted: Tensor | None = None) -> Tensor:
        """Return the biases (U, blocks, heads) at distances (U,), which `counted` may have on the CPU."""
        solved = self._solved(self._log(delta if counted is None else counted), delta)
        vectors = solved.vectors.all()[0, :-1]
        rows = vectors.view(len(vectors), self.spec.layers, -1, self.spec.heads)
        return self._biases(rows.unbind(2), solved.delta[:, None], decay)

    def prepare_times(self, positions: Positions) -> list[Tensor]:
        """Return the biases of each block at knots on the sides of the query; see `TimedBias`, `interpolate`.

        Raises:
            PositionError: if the distance has no clip, or its place in the text scales it.
        """
        if self.baked is not None or self.normalise or self.clip == math.inf:
            raise PositionError(
                "a clock of 'floater_relative' needs a clip, as times run beyond the training length, and "
                "neither normalise=True nor baked biases"
            )
        at = knots(self.clip, positions.query.device)
        # the second side begins after the query
        delta = -at if len(self.flow.names) == 1 else torch.cat([-at, at.clamp(min=1e-30)])
        listed = self._listed(delta, None)
        biases = listed.view(len(self.flow.names), len(at), *listed.shape[1:]).permute(2, 0, 3, 1)
        # the last knot lies past the clip: its value is the one with which the clip has its own
        if share := fraction(self.clip):
            past = torch.lerp(biases[..., -2:-1], biases[..., -1:], 1 / share)
            biases = torch.cat([biases[..., :-1], past], -1)
        return list(biases.unbind())

    def bias_at(self, query: Tensor, key: Tensor, state: list[Tensor], layer: int) -> Tensor:
        """Return the bias of times of each head; see `TimedBias`."""
        delta = time_differences(query, key, self.dtype)
        bias = interpolate(state[layer], delta.clamp(-self.clip, self.clip))
        if self.decay is not None:
            bias = bias - self._tail(delta, self.decay[:, layer, :, None, None])
        return bias

    def _stored(self, distances: Distances) -> Tensor:
        """Return the baked biases (U, blocks, heads) at distances."""
        assert self.baked is not None
        values = distances.values
        if not (self.endless or torch.compiler.is_compiling()):
            # the last distance of a skewed view belongs to no pair
            occurring = distances.counted[:-1] if distances.index is None else distances.counted
            check_baked(occurring.abs(), self.baked, "distances")
        return self.biases[values.clamp(1 - self.baked, self.baked) + self.baked - 1]

    def _log(self, delta: Tensor) -> Tensor:
        return torch.log1p(delta.abs().clamp(max=self.clip))

    def _solved(self, u: Tensor, delta: Tensor) -> BiasVectors:
        # always solve to the end of the training span, so that the plan can be reused in other batches
        times = F.pad(u.reshape(1, -1), (0, 1), value=self.span)
        return BiasVectors(self.flow(times).projected(self.readout), delta.reshape(-1, 1), tuple(u.shape))

    def _biases(self, directions: Sequence[Tensor], delta: Tensor, decay: Tensor | None) -> Tensor:
        """Return the biases (U, ..., heads) at distances (U, ..., 1) from those of each direction."""
        bias = directions[0]
        if len(directions) > 1:
            bias = torch.where(delta > 0, directions[1], bias)
        return bias if decay is None else bias - self._tail(delta, decay)

    def _tail(self, delta: Tensor, decay: Tensor) -> Tensor:
        """Return the tail that lowers the weights of far keys, (..., heads), at distances (..., 1)."""
        rate, reach = F.softplus(decay)
        tail: Tensor = rate * torch.log1p(reach * delta.abs().to(reach.dtype))
        return tail

    def attention_terms(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> AttentionTerms | None:
        return super().attention_terms(q, k, context) if isinstance(context.state, BiasTable) else None

    def added(self, state: BiasVectors | BiasTable, layer: int) -> DistanceBias | Tensor:
        if isinstance(state, BiasTable):
            return DistanceBias(state.distances, state.biases[:, layer].T)
        directions = [state.vectors.at(layer, name)[0, :-1] for name in self.flow.names]
        decay = None if self.decay is None else self.decay[:, layer]
        biases = self._biases(directions, state.delta, decay)
        return biases.view(*state.shape, self.spec.heads).movedim(-1, 1)
