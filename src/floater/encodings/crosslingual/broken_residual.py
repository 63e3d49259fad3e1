"""Improving Zero-Shot Translation by Disentangling Positional Information (Liu et al. 2021a)."""

from __future__ import annotations

from floater.encodings.absolute.sinusoidal import Sinusoidal
from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec


@register("broken_residual")
class BrokenResidual(Sinusoidal):
    """Sinusoids at the input, and no residual connection around the self-attention of a middle block.

    Dufter et al. 2022, section 4.5, and the authors' program: that block outputs
    only a mixture of values, so that its outputs depend less on the order of the inputs. The residual
    connection around the block's feed-forward layer stays, and so do all others. It acts in an encoder or a
    language model; in the decoder of an encoder-decoder every residual connection stays.

    Args:
        layer: index of the block, from 0; None means the middle one, or the one before the middle.

    Raises:
        PositionError: if dim is odd, or there is no such block.

    Example:
        >>> model = BrokenResidual(StackSpec(dim=4, heads=1, layers=5, max_length=16))
        >>> [model.residual(layer) for layer in range(5)]
        [True, True, False, True, True]
    """

    card = Card(
        paper="Liu et al. 2021a",
        link="https://arxiv.org/abs/2012.15127",
        stacks={"encoder": "translation", "decoder": "translation, with every residual connection"},
        point="absolute",
        equation="x_t + p_t; SA(x^n) instead of x^n + SA(x^n) in the middle block n, SA its self-attention",
    )

    sites = ("self", "decoder")

    def __init__(self, spec: StackSpec, *, layer: int | None = None) -> None:
        super().__init__(spec)
        self.broken = (spec.layers - 1) // 2 if layer is None else layer
        if not 0 <= self.broken < spec.layers and spec.site == "self":
            raise PositionError(f"layer is {layer}; there are blocks 0 to {spec.layers - 1}")

    def residual(self, layer: int) -> bool:
        return layer != self.broken or self.spec.site != "self"
