"""Several encodings at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floater.encodings.card import Card
from floater.encodings.composed.parts import Composite, Part
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec


@register("compose")
class Compose(Composite):
    """Several encodings that act together in every block.

    `position=[a, b]` of a configuration is short for `compose` with `models=[a, b]`. The default is a
    relative and an absolute encoding: the flow over distances encodes the order within a
    text, and the sinusoids give cross-attention the positions.

    Args:
        models: names of encodings, or mappings of `name` and options.

    Raises:
        PositionError: if an encoding or an option does not exist, or the encodings do not go together.

    Example:
        >>> spec = StackSpec(dim=8, heads=2, layers=1, max_length=16)
        >>> model = Compose(spec, models=["sinusoidal", {"name": "alibi"}])
        >>> model.overrides("embed"), model.overrides("bias"), model.overrides("logits")
        (True, True, False)
    """

    card = Card(
        paper="Dufter et al. 2022",
        link="https://arxiv.org/abs/2102.11090",
        point="both",
        equation="the sum of biases, the chain of maps, the intersection of masks",
        parameters="2 * 32 * 34 + 64 * l * (1 + h)",
    )

    def __init__(
        self, spec: StackSpec, *, models: Sequence[Part] = ("floater_relative", "sinusoidal")
    ) -> None:
        super().__init__(spec, models, [range(len(models))] * spec.layers)

    @classmethod
    def named_parts(cls, options: Mapping[str, Any]) -> Sequence[Part]:
        return list(options["models"])
