"""Methods that divide each frequency by a number of its own: clipped, dropped, and searched."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

import floater
from floater.pretrained import ExportError, ExtendError, search_factors
from floater.pretrained.extending.divisors import STILL, clipped_factors

from . import zoo

SIZES: dict[str, Any] = {
    "vocab_size": 40, "pad_token_id": 1, "hidden_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip


def llama(layers: int = 1) -> Any:
    """A Llama with 8 frequencies, of which 4 complete no rotation in 32 tokens."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=layers)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).logits


def test_the_slowest_frequencies_fade_by_a_raised_cosine(tmp_path: Path) -> None:
    """Of n faded ones, number k is multiplied by cos^2(pi k / (2 (n - 1))): half an angle."""
    model = llama()
    before = model.model.rotary_emb.inv_freq.double()
    faded = int((2 * math.pi / before > 32).sum())
    summary = floater.extend(model, 64, "clipped")
    after = model.model.rotary_emb.inv_freq.double()
    kept = [1.0] * (8 - faded) + [math.cos(math.pi * k / (2 * (faded - 1))) ** 2 for k in range(faded)]
    torch.testing.assert_close(after / before, torch.tensor(kept).double(), rtol=1e-5, atol=1e-12)
    assert model.model.rotary_emb.attention_scaling == 1
    assert (summary.method, summary.unchanged, summary.by_longest) == ("clipped", False, False)
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    ids = zoo.text(2, 60)
    assert torch.equal(logits(again, ids), logits(model, ids))


@given(half=st.integers(2, 40), trained=st.integers(8, 9999), clipped=st.integers(2, 40))
@settings(max_examples=50)
def test_clipping_keeps_the_order_of_frequencies(half: int, trained: int, clipped: int) -> None:
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    factors = torch.tensor(clipped_factors(frequencies, trained, min(clipped, half)), dtype=torch.float64)
    assert bool((factors.diff() >= 0).all())
    assert (float(factors[0]) == 1 or clipped >= half, float(factors[-1])) == (True, STILL)


def test_a_model_without_rotation_does_not_see_the_order() -> None:
    """In one layer, the last token sees the others as a set: an independent property of no positions."""
    model, ids = llama(), zoo.text(1, 60)
    mixed = torch.cat(
        (ids[:, torch.randperm(59, generator=torch.Generator().manual_seed(1))], ids[:, -1:]), 1
    )
    assert not torch.allclose(logits(model, ids)[:, -1], logits(model, mixed)[:, -1], atol=1e-3)
    floater.extend(model, 64, "dropped")
    torch.testing.assert_close(logits(model, ids)[:, -1], logits(model, mixed)[:, -1])


def test_a_model_without_rotation_is_that_of_zero_frequencies() -> None:
    model, still, ids = llama(2), llama(2), zoo.text(2, 60)
    still.model.rotary_emb.inv_freq.zero_()
    floater.extend(model, 64, "dropped")
    assert torch.equal(logits(model, ids), logits(still, ids))


def test_layers_with_a_window_keep_their_rotation_when_that_of_the_others_is_dropped() -> None:
    config = Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = Gemma3ForCausalLM(config).eval()
    near = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    floater.extend(model, 64, "dropped")
    assert torch.equal(model.model.rotary_emb.sliding_attention_inv_freq, near)
    assert float(model.model.rotary_emb.full_attention_inv_freq.max()) < 1e-20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("base", [1e4, 5e6, 1e16])
def test_readers_do_not_rotate_what_is_dropped(tmp_path: Path, base: float, dtype: torch.dtype) -> None:
    """Servers read the factors from JSON, divide in float32, and cast sines to the dtype of the model.

    The product of factor and base may overflow to infinity, whose inverse is 0, too.
    """
    config = LlamaConfig(**SIZES, num_hidden_layers=1, rope_theta=base)
    model = LlamaForCausalLM(config)
    floater.extend(model, 64, "clipped", clipped=2)
    floater.export(model, tmp_path, reader="vllm")
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    assert rope["long_factor"] == rope["short_factor"] == [1.0] * 7 + [STILL]
    assert rope["long_mscale"] == rope["short_mscale"] == 1
    waves = 1 / (torch.tensor(rope["long_factor"]) * base ** (torch.arange(0, 16, 2).float() / 16))
    angle = torch.tensor([1.0, 1e3, 1e7]) * waves[-1]
    query = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    assert torch.equal(query[:, 0] * cos - query[:, 1] * sin, query[:, 0])
    assert torch.equal(query[:, 1] * cos + query[:, 0] * sin, query[:, 1])
    assert float(waves[0]) == 1
    assert bool(waves.isfinite().all())


@pytest.mark.parametrize("method", ["clipped", "dropped", "longrope"])
def test_servers_have_no_factors_for_models_that_rotate_neighbours(tmp_path: Path, method: str) -> None:
    model = CohereForCausalLM(CohereConfig(**SIZES, num_hidden_layers=1))
    options: dict[str, Any] = {"clipped": 4} if method == "clipped" else {}
    floater.extend(model, 64, method, **options)
    for reader in ("vllm", "sglang"):
        with pytest.raises(ExportError, match="CohereForCausalLM rotates adjacent components; extend by"):
            floater.export(model, tmp_path / "new", reader=reader)
    assert not (tmp_path / "new").exists()
    assert floater.export(model, tmp_path / "new").kind == "CohereForCausalLM"


def test_the_loss_of_a_search_is_that_of_the_extended_model() -> None:
    model, ids = llama(2), zoo.text(2, 64, seed=3)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    search = search_factors(model, ids, 64, population=8, iterations=3)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert model.model.rotary_emb.attention_scaling == 1
    assert search.loss <= min(search.starts.values())
    assert bool((torch.tensor(search.factors).diff() >= 0).all())
    assert search.factors[0] >= 1
    assert search == search_factors(model, ids, 64, population=8, iterations=3)
    assert search.starts.keys() == {"linear", "ntk", "yarn"}
    floater.extend(model, 64, "longrope", long_factor=search.factors)
    with torch.no_grad():
        assert float(model(ids, labels=ids).loss) == pytest.approx(search.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("clipped", {"clipped": 1}, "clipped is 1; it must be a whole number from 2 to 8"),
        ("clipped", {"clipped": True}, "clipped is True; it must be a whole number from 2 to 8"),
        ("dropped", {"clipped": 2}, "method 'dropped' has no option 'clipped'; valid: none"),
    ],
)
def test_what_is_no_option(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExtendError, match=message):
        floater.extend(llama(), 64, method, **options)


def test_a_model_whose_frequencies_all_rotate_has_none_to_clip() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"max_position_embeddings": 99999}, num_hidden_layers=1))
    with pytest.raises(
        ExtendError, match=r"0 of 8 frequencies complete no rotation in 99999 tokens.*clipped="
    ):
        floater.extend(model, 200000, "clipped")


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (32, {}, "the text has 32 tokens; it must be longer than the model's 32, and at most 64"),
        (65, {}, "the text has 65 tokens"),
        (64, {"population": 3}, "population is 3; it must be a whole number of at least 4"),
        (64, {"iterations": -1}, "iterations is -1; it must be a whole number of at least 0"),
    ],
)
def test_what_cannot_be_searched(tokens: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExtendError, match=message):
        search_factors(llama(), zoo.text(1, tokens), 64, **options)
