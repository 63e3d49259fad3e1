"""Positions of the tokens of plugged models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, PaliGemmaConfig, PaliGemmaForConditionalGeneration

import floater
from floater.pretrained import PlugError
from floater.pretrained.arguments import source_positions, token_positions
from floater.pretrained.exporting import modeling_plugged as code

from . import zoo
from .tiny import tiny

MASKS = st.integers(1, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 1), min_size=n, max_size=n).filter(any), min_size=1, max_size=4
    )
)


def filled(length: int) -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, length, 1), torch.zeros(1, 1, length, 1), 0)
    return cache


@settings(deadline=None)
@given(MASKS, st.data())
def test_index_among_the_unpadded_ones(rows: list[list[int]], data: st.DataObject) -> None:
    mask = torch.tensor(rows)
    queries = data.draw(st.integers(1, mask.shape[1]))
    arguments = {"attention_mask": mask, "past_key_values": filled(mask.shape[1] - queries)}
    positions = token_positions(arguments, (len(rows), queries)).query.expand(len(rows), queries)
    for row, indices in zip(rows, positions.tolist(), strict=True):
        for column in range(len(row) - queries, len(row)):
            if row[column]:
                assert indices[column - len(row) + queries] == sum(row[:column])


@settings(deadline=None)
@given(MASKS)
def test_a_square_mask_with_a_cache_counts_what_is_seen(rows: list[list[int]]) -> None:
    mask = torch.tensor(rows)
    causal = torch.ones(mask.shape[1], mask.shape[1]).tril().bool() & mask[:, None].bool()
    float_mask = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    expected = token_positions({"attention_mask": mask}, mask.shape).query.expand_as(mask)
    for square in (causal[:, None], float_mask[:, None]):
        arguments = {"attention_mask": square, "past_key_values": DynamicCache()}
        positions = token_positions(arguments, mask.shape).query
        assert torch.equal(positions[mask.bool()], expected[mask.bool()])


def test_a_square_mask_that_shows_what_comes_after_is_refused() -> None:
    both = {"attention_mask": torch.ones(1, 1, 3, 3), "past_key_values": DynamicCache()}
    with pytest.raises(PlugError, match="lets tokens attend to later ones"):
        token_positions(both | {"attention_mask": torch.zeros(1, 1, 3, 3)}, (1, 3))
    with pytest.raises(PlugError, match="lets tokens attend to later ones"):
        token_positions(both | {"attention_mask": torch.ones(1, 1, 3, 3).bool()}, (1, 3))


def test_without_a_mask_the_cache_counts() -> None:
    assert token_positions({}, (1, 3)).query.tolist() == [[0, 1, 2]]
    assert token_positions({"past_key_values": filled(4)}, (1, 2)).query.tolist() == [[4, 5]]
    mask = torch.tensor([[0, 1, 1]])
    assert source_positions({"encoder_attention_mask": mask}, (1, 3)).query.tolist() == [[0, 0, 1]]


def test_a_mask_for_each_kind_of_layer_counts_as_that_of_the_full_layers() -> None:
    """As Gemma 3 makes them; what sliding layers see does not matter, nor that images are seen whole."""
    causal = torch.tensor([[0, 1, 1], [1, 1, 1]]).bool()[:, None, None, :] & torch.ones(3, 3).tril().bool()
    causal[1, 0, 0, 1] = True
    for mask in (causal, torch.zeros(causal.shape).masked_fill(~causal, -torch.inf)):
        masks = {"full_attention": mask, "sliding_attention": torch.ones(2, 1, 3, 3).tril().bool()}
        assert token_positions({"attention_mask": masks}, (2, 3)).query.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert token_positions({"attention_mask": {"full_attention": None}}, (1, 3)).query.tolist() == [[0, 1, 2]]


def test_ids_that_count_from_zero_are_known_where_a_model_begins_elsewhere() -> None:
    """As `generate` gives them to RoBERTa, with 1 for padding."""
    mask, ids = torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1, 1, 0, 1]])
    both = {"attention_mask": mask, "position_ids": ids}
    assert token_positions(both, (1, 4), padding=1).query[0, 2:].tolist() == [0, 1]
    cached = {"past_key_values": filled(4), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}
    step = token_positions(cached | {"position_ids": torch.tensor([[2]])}, (1, 1), padding=1)
    assert step.query.tolist() == [[2]]
    ids = torch.tensor([[2, 3, 4]])
    assert token_positions({"position_ids": ids}, (1, 3), padding=1).query.tolist() == [[0, 1, 2]]
    joined = token_positions({"position_ids": ids, "cache": object()}, (1, 3), padding=1)
    assert torch.equal(joined.query, ids)  # of continuous batching


def test_rows_and_columns_of_images_are_no_positions_in_the_text() -> None:
    """Qwen2-VL gives time, height and width, and in `generate` the position in the text before them."""
    grid, mask = torch.zeros(3, 1, 4, dtype=torch.long), torch.tensor([[0, 1, 1, 1]])
    counted = token_positions({"position_ids": grid, "attention_mask": mask}, (1, 4))
    assert counted.query[0, 1:].tolist() == [0, 1, 2]
    both = torch.cat((torch.tensor([[[5, 6, 7, 8]]]), grid))
    assert token_positions({"position_ids": both}, (1, 4)).query.tolist() == [[5, 6, 7, 8]]


def test_one_row_of_ids_that_counts_padding_counts_each_text() -> None:
    """Models around a body give such ids, beside a mask of any form; also in exported code."""
    mask, slots = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), torch.arange(4)[None]
    pairs = mask[:, None, None].bool() & torch.ones(4, 4).tril().bool()
    expected = [[0, 0, 1, 2], [0, 1, 2, 3]]
    for each in (mask, {"full_attention": mask}, {"full_attention": pairs}):
        arguments = {"input_ids": mask, "attention_mask": each, "position_ids": slots}
        assert token_positions(arguments, (2, 4)).query.tolist() == expected
        assert code.token_positions(arguments, image=False, padding=None).tolist() == expected
    both = {"attention_mask": pairs, "position_ids": 1 + slots}  # as in PaliGemma
    assert token_positions(both, (2, 4), first=1).query.tolist() == expected
    later = {"attention_mask": mask, "past_key_values": filled(3), "position_ids": torch.tensor([[3]])}
    assert token_positions(later, (2, 1)).query.tolist() == [[2], [3]]
    step = code.token_positions(later | {"input_ids": mask[:, :1]}, image=False, padding=None)
    assert step.tolist() == [[2], [3]]


def test_ids_of_texts_that_are_not_padded_stay() -> None:
    """Those of packed texts, of a row for each text, of other positions, and in layers with a window."""
    mask = torch.tensor([[0, 1, 1, 1]])
    blocks = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(2, 2).tril()).bool()[None, None]
    slots = torch.arange(4)[None]
    for ids, each, windowed in (
        (torch.tensor([[0, 1, 0, 1]]), blocks, False),
        (slots, blocks, False),
        (5 + slots, mask, False),
        (slots, torch.ones(1, 1, 4, 4).bool().tril().triu(-1) & mask.bool(), True),
    ):
        actual = token_positions({"attention_mask": each, "position_ids": ids}, (1, 4), windowed=windowed)
        assert torch.equal(actual.query, ids)
    two = slots.expand(2, -1)
    assert torch.equal(
        token_positions({"attention_mask": mask.expand(2, -1), "position_ids": two}, (2, 4)).query, two
    )


def test_paligemma_counts_texts_without_padding_from_their_first_token() -> None:
    """It gives its body one row of ids from 1 on, whatever the mask says."""
    sizes: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    }  # fmt: skip
    text = {**sizes, "model_type": "gemma", "vocab_size": 40, "num_key_value_heads": 1, "head_dim": 8}
    vision = {**sizes, "model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    model = PaliGemmaForConditionalGeneration(
        PaliGemmaConfig(text_config=text, vision_config=vision, projection_dim=16, image_token_index=39)
    ).eval()
    floater.plug(model, start="small")
    zoo.noisy(model)
    ids, pad = zoo.text(2, 6), torch.zeros(2, 3, dtype=torch.long)
    kinds = {"token_type_ids": torch.zeros_like(ids)}
    mask = torch.cat((pad, torch.ones_like(ids)), 1)
    padded = {"input_ids": torch.cat((pad, ids), 1), "attention_mask": mask, "token_type_ids": 0 * mask}
    expected = zoo.output(model, input_ids=ids, **kinds)
    torch.testing.assert_close(zoo.output(model, **padded)[:, 3:], expected, atol=1e-5, rtol=1e-5)
    floater.bake(model, 6)
    torch.testing.assert_close(zoo.output(model, input_ids=ids, **kinds), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_mask": torch.ones(1, 1, 3, 3)}, "does not say which tokens are padding"),
        ({"attention_mask": {"sliding_attention": None}}, "attention_mask is a dict"),
        ({"attention_mask": torch.ones(1, 2)}, "covers 2 tokens; there are 3, and 0 in the cache"),
        ({"position_ids": torch.zeros(2, 1, 3)}, r"position_ids are \(2, 1, 3\)"),
        ({"position_ids": torch.tensor([[-1, 0, 1]])}, "position_ids begin at -1; .* begin at 0"),
    ],
)
def test_unknown_positions_are_refused(arguments: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(PlugError, match=message):
        token_positions(arguments, (1, 3))


FAIRSEQ = ("roberta", "xlm-roberta", "mpnet")
"""They number tokens from padding_idx + 1 on and padding as padding_idx, by the ids alone."""


def valid_logits(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits of tokens without those of padding; those of a text as they are."""
    return logits[mask.bool()] if logits.shape[:2] == mask.shape else logits


