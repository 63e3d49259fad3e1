"""Models whose rotary positions are scaled already: the scaling is made wider, or grouped on top."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import floater
from floater.pretrained import ExtendError
from floater.pretrained.extending import rotary

from . import zoo
from .tiny import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 40, "pad_token_id": 1, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 24,
}  # fmt: skip
HALF = 16  # frequencies of a head of 32 components
LONG = [1.0 + 0.25 * i for i in range(HALF)]
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
    "llama3": {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": {
        "short_factor": [1.0] * HALF, "long_factor": LONG, "original_max_position_embeddings": 32,
    },
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
}  # fmt: skip


def llama(kind: str, **rope: Any) -> Any:
    """A Llama that takes 64 tokens by a scaling."""
    torch.manual_seed(0)
    parameters = {"rope_type": kind, "rope_theta": 1000.0, **ROPE[kind], **rope}
    config = LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=parameters)
    return noisy(LlamaForCausalLM(config))


def noisy(model: Any) -> Any:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def frequencies(model: Any) -> Tensor:
    (body,) = rotary.rotary_bodies(model)
    return body.get_buffer(rotary.frequencies(body)[0]).clone()


def logits(model: Any, length: int) -> Tensor:
    with torch.no_grad():
        return model(zoo.text(2, length, seed=1)).logits


@pytest.mark.parametrize("kind", ROPE)
def test_the_scaling_of_a_model_is_made_wider(tmp_path: Path, kind: str) -> None:
    """By default and by name; Transformers computes it, as from its own files."""
    model, named = llama(kind), llama(kind)
    if kind == "dynamic":  # Transformers computes this base in a text of 128 tokens
        expected = ROPE_INIT_FUNCTIONS[kind](model.config, torch.device("cpu"), seq_len=128)[0]
    summary = floater.extend(model, 128)
    assert (summary.method, summary.old, summary.new, summary.unchanged) == (kind, 64, 128, False)
    floater.extend(named, 128, kind)
    assert torch.equal(logits(model, 128), logits(named, 128))
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, 128), logits(model, 128))
    assert model.config.max_position_embeddings == 128
    if kind == "dynamic":
        torch.testing.assert_close(frequencies(model), expected)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3", "proportional"])
def test_wider_twice_is_wider_once(kind: str) -> None:
    twice, once = llama(kind), llama(kind)
    for length in (96, 192):
        floater.extend(twice, length)
    floater.extend(once, 192)
    torch.testing.assert_close(frequencies(twice), frequencies(once), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_wider_is_the_method_itself_from_the_original_length(kind: str) -> None:
    """A model without a scaling, extended to 64 and then to 128, is the one that is extended to 128."""
    options = {} if kind == "linear" else {"original_max_position_embeddings": 32}
    plain = LlamaConfig(**SIZES, max_position_embeddings=32)
    twice, once = (noisy(LlamaForCausalLM(copy.deepcopy(plain))) for _ in range(2))
    twice.load_state_dict(once.state_dict())
    for length in (64, 128):
        floater.extend(twice, length, kind)
    floater.extend(once, 128, kind)
    assert options.items() <= twice.config.rope_parameters.items()
    torch.testing.assert_close(logits(twice, 128), logits(once, 128), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["yarn", "llama3", "longrope"])
def test_fast_waves_are_kept_and_slow_ones_are_stretched(kind: str) -> None:
    """With 4,096 tokens, the first wave rotates 652 times, and the last less than once."""
    original = {"original_max_position_embeddings": 1024}
    rope = {"rope_type": kind, "rope_theta": 1e4, **ROPE[kind], **original}
    config = LlamaConfig(**SIZES, max_position_embeddings=4096, rope_parameters=rope)
    if kind != "longrope":
        config.rope_parameters["factor"] = 4.0
    model = LlamaForCausalLM(config)
    initial, _ = ROPE_INIT_FUNCTIONS[kind](model.config, torch.device("cpu"), seq_len=4096)
    floater.extend(model, 3 * 4096)
    final, factor = ROPE_INIT_FUNCTIONS[kind](model.config, torch.device("cpu"), seq_len=3 * 4096)
    stretch = initial / final
    assert float(stretch[0]) == pytest.approx(1, abs=1e-6)
    assert float(stretch[-1]) == pytest.approx(3, rel=1e-5)
    assert bool((stretch.diff() >= -1e-5).all())
    if kind == "yarn":
        assert factor == pytest.approx(0.1 * math.log(12) + 1)
    elif kind == "longrope":
        assert factor == pytest.approx(math.sqrt(1 + math.log(12) / math.log(1024)))


def test_a_stated_temperature_is_kept_unless_it_is_that_of_the_old_factor() -> None:
    inferred = 0.1 * math.log(2) + 1
    for stated, expected in ((inferred, 0.1 * math.log(8) + 1), (1.25, 1.25)):
        model = llama("yarn", attention_factor=stated)
        floater.extend(model, 256)
        assert model.model.rotary_emb.attention_scaling == pytest.approx(expected)


def test_layers_with_a_window_keep_their_rotation() -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
    }
    config = Gemma3TextConfig(
        **SIZES, head_dim=32, max_position_embeddings=64, sliding_window=8, rope_parameters=rope,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = noisy(Gemma3ForCausalLM(config))
    near = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    before = model.model.rotary_emb.full_attention_inv_freq.clone()
    assert floater.extend(model, 256).method == "linear"
    assert torch.equal(model.model.rotary_emb.sliding_attention_inv_freq, near)
    torch.testing.assert_close(model.model.rotary_emb.full_attention_inv_freq, before / 4)


def test_parts_that_read_the_factor_once_have_that_of_the_new_one(tmp_path: Path) -> None:
    """DeepSeek's attention multiplies its logits by a number of the factor, computed when it is built."""
    rope = {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    config = DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 2}, max_position_embeddings=64, rope_parameters=rope,
        q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, n_group=1, topk_group=1,
        first_k_dense_replace=1,
    )  # fmt: skip
    model = noisy(DeepseekV3ForCausalLM(config))
    before = model.model.layers[0].self_attn.scaling
    floater.extend(model, 256)
    ratio = ((0.1 * math.log(8) + 1) / (0.1 * math.log(2) + 1)) ** 2
    assert model.model.layers[0].self_attn.scaling == pytest.approx(before * ratio)
    model.save_pretrained(tmp_path)
    again = DeepseekV3ForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, 200), logits(model, 200), rtol=1e-5, atol=1e-5)


