"""Tiny random models of every class of the installed Transformers that declares positions.

A configuration of the class's defaults is divided: widths by one number, heads by another. Layers are as few
as have every kind of layer. Numbers of positions, tokens and experts are small.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING

LENGTH, WINDOW, VOCABULARY, EXPERTS = 64, 16, 640, 8
"""Positions of a tiny model, tokens of its windows, size of its vocabulary, and number of experts."""

LARGEST = 100_000_000
"""Parameters of the largest model that is built."""

DECLARES = (
    "max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions", "max_seq_len",
    "max_encoder_position_embeddings", "relative_attention_num_buckets", "rope_parameters",
)  # fmt: skip
"""Fields by which a configuration declares positions of tokens."""

IMAGES = ("vit", "deit", "dinov2", "dinov2_with_registers", "siglip_vision_model", "clip_vision_model")
"""Classes of images alone that are among `classes`."""

_DIVISORS = ((8, 4), (8, 2), (8, 1), (4, 1), (2, 1), (1, 1))
"""Divisors of the widths of heads, and of the number of heads, in the order in which they are tried."""

_LENGTHS = re.compile(
    r"^((original_|text_)?max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length"
    r"|max_(source|target)_positions|(max|\w+_max)_(en|de)coder_position_embeddings|position_embedding_size)$"
)
_WINDOWS = re.compile(
    r"(sliding_window(_size)?|attention_window(_size)?|local_attention|attention_chunk_size)$"
)
_DEPTHS = re.compile(
    r"^(?!num_feat)\w*?((^|_)(num_)?(hidden_)?layers|^n_layers?|^depth|num_layers_per_stack)$"
)
_HEADS = re.compile(r"((^|_)n?_?heads?(_per_layer)?|num_kv_heads|num_query_groups)$")
_COMPONENTS = re.compile(r"(head_?dim|d_kv|kv_channels|rotary_dim|lora_rank|mrope_section|d_head)$")
_EXPERTS = re.compile(r"^(n_routed|num|num_local|moe_num)_experts$")
_CHOSEN = re.compile(
    r"^(num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k|top_k|topk|topk_group|index_topk)$"
)
_GROUPS = re.compile(r"^(n_group|num_expert_group)$")
_WIDTHS = re.compile(
    r"(hidden_size(_\w+)?|intermediate_size(_\w+)?|size_per_layer_input|(^|_)dim|d_model|d_ff|dff|n_embd|n_inner"
    r"|units|embedding_size|embed_dim|lru_width|d_ssm|d_inner|bottleneck_size)$"
)
_SPECIAL = re.compile(r"(token_ids?|token_index|bos_id|eos_id|pad_id)$")

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SECTIONS = {
    "rope_parameters": {**_ROPE, "mrope_section": [2, 3, 3]},
    "hidden_size": 64,
    "num_attention_heads": 4,
}
_HALF_SECTIONS = {
    **_SECTIONS,
    "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5},
}
_HEADS_OF_16 = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
_EXPERTS_CHOSEN = {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}

CHANGES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {
        "model_max_length": 64, "max_position_embeddings": 64, "num_experts_per_token": 2,
        "num_expert_group": 2, "topk_group": 1,
    },
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "bros": {"dim_bbox_projection": 8},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {**_ROPE, "mrope_section": [4, 2, 2]} for kind in ("full_attention", "sliding_attention")
        },
    },
    "deepseek_ocr2_text": {**_EXPERTS_CHOSEN, "mlp_layer_types": ["dense", "sparse"]},
    "deepseek_v2": _EXPERTS_CHOSEN,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 1, "clip_qkv": 8}},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    "dots3_note_audio_encoder": {"adapter_input_size": 40},
    "dots3_note_text": {"per_layer_config": {"02": {"head_dim": 24}}},
    "glm5_next_text": {"index_kpool": 2},
    "dots1": {**_EXPERTS_CHOSEN, "n_shared_experts": 1},
    "esm": {"vocab_size": 40, "mask_token_id": 3, "pad_token_id": 1, "position_embedding_type": "rotary"},
    "granite_speech5_encoder": {"context_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {**_ROPE, "mrope_section": [3, 3, 2]}, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "moe_intermediate_size": [16, 16],
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    **dict.fromkeys(("glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text"), _HALF_SECTIONS),
    "hunyuan_vl_text": {"rope_parameters": {**_ROPE, "mrope_section": [2, 2, 2, 2]}},
    "granitemoehybrid": {
        "position_embedding_type": "rope", "layer_types": ["linear_attention", "full_attention"],
    },
    "kimi_k25": {"projection_hidden_size": 32}, "kimi_k25_vision": {"hidden_size": 32},  # heads of 8
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 4},
    "mimi": {"upsample_groups": 16}, "pocket_tts_audio_tokenizer": {"upsample_groups": 16},
    "mobilebert": {
        "true_hidden_size": 128, "hidden_size": 512, "embedding_size": 128, "intra_bottleneck_size": 128,
    },
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "moonshine_streaming": {"num_key_value_heads": 2},
    "nemotron": {"num_key_value_heads": 4},
    "nemotron3_5_transcribe_word_timestamp": _HEADS_OF_16, "olmo_hybrid": _HEADS_OF_16,
    "paddleocr_vl_text": _SECTIONS, "qwen2_5_omni_talker": _SECTIONS, "qwen2_5_omni_text": _SECTIONS,
    "perceiver": {"d_latents": 32, "d_model": 32, "num_latents": 8, "num_self_attends_per_block": 1},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen2_5_vl_text": _SECTIONS, "qwen2_vl_text": _SECTIONS,
    "qwen3_omni_moe_text": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 16,
        "indexer_compress_ratio": 2, "output_gate_type": "sigmoid",
    },
    "step3p5": {"sliding_window": 16},
    "t5gemma2_decoder": {"dropout_rate": 0.0}, "t5gemma2_text": {"dropout_rate": 0.0},
    "zamba2": {"use_mem_rope": True},
}  # fmt: skip
"""Values by model type where the defaults, divided, make no model that runs, or one without its positions."""


def classes(whole: bool | None = None) -> dict[str, type[PreTrainedConfig]]:
    """Return the configuration classes that declare positions of tokens, or have such a part, by model type.

    Of those of images alone only a few are among them.

    Args:
        whole: True for wholes, whose parts alone declare positions; False for the others; None for all.
    """
    declaring: dict[str, type[PreTrainedConfig]] = {}
    for name in CONFIG_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # it has no defaults
            continue
        alone = name in IMAGES or any(getattr(config, field, None) is not None for field in DECLARES)
        if (alone or _declares(config)) and whole in (None, not alone):
            declaring[name] = type(config)
    return declaring


def _declares(config: PreTrainedConfig) -> bool:
    if any(getattr(config, field, None) is not None for field in DECLARES):
        return True
    return any(_declares(value) for value in vars(config).values() if isinstance(value, PreTrainedConfig))


def model_class(kind: type[PreTrainedConfig]) -> type[PreTrainedModel] | None:
    """Return the class of the models that a configuration class describes; None if there is none."""
    mapped = MODEL_MAPPING.get(kind, None)
    mapped = mapped[0] if isinstance(mapped, tuple) else mapped
    if mapped is not None and issubclass(kind, mapped.config_class):
        return mapped
    name = kind.__module__.replace("configuration_", "modeling_")
    if mapped is not None and importlib.util.find_spec(name) is None:
        return mapped  # InternLM 3 has a configuration alone, for Llama's model
    module = importlib.import_module(name)  # the model of MusicGen reads the configuration of its decoder
    models = [
        part
        for _, part in inspect.getmembers(module, inspect.isclass)
        if issubclass(part, PreTrainedModel)
        and part.config_class is kind
        and "PreTrained" not in part.__name__
    ]
    models.sort(key=lambda part: ("For" in part.__name__, not part.__name__.endswith("Model"), part.__name__))
    return models[0] if models else None


def build(kind: type[PreTrainedConfig]) -> PreTrainedModel:
    """Return a tiny model of a configuration class, with random weights that are the same in each call."""
    model, error = model_class(kind), None
    if model is None:
        raise LookupError(f"Transformers has no model of {kind.__name__}")
    for width, heads in _DIVISORS:
        try:
            config = configuration(kind, width, heads)
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in model(copy.deepcopy(config)).parameters())
            break
        except Exception as failure:  # any error of any model
            error = error or failure
    else:
        raise error or LookupError(kind.__name__)
    if size > LARGEST:
        raise MemoryError(f"{kind.__name__} has {size:,} parameters however small its widths are")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = model._from_config(config, experts_implementation="eager")
        for parameter in built.parameters():
            if (parameter.ndim in (2, 3) and parameter.requires_grad) or (
                parameter.ndim == 1 and not bool(parameter.any())
            ):
                nn.init.normal_(parameter, std=0.1)
    return built.eval()


def configuration(kind: type[PreTrainedConfig], width: int, heads: int) -> PreTrainedConfig:
    """Return the configuration of a tiny model.

    Args:
        kind: configuration class.
        width: divisor of the number of components of a head.
        heads: divisor of the number of heads.
    """
    return kind.from_dict(_smaller(kind().to_dict(), width, heads))


def _smaller(values: dict[str, Any], width: int, heads: int) -> dict[str, Any]:
    names = [n for n, value in values.items() if _DEPTHS.search(n) and isinstance(value, int)]
    depth = values.get("num_hidden_layers")
    if not isinstance(depth, int):
        depth = max((values[n] for n in names), default=0)
    layers = _fewest([value for value in values.values() if _is_list(value, depth)], depth)
    special = iter(range(VOCABULARY - 1, 0, -1))
    rules: tuple[tuple[re.Pattern[str], Callable[[int], int]], ...] = (
        (_LENGTHS, lambda x: LENGTH),
        (_WINDOWS, lambda x: min(x, WINDOW)),
        (_DEPTHS, lambda x: min(x, layers)),
        (_EXPERTS, lambda x: min(x, EXPERTS)),
        (_CHOSEN, lambda x: min(x, 2)),
        (_GROUPS, lambda x: min(x, 2)),
        (_COMPONENTS, lambda x: x // width or x),
        (_HEADS, lambda x: max(1, x // heads)),
        (re.compile("vocab_size$"), lambda x: min(x, VOCABULARY)),
        (_SPECIAL, lambda x: x if x < VOCABULARY else next(special)),
        (_WIDTHS, lambda x: x // (width * heads) if x >= 2 * width * heads else x),
    )
    smaller: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("out_features", "out_indices", "stage_names"):  # of a backbone, by its number of layers
            continue
        if name == "per_layer_config" and value:
            value = {index: each for index, each in value.items() if int(index) < layers}
        elif isinstance(value, dict) and name not in ("id2label", "label2id"):
            value = _smaller(value, width, heads)
        if _is_list(value, depth):
            value = list(value)[:layers]
        rule = next((change for pattern, change in rules if pattern.search(name)), None)
        smaller[name] = value if rule is None else _mapped(value, rule)
    if "original_max_position_embeddings" in smaller:
        smaller["original_max_position_embeddings"] = LENGTH // 2
        smaller |= {"factor": 2.0} if "factor" in smaller else {}
    if smaller.get("head_dim", 0) is None and "num_attention_heads" in smaller:
        smaller["head_dim"] = smaller["hidden_size"] // smaller["num_attention_heads"]
    if all(isinstance(smaller.get(name), int) for name in ("image_size", "patch_size")):
        smaller["image_size"] = 4 * smaller["patch_size"]
    return smaller | CHANGES.get(str(values.get("model_type")), {})


def _is_list(value: Any, depth: int) -> bool:
    """Return whether a value has an entry for each layer."""
    return depth > 0 and isinstance(value, list | tuple) and len(value) == depth


def _fewest(lists: list[Any], depth: int) -> int:
    """Return the number of layers with which every kind of layer occurs, at least 2."""
    kinds = [each for each in lists if all(isinstance(x, str | int) for x in each) and len(set(each)) <= 4]
    return max([min(2, depth), *(1 + list(each).index(kind) for each in kinds for kind in set(each))])


def _mapped(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    return change(value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else value
