"""Synthesizer: Rethinking Self-Attention for Transformer Models (Tay et al. 2021)."""

from __future__ import annotations

from torch import Tensor, nn

from floater.encodings.absolute.dufter import DufterAbsolute
from floater.encodings.card import Card
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.untrained import Untrained


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