def test_attention_that_reads_one_number_of_yarn_takes_it_alone() -> None:
    """DeepSeek's does, beside a stated factor of sines and cosines, too."""
    for stated in ({}, {"attention_factor": 1.0}):
        model = tiny("deepseek_v3")
        before = model.layers[0].self_attn.scaling
        floater.extend(model, 128, "yarn", mscale_all_dim=1.0, **stated)
        ratio = (0.1 * math.log(2) + 1) ** 2
        assert model.layers[0].self_attn.scaling == pytest.approx(before * ratio)
    with pytest.raises(ExtendError, match="which DeepseekV3Model reads only beside mscale_all_dim and"):
        floater.extend(tiny("deepseek_v3"), 128, "yarn", mscale=1.0)


def test_a_decoder_rotates_like_the_encoder_whose_keys_it_reads() -> None:
    """DiffusionGemma has rotary parts in both, by the configuration of the encoder's text model."""
    from transformers import DiffusionGemmaConfig

    import tiny_configs

    model: Any = tiny_configs.build(DiffusionGemmaConfig)
    before = model.decoder.rotary_emb.full_attention_inv_freq.clone()
    assert floater.extend(model, 128).method == "proportional"
    frequencies = model.encoder.language_model.rotary_emb.full_attention_inv_freq
    torch.testing.assert_close(frequencies, before / 2)
    assert torch.equal(model.decoder.rotary_emb.full_attention_inv_freq, frequencies)


def test_checkpoints_of_qwen_declare_the_length_before_their_scaling() -> None:
    """Factor 4 of 32 tokens makes 128; the configuration says 32."""
    rope = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=32, rope_parameters=rope))
    with pytest.raises(ExtendError, match="length is 128; the model takes 128 tokens already"):
        floater.extend(model, 128)
    assert floater.extend(model, 256).old == 128
    assert model.config.rope_parameters["factor"] == 8


def test_gpt_oss() -> None:
    """Sinks, windows and experts, with YaRN without truncation."""
    config = GptOssConfig(
        **SIZES, head_dim=32, max_position_embeddings=64, sliding_window=8, num_local_experts=2,
        num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 32,
        },
    )  # fmt: skip
    model = noisy(GptOssForCausalLM(config))
    floater.extend(model, 200)
    assert model.config.rope_parameters["factor"] == 2.0 * 200 / 64
    assert model.config.rope_parameters["truncate"] is False
    assert bool(logits(model, 200).isfinite().all())


@pytest.mark.parametrize("method", ["self_extend", "log_n"])
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_grouping_on_top_of_a_scaling(tmp_path: Path, kind: str, method: str) -> None:
    """Texts of the old length are as before; longer ones are not, are cached, and survive saving."""
    model = llama(kind)
    plain = logits(model, 64)
    assert floater.extend(model, 160, method).unchanged
    assert torch.equal(logits(model, 64), plain)
    whole = logits(model, 150)
    assert not torch.equal(whole, logits(llama(kind), 150))
    cache, ids = DynamicCache(), zoo.text(2, 150, seed=1)
    with torch.no_grad():
        parts = [model(chunk, past_key_values=cache).logits for chunk in ids.split([50, 33, 67], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-3, atol=1e-3)
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, 150), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["self_extend", "log_n"])
def test_a_factor_that_transformers_computes_from_the_length_is_stated(tmp_path: Path, method: str) -> None:
    """Phi-3's temperature would follow the declared length, when the model is loaded again."""
    rope = {"rope_type": "longrope", "rope_theta": 1000.0, **ROPE["longrope"]}
    config = Phi3Config(
        **SIZES, max_position_embeddings=64, original_max_position_embeddings=32, rope_parameters=rope,
        bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    model = noisy(Phi3ForCausalLM(config))
    plain = logits(model, 64)
    floater.extend(model, 160, method)
    model.save_pretrained(tmp_path)
    again = Phi3ForCausalLM.from_pretrained(tmp_path).eval()
    for same in (model, again):
        torch.testing.assert_close(logits(same, 64), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "method", "options", "message"),
    [
        (
            "llama3",
            "yarn",
            {},
            "scaled by 'llama3' already, which allow 'llama3', 'self_extend', 'log_n'",
        ),
        ("dynamic", "log_n", {}, "are scaled by 'dynamic' already, which allow 'dynamic'"),
        ("yarn", "yarn", {"beta_fast": 16}, "method 'yarn' has no option 'beta_fast'; valid: none"),
    ],
)
def test_what_is_refused(kind: str, method: str, options: dict[str, Any], message: str) -> None:
    model = llama(kind)
    before = logits(model, 64)
    with pytest.raises(ExtendError, match=message):
        floater.extend(model, 128, method, **options)
    assert torch.equal(logits(model, 64), before)
