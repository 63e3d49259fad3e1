"""Functions of the distance with the clip of `floater_relative`, for copying_clip.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from floater.encodings import StackSpec, register
from floater.encodings.relative.alibi import ALiBi
from floater.encodings.relative.dynamic_bias import DynamicBias
from floater.encodings.relative.kerple import Kerple
from floater.positions import Positions


def clipped(positions: Positions, spec: StackSpec) -> Positions:
    """Return positions whose distances are clipped as those of `floater_relative`.

    Example:
        >>> clipped(Positions.arange(4), StackSpec(dim=8, heads=1, layers=1, max_length=4)).delta[0, 0]
        tensor([0, 1, 2, 2])
    """
    return positions.but(group=(spec.max_length // 2, 2**40))


@register("dynamic_bias_clipped")
class ClippedDynamicBias(DynamicBias):
    """Give `dynamic_bias` the clip of `floater_relative`."""

    card = replace(DynamicBias.card, equation="as dynamic_bias, |t - s| at most max_length // 2")

    def prepare(self, positions: Positions) -> Any:
        return super().prepare(clipped(positions, self.spec))


@register("kerple_clipped")
class ClippedKerple(Kerple):
    """Give `kerple` the clip of `floater_relative`."""

    card = replace(Kerple.card, equation="as kerple, |t - s| at most max_length // 2")

    def prepare(self, positions: Positions) -> Any:
        return super().prepare(clipped(positions, self.spec))


@register("alibi_clipped")
class ClippedALiBi(ALiBi):
    """Give `alibi` the clip of `floater_relative`."""

    card = replace(ALiBi.card, equation="as alibi, |t - s| at most max_length // 2")

    def prepare(self, positions: Positions) -> Any:
        return super().prepare(clipped(positions, self.spec))
