"""No position information."""

from floater.encodings.model import PositionModel, register


@register("none")
class NoPosition(PositionModel):
    """The plain Transformer: its encoder is permutation equivariant (Liu et al. 2020, section 2.1)."""

    reference = "-"