@pytest.mark.parametrize("name", ["bert", "electra", "albert", "distilbert", *FAIRSEQ])
def test_default_position_ids_change_nothing(name: str) -> None:
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    ids = zoo.text()
    ids[0, 5:] = zoo.PADDING
    mask = (ids != zoo.PADDING).long()
    expected = mask.cumsum(1) * mask + zoo.PADDING if name in FAIRSEQ else torch.arange(7).expand(3, 7)
    default = zoo.output(model, input_ids=ids, attention_mask=mask)
    explicit = zoo.output(model, input_ids=ids, attention_mask=mask, position_ids=expected)
    assert torch.equal(valid_logits(default, mask), valid_logits(explicit, mask))
    if name in FAIRSEQ:  # without a mask, too
        assert torch.equal(
            zoo.output(model, input_ids=ids), zoo.output(model, input_ids=ids, position_ids=expected)
        )


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_packed_documents_stand_where_they_stand_alone(name: str) -> None:
    """Through position_ids, with a block mask: each document's logits are those of the document alone."""
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    ids, lengths = zoo.text(1, 7), (3, 4)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
    block = document[:, None] == document[None]
    if name != "bert":
        block &= torch.ones(7, 7).tril().bool()
    mask = torch.zeros(7, 7).masked_fill(~block, torch.finfo(torch.float32).min)[None, None]
    body = getattr(model, "bert", None) or model
    with torch.no_grad():
        packed = body(input_ids=ids, attention_mask=mask, position_ids=positions)[0]
        for begin, end in ((0, 3), (3, 7)):
            alone = body(input_ids=ids[:, begin:end])[0]
            torch.testing.assert_close(packed[:, begin:end], alone, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama", "bart", "t5"])
def test_embeddings_stand_where_their_ids_do(name: str) -> None:
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    options = zoo.inputs(name)
    options["attention_mask"][1] = 1  # with embeddings RoBERTa and BART number padding on the left, too
    options["input_ids"] = zoo.text().masked_fill(options["attention_mask"] == 0, zoo.PADDING)
    by_ids = zoo.output(model, **options)
    ids = options.pop("input_ids")
    with torch.no_grad():
        embedded = model.get_input_embeddings()(ids)
        if name == "bart":
            embedded = model.model.encoder.embed_tokens(ids)
    by_embeddings = zoo.output(model, inputs_embeds=embedded, **options)
    by_ids, by_embeddings = (
        valid_logits(logits, options["attention_mask"]) for logits in (by_ids, by_embeddings)
    )
    torch.testing.assert_close(by_embeddings, by_ids, atol=1e-6, rtol=1e-6)


def test_layers_with_fields_of_their_kind() -> None:
    """The windows of NeoMME are fields of its layers, which its configuration refuses to read as one."""
    model, text = tiny("neomme"), zoo.text(2)
    expected = zoo.output(model, input_ids=text)
    floater.plug(model)
    assert torch.equal(zoo.output(model, input_ids=text), expected)
    zoo.noisy(model)
    mask = torch.tensor([[0] * 3 + [1] * 4, [1] * 7])
    left = zoo.output(model, input_ids=text, attention_mask=mask)[:1, 3:]
    torch.testing.assert_close(left, zoo.output(model, input_ids=text[:1, 3:]), atol=1e-5, rtol=1e-4)
