"""Projections of queries, keys and values, and numbering of tokens, by family of Hugging Face models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["query", "key", "value"]
NAMES: tuple[Name, ...] = ("query", "key", "value")


class PlugError(ValueError):
    """A model cannot be plugged as requested, or a plugged model was used in an unsupported way."""


@dataclass(frozen=True)
class Fused:
    """A projection whose output consists of one or several parts.

    Args:
        module: name of the projection in its attention module.
        parts: names of the parts of the output, in this order.
        head: attribute of the attention module with the width of a head, if each head consists of all parts
            in turn; None if each part consists of all heads.
        grouped: True if the number of heads of keys and values is `num_key_value_heads` of the
            configuration; False if it is that of the queries.

    Example:
        >>> Fused("c_attn", ("query", "key", "value")).head is None
        True
    """

    module: str
    parts: tuple[Name, ...]
    head: str | None = None
    grouped: bool = False


Projections = tuple[Fused, ...]


@dataclass(frozen=True)
class Family:
    """Description of one family of models for `plug`.

    Args:
        attention: projections of self-attention, and of cross-attention unless `cross` is given.
        cross: projections of cross-attention.
        uses: function from the model's configuration and the number of self-attention modules in the body to
            the indices of the blocks in which each module is used. None if each is used once, in order.
        length: function from the body and its arguments by name to the number of tokens of an image or a
            recording, none of them padding; it returns None for a text.
        again: True if a projection is called with other inputs after the tokens.
    """

    attention: Projections
    cross: Projections | None = None
    uses: Callable[[Any, int], list[list[int]]] | None = None
    length: Callable[[Any, Mapping[str, Any]], int | None] | None = None
    again: bool = False


def separate(query: str, key: str, value: str) -> Projections:
    """Return separate projections for queries, keys and values.

    Example:
        >>> separate("q", "k", "v")[0]
        Fused(module='q', parts=('query',), head=None, grouped=False)
    """
    return tuple(Fused(module, (name,)) for module, name in zip((query, key, value), NAMES, strict=True))


def table_of(projections: Any) -> dict[str, str] | None:
    """Return the argument `projections` of `plug` as a mapping, if it is one or the pairs of one; else None.

    Example:
        >>> table_of([["query", "q_proj"], ["key", "k_proj"]]), table_of(["query", "key"])
        ({'query': 'q_proj', 'key': 'k_proj'}, None)
    """
    if isinstance(projections, Mapping):
        return dict(projections)
    listed = isinstance(projections, Sequence) and not isinstance(projections, str)
    if (
        listed
        and projections
        and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in projections)
    ):
        return {str(name): module for name, module in projections}
    return None


def from_table(table: Mapping[str, str]) -> Projections:
    """Return the projections in a table of names.

    Args:
        table: name of the projection in its attention module for each of "query", "key" and "value", or some
            of them. The output of a projection that occurs several times consists of these parts in this
            order, each with all heads. No other order of the table matters.

    Raises:
        PlugError: if the table is empty or has other names.

    Example:
        >>> [(part.module, part.parts) for part in from_table({"query": "q_lin", "key": "k_lin"})]
        [('q_lin', ('query',)), ('k_lin', ('key',))]
        >>> [(part.module, part.parts) for part in from_table(dict.fromkeys(NAMES, "qkv"))]
        [('qkv', ('query', 'key', 'value'))]
    """
    if not table or not set(table) <= set(NAMES):
        raise PlugError(f"the table of projections names {list(table)}; valid: 'query', 'key', 'value'")
    for name, module in table.items():
        if not isinstance(module, str):
            raise PlugError(f"projections names {module!r} for '{name}'; it must be the name of a module")
    parts: dict[str, list[Name]] = {}
    for name in table:
        parts.setdefault(table[name], []).append(name)  # type: ignore[arg-type]
    ordered = sorted(parts.items(), key=lambda part: min(map(NAMES.index, part[1])))
    return tuple(Fused(module, tuple(names)) for module, names in ordered)


def _albert(config: Any, modules: int) -> list[list[int]]:
    """Return the order of ALBERT's layers, which repeats a group of them (Lan et al. 2020, section 3.1)."""
    order = [
        int(i / (config.num_hidden_layers / config.num_hidden_groups)) * config.inner_group_num + inner
        for i in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]
    return [[use for use, module in enumerate(order) if module == i] for i in range(modules)]


