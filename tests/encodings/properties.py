"""What holds for every encoding, single or composed, at the positions of a padded, packed or cached batch.

Each property builds a stack of two blocks around an encoding, given by its name and options, and asserts.
What its card excepts must be refused, or is left out.
"""

import dataclasses

import pytest
import torch
from contract_cases import MASK, embeddings, of_tokens, stack, where
from torch.testing import assert_close
from transformers import DynamicCache

from floater import PositionError, Positions

# of each row, the lengths of its documents: full rows and padded ones, a row of one document beside others
PACKED = ([[3, 1, 4]], [[2, 5], [4, 3]], [[2, 5], [3]], [[3, 1, 4], [2, 5], [7]])
SHIFT = 7


def padding(name, given):
    """Padding on any side changes nothing."""
    encoder, x = stack(name, given), embeddings(*MASK.shape)
    whole = encoder(x, where(encoder.position, MASK))
    for row, kept in enumerate(MASK.bool()):
        positions = where(encoder.position, MASK[row : row + 1, kept], torch.tensor([row]))
        assert_close(whole[row, kept], encoder(x[row : row + 1, kept], positions)[0])


def packing(name, given, causal=False):
    """Documents packed into a row are what they are alone, or are refused."""
    encoder = stack(name, given, causal=causal)
    if causal and "causal" in encoder.position.card.exceptions:
        return
    for rows in PACKED:
        packed, numbers = Positions.packed(rows), torch.arange(len(rows))
        x, query = embeddings(*packed.query.shape), packed.query
        valid = torch.ones_like(query, dtype=torch.bool) if packed.key_valid is None else packed.key_valid
        positions = dataclasses.replace(
            packed,
            target_length=9 + numbers,
            language=(query + numbers[:, None]) % 2,
            reordered=(5 * query + numbers[:, None]) % 7,
            structure=where(encoder.position, valid).structure,
            **of_tokens(packed, query, numbers),
        )
        if "documents" in encoder.position.card.exceptions:
            with pytest.raises(PositionError, match="packed documents"):
                encoder(x, positions)
            continue
        whole = encoder(x, positions)
        for row, lengths in enumerate(rows):
            start = 0
            for length in lengths:
                ones = torch.ones(1, length, dtype=torch.long)
                alone, part = where(encoder.position, ones, torch.tensor([row])), slice(start, start + length)
                assert_close(whole[row, part], encoder(x[row : row + 1, part], alone)[0])
                start += length


def cache(name, given):
    """Decoding in chunks with a cache gives the whole text, padded anywhere, or is refused."""
    encoder, x = stack(name, given, causal=True), embeddings(*MASK.shape)
    if not encoder.position.caches:
        with pytest.raises(PositionError, match="cache"):
            encoder.position.prepare(where(encoder.position, MASK, queries=1))
        return
    whole, held, parts = encoder(x, where(encoder.position, MASK)), DynamicCache(), []
    for start, stop in ((0, 3), (3, 4), (4, 6), (6, 7)):
        positions = where(encoder.position, MASK[:, :stop], queries=stop - start)
        parts.append(encoder(x[:, start:stop], positions, held))
    assert_close(torch.cat(parts, 1)[MASK.bool()], whole[MASK.bool()])


def prefix(name, given):
    """The outputs of a text are those that it has as the beginning of a longer one."""
    encoder, x = stack(name, given, causal=True), embeddings(2, 7)
    if "causal" in encoder.position.card.exceptions:
        return
    whole = encoder(x, where(encoder.position, MASK[:1].expand(2, -1)))
    for length in (1, 4):
        positions = where(encoder.position, MASK[:1, :length].expand(2, -1), nodes=7)
        assert_close(whole[:, :length], encoder(x[:, :length], positions))


def shift(name, given, causal=False):
    """A relative encoding gives the same outputs if all positions are shifted."""
    encoder, x = stack(name, given, causal=causal), embeddings(2, 7)
    card = encoder.position.card
    if card.point not in ("relative", "none") or "shift" in card.exceptions:
        return
    here = where(encoder.position, MASK[:2])
    there = dataclasses.replace(here, query=here.query + SHIFT, key=here.key + SHIFT)
    assert_close(
        *(encoder(x, positions)[MASK[:2].bool()] for positions in (here, there)),
        rtol=1e-5,
        atol=1e-5,  # sines of float32
    )


def permutation(name, given):
    """Samples do not depend on their order in the batch, nor tokens if the encoding has no positions."""
    encoder, x = stack(name, given), embeddings(*MASK.shape)
    order = torch.tensor([3, 0, 4, 1, 2])
    whole = encoder(x, where(encoder.position, MASK))
    other = encoder(x[order], where(encoder.position, MASK[order], order))
    assert_close(other[MASK[order].bool()], whole[order][MASK[order].bool()])
    tokens, places = torch.tensor([3, 0, 6, 1, 5, 2, 4]), where(encoder.position, MASK[:1])
    if encoder.position.card.point == "none":
        assert_close(encoder(x[:1, tokens], places), encoder(x[:1], places)[:, tokens])


def gradients(name, given, causal=False):
    """Gradients are finite and reach the tokens and the weights of every head of every block."""
    encoder = stack(name, given, causal=causal).train()
    x = embeddings(*MASK.shape).requires_grad_()
    out = encoder(x, where(encoder.position, MASK))
    (out * torch.randn(out.shape))[MASK.bool()].sum().backward()
    assert bool(x.grad.isfinite().all())
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), key
    for block in encoder.blocks:
        query, value = (
            layer.weight.grad.view(encoder.config.num_attention_heads, -1).any(1)
            for layer in (block.attention.query, block.attention.value)
        )
        assert bool(value.all()), "values of a head do not learn"
        assert bool(query.all() | ~query.any()), "queries of a head do not learn"  # some read positions alone


PROPERTIES = {
    "padding": torch.no_grad()(padding),
    "packing": torch.no_grad()(packing),
    "packing in a causal stack": torch.no_grad()(lambda name, given: packing(name, given, causal=True)),
    "cache": torch.no_grad()(cache),
    "prefix": torch.no_grad()(prefix),
    "shift": torch.no_grad()(shift),
    "shift in a causal stack": torch.no_grad()(lambda name, given: shift(name, given, causal=True)),
    "permutation": torch.no_grad()(permutation),
    "gradients": gradients,
    "gradients in a causal stack": lambda name, given: gradients(name, given, causal=True),
}
