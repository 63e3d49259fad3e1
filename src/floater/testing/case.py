"""The subject of a check: an encoding with options, in a stack of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal
from unittest import SkipTest

import torch
from torch import Tensor, nn

from floater.encodings import PositionModel, build, catalogue
from floater.errors import install
from floater.positions import Positions
from floater.testing.inputs import SIZES, randomize_zeros
from floater.testing.stack import KeyValueCache, Stack

Blocks = Literal["torch", "transformer"]


@dataclass(frozen=True)
class Case:
    """An encoding with options, and the blocks around it.

    Args:
        name: name of the encoding in the catalogue.
        options: its options.
        blocks: "transformer" are those of the reference Transformer, "torch" those of
            `floater.testing.stack`, which need no other package.
        random_weights: whether all parameters of the encoding are sampled from a normal distribution. By
            default they are the initial ones, but for those that start at zero.
        order_alone: whether the encoding reads the order of tokens alone, not the values of positions.

    Example:
        >>> case = Case("alibi", blocks="torch")
        >>> case.stack()(torch.zeros(1, 3, 16, dtype=torch.double), Positions.arange(3)).shape
        torch.Size([1, 3, 16])
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    blocks: Blocks = "transformer"
    random_weights: bool = False
    order_alone: bool = False

    @property
    def encoding(self) -> type[PositionModel]:
        """Return the class of the encoding."""
        return catalogue()[self.name]

    def build(self, **changes: Any) -> PositionModel:
        """Build the encoding.

        Args:
            **changes: to `SIZES`, or other arguments of `floater.build`.
        """
        return build(self.name, **SIZES | changes, **self.options)

    def stack(self, *, causal: bool = False) -> Any:
        """Build two blocks around the encoding, with the same weights in each call; see `prepare_weights`."""
        torch.manual_seed(0)
        if self.blocks == "transformer":
            stack: nn.Module = reference().encoder(self.name, self.options, causal=causal)
        else:
            stack = Stack(self.build(causal=causal))
        return self.prepare_weights(stack)

    def decoder(self) -> Any:
        """Build a decoder of two blocks around the encoding.

        Raises:
            unittest.SkipTest: if the blocks are not those of the reference Transformer.
        """
        self.require_transformer()
        torch.manual_seed(0)
        return self.prepare_weights(reference().decoder(self.name, self.options))

    def prepare_weights(self, stack: Any) -> Any:
        """Return a stack in double precision and evaluation mode, no parameter of whose encoding is zero."""
        stack = stack.double().eval()
        randomize_zeros(stack.position)
        if self.random_weights:
            for parameter in stack.position.parameters():
                nn.init.normal_(parameter)
        return stack

    def cache(self) -> Any:
        """Return an empty cache for a causal stack."""
        return reference().cache() if self.blocks == "transformer" else KeyValueCache()

    def attend(self, stack: Any, x: Tensor, state: Any, positions: Positions, layer: int) -> Tensor:
        """Return the output (batch, T, dim) of the attention of one block."""
        if self.blocks == "transformer":
            out: Tensor = reference().attend(stack, x, state, positions, layer)
        else:
            out = stack.blocks[layer].attention(x, stack.position, state, positions.visible)
        return out

    def require_transformer(self) -> None:
        """Skip a check that needs the reference Transformer where the blocks are in torch alone.

        Raises:
            unittest.SkipTest: if `blocks` is not "transformer".
        """
        if self.blocks != "transformer":
            raise SkipTest(f"needs the blocks of floater.transformer: {install('hf')}")


def reference() -> ModuleType:
    """Import the part of the checks that needs Transformers.

    Raises:
        ImportError: if it is missing.
    """
    from floater.testing import reference

    return reference


def available_blocks() -> Blocks:
    """Return "transformer" where Transformers is installed, else "torch".

    Example:
        >>> available_blocks() in ("transformer", "torch")
        True
    """
    try:
        reference()
    except ImportError:
        return "torch"
    return "transformer"