def padding_of_table(body: Any) -> int | None:
    """Return the id of padding after which a table of positions begins, as RoBERTa's; None for others."""
    table = getattr(getattr(body, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return padding


def first_position(model: Any) -> int:
    """Return the first of the `position_ids` that a model gives to its parts: PaliGemma counts from 1."""
    return int(str(getattr(getattr(model, "config", None), "model_type", None)) == "paligemma")


def _patches(body: Any, arguments: Mapping[str, Any]) -> int:
    """Return the number of patches of an image."""
    size = body.config.patch_size
    high, wide = (size, size) if isinstance(size, int) else size
    height, width = arguments["pixel_values"].shape[-2:]
    return (int(height) // high) * (int(width) // wide)


def _class_and_patches(body: Any, arguments: Mapping[str, Any]) -> int:
    """Return the number of patches of an image plus one for [CLS]."""
    return 1 + _patches(body, arguments)


def _hidden(body: Any, arguments: Mapping[str, Any]) -> int:
    """Return the number of embedded tokens of an image: [CLS], registers if there are any, patches."""
    return int(arguments["hidden_states"].shape[1])


def _frames(body: Any, arguments: Mapping[str, Any]) -> int | None:
    """Return the number of frames after the convolutions of the encoder; None for the decoder's text."""
    return None if "input_features" not in arguments else int(body.config.max_source_positions)


_BERT = separate("query", "key", "value")
_SHORT = separate("q", "k", "v")
_PROJ = separate("q_proj", "k_proj", "v_proj")
_LIN = separate("q_lin", "k_lin", "v_lin")

LAYOUTS = _BERT, _SHORT, _PROJ, _LIN
"""Layouts that are found by the names of the projections, in models that read text and are not listed."""

OTHERWISE = frozenset(
    {
        *("blt_local_decoder", "blt_local_encoder", "canine", "fsmt", "hrm_text", "ibert", "led"),
        *("longformer", "molmo2_text", "mra", "nystromformer", "pegasus_x", "t5gemma2_decoder"),
        *("videoprism_text_model", "yoso"),
    }
)
"""Models with such names that approximate attention, or do not project each token once."""

TRANSPOSED = frozenset({"FSMTModel", "LEDEncoder", "LongformerModel"})
"""Classes whose projections read tokens in rows of texts, (length, batch, width)."""

FAMILIES: Mapping[str, Family] = {
    "albert": Family(_BERT, uses=_albert),
    "bart": Family(_PROJ),
    "bert": Family(_BERT),
    "deberta-v2": Family(separate("query_proj", "key_proj", "value_proj"), again=True),
    "dinov2": Family(_PROJ, length=_hidden),
    "dinov2_with_registers": Family(_PROJ, length=_hidden),
    "distilbert": Family(_LIN),
    "electra": Family(_BERT),
    "gemma": Family(_PROJ),
    "gemma2": Family(_PROJ),
    "gemma3_text": Family(_PROJ),
    "gpt2": Family(
        (Fused("c_attn", NAMES),),
        cross=(Fused("q_attn", ("query",)), Fused("c_attn", ("key", "value"))),
    ),
    "gpt_neox": Family((Fused("query_key_value", NAMES, head="head_size"),)),
    "llama": Family(_PROJ),
    "llama4_text": Family(_PROJ),
    "marian": Family(_PROJ),
    "mistral": Family(_PROJ),
    "modernbert": Family((Fused("Wqkv", NAMES),)),
    "mpnet": Family(_SHORT),
    "phi3": Family((Fused("qkv_proj", NAMES, grouped=True),)),
    "qwen2": Family(_PROJ),
    "qwen3": Family(_PROJ),
    "roberta": Family(_BERT),
    "siglip_text_model": Family(_PROJ),
    "siglip_vision_model": Family(_PROJ, length=_patches),
    "smollm3": Family(_PROJ),
    "t5": Family(_SHORT),
    "vit": Family(_PROJ, length=_class_and_patches),
    "whisper": Family(_PROJ, length=_frames),
    "xlm-roberta": Family(_BERT),
}
"""Families by `model_type` of the configuration; see `LAYOUTS` for those that need no description."""

INTERLEAVED = frozenset(
    {
        *("bloom", "codegen", "deberta", "falcon", "gpt_bigcode", "gpt_neox_japanese", "minimax"),
        "persimmon",
    }
)
"""Models whose fused projection does not consist of consecutive parts, each with all heads."""

RECURRENT = frozenset({"falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"})
"""Models without attention."""

CROSS = frozenset({"crossattention", "encoder_attn", "EncDecAttention", "cross_attn", "cross_attention"})
"""Names of cross-attention modules, whose keys and values are computed from tokens of another body."""
