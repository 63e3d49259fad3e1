"""Encoding Word Order in Complex Embeddings (Wang et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow.precision import wide_dtype
from floater.positions import Positions


@register("complex")
class Complex(Precise):
    """Words are complex vectors r exp(i (w t + theta)) whose phases rotate with the position t.

    Section 2.2 of the paper; Dufter et al. 2022, equation 8. Component k is the pair (2k, 2k + 1) of the
    embedding, its real and imaginary part: so amplitude r and initial phase theta are those of the word's row
    of the embedding table, and the only new parameters are the frequencies w. Each word may have a
    frequency for each component, or they are shared: by all words, or by all components of a word (the
    paper's schemes, by the shape of the table: n x d, 1 x d, n x 1).

    Those of components start at the sinusoids' frequencies, as in the released classifiers; one that all
    components of a word share is sampled log-uniformly from the same range. The released language model
    starts frequencies of words near zero, normal with a standard deviation of 0.02, and does not initialise
    those of components. The blocks read real and imaginary parts as real numbers; `complex_attention` reads
    them as complex ones.

    Args:
        periods: sharing of the frequencies: "component" (shared by words), "word" (shared by components), or
            "both" (of each word and component). Those of words read `Positions.token`, which models set from
            their input_ids.

    Raises:
        PositionError: if dim is odd, an option is not valid, or the size of the vocabulary is not known; in
            `prepare`, if token ids are missing or exceed it.

    Example:
        >>> model = Complex(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
        >>> model.embed(x, model.prepare(Positions.arange(2))).detach()[0, 1]  # cos 1, sin 1
        tensor([0.5403, 0.8415])
    """

    card = Card(
        paper="Wang et al. 2020",
        link="https://arxiv.org/abs/1912.12333",
        stacks={
            "encoder": "classification, translation",
            "causal": "language models",
            "decoder": "translation",
        },
        point="absolute",
        equation="x_{t,k} exp(i w_k t), x_{t,k} = r_k exp(i theta_k) complex",
        parameters="d // 2",
        survey=SurveyRow(
            "-",
            unbound=True,
            parameters="2*n*d",
            differs={
                "injection": "it changes the input embeddings, if by a product instead of a sum",
                "parameters": "frequencies are shared by all words, and first phases are part of the "
                "embedding table; periods='both' has n d / 2 frequencies",
            },
        ),
    )

    def __init__(self, spec: StackSpec, *, periods: str = "component") -> None:
        super().__init__(spec)
        even(spec)
        one_of("periods", periods, ("component", "word", "both"))
        self.periods = periods
        pairs = spec.dim // 2
        if periods == "component":
            shape: tuple[int, ...] = (pairs,)
        elif spec.vocabulary is None:
            raise PositionError(f"periods={periods!r} needs the number of words: build(..., vocabulary=)")
        else:
            shape = (spec.vocabulary, pairs if periods == "both" else 1)
        self.frequency = nn.Parameter(torch.empty(shape, dtype=at_least_float32()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.periods == "word":
            self.frequency.copy_(10000 ** -torch.rand_like(self.frequency))
        else:
            pairs = torch.arange(0, self.spec.dim, 2, device=self.frequency.device)
            self.frequency.copy_((10000 ** (-pairs / self.spec.dim)).expand_as(self.frequency))

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        frequency: Tensor = self.frequency
        if self.periods != "component":
            token = positions.token
            if token is None:
                raise PositionError(
                    f"no token ids in the positions; periods={self.periods!r} belong to words"
                )
            low, high = (int(x) for x in token.aminmax()) if token.numel() else (0, 0)
            if low < 0 or high >= len(frequency):
                raise PositionError(f"words are 0 to {len(frequency) - 1}; got {low} to {high}")
            frequency = frequency[token]
        wide = wide_dtype(positions.query.device)
        angle = positions.query.to(wide)[..., None] * frequency.to(wide)
        return angle.cos(), angle.sin()

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = (part.to(x.dtype) for part in state)
        real, imaginary = x.reshape(*x.shape[:-1], self.spec.dim // 2, 2).unbind(-1)
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        return turned.flatten(-2)


@register("complex_attention")
class ComplexAttention(Complex):
    """Complex embeddings with complex attention: logits are moduli |q_t k_s*| of complex products.

    Components 2j and 2j + 1 of a head's queries and keys are the real and imaginary part of its j-th complex
    one; the logit is the modulus of their Hermitian product over the root of the number of complex
    components, as in the released program. The survey does not mention
    attention; the paper's Transformer takes moduli, and its released program multiplies without conjugation
    (and with an error in a part), so that phases are not matched with their opposites. The block's real
    projections contain all complex ones.

    Args:
        periods: sharing of the frequencies: "component" (shared by words), "word" (shared by components), or
            "both" (of each word and component).

    Raises:
        PositionError: if head_dim is odd, or as for `complex`.

    Example:
        >>> model = ComplexAttention(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 5.0]]]])  # 1 and 5i
        >>> model.logits(q @ k.mT, q, k, AttentionContext(None, 0)) / model.scale(2)
        tensor([[[[5.]]]])
    """

    card = replace(
        Complex.card,
        equation="x_{t,k} exp(i w_k t); logits |q_t k_s*| / sqrt(d_h / 2) of complex q and k",
        survey=None,
    )

    reads_products = True

    def __init__(self, spec: StackSpec, *, periods: str = "component") -> None:
        super().__init__(spec, periods=periods)
        if spec.dim // spec.heads % 2:
            raise PositionError(f"head_dim is {spec.dim // spec.heads}; complex attention needs an even one")

    def scale(self, head_dim: int) -> float:
        return super().scale(head_dim // 2)

    def logits(
        self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[tuple[Tensor, Tensor]]
    ) -> Tensor:
        turned = torch.stack((-k[..., 1::2], k[..., ::2]), dim=-1).flatten(-2)
        imaginary = q @ turned.transpose(-1, -2) * self.scale(q.shape[-1])
        wide = at_least_float32(logits.dtype)  # squares of float16 end at 255
        square = logits.to(wide).square() + imaginary.to(wide).square()
        # a modulus has no gradient at zero
        return square.clamp(min=torch.finfo(wide).tiny).sqrt().to(logits.dtype)
