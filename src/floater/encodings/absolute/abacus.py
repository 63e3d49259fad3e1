"""Transformers Can Do Arithmetic with the Right Embeddings (McLeish et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import skip_padding, whole_numbers
from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions
from floater.positions.tracing import require


@register("abacus")
class Abacus(PositionModel):
    """A learned vector for the place of a digit in its number, shifted at random in training (section 3).

    Digit i of a number, i = 1, 2, ... in the order of the text, gets e[k + i]; k is uniform in 0 to
    `max_offset`, sampled for each batch in training, and 0 in evaluation. Places beyond the longest training
    number thus have trained vectors, too. Other tokens get e[0]. Numbers must be written with the
    least digit first, so that digits of the same place share a vector. The authors combine it with FIRE, as
    `compose` can. Positions are not read, only tokens and their order.

    Position coupling (Cho et al. 2024), where tokens with the same role share a position, needs no separate
    encoding: give `learned` such `position_ids` and random times of the mode "shift".

    Args:
        digits: token ids of the digits, one token each.
        size: vectors e, e[0] among them; a number with more digits is refused.
        max_offset: largest k, at least 0.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if there are no token ids, or keys of an
            earlier step, or a number is too long.

    Example:
        >>> model = Abacus(StackSpec(dim=8, heads=2, layers=1, max_length=16), digits=[5, 6, 7]).eval()
        >>> at = torch.arange(6)[None]
        >>> model.prepare(Positions(at, at, token=torch.tensor([[5, 7, 1, 6, 6, 5]]))).tolist()
        [[1, 2, 0, 1, 2, 3]]
    """

    card = Card(
        paper="McLeish et al. 2024",
        link="https://arxiv.org/abs/2405.17399",
        stacks={"causal": "addition and other algorithms"},
        point="absolute",
        equation="x_t + e[k + i] at digit i of a number, e[0] elsewhere; k random in training",
        parameters="size * d",
        exceptions={
            "real": "digits are counted",
            "cache": "it counts the digits before a token, whose ids the cache does not hold",
            "shift": "positions are counted within a number",
        },
    )
    derives_positions = True

    def __init__(
        self,
        spec: StackSpec,
        *,
        digits: Sequence[int] = tuple(range(10)),
        size: int = 1024,
        max_offset: int = 99,
    ) -> None:
        super().__init__(spec)
        if not digits or any(digit < 0 for digit in digits):
            raise PositionError(f"digits is {digits!r}; it must be at least one token id, none negative")
        if size < 2:
            raise PositionError(f"size is {size}; it must be at least 2")
        if not 0 <= max_offset < size - 1:
            raise PositionError(f"max_offset is {max_offset}; it must be from 0 to size - 2, {size - 2}")
        self.digits, self.max_offset = tuple(digits), max_offset
        self.table = nn.Parameter(torch.empty(size, spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.spec.init_table(self.table)

    def prepare(self, positions: Positions) -> Tensor:
        whole_numbers(positions, "abacus")
        token, document = tokens_and_documents(positions, "abacus")

        def digit_index(both: Tensor) -> Tensor:
            digit = torch.isin(both[..., 0], both.new_tensor(self.digits))
            goes_on = torch.zeros_like(digit)
            goes_on[:, 1:] = digit[:, 1:] & digit[:, :-1] & (both[:, 1:, 1] == both[:, :-1, 1])
            return ((since(~goes_on) + 1) * digit)[..., None].expand_as(both)

        index = skip_padding(torch.stack([token, document], -1), positions.key_valid, digit_index)[..., 0]
        if self.training:
            offset = torch.randint(self.max_offset + 1, (1,)).to(index.device)
            index = torch.where(index > 0, index + offset, index)
        size = len(self.table)
        message = f"a number reaches place {{}}; 'abacus' has {size - 1} (size {size})"
        require(index < size, message, index.max, PositionError)
        return index

    def embed(self, x: Tensor, state: Tensor) -> Tensor:
        return x + self.table[state].to(x.dtype)


def tokens_and_documents(positions: Positions, name: str) -> tuple[Tensor, Tensor]:
    """Return the token ids and documents of a whole text, each (batch or 1, T).

    Raises:
        PositionError: if the positions have no token ids, or keys of an earlier step.

    Example:
        >>> tokens_and_documents(Positions.arange(2), "abacus")
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: 'abacus' reads token ids; the positions have none
    """
    if positions.query.shape[1] != positions.key.shape[1]:
        raise PositionError(
            f"'{name}' reads the ids of all tokens: decode without a cache (input_ids and use_cache=False)"
        )
    if positions.token is None:
        raise PositionError(f"'{name}' reads token ids; the positions have none")
    token = positions.token
    document = torch.zeros_like(token) if positions.document is None else positions.document
    valid = token if positions.key_valid is None else positions.key_valid
    rows = torch.broadcast_shapes(token.shape, document.shape, valid.shape)  # type: ignore[no-untyped-call]
    return token.expand(rows), document.expand(rows)


def since(begins: Tensor) -> Tensor:
    """Return the number of tokens since the begin of each token's run.

    Args:
        begins: (batch, T) bool, True where a run begins.

    Returns:
        (batch, T), 0 where a run begins.

    Example:
        >>> since(torch.tensor([[True, False, False, True, False]])).tolist()
        [[0, 1, 2, 0, 1]]
    """
    index = torch.arange(begins.shape[1], device=begins.device).expand_as(begins)
    return index - torch.where(begins, index, 0).cummax(1).values
