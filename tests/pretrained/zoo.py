"""A tiny random model of every architecture that can be plugged, with inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertLMHeadModel,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForPreTraining,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    SiglipConfig,
    SiglipForImageClassification,
    SiglipTextConfig,
    SiglipTextModel,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from floater import FloaterConfig

VOCABULARY, PADDING = 40, 1
_SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
_TEXT = {"vocab_size": VOCABULARY, "pad_token_id": PADDING, "bos_token_id": 0, "eos_token_id": 2}
_GROUPED = {**_SIZE, **_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
_DINO = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
    "image_size": 8,
    "patch_size": 4,
}
_SEQ2SEQ = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
}


def _bert2bert() -> nn.Module:
    """The decoder is wider than the encoder, and so are the keys that it makes of the source."""
    wide = BertConfig(
        **{**_SIZE, **_TEXT, "hidden_size": 24, "is_decoder": True, "add_cross_attention": True}
    )
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**_SIZE, **_TEXT), wide)
    config.decoder_start_token_id, config.pad_token_id = 0, PADDING
    return EncoderDecoderModel(config)


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**_SIZE, **_TEXT)),
    "bert-decoder": lambda: BertLMHeadModel(BertConfig(**_SIZE, **_TEXT, is_decoder=True)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**_SIZE, **_TEXT)),
    "xlm-roberta": lambda: XLMRobertaForMaskedLM(XLMRobertaConfig(**_SIZE, **_TEXT)),
    "distilbert": lambda: DistilBertForMaskedLM(
        DistilBertConfig(dim=16, n_layers=2, n_heads=4, hidden_dim=20, vocab_size=40, pad_token_id=1)
    ),
    "electra": lambda: ElectraForPreTraining(ElectraConfig(**_SIZE, **_TEXT, embedding_size=12)),
    "albert": lambda: AlbertForMaskedLM(
        AlbertConfig(
            **{**_SIZE, **_TEXT, "num_hidden_layers": 4},
            embedding_size=12,
            num_hidden_groups=2,
            inner_group_num=2,
        )
    ),
    "mpnet": lambda: MPNetForMaskedLM(MPNetConfig(**_SIZE, **_TEXT)),
    "deberta-v2": lambda: DebertaV2ForSequenceClassification(
        DebertaV2Config(
            **_SIZE,
            **_TEXT,
            relative_attention=True,
            position_buckets=4,
            pos_att_type=["c2p", "p2c"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
            type_vocab_size=0,
        )
    ),
    "vit": lambda: ViTForImageClassification(ViTConfig(**_SIZE, image_size=8, patch_size=4, head_dim=6)),
    "dinov2": lambda: Dinov2ForImageClassification(Dinov2Config(**_DINO)),
    "dinov2-registers": lambda: Dinov2WithRegistersForImageClassification(
        Dinov2WithRegistersConfig(**_DINO, num_register_tokens=3)
    ),
    "siglip-vision": lambda: SiglipForImageClassification(
        SiglipConfig(vision_config={**_SIZE, "image_size": 8, "patch_size": 4}, text_config=_SIZE)
    ),
    "siglip-text": lambda: SiglipTextModel(
        SiglipTextConfig(**_SIZE, **_TEXT, max_position_embeddings=16, projection_size=16)
    ),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**_SIZE, **_TEXT, local_attention=6, global_attn_every_n_layers=2)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**_TEXT, n_embd=16, n_layer=2, n_head=4, n_inner=20, n_positions=64)
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZE, **_TEXT)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED, head_dim=6)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=4)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, head_dim=8)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**_GROUPED, no_rope_layers=[1, 0])),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_GROUPED)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**_GROUPED, head_dim=6)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **_GROUPED, head_dim=6, sliding_window=4, attn_logit_softcapping=3.0, query_pre_attn_scalar=5
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **_GROUPED, head_dim=6, sliding_window=4, query_pre_attn_scalar=5,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **_GROUPED, head_dim=6, intermediate_size_mlp=20, moe_layers=[], no_rope_layers=[1, 0],
            attention_chunk_size=4, floor_scale=2,
        )
    ),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**_SEQ2SEQ, **_TEXT)),
    "marian": lambda: MarianMTModel(MarianConfig(**_SEQ2SEQ, **_TEXT)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            **_TEXT, d_model=16, d_kv=6, num_heads=4, d_ff=20, num_layers=2,
            decoder_start_token_id=0,
        )
    ),
    "whisper": lambda: WhisperForConditionalGeneration(
        WhisperConfig(
            **{**_SEQ2SEQ, **_TEXT}, num_mel_bins=4, max_source_positions=6, max_target_positions=32
        )
    ),
    "bert2bert": _bert2bert,
}  # fmt: skip
NAMES = tuple(_MODELS)
DECODERS = (
    "bert-decoder", "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma",
    "gemma2", "gemma3", "llama4",
)  # fmt: skip
IMAGES = {"vit": 5, "dinov2": 5, "dinov2-registers": 8, "siglip-vision": 4}
SEQ2SEQ = ("bart", "marian", "t5", "whisper", "bert2bert")


def build(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """The model, its weights large enough for attention to matter, in evaluation mode."""
    torch.manual_seed(0)
    model: Any = _MODELS[name]()
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    model = model.to(dtype).eval()
    if name not in ("deberta-v2", "mpnet", "gemma2"):  # these have one attention
        model.set_attn_implementation(attention)
    return model


def text(rows: int = 3, length: int = 7, seed: int = 0) -> torch.Tensor:
    """Token ids without padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, length), generator=generator)


def masks(rows: int = 3, length: int = 7) -> torch.Tensor:
    """Rows padded on the right, on the left, and not at all."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    mask[1, :3] = 0
    return mask


def inputs(name: str, padded: bool = True) -> dict[str, torch.Tensor]:
    """Inputs of a model's forward pass, three rows."""
    generator = torch.Generator().manual_seed(1)
    if name in IMAGES:
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    if name == "whisper":
        return {
            "input_features": torch.randn(3, 4, 12, generator=generator),
            "decoder_input_ids": text(3, 5),
        }
    arguments = {"input_ids": text()}
    if padded:
        mask = arguments["attention_mask"] = masks()
        arguments["input_ids"] = arguments["input_ids"].masked_fill(mask == 0, PADDING)
    if name in SEQ2SEQ:
        arguments["decoder_input_ids"] = text(3, 5, seed=2)
    return arguments


def output(model: Any, **options: Any) -> torch.Tensor:
    """The logits, or of a model without a head the hidden states."""
    with torch.no_grad():
        return logits(model(**options))


def logits(actual: Any) -> torch.Tensor:
    """The logits of a model's output, or its hidden states."""
    kept: torch.Tensor = actual.logits if "logits" in actual else actual.last_hidden_state
    return kept


def noisy(model: Any) -> None:
    """Give each projection of a plugged model vectors of its own that differ from place to place."""
    torch.manual_seed(3)
    for parameter in model.floater.parameters():
        nn.init.normal_(parameter, std=0.3)


def model_of_this_library(kind: Any, position: str, length: int | None = None) -> Any:
    """Return a small model of `floater.transformer`, baked for a length if there is one."""
    torch.manual_seed(0)
    config = FloaterConfig.preset("tiny", vocab_size=VOCABULARY, position=position, training_length=64)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 16, 20, 2
    model = kind(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if length is not None:
        model.bake(length)
    return model
