"""Positions from masks, ids and caches against those of Transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DataCollatorWithFlattening, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import create_causal_mask, find_packed_sequence_indices
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

import floater
from floater._hf import cache_in
from floater.positions import build_positions
from floater.testing.inputs import randomize_zeros

PADDING = 1
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]])


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            pad_token_id=PADDING, eos_token_id=None, **options,
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("beams", [1, 2])
def test_left_padding_with_a_cache_and_chunked_prefill(chunk: int | None, beams: int) -> None:
    """Each call of the model by `generate`: the positions that it passes are those by its mask and cache."""
    model, lengths = llama(), []

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids, cache = kwargs["position_ids"], cache_in(kwargs)
        mask, cached = kwargs["attention_mask"], cache.get_seq_length()
        valid = mask[:, cached:].bool()
        for options in ({}, {"position_ids": ids}):
            positions = build_positions(ids.shape, cached, mask=mask, **options)
            assert torch.equal(positions.query.expand_as(ids)[valid], ids[valid])
        lengths.append(ids.shape[1])

    model.model.register_forward_pre_hook(check, with_kwargs=True)
    ids = torch.full_like(LEFT, 5) * LEFT + PADDING * (1 - LEFT)
    model.generate(
        ids, attention_mask=LEFT, max_new_tokens=4, num_beams=beams, do_sample=False, prefill_chunk_size=chunk
    )
    prefill = {None: [7], 1: [1] * 7, 3: [3, 3, 1]}[chunk]
    assert lengths == [*prefill, 1, 1, 1]


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_packed_documents(lengths: list[int]) -> None:
    batch = DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": [7] * n} for n in lengths])
    ids: Tensor = batch["position_ids"]
    documents = find_packed_sequence_indices(ids)
    documents = torch.zeros_like(ids) if documents is None else documents
    by_documents = build_positions(ids.shape, document_ids=documents)
    by_ids = build_positions(ids.shape, position_ids=ids)
    assert torch.equal(by_documents.query, ids)
    assert torch.equal(by_documents.key, by_ids.key)


CHANGES = {
    "plug": floater.plug,
    **{name: partial(floater.extend, length=64, method=name) for name in ("clex", "self_extend", "log_n")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_texts_packed_for_flash_attention(change: Any) -> None:
    """Batches of DataCollatorWithFlattening have the logits of the texts alone, or are refused."""
    model = llama(max_position_embeddings=32)
    change(model)
    randomize_zeros(model)
    texts = [[7, 8, 9, 4, 5], [3, 2], [4, 4, 6, 8]]
    collator = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)
    batch = collator([{"input_ids": text} for text in texts])
    del batch["labels"]
    packed = model(**batch, use_cache=False).logits
    alone = [model(torch.tensor([text])).logits for text in texts]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    with pytest.raises(ValueError, match=r"^texts packed by cu_seq_lens_q see .*; pass use_cache=False$"):
        model(**batch)
    del batch["position_ids"]
    with pytest.raises(ValueError, match=r"^cu_seq_lens_q packs texts, .*; pass position_ids, too, as .*$"):
        model(**batch, use_cache=False)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8).filter(any), st.integers(0, 3))
def test_ids_of_roberta(tokens: list[bool], cached: int) -> None:
    """Padding counts as position 0; tokens as without the first ids."""
    words = torch.where(torch.tensor([tokens]), 5, PADDING)
    ids = RobertaEmbeddings.create_position_ids_from_input_ids(words, PADDING, cached)
    valid = words != PADDING
    positions = build_positions(words.shape, mask=valid, position_ids=ids, first=PADDING + 1)
    mask = torch.cat((torch.ones(1, cached), valid), 1)
    expected = build_positions(words.shape, cached, mask=mask).query
    assert torch.equal(positions.query[valid], expected.expand_as(valid)[valid])
    assert not positions.query[~valid].any()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("cached", [0, 4])
def test_masks_of_pairs(implementation: str, cached: int) -> None:
    """The masks that Transformers computes from masks of rows say the same."""
    config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    config._attn_implementation = implementation
    cache, states = DynamicCache(), torch.zeros(len(LEFT), LEFT.shape[1] - cached, 8)
    if cached:
        cache.update(*torch.zeros(2, len(LEFT), 2, cached, 4), 0)
    pairs = create_causal_mask(config, states, LEFT, cache)
    by_pairs = build_positions(states.shape[:2], pairs=pairs).query
    valid = LEFT[:, cached:].bool()
    expected = build_positions(states.shape[:2], cached, mask=LEFT).query
    assert torch.equal(by_pairs[valid], expected[valid])


@settings(deadline=None)
@given(st.integers(1, 6), st.data())
def test_chunks_give_the_keys_of_the_whole(length: int, data: st.DataObject) -> None:
    """Whether cached positions are counted, by a mask, by documents or known."""
    integers = st.lists(st.integers(0, 1), min_size=length, max_size=length)
    rows = torch.tensor(data.draw(st.lists(integers.filter(any), min_size=2, max_size=2)))
    cut = data.draw(st.integers(0, length))
    shape, rest = rows.shape, (2, length - cut)
    for options in ({}, {"mask": rows}, {"document_ids": rows}):
        whole = build_positions(shape, **options)
        chunk = build_positions(rest, cut, **options)
        assert torch.equal(chunk.key, whole.key)
        assert torch.equal(chunk.query, whole.query[:, cut:])
    ids = torch.randint(9, shape)
    first = build_positions((2, cut), position_ids=ids[:, :cut])
    chunk = build_positions(rest, first.key, position_ids=ids[:, cut:])
    assert torch.equal(chunk.key, ids)
    assert torch.equal(chunk.query, ids[:, cut:])


def test_new_tokens_continue_cached_ones() -> None:
    """Ids say nothing of cached tokens, whose positions are those by the mask, unless they are known."""
    ids = torch.tensor([[3, 4]])
    assert build_positions((1, 2), 3, position_ids=ids).key.tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(ValueError, match="must continue their positions by the attention mask"):
        build_positions((1, 2), 2, position_ids=ids)
    positions = build_positions((1, 2), torch.tensor([[7, 9]]), position_ids=ids)
    assert positions.key.tolist() == [[7, 9, 3, 4]]


def test_ids_of_padding_may_be_anything() -> None:
    mask = torch.tensor([[0, 1, 1]])
    ids = mask.cumsum(1) - 1  # as in many programs
    assert build_positions((1, 3), mask=mask, position_ids=ids).query.tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match="position_ids begin at -1; the positions of this model begin at 0"):
        build_positions((1, 3), position_ids=ids)
