"""Positional Encoding to Control Output Sequence Length (Takase, Okazaki 2019); Incorporating Noisy Length
Constraints into Transformer with Length-aware Positional Encodings (Oka et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, one_of
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import name_of, register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.flow.precision import wide_dtype
from floater.positions import Positions


class LengthAware(PositionModel):
    """x + p(t, l), where l is `Positions.target_length`. Subclasses give the `kind` of the sinusoids.

    In an encoder-decoder l is optional: it defaults to the length of the labels, or else to the
    prediction of the model's `LengthPredictor`.

    Args:
        plain: without a target length use plain sinusoids, as the encoder of such a decoder does by default,
            instead of raising an error. The decoder of an encoder-decoder raises it in any case.

    Raises:
        PositionError: if dim is odd, or a target length is missing.
    """

    length_aware = True
    window = 0
    kind: str

    def __init__(self, spec: StackSpec, *, plain: bool = False) -> None:
        super().__init__(spec)
        even(spec)
        self.plain = plain and spec.site != "decoder"

    def vectors(self, position: Tensor, length: Tensor) -> Tensor:
        """Return p(t, l): (batch or 1, T, dim) for positions (batch or 1, T) and lengths (batch or 1, 1).

        They are the sinusoids of l - t (Dufter et al. 2022, equation 32), or those of t whose base is l
        instead of 10,000 (equation 33).
        """
        dim = self.spec.dim
        if self.kind == "difference":
            return sinusoid(length - position, dim, dtype=self.dtype)
        wide = wide_dtype(position.device)
        exponent = -torch.arange(0, dim, 2, device=position.device, dtype=wide) / dim
        angle = position.to(wide)[..., None] * length.to(wide)[..., None] ** exponent
        vectors = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return vectors if torch.float64 in (position.dtype, self.dtype) else vectors.float()

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        if positions.target_length is not None:
            return positions.query, positions.target_length[:, None]
        if not self.plain:
            raise PositionError(
                f"no target_length in the positions; '{name_of(self)}' needs the length of the finished text"
            )
        return positions.query, None

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor | None]) -> Tensor:
        position, length = state
        if length is None:
            return x + sinusoid(position, self.spec.dim, dtype=x.dtype).to(x.dtype)
        if self.training and self.window:
            noise = torch.randint(-self.window, self.window + 1, (len(x), 1), device=x.device)
            length = (length + noise).clamp(min=1)
        return x + self.vectors(position, length).to(x.dtype)


@register("ldpe")
class LengthDifference(LengthAware):
    """Sinusoids of the number of remaining tokens, l - t, which is 1 for the last of l tokens.

    Takase and Okazaki 2019, section 3.1; Dufter et al. 2022, equation 32. Positions t count from 0 and the
    exponents are the paper's; the released program counts one more and has other frequencies.

    Args:
        plain: without a target length use plain sinusoids, as the encoder of such a decoder does by default,
            instead of raising an error. The decoder of an encoder-decoder raises it in any case.

    Raises:
        PositionError: if dim is odd, or a target length is missing.

    Example:
        >>> model = LengthDifference(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> positions = Positions(torch.tensor([[9]]), torch.tensor([[9]]), target_length=torch.tensor([9]))
        >>> model.embed(torch.zeros(1, 1, 2), model.prepare(positions))
        tensor([[[0., 1.]]])
    """

    card = Card(
        paper="Takase and Okazaki 2019",
        link="https://arxiv.org/abs/1904.07418",
        stacks={"decoder": "summaries"},
        point="absolute",
        equation="x_t + p; p_{2j} = sin((l - t) / 10000^{2j/d}), p_{2j+1} = cos((l - t) / 10000^{2j/d})",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
    )
    kind = "difference"


@register("lrpe")
class LengthRatio(LengthAware):
    """Sinusoids whose slowest wave fits the length of the text: their base is the target length l.

    Takase and Okazaki 2019, section 3.1; Dufter et al. 2022, equation 33. Positions t count from 0 and the
    exponents are the paper's; the released program counts from the padding index and has other frequencies.

    Args:
        plain: without a target length use plain sinusoids, as the encoder of such a decoder does by default,
            instead of raising an error. The decoder of an encoder-decoder raises it in any case.

    Raises:
        PositionError: if dim is odd, or a target length is missing.

    Example:
        >>> model = LengthRatio(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> model.prepare(Positions.arange(4))
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: no target_length in the positions; ...
    """

    card = replace(
        LengthDifference.card,
        equation="x_t + p; p_{2j} = sin(t / l^{2j/d}), p_{2j+1} = cos(t / l^{2j/d})",
    )
    kind = "ratio"


@register("noisy_length")
class NoisyLength(LengthAware):
    """`ldpe` or `lrpe` with a target length that is wrong by a few tokens while training.

    Oka et al. 2020; Dufter et al. 2022, section 4.4. For each text an integer between -window and window,
    sampled uniformly, is added to its target length; a length never falls below 1. In evaluation the length
    is used as it is. Where there is none, an encoder-decoder predicts it
    (`floater.transformer.LengthPredictor`).

    Args:
        kind: "difference" (ldpe) or "ratio" (lrpe).
        window: the largest error, at least 1.
        plain: without a target length use plain sinusoids, as the encoder of such a decoder does by default,
            instead of raising an error. The decoder of an encoder-decoder raises it in any case.

    Raises:
        PositionError: if dim is odd, an option is not valid, or a target length is missing.

    Example:
        >>> NoisyLength(StackSpec(dim=2, heads=1, layers=1, max_length=16), kind="ratio").window
        4
    """

    card = replace(
        LengthDifference.card,
        paper="Oka et al. 2020",
        link="https://doi.org/10.18653/v1/2020.coling-main.319",
        stacks={"decoder": "translation"},
        equation="x_t + p(t, l + noise) in training, x_t + p(t, l) else; p of ldpe or lrpe",
    )

    def __init__(
        self, spec: StackSpec, *, kind: str = "difference", window: int = 4, plain: bool = False
    ) -> None:
        super().__init__(spec, plain=plain)
        one_of("kind", kind, ("difference", "ratio"))
        at_least_one(window=window)
        self.kind, self.window = kind, window
