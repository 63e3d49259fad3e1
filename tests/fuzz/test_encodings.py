"""Encodings and compositions with random options, at random masks, documents and chunks of a cache."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import compositions, encodings
from torch import Tensor
from transformers import DynamicCache

from floater import PositionError, Positions
from floater.encodings import PositionModel
from floater.structures import trees
from floater.testing.inputs import randomize_zeros
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM
from floater.transformer.stacks import Encoder
from small_models import small_config

from .fuzzing import checked

LENGTH = 16
WIDTH = 16
SUBJECTS = st.one_of(encodings(), compositions())


def stack(name: str, options: dict[str, Any], causal: bool = False) -> Encoder:
    """Return a stack of two blocks in double precision, no parameter of whose encoding is zero."""
    torch.manual_seed(0)
    encoder = Encoder(config(name, options), causal=causal).double().eval()
    randomize_zeros(encoder.position)
    return encoder


def config(name: str, options: dict[str, Any]) -> Any:
    return small_config(
        name, position_options=options, hidden_size=WIDTH, training_length=LENGTH, recipe="transformer"
    )


def embeddings(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, WIDTH, generator=generator, dtype=torch.double)


def everything(
    model: PositionModel, positions: Positions, counts: Sequence[Tensor], rows: Sequence[int]
) -> Positions:
    """Add all that an encoding may read, by the position and the number of the text alone.

    Args:
        model: the encoding.
        positions: of the tokens.
        counts: of each row, the positions of its tokens in its text; -1 at padding.
        rows: the number of the text in each row.
    """
    query, row = positions.query.expand(len(rows), -1), torch.tensor(rows)[:, None]
    key = positions.key.expand(len(rows), -1)
    structure = None
    if getattr(model, "needs", None):
        sizes = [max(int(count.max()) + 1, 1) for count in counts]
        parents = [[(i - 1) // 2 if i else -1 for i in range(size)] for size in sizes]
        structure = trees(parents, words=list(counts))
    return positions.but(
        target_length=9 + row[:, 0],
        language=(query + row) % 2,
        reordered=(5 * query + row) % 7,
        token=(3 * query + row) % 11,
        segment=(key + row) % 2,
        structure=structure,
    )


def mask_positions(
    model: PositionModel, mask: Tensor, rows: Sequence[int], queries: int | None = None
) -> Positions:
    positions = Positions.from_mask(mask, queries=queries)
    counts = [torch.where(row > 0, row.cumsum(0) - 1, -1) for row in mask]
    return everything(model, positions, counts, rows)


@st.composite
def masks(draw: st.DrawFn, rows: int = 3, longest: int = 9) -> Tensor:
    """Draw masks with padding anywhere, at least one token in each row."""
    length = draw(st.integers(1, longest))
    row = st.lists(st.booleans(), min_size=length, max_size=length).filter(any)
    return torch.tensor([draw(row) for _ in range(draw(st.integers(1, rows)))]).long()


@given(SUBJECTS, masks(), st.booleans())
@checked("Encodings: padding, other rows", 30)
@torch.no_grad()
def test_a_text_is_what_it_is_alone(subject: tuple[str, dict[str, Any]], mask: Tensor, causal: bool) -> None:
    encoder, x = stack(*subject, causal=causal), embeddings(*mask.shape)
    rows = range(len(mask))
    together = encoder(x, mask_positions(encoder.position, mask, rows))
    for row in rows:
        kept = mask[row].bool()
        alone = encoder(
            x[row : row + 1, kept], mask_positions(encoder.position, mask[row : row + 1, kept], [row])
        )
        torch.testing.assert_close(together[row, kept], alone[0])


@given(
    SUBJECTS,
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(),
)
@checked("Encodings: packed documents", 30)
@torch.no_grad()
def test_packed_documents_are_what_they_are_alone(
    subject: tuple[str, dict[str, Any]], packed: list[list[int]], causal: bool
) -> None:
    encoder = stack(*subject, causal=causal)
    card, rows = encoder.position.card, range(len(packed))
    positions = Positions.packed(packed)
    x = embeddings(len(packed), positions.query.shape[1])
    counts = [
        torch.cat([*(torch.arange(n) for n in lengths), torch.full((x.shape[1] - sum(lengths),), -1)])
        for lengths in packed
    ]
    try:
        together = encoder(x, everything(encoder.position, positions, counts, rows))
    except PositionError:
        several = any(len(lengths) > 1 for lengths in packed)
        assert "documents" in card.exceptions or (causal and "causal" in card.exceptions) or not several
        raise
    assume("causal" not in card.exceptions or not causal)
    for row, lengths in enumerate(packed):
        start = 0
        for length in lengths:
            part = slice(start, start + length)
            alone = mask_positions(encoder.position, torch.ones(1, length, dtype=torch.long), [row])
            torch.testing.assert_close(together[row, part], encoder(x[row : row + 1, part], alone)[0])
            start += length


@given(SUBJECTS, masks(), st.lists(st.integers(1, 4), min_size=1, max_size=9))
@checked("Encodings: caches in chunks", 30)
@torch.no_grad()
def test_a_cache_in_chunks_is_the_whole(
    subject: tuple[str, dict[str, Any]], mask: Tensor, chunks: list[int]
) -> None:
    encoder, x, rows = stack(*subject, causal=True), embeddings(*mask.shape), range(len(mask))
    whole = encoder(x, mask_positions(encoder.position, mask, rows))
    cache, parts, start = DynamicCache(), [], 0
    for chunk in [*chunks, mask.shape[1]]:
        stop = min(start + chunk, mask.shape[1])
        if start == stop:
            break
        try:
            positions = mask_positions(encoder.position, mask[:, :stop], rows, stop - start)
            parts.append(encoder(x[:, start:stop], positions, cache))
        except PositionError:
            assert not encoder.position.caches
            raise
        start = stop
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])


@given(SUBJECTS, masks(rows=1), st.integers(1, 8))
@checked("Encodings: causality", 30)
@torch.no_grad()
def test_a_prefix_has_its_own_numbers(subject: tuple[str, dict[str, Any]], mask: Tensor, cut: int) -> None:
    encoder, x = stack(*subject, causal=True), embeddings(*mask.shape)
    assume("causal" not in encoder.position.card.exceptions)
    kept = mask[:, :cut]
    whole = encoder(x, mask_positions(encoder.position, mask, [0]))[:, :cut]
    changed = x.clone()
    changed[:, cut:] += 1.0
    other = encoder(changed, mask_positions(encoder.position, mask, [0]))[:, :cut]
    torch.testing.assert_close(other[kept.bool()], whole[kept.bool()])


@given(SUBJECTS, st.integers(1, 7), st.integers(1, 9))
@checked("Encodings: shifts", 30)
@torch.no_grad()
def test_what_is_relative_does_not_see_a_shift(
    subject: tuple[str, dict[str, Any]], length: int, shift: int
) -> None:
    """Of positions alone: what reads tokens, structures or lengths is not shifted with them."""
    encoder, x = stack(*subject), embeddings(1, length)
    card = encoder.position.card
    assume(card.point in ("relative", "none") and "shift" not in card.exceptions)
    here = mask_positions(encoder.position, torch.ones(1, length, dtype=torch.long), [0])
    there = here.but(query=here.query + shift, key=here.key + shift)
    torch.testing.assert_close(encoder(x, there), encoder(x, here), rtol=1e-5, atol=1e-5)


@given(SUBJECTS, masks())
@checked("Encodings: gradients, precision, kernels", 30)
def test_gradients_are_finite_and_kernels_and_precisions_agree(
    subject: tuple[str, dict[str, Any]], mask: Tensor
) -> None:
    encoder, x, valid = stack(*subject), embeddings(*mask.shape), mask.bool()
    positions = mask_positions(encoder.position, mask, range(len(mask)))
    numbers = []
    for kernel in ("sdpa", "eager"):
        encoder.blocks[0].attention.config._attn_implementation = kernel  # all blocks share it
        numbers.append(encoder(x, positions)[valid])
    torch.testing.assert_close(*numbers)
    (numbers[0] * embeddings(len(numbers[0]))).sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), key
    single = encoder.float()(x.float(), positions)[valid]
    torch.testing.assert_close(single.double(), numbers[1].detach(), rtol=1e-3, atol=1e-3)


@given(SUBJECTS, st.booleans(), st.integers(1, 9))
@checked("Encodings: saved and loaded", 20)
@torch.no_grad()
def test_a_saved_model_is_loaded_bit_for_bit(
    subject: tuple[str, dict[str, Any]], causal: bool, length: int
) -> None:
    torch.manual_seed(0)
    cls = FloaterForCausalLM if causal else FloaterForMaskedLM
    model = cls(config(*subject)).eval()
    for module in model.modules():
        if isinstance(module, PositionModel):
            randomize_zeros(module)
    ids = torch.arange(3, 3 + length)[None] % 11
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = cls.from_pretrained(folder).eval()
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    expected = model(ids).logits  # refused where the ids alone do not say trees, languages or lengths
    assert bool(expected.isfinite().all())
    assert torch.equal(again(ids).logits, expected)
