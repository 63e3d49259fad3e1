"""Different encodings in different blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floater.encodings.card import Card
from floater.encodings.composed.parts import Composite, Part
from floater.encodings.errors import PositionError
from floater.encodings.registry import name_of, register
from floater.encodings.spec import StackSpec


@register("mix")
class Mix(Composite):
    """One encoding in most blocks and another in every fourth, as Llama 4 and SmolLM3 omit rotary positions
    there.

    Source: Yang et al. 2025, "Rope to Nope and Back Again" (RNoPE). At the input both act.

    Args:
        model: the encoding of most blocks, a name or a mapping of `name` and options.
        other: the encoding of the others.
        every: blocks `every` - 1, 2 `every` - 1, ... have the other one; at least 2.

    Raises:
        PositionError: if an encoding or an option does not exist, or the encodings do not go together, as
            one without products of queries and keys beside one with them.

    Example:
        >>> model = Mix(StackSpec(dim=8, heads=2, layers=4, max_length=16))
        >>> [model.acting(layer) for layer in range(4)]
        [(0,), (0,), (0,), (1,)]
    """

    card = Card(
        paper="Yang et al. 2025",
        link="https://arxiv.org/abs/2501.18795",
        stacks={"causal": "language models"},
        point="relative",
        models="Llama 4, SmolLM3",
        equation="block n: another encoding if every divides n + 1",
    )

    def __init__(
        self, spec: StackSpec, *, model: Part = "rotary", other: Part = "none", every: int = 4
    ) -> None:
        if every < 2:
            raise PositionError(f"every is {every}; it must be at least 2")
        acting = [(int((layer + 1) % every == 0),) for layer in range(spec.layers)]
        super().__init__(spec, (model, other), acting)
        if 0 < len(self._scaled) < len(self.models) and self.scale(spec.dim // spec.heads) == 0:
            raise PositionError(
                f"'{name_of(self._scaled[0])}' takes the products of queries and keys away, also in blocks "
                "of the other encoding; give both in `compose`"
            )

    @classmethod
    def named_parts(cls, options: Mapping[str, Any]) -> Sequence[Part]:
        return [options[key] for key in ("model", "other") if key in options]
