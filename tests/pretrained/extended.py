"""Tiny random models, extended to 128 tokens by the library's own ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CLIPVisionConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MptConfig,
    MptForCausalLM,
)

import floater
from operators import Operators

from . import zoo

ROTARY = (
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3", "llama4",
    "gpt_neox", "modernbert",
)  # fmt: skip
BIASES = ("t5", "bloom", "mpt")


def build(name: str) -> Any:
    """A model whose training length is 32 or 64 tokens."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "pad_token_id": 1}
    if name == "bloom":
        sizes["seq_length"] = 32  # as in the checkpoints' config.json
        model: Any = BloomForCausalLM(BloomConfig(**sizes, hidden_size=16, n_layer=2, n_head=4))
    elif name == "mpt":
        model = MptForCausalLM(
            MptConfig(**sizes, d_model=16, n_layers=2, n_heads=4, max_seq_len=32, expansion_ratio=2)
        )
    elif name == "gpt_neox":
        half = {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"}
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **sizes, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20,
                max_position_embeddings=64, rope_parameters=half,
            )
        )  # fmt: skip
        model.set_attn_implementation("eager")
    else:
        model = zoo.build(name)
        if name == "modernbert":
            model.config.max_position_embeddings = 64
        # windows in which longer texts have new distances
        if name == "mistral":
            model.config.sliding_window = 100
        if name == "llama4":
            model.config.attention_chunk_size = 100
        return model
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def llava() -> Any:
    """A model of images, in a table of patches, and texts, by rotation."""
    sizes: dict[str, Any] = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    }  # fmt: skip
    return LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=LlamaConfig(vocab_size=50, max_position_embeddings=64, **sizes),
            vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **sizes),
            image_token_index=49,
        )
    )


def extended(name: str, method: str | None = None, **options: Any) -> Any:
    """A model of 128 tokens, the weights of its extension away from their start."""
    model = build(name)
    if name == "t5":
        options["trained"] = 32
    floater.extend(model, 128, method, **options)
    noisy(model)
    return model


def operators(model: Any, **inputs: Tensor) -> list[tuple[str, Any, Any]]:
    """Return the operators of a forward pass in their order."""
    with Operators() as recorded:
        zoo.output(model, **inputs)
    return recorded.calls


def noisy(model: Any) -> None:
    torch.manual_seed(4)
    for parameter in getattr(model, "floater_extension", nn.Module()).parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)


def build_inputs(name: str, length: int) -> dict[str, Tensor]:
    if name in zoo.IMAGES:
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    ids = zoo.text(2, length)
    if name == "whisper":
        return {"input_features": zoo.inputs(name)["input_features"][:2], "decoder_input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": ids} if name in zoo.SEQ2SEQ else {"input_ids": ids}
