"""An Augmented Transformer Architecture for Natural Language Generation Tasks (Li et al. 2019): mvPE."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.absolute.sinusoidal import Sinusoidal
from floater.encodings.card import Card, SurveyRow
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.flow.precision import wide_dtype
from floater.positions import Positions


@register("mvpe")
class MaximumVariance(Sinusoidal):
    """Sinusoids of k t instead of t, so that the components of near positions vary as much as those of
    distant ones.

    Dufter et al. 2022, equation 25, which is printed with k and t inside the exponent: read
    sin(10000^{-j/d} k t). Angles of millions of radians are reduced in float64.

    Args:
        k: factor of the position, not 0; the authors recommend more than 1,000.

    Raises:
        PositionError: if dim is odd or k is 0.

    Example:
        >>> model = MaximumVariance(StackSpec(dim=2, heads=1, layers=1, max_length=16), k=1500.0)
        >>> model.prepare(Positions.arange(2))[0, 1].tolist() == [
        ...     torch.tensor(1500.0).double().sin().float().item(),
        ...     torch.tensor(1500.0).double().cos().float().item(),
        ... ]
        True
    """

    card = Card(
        paper="Li et al. 2019",
        link="https://doi.org/10.1109/ICDMW48858.2019.9024754",
        stacks={"encoder": "translation, summaries", "decoder": "translation, summaries"},
        point="absolute",
        equation="x_t + p_t; p_{t,2j} = sin(k t / 10000^{2j/d}), p_{t,2j+1} = cos(k t / 10000^{2j/d})",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
    )

    sites = ("self", "decoder")

    def __init__(self, spec: StackSpec, *, k: float = 1024.0) -> None:
        super().__init__(spec)
        if not k:
            raise PositionError(f"k is {k}; it must not be 0")
        self.k = k

    def prepare(self, positions: Positions) -> Tensor:
        query = positions.query
        vectors = sinusoid(query.to(wide_dtype(query.device)) * self.k, self.spec.dim)
        return vectors if torch.float64 in (query.dtype, self.dtype) else vectors.float()
