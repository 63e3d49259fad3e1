"""Attention by position alone in models of other libraries, against what their papers add."""

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from floater.errors import DataError
from floater.lab.study.analyses import kinds, positional_logits

T = 6
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
WORDS = {**SIZES, "vocab_size": 20}


def drawn(model: Any) -> Any:
    """With parameters so large that positions can be told from rounding."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def test_vectors_of_bert_meet_through_the_projections_of_its_first_block() -> None:
    model = drawn(BertModel(BertConfig(**WORDS)))
    (logits,) = positional_logits(model, T).values()
    e, attention = model.embeddings, model.encoder.layer[0].attention.self
    p = e.LayerNorm(e.position_embeddings.weight[:T] + e.token_type_embeddings.weight[0])
    q, k = (linear(p).view(T, 2, 8) for linear in (attention.query, attention.key))
    expected = torch.einsum("thd,shd->hts", q, k) / 8**0.5
    assert torch.allclose(logits, expected, atol=1e-4)
    assert model.config._attn_implementation == "sdpa"


def test_of_t5_it_is_the_bias_of_the_encoder() -> None:
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=8, num_layers=2, num_heads=2)
    model = drawn(T5Model(config))
    (site, logits), *more = positional_logits(model, T).items()
    assert (site, more) == ("encoder block 1", [])
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    gaps = torch.arange(T) - torch.arange(T)[:, None]  # Raffel et al. 2020: a bucket each for near ones
    expected = bias[gaps.abs() + 16 * (gaps > 0)].permute(2, 0, 1)
    assert torch.allclose(logits, expected, atol=1e-5)


def test_of_alibi_it_is_a_slope_and_nothing_of_what_comes_later() -> None:
    model = BloomModel(BloomConfig(vocab_size=20, hidden_size=16, n_layer=1, n_head=2)).eval()
    (logits,) = positional_logits(model, T).values()
    slopes = torch.tensor([2.0**-4, 2.0**-8])  # Press et al. 2022: 2^(-8 h / heads)
    line = slopes[:, None, None] * torch.arange(T).expand(T, T)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert torch.allclose(logits, line.masked_fill(later, torch.nan), atol=1e-5, equal_nan=True)


def test_rotations_give_nothing_without_words() -> None:
    with pytest.raises(DataError, match="no part of its attention that positions give without words"):
        positional_logits(drawn(LlamaModel(LlamaConfig(**WORDS))), T)


def test_a_model_that_reads_no_text_has_none() -> None:
    model = ViTModel(ViTConfig(**SIZES))
    with pytest.raises(DataError, match="a ViTModel reads pixel_values, not text"):
        positional_logits(model, T)
    assert "attention" not in kinds(model)


def test_positions_beyond_the_table_are_one_line() -> None:
    model = BertModel(BertConfig(**WORDS, max_position_embeddings=4))
    with pytest.raises(DataError, match="BertModel cannot be run on 6 embeddings of zero") as refused:
        positional_logits(model, T)
    assert "\n" not in str(refused.value)
    assert model.config._attn_implementation == "sdpa"
