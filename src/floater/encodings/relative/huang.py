"""Improve Transformer Models with Better Relative Position Embeddings (Huang et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from floater.encodings.card import Card, SurveyRow
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances
from floater.encodings.spec import StackSpec
from floater.flow.autograd import in_transform
from floater.positions import Positions


def _card(equation: str, parameters: str, differs: str) -> Card:
    """Return the card of a method; `differs` is the difference of its parameters from the survey's."""
    return Card(
        paper="Huang et al. 2020",
        link="https://aclanthology.org/2020.findings-emnlp.298",
        stacks={"encoder": "BERT, fine-tuned to answer questions"},
        point="relative",
        equation=equation,
        parameters=parameters,
        survey=SurveyRow(
            "MAM", recurring=True, parameters="d*l*h*(2*t_max-1)", differs={"parameters": differs}
        ),
        exceptions={
            "real": "a table has nothing between whole distances",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )


class Huang(PositionModel):
    """A table of distances below max_length for every block. Bounded: farther ones are an error.

    Raises:
        PositionError: in `prepare`, if positions are real or a distance is past the table.
    """

    bounded = True
    name: str
    half_read: ClassVar[Mapping[str, int]] = {"table": -2}

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.table = nn.Parameter(torch.empty(spec.layers, *self.shape(spec)))
        self.reset_parameters()

    @staticmethod
    def shape(spec: StackSpec) -> tuple[int, int]:
        """Return the shape of a block's table: by default vectors as wide as a head, one per distance."""
        return 2 * spec.max_length - 1, spec.dim // spec.heads

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, mean=1.0, std=0.02)

    def prepare(self, positions: Positions) -> Distances:
        return Distances.of(positions, self.name, self.spec.max_length)


@register("huang1")
class Huang1(Huang):
    """Method 1: logits are multiplied by a scalar of the distance |s - t| (the survey's equation 18).

    One scalar per distance, head and block; the survey does not specify sharing. Scalars start near 1: at 0
    the logits would vanish.

    Example:
        >>> Huang1(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 2, 16])
    """

    card = replace(
        _card(
            "q_t k_s r_{|s-t|} / sqrt(d_h)",
            "t_max * h * l",
            "the survey counts method 4; this has scalars of |s - t|",
        ),
        exceptions={"real": "a table has nothing between whole distances"},
    )
    name = "huang1"
    half_read: ClassVar[Mapping[str, int]] = {}
    reads_content = False

    @staticmethod
    def shape(spec: StackSpec) -> tuple[int, int]:
        return spec.heads, spec.max_length

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Distances]) -> Tensor:
        far = context.state.values.abs().clamp(max=self.spec.max_length - 1)
        return logits * context.state.plane(self.table[context.layer][:, far])


@register("huang2")
class Huang2(Huang):
    """Method 2: logits are multiplied by a scalar of the signed distance s - t.

    One scalar per distance, head and block, near 1 at the start.

    Example:
        >>> Huang2(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 2, 31])
    """

    card = _card(
        "q_t k_s r_{s-t} / sqrt(d_h)",
        "(2 * t_max - 1) * h * l",
        "the survey counts method 4; this has scalars of s - t",
    )
    name = "huang2"
    half_read: ClassVar[Mapping[str, int]] = {"table": -1}
    reads_content = False

    @staticmethod
    def shape(spec: StackSpec) -> tuple[int, int]:
        return spec.heads, 2 * spec.max_length - 1

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Distances]) -> Tensor:
        return logits * context.state.plane(
            context.state.rows(self.table[context.layer], self.spec.max_length - 1, 1)
        )


def _triple(q: Tensor, k: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    return (k[:, :, None] * rows[index][:, None] @ q[..., None])[..., 0]


@register("huang3")
class Huang3(Huang):
    """Method 3: the sum over components of q_t, k_s and r_{s-t} (the survey's equation 19).

    Vectors as wide as a head, one per distance and block, shared by heads, near 1 at the start. The sum over
    three factors is not a matrix product: it runs over a few queries at a time and is recomputed in the
    backward pass, so that it needs no more memory than the logits.

    Example:
        >>> Huang3(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 31, 4])
    """

    card = _card(
        "sum_i q_{t,i} k_{s,i} r_{s-t,i} / sqrt(d_h)",
        "(2 * t_max - 1) * (d // h) * l",
        "heads share vectors of width d/h",
    )
    name = "huang3"
    chunk = 8

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Distances]) -> Tensor:
        # adding the product with r - 1 to the plain product keeps all else that was added to the logits
        state = context.state
        rows = state.rows(self.table[context.layer], self.spec.max_length - 1).to(q.dtype) - 1
        indices = torch.arange(state.values.shape[0], device=q.device)
        index = state.plane(indices) if state.index is None else state.index
        if torch.compiler.is_compiling():  # a length is no number of parts; a compiler may fuse the product
            triple = (q[:, :, :, None] * k[:, :, None] * rows[index][:, None]).sum(-1)
            return logits + self.scale(q.shape[-1]) * triple
        # transforms of torch.func do not support checkpoints
        part_of = _triple if in_transform() else partial(checkpoint, _triple, use_reentrant=False)
        parts = [
            part_of(part, k, rows, at)
            for part, at in zip(torch.split(q, self.chunk, 2), torch.split(index, self.chunk, 1), strict=True)
        ]
        return logits + self.scale(q.shape[-1]) * torch.cat(parts, 2)


@register("huang4")
class Huang4(Huang):
    """Method 4: r_{s-t} is added to queries and keys, without its product with itself (the survey's equation
    20).

    (q_t k_s + q_t r_{s-t} + k_s r_{s-t}) / sqrt(head_dim). Vectors as wide as a head, one per distance and
    block, shared by heads, as in the authors' code for Hugging Face, which takes the distance as t - s.

    Example:
        >>> Huang4(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 31, 4])
    """

    card = _card(
        "((q_t + r_{s-t}) (k_s + r_{s-t}) - r_{s-t} r_{s-t}) / sqrt(d_h)",
        "(2 * t_max - 1) * (d // h) * l",
        "heads share vectors of width d/h",
    )
    name = "huang4"

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.spec.weight_std(self.table.shape[-1] ** -0.5))

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Distances]) -> Tensor | None:
        state = context.state
        rows = state.rows(self.table[context.layer], self.spec.max_length - 1)
        return self.scale(q.shape[-1]) * (state.queries(q, rows) + state.keys(k, rows))
