"""Checks of what a token must not depend on: padding, other texts, later tokens, a cache, a shift."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from floater.positions import Positions
from floater.testing.case import Case
from floater.testing.inputs import MASK, embeddings, mask_positions, with_fields
from floater.testing.refusals import refuses

# of each row, the lengths of its documents: full rows and padded ones, a row of one document beside others
_PACKED = ([[3, 1, 4]], [[2, 5], [4, 3]], [[2, 5], [3]], [[3, 1, 4], [2, 5], [7]])
_ORDER = torch.tensor([3, 0, 6, 1, 5, 2, 4])
_SHIFT = 7


def _excepts(stack: Any, item: str) -> bool:
    return item in stack.position.card.exceptions


@torch.no_grad()
def padding(case: Case) -> None:
    """Padding on any side changes no output of a token."""
    stack, x = case.stack(), embeddings(*MASK.shape)
    together = stack(x, mask_positions(stack.position, MASK))
    for sample, tokens in enumerate(MASK.bool()):
        row = slice(sample, sample + 1)
        alone = mask_positions(stack.position, MASK[row, tokens], torch.tensor([sample]))
        assert_close(together[sample, tokens], stack(x[row, tokens], alone)[0])


@torch.no_grad()
def packing(case: Case, causal: bool = False) -> None:
    """Documents packed into a row have the same outputs as alone, or are refused."""
    stack = case.stack(causal=causal)
    if causal and _excepts(stack, "causal"):
        return
    for rows in _PACKED:
        packed = Positions.packed(rows)
        valid = torch.ones_like(packed.query).bool() if packed.key_valid is None else packed.key_valid
        structure = mask_positions(stack.position, valid).structure
        positions = with_fields(packed, torch.arange(len(rows)), structure)
        x = embeddings(*packed.query.shape)
        if _excepts(stack, "documents"):
            with refuses("packed documents"):
                stack(x, positions)
            continue
        together = stack(x, positions)
        for sample, lengths in enumerate(rows):
            start = 0
            for length in lengths:
                document = slice(start, start + length)
                ones = torch.ones(1, length, dtype=torch.long)
                alone = mask_positions(stack.position, ones, torch.tensor([sample]))
                assert_close(together[sample, document], stack(x[sample : sample + 1, document], alone)[0])
                start += length


def packing_causal(case: Case) -> None:
    """Documents packed into a row of a causal stack have the same outputs as alone, or are refused."""
    packing(case, causal=True)


@torch.no_grad()
def cache(case: Case) -> None:
    """Decoding in chunks with a cache gives the outputs of the whole text, padded anywhere, or is refused."""
    stack, x = case.stack(causal=True), embeddings(*MASK.shape)
    if not stack.position.caches:
        with refuses("cache"):
            stack.position.prepare(mask_positions(stack.position, MASK, queries=1))
        return
    whole, held, chunks = stack(x, mask_positions(stack.position, MASK)), case.cache(), []
    for start, stop in ((0, 3), (3, 4), (4, 6), (6, 7)):
        positions = mask_positions(stack.position, MASK[:, :stop], queries=stop - start)
        chunks.append(stack(x[:, start:stop], positions, held))
    assert_close(torch.cat(chunks, 1)[MASK.bool()], whole[MASK.bool()])


@torch.no_grad()
def prefix(case: Case) -> None:
    """A text has the same outputs as at the beginning of a longer text."""
    stack, x = case.stack(causal=True), embeddings(2, 7)
    if _excepts(stack, "causal"):
        return
    whole = stack(x, mask_positions(stack.position, MASK[:1].expand(2, -1)))
    for length in (1, 4):
        positions = mask_positions(stack.position, MASK[:1, :length].expand(2, -1), nodes=7)
        assert_close(whole[:, :length], stack(x[:, :length], positions))


@torch.no_grad()
def decoder(case: Case) -> None:
    """A text has the same outputs in a decoder as at the beginning of a longer text."""
    case.require_transformer()
    if "decoder" not in case.encoding.sites:
        return
    model = case.decoder()
    if _excepts(model, "causal"):
        return

    def decode(length: int) -> Tensor:
        """Decode a text of some tokens after a source of five."""
        x, source = embeddings(1, 7)[:, :length], embeddings(1, 5) + 1
        positions, source_positions = (
            mask_positions(position, torch.ones(1, size, dtype=torch.long))
            for position, size in ((model.position, length), (model.cross_position, 5))
        )
        out: Tensor = model(x, positions, source, source_positions)
        return out

    whole = decode(7)
    for length in (1, 4):
        assert_close(decode(length), whole[:, :length])


@torch.no_grad()
def causal(case: Case) -> None:
    """In a causal stack no token sees a later one, unless the card excepts "causal"."""
    stack, x = case.stack(causal=True), embeddings(2, 1, 6)
    x[1, :, :4] = x[0, :, :4]
    positions = mask_positions(stack.position, MASK[:1, :6])
    before, after = (stack(y, positions) for y in x)
    same = torch.allclose(before[:, :4], after[:, :4])
    assert same != _excepts(stack, "causal"), "later tokens act" if not same else "no later token acts"
    assert not torch.allclose(before[:, 4:], after[:, 4:]), "tokens do not act on themselves"


@torch.no_grad()
def shift(case: Case, causal: bool = False) -> None:
    """An encoding whose card calls it relative gives the same outputs if all positions are shifted."""
    stack, x = case.stack(causal=causal), embeddings(2, 7)
    if stack.position.card.point not in ("relative", "none") or _excepts(stack, "shift"):
        return
    here = mask_positions(stack.position, MASK[:2])
    there = here.but(query=here.query + _SHIFT, key=here.key + _SHIFT)
    one, other = (stack(x, positions)[MASK[:2].bool()] for positions in (here, there))
    assert_close(one, other, rtol=1e-5, atol=1e-5)  # sines of float32


def shift_causal(case: Case) -> None:
    """An encoding whose card calls it relative gives the same outputs after a shift in a causal stack."""
    shift(case, causal=True)


@torch.no_grad()
def permutation(case: Case) -> None:
    """Samples do not depend on their order in the batch, nor tokens if the encoding has no positions."""
    stack, x = case.stack(), embeddings(*MASK.shape)
    order = torch.tensor([3, 0, 4, 1, 2])
    whole = stack(x, mask_positions(stack.position, MASK))
    other = stack(x[order], mask_positions(stack.position, MASK[order], order))
    assert_close(other[MASK[order].bool()], whole[order][MASK[order].bool()])
    if stack.position.card.point == "none":
        positions = mask_positions(stack.position, MASK[:1])
        assert_close(stack(x[:1, _ORDER], positions), stack(x[:1], positions)[:, _ORDER])


@torch.no_grad()
def order(case: Case) -> None:
    """The order of tokens matters if and only if the card names a reference point."""
    stack, x = case.stack(), embeddings(1, 7)
    positions = mask_positions(stack.position, MASK[:1])
    change = stack(x, positions)[:, _ORDER] - stack(x[:, _ORDER], positions)
    matters = float(change.abs().max()) > 1e-3
    assert matters == (case.encoding.card.point != "none"), f"outputs change by {change.abs().max()}"
