"""The models that TUPE is compared with (Ke, He, Liu 2021, sections 2.2, 4.1 and 4.3)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from floater.encodings.absolute.learned import Learned
from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.t5 import T5
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions

_LINK = "https://arxiv.org/abs/2006.15595"


@register("bert_a")
class BertA(Learned):
    """BERT-A: learned position vectors added to the input (equation 3), `learned` under TUPE's name. Bounded.

    Args:
        spec: the stack of blocks; max_length positions.

    Raises:
        PositionError: in `prepare`, if positions are real or past the table.

    Example:
        >>> model = BertA(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> sum(parameter.numel() for parameter in model.parameters())
        128
    """

    card = Card(
        paper="Devlin et al. 2019",
        link="https://arxiv.org/abs/1810.04805",
        stacks={"encoder": "BERT"},
        point="absolute",
        models="BERT, RoBERTa",
        equation="((x_t + p_t) W_Q) ((x_s + p_s) W_K) / sqrt(d_h)",
        parameters="t_max * d",
        recipe="bert",
        survey=SurveyRow("APE", parameters="t_max*d"),
        exceptions={"real": "a table has nothing between whole positions"},
    )

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)


@register("bert_r")
class BertR(PositionModel):
    """BERT-R: learned position vectors at the input and T5's bias in every block (equation 5). Bounded.

    Dot products are scaled as in BERT, the bias is not. No code of it was released; the bias starts as that
    of T5 in Hugging Face's transformers.

    Args:
        spec: the stack of blocks; max_length positions.
        buckets: number of buckets of distances, even, at least 4: one for each near distance, logarithmic
            ones beyond.
        max_distance: distance at which the last bucket begins.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real or past the table.

    Example:
        >>> BertR(StackSpec(dim=8, heads=2, layers=3, max_length=16)).scale(4)
        0.5
    """

    card = Card(
        paper="Ke et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT"},
        point="both",
        equation="((x_t + p_t) W_Q) ((x_s + p_s) W_K) / sqrt(d_h) + b_{bucket(s-t)}",
        parameters="t_max * d + buckets * h",
        recipe="bert",
        exceptions={"real": "a table has nothing between whole positions or distances"},
    )

    bounded = True
    reads_content = False

    def __init__(self, spec: StackSpec, *, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(spec)
        self.absolute = Learned(spec)
        self.relative = T5(spec, buckets=buckets, max_distance=max_distance, start="transformers")

    def reset_parameters(self) -> None:
        self.absolute.reset_parameters()
        self.relative.reset_parameters()

    def prepare(self, positions: Positions) -> tuple[Any, Any]:
        return self.absolute.prepare(positions), self.relative.prepare(positions)

    def embed(self, x: Tensor, state: tuple[Any, Any]) -> Tensor:
        return self.absolute.embed(x, state[0])

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[tuple[Any, Any]]) -> Tensor | None:
        return self.relative.bias(q, k, context.with_state(context.state[1]))

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[tuple[Any, Any]]
    ) -> AttentionTerms | None:
        return self.relative.attention_terms(q, k, context.with_state(context.state[1]))


@register("bert_ad")
class BertAD(PositionModel):
    """BERT-A with other projections for positions than for words (section 4.3).

    Queries are x_t W_Q + p_t U_Q and keys x_s W_K + p_s U_K in every block, their product of four terms over
    sqrt(4 head_dim); U_Q and U_K are shared by blocks, as TUPE's are. Values read words alone. Bounded.

    Args:
        spec: the stack of blocks; max_length positions.

    Raises:
        PositionError: in `prepare`, if positions are real or past the table.

    Example:
        >>> model = BertAD(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> model.projection_bias("key", AttentionContext(model.prepare(Positions.arange(5)), 0)).shape
        torch.Size([1, 5, 8])
    """

    card = Card(
        paper="Ke et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT"},
        point="absolute",
        equation="(x_t W_Q + p_t U_Q) (x_s W_K + p_s U_K) / sqrt(4 d_h)",
        parameters="t_max * d + 2 * d * d",
        recipe="bert",
        exceptions={"real": "a table has nothing between whole positions"},
    )
    bounded = True

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.table = nn.Embedding(spec.max_length, spec.dim)
        self.query, self.key = (nn.Linear(spec.dim, spec.dim, bias=False) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.spec.init_table(self.table.weight)
        for linear in (self.query, self.key):
            self.spec.init_linear(linear.weight)

    def scale(self, head_dim: int) -> float:
        return super().scale(4 * head_dim)

    def prepare(self, positions: Positions) -> dict[Projection, Tensor]:
        whole_numbers(positions, "bert_ad", self.spec.max_length)
        vectors = self.table(positions.query)
        return {"query": self.query(vectors), "key": self.key(vectors)}

    def projection_bias(
        self, name: Projection, context: AttentionContext[dict[Projection, Tensor]]
    ) -> Tensor | None:
        return context.state.get(name)
