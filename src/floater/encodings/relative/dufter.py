"""Increasing Learning Efficiency of Self-Attention Networks through Direct Position Interactions.

Dufter, Schmitt, Schuetze 2020; the title continues: Learnable Temperature, and Convoluted Attention.
"""

from __future__ import annotations

from torch import nn

from floater.encodings.card import Card
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceTable
from floater.encodings.spec import StackSpec


@register("dufter_relative")
class DufterRelative(DistanceTable):
    """A learned scalar b_{s-t} is added to the logits, for every head of every block.

    The survey (section 4.1.2) is the specification: position biases instead of position embeddings. It does
    not specify sharing. The released program has one head, and learns the spectrum of a circulant matrix
    of twice the size, of Glorot's variance, which makes the biases the same on both sides; here the two sides
    have biases of their own, of the same initial scale. Bounded: distances stay below max_length.

    Raises:
        PositionError: in `prepare`, if positions are real or a distance is past the table.

    Example:
        >>> DufterRelative(StackSpec(dim=8, heads=2, layers=3, max_length=16)).table.shape
        torch.Size([3, 2, 31])
    """

    card = Card(
        paper="Dufter et al. 2020",
        link="https://aclanthology.org/2020.coling-main.324",
        stacks={"encoder": "part-of-speech tagging"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) + b_{s-t}",
        parameters="(2 * t_max - 1) * h * l",
        exceptions={
            "real": "a table has nothing between whole distances",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )
    name = "dufter_relative"

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec, share_heads=False, share_layers=False)

    def reset_parameters(self) -> None:
        # the real part of the inverse Fourier transform of 2 max_length numbers of std (2 max_length)^-1/4
        nn.init.normal_(self.table, std=(2 * self.spec.max_length) ** -0.75 * 0.5**0.5)
