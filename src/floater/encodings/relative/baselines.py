"""Attention that the survey names besides position models (section 5.1): Gaussian, window, Synthesizer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from floater.encodings.absolute.dufter import DufterAbsolute
from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias, bias_of_distance
from floater.encodings.spec import StackSpec
from floater.encodings.untrained import Untrained
from floater.positions import Positions


@register("gaussian")
class Gaussian(PositionBias):
    """Hard-Coded Gaussian Attention for Neural Machine Translation (You, Sun, Iyer 2020, section 3).

    The weights of a head are the density of a Gaussian around the query's position plus an offset; queries
    and keys have no influence. As in the released code they are not normalised: the weight of padding, of
    later keys in a causal stack and of positions outside the text is not given to other keys. Positions may
    be real.

    Args:
        offsets: centres, key - query, assigned to the heads in turn; None for those of the released
            configurations, -1 and 1, in a causal stack -1 and 0.
        std: standard deviation, positive.

    Raises:
        PositionError: if offsets is empty or std not positive.

    Example:
        >>> model = Gaussian(StackSpec(dim=8, heads=1, layers=1, max_length=16), offsets=[-1])
        >>> state = model.prepare(Positions.arange(2))
        >>> model.weights(model.correlation(state, 0), AttentionContext(state, 0))
        tensor([[[[0.2420, 0.0540],
                  [0.3989, 0.2420]]]])
    """

    card = Card(
        paper="You et al. 2020",
        link="https://arxiv.org/abs/2005.00742",
        stacks={"encoder": "translation", "decoder": "translation", "cross": "translation, in a variant"},
        point="relative",
        equation="exp(-(s - t - c)^2 / (2 std^2)) / (std sqrt(2 pi)) in place of the softmax",
    )

    def __init__(
        self, spec: StackSpec, *, offsets: tuple[float, ...] | list[float] | None = None, std: float = 1.0
    ) -> None:
        super().__init__(spec)
        if offsets is None:
            offsets = (-1, 0) if spec.causal or spec.site == "decoder" else (-1, 1)
        if not offsets:
            raise PositionError("offsets is empty; it must hold at least one centre")
        if not std > 0:
            raise PositionError(f"std is {std}; it must be positive")
        self.offsets = [float(offsets[head % len(offsets)]) for head in range(spec.heads)]
        self.std = std

    def scale(self, head_dim: int) -> float:
        return 0.0

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        return bias_of_distance(positions, "gaussian", self._gaussian)

    def weights(self, logits: Tensor, context: AttentionContext[DistanceBias | Tensor]) -> Tensor:
        return logits.exp() / (self.std * math.sqrt(2 * math.pi))

    def _gaussian(self, delta: Tensor) -> Tensor:
        delta = delta if delta.is_floating_point() else delta.float()
        centres = torch.stack([delta.new_full((1, 1), offset) for offset in self.offsets])
        return -((delta - centres) / self.std).square() / 2


@register("window")
class Window(PositionModel):
    """Longformer: The Long-Document Transformer (Beltagy, Peters, Cohan 2020, section 3.1): the window alone.

    A query attends to keys at most `size` away, on both sides. Positions may be real.

    Args:
        size: the farthest distance; None means an eighth of max_length, at least 1.

    Raises:
        PositionError: if size is negative.

    Example:
        >>> model = Window(StackSpec(dim=8, heads=1, layers=1, max_length=16), size=1)
        >>> model.mask(AttentionContext(model.prepare(Positions.arange(3)), 0)).int()
        tensor([[[[1, 1, 0],
                  [1, 1, 1],
                  [0, 1, 1]]]], dtype=torch.int32)
    """

    card = Card(
        paper="Beltagy et al. 2020",
        link="https://arxiv.org/abs/2004.05150",
        stacks={"encoder": "Longformer", "causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - (inf where |s - t| > w)",
    )

    def __init__(self, spec: StackSpec, *, size: int | None = None) -> None:
        super().__init__(spec)
        self.size = max(1, spec.max_length // 8) if size is None else size
        if self.size < 0:
            raise PositionError(f"size is {size}; it must not be negative")

    def prepare(self, positions: Positions) -> Tensor:
        return positions.delta[:, None].abs() <= self.size

    def mask(self, context: AttentionContext[Tensor]) -> Tensor | None:
        return context.state


@register("synthesizer")
class Synthesizer(Untrained, DufterAbsolute):
    """Synthesizer: Rethinking Self-Attention for Transformer Models (Tay et al. 2021, section 3.1): random.

    A matrix of every pair of positions takes the place of the logits, one for each head of each block. It
    starts as in the released code of Mesh TensorFlow, by Glorot's rule for its shape (length, heads, length):
    near zero, so that all keys start with equal weight. Bounded.

    Args:
        spec: the stack of blocks; max_length positions.
        learned: whether the matrices are trained, or keep their random initial values.

    Raises:
        PositionError: in `prepare`, if positions are real or past the table.

    Example:
        >>> Synthesizer(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 2, 16, 16])
    """

    card = Card(
        paper="Tay et al. 2021",
        link="https://arxiv.org/abs/2005.00743",
        stacks={"encoder": "translation, T5", "causal": "language models", "decoder": "translation, T5"},
        point="absolute",
        equation="R_{t,s} in place of q_t k_s",
        parameters="t_max**2 * h * l",
        exceptions={
            "real": "a table has nothing between whole positions",
            "rows": "rows of later keys are never read in a causal stack",
        },
        pair_matrix="every entry is a parameter, whose gradient is as large",
    )
    name = "synthesizer"

    def __init__(self, spec: StackSpec, *, learned: bool = True) -> None:
        super().__init__(spec)
        self.learned = learned
        self.train()

    def untrained(self) -> list[Tensor]:
        return [] if self.learned else [self.table]

    def reset_parameters(self) -> None:
        _, heads, length, _ = self.table.shape
        limit = (6 / (length * (heads + length))) ** 0.5  # each of the first dimension reads and writes
        nn.init.uniform_(self.table, -limit, limit)

    def scale(self, head_dim: int) -> float:
        return 0.0
