"""Vectors that depend on positions alone, kept while a text is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

import torch
from torch import Tensor, nn

from floater.encodings.model import PositionModel
from floater.flow import FlowEncoder
from floater.flow.cache import VectorCache


class Stored(PositionModel):
    """A position model whose vectors depend on positions alone, and take long to compute.

    A step of decoding reads those of all keys, of which all but the last were read by the step before.

    Example:
        >>> from floater import Positions, build
        >>> model = build("rnn", dim=8, heads=2, layers=1, max_length=16).eval()
        >>> with torch.no_grad(), model.baked():
        ...     first, second = (model.prepare(Positions.arange(1, offset=n))[0][0] for n in (3, 4))
        >>> first[3].data_ptr() == second[3].data_ptr()
        True
    """

    _cache: VectorCache | None = None

    @contextmanager
    def baked(self) -> Iterator[Self]:
        """Keep vectors for the duration of a `with` block, in which no parameter changes."""
        if self._cache is not None:
            yield self
            return
        self._cache = VectorCache()
        try:
            yield self
        finally:
            self._cache = None

    def look_up(self, at: Tensor, solve: Callable[..., Tensor]) -> Sequence[Tensor]:
        """Return vectors at positions: those that are kept, in evaluation without gradients, else new ones.

        Args:
            at: increasing whole positions (N,).
            solve: function from these, and optionally the vectors (rows, dim) at an earlier position and that
                position, to the vectors (N, rows, dim).

        Returns:
            A tensor (N, dim) for each row.
        """
        cache, trained = self._cache, self.training or torch.is_grad_enabled()
        if cache is None or trained or torch.compiler.is_compiling() or not at.numel():
            return solve(at).unbind(1)
        rows, index = cache.look_up(at[None].cpu(), lambda new, *last: solve(new.to(at), *last), ahead=True)
        return [row[index if isinstance(index, slice) else index[0].to(row.device)] for row in rows]


@contextmanager
def baked_vectors(model: nn.Module) -> Iterator[None]:
    """Keep what a model computes of positions alone, by flows and others, until the end of a `with` block.

    Example:
        >>> from floater import Positions, build
        >>> model = build("seqpe", dim=8, heads=2, layers=1, max_length=16).eval()
        >>> with torch.no_grad(), baked_vectors(model):
        ...     model.prepare(Positions.arange(1, offset=3)).matrix.shape
        torch.Size([1, 2, 1, 4])
    """
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, FlowEncoder | Stored):
                stack.enter_context(module.baked())
        yield
