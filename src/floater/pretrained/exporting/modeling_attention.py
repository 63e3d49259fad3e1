"""A rotary model of Transformers that reads longer texts than in training, without being trained on them.

Self-Extend (Jin et al. 2024, https://arxiv.org/abs/2401.01325, equation 4) groups distances from `window` on:
a query at i sees a key at j as if it were at the distance i // size - j // size + window - window // size.
Queries at positions of the training keep all distances, so a text may be read at once or with a cache. The
temperature multiplies the logits of a query that sees n keys by max(1, log n / log trained) (Chiang and
Cholak 2022, https://arxiv.org/abs/2202.12172). This file needs torch and Transformers alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "floater_positions"
"""Name of `attend` among the attention functions of Transformers."""

TILE = 128
"""Number of queries whose logits are computed at once."""


class FloaterConfig(LlamaConfig):
    """Configuration of the model; `attention_positions` has the settings of `FloaterModel`."""

    model_type = "floater_llama"


class FloaterModel(LlamaForCausalLM):
    """The model with grouped distances, a temperature, or both.

    Its settings are `trained`, the training length; `group`, the window and the size of a group, or None;
    `temperature`; `grouped`, whether each layer groups distances; and the names of the stack of layers
    (`body`), of its rotary part (`rotary`), of the frequencies in it (`frequencies`) and of a layer's
    attention.
    """

    config_class = FloaterConfig
    _supports_attention_backend = False  # servers that replace attention would run another model

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False: Transformers would leave some buffers of its own class without values."""
        return False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        settings = config.attention_positions
        body: Any = self.get_submodule(settings["body"])
        for layer, grouped in zip(body.layers, settings["grouped"], strict=True):
            # not as a submodule: all layers share the rotary part of the body
            layer.get_submodule(settings["attention"]).__dict__["floater"] = (
                {**settings, "group": settings["group"] if grouped else None},
                body.get_submodule(settings["rotary"]),
            )
        body.register_forward_pre_hook(self._check, with_kwargs=True)
        self.set_attn_implementation(NAME)

    def _check(self, body: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        for name in ("positions", "times"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{type(body).__name__} does not take {name}; pass position_ids")
        attention = getattr(F.scaled_dot_product_attention, "__module__", None)
        if not torch.compiler.is_compiling() and "context_parallel" in (attention or ""):
            raise ValueError("this model reads all tokens of a text, of which context_parallel shows a part")
        if self.config._attn_implementation != NAME:
            raise ValueError(
                f"the attention function is {self.config._attn_implementation!r}, which ignores the "
                f"positions of this model; call model.set_attn_implementation({NAME!r})"
            )


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute attention, as an attention function of Transformers.

    Args:
        module: attention module.
        query: rotated queries, (batch, heads, T, head_dim).
        key: rotated keys, (batch, key heads, S, head_dim).
        value: values, with the shape of the keys.
        mask: True for visible keys, (batch or 1, 1, T, S); None if each query sees the keys up to its own.
        kwargs: `scaling` and `dropout`.

    Returns:
        The output, (batch, T, heads, head_dim), and None.
    """
    settings, rotary = module.floater
    count, slots = query.shape[2], key.shape[2]
    if mask is None:
        visible = torch.ones(1, count, slots, dtype=torch.bool, device=query.device).tril(slots - count)
    else:
        visible = mask[:, 0]
    if settings["temperature"]:
        warm = visible.sum(-1).clamp(min=1).float().log() / math.log(settings["trained"])
        query = query * warm.clamp(min=1)[:, None, :, None].to(query.dtype)
    compiling = torch.compiler.is_compiling()  # the graph is then that of all texts
    if settings["group"] is not None:
        order = torch.arange(slots, device=query.device)
        begin = visible.int().argmax(-1)  # the first token of each query's text
        key_begin = (visible * begin[..., None]).amax(1)
        if not compiling and bool((visible & (key_begin[:, None] != begin[..., None])).any()):
            raise ValueError("the mask hides the first tokens of a text from later ones, which must see them")
        key_positions = (order - key_begin).clamp(min=0)
        # a query is in the last slot that it sees
        positions = (order * visible).amax(-1) - begin
        far = positions >= settings["trained"]
    if settings["group"] is None or not (compiling or bool(far.any())):
        function: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return function(module, query, key, value, mask, **kwargs)  # type: ignore[no-any-return]
    window, size = settings["group"]
    frequencies = getattr(rotary, settings["frequencies"])
    shift = positions // size + window - window // size - positions
    far_query = rotate(query, shift, frequencies)
    far_key = rotate(key, key_positions // size - key_positions, frequencies)
    repeats = query.shape[1] // key.shape[1]
    key, far_key, value = (x.repeat_interleave(repeats, 1) for x in (key, far_key, value))
    outputs = []
    for tile in [slice(None)] if compiling else [slice(i, i + TILE) for i in range(0, count, TILE)]:
        distances = positions[:, tile, None] - key_positions[:, None, :]
        grouped = (far[:, tile, None] & (distances >= window))[:, None]
        logits = torch.where(grouped, far_query[:, :, tile] @ far_key.mT, query[:, :, tile] @ key.mT)
        logits = (logits * kwargs["scaling"]).masked_fill(
            ~visible[:, None, tile], torch.finfo(logits.dtype).min
        )
        wide = torch.promote_types(query.dtype, torch.float32)
        weights = F.softmax(logits, -1, dtype=wide).to(query.dtype)
        outputs.append(F.dropout(weights, kwargs.get("dropout", 0.0), module.training) @ value)
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def rotate(x: Tensor, shift: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate x (batch, heads, T, head_dim) further by a shift of positions (batch or 1, T)."""
    angle = (shift[:, None, :, None].double() * frequencies.double()).float()
    sin, cos = angle.sin(), angle.cos()
    width = 2 * len(frequencies)
    a, b = x[..., :width].float().chunk(2, -1)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned.to(x.dtype), x[..., width:]), -1)


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
