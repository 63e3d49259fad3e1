"""A rotary model of Transformers with clocks: the text drives the rotation of queries and keys (FLOATER).

In a block with a clock the time of a token is its position and the sum of rate(w x + b) - 1 over the tokens
up to it, where x is the input of attention. The rate "angle" adds w x + b to each angle instead. This file
needs torch and Transformers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

RATES: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": lambda x: torch.where(x > 50, x, (1 + x.clamp(max=50).exp2()).log2()) - 1,
    "sigmoid": lambda x: 2 * x.sigmoid() - 1,
    "signed": lambda x: x,
    "angle": lambda x: x,
}
"""Functions from w x + b to the rate less 1, or to the angle."""

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda angles: torch.cat((angles, angles), -1),
    "neighbours": lambda angles: angles.repeat_interleave(2, -1),
    "once": lambda angles: angles,
}
"""Functions from the angles of the frequencies to those of the components of cosines and sines."""


class FloaterConfig(LlamaConfig):
    """Configuration of the model; `clocks` has the settings of `FloaterModel`."""

    model_type = "floater_llama"


class FloaterModel(LlamaForCausalLM):
    """The model with clocks.

    Its settings are `rate`; `width`, that of the input of attention; `blocks`, the number of blocks; and
    `rotations`, for each clock the `path` of the attention module, the index of its `block`, the name of the
    buffer with its `frequencies`, and the `layout` of its cosines and sines.
    """

    config_class = FloaterConfig
    _supports_attention_backend = False  # servers that replace attention would run it without its clocks

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False: Transformers would leave some buffers of its own class without values."""
        return False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._keep_in_fp32_modules_strict = {*(self._keep_in_fp32_modules_strict or ()), "clocks"}
        settings = config.clocks
        self.clocks = _Clocks(len(settings["rotations"]), settings["width"], settings["rate"])
        for index, rotation in enumerate(settings["rotations"]):
            turn = _Turn(self, index, rotation, settings["blocks"])
            self.get_submodule(rotation["path"]).register_forward_pre_hook(turn, with_kwargs=True)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, _Clocks):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


class _Clocks(nn.Module):
    """The clocks of the model; a module that is called, so that its weights may be offloaded."""

    def __init__(self, count: int, width: int, rate: str) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.zeros(count, width))
        self.bias = nn.Parameter(torch.zeros(count))

    def forward(self, hidden: Tensor, index: int) -> Tensor:
        """Return by how much time advances more than one at tokens (batch, T, width): (batch, T)."""
        with torch.autocast(hidden.device.type, enabled=False):
            weight, bias = (part[index].float().to(hidden.device) for part in (self.weight, self.bias))
            return RATES[self.rate](F.linear(hidden.float(), weight[None])[..., 0] + bias)


class _Turn:
    """A forward pre-hook of an attention module that turns its cosines and sines by a clock."""

    def __init__(self, model: nn.Module, index: int, rotation: dict[str, Any], blocks: int) -> None:
        self.model, self.index, self.rotation, self.blocks = model, index, rotation, blocks

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache = kwargs.get("cache")  # the name of caches since Transformers 5.24
        if cache is not None and not isinstance(cache, Cache):
            raise ValueError(
                "continuous batching joins texts in a row, over which a clock would sum; use model.generate"
            )
        for name in ("positions", "times"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{type(self.model).__name__} does not take {name}; pass position_ids")
        attention = getattr(F.scaled_dot_product_attention, "__module__", None)
        if not torch.compiler.is_compiling() and "context_parallel" in (attention or ""):
            raise ValueError("a clock sums over all tokens of a text, of which context_parallel shows a part")
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        wide = torch.float32 if hidden.device.type == "mps" else torch.float64
        clocks: Any = self.model.clocks
        sums = clocks(hidden, self.index).to(wide).cumsum(1)[:, None, :, None]
        names = ("past_key_values", "layer_past", "cache")
        cache = next((kwargs[x] for x in names if kwargs.get(x) is not None), None)
        if cache is not None:
            sums = self._continued(cache, sums)
        frequencies = self.model.get_buffer(self.rotation["frequencies"]).to(hidden.device, wide)
        if clocks.rate == "angle":
            frequencies = torch.ones_like(frequencies)
        sums = sums[:, 0, -cos.shape[1] :]  # some have rows for cached keys, too
        angle = LAYOUTS[self.rotation["layout"]]((sums * frequencies).float())
        turned = cos * angle.cos() - sin * angle.sin(), sin * angle.cos() + cos * angle.sin()
        kwargs["position_embeddings"] = tuple(each.to(cos.dtype) for each in turned)
        return args, kwargs

    def _continued(self, cache: Any, sums: Tensor) -> Tensor:
        """Store sums (batch, 1, T, 1) after those of the cached tokens, and return all of them.

        They are layers of the cache after those of the blocks, so that they follow its beams and crops.
        """
        if not isinstance(cache, DynamicCache) or cache.offloading:
            raise ValueError(
                "the sums of a clock are kept in a plain DynamicCache, the default of generate; this is "
                f"{'an offloaded' if getattr(cache, 'offloading', False) else 'a'} {type(cache).__name__}"
            )
        layers: list[Any] = cache.layers
        block = self.rotation["block"]
        while len(layers) < self.blocks:
            kind: Any = cache.layer_class_to_replicate or DynamicLayer  # None: the first blocks alone run
            layers.append(kind())
        while len(layers) <= self.blocks + block:
            layers.append(DynamicLayer())
        stored, tokens = layers[self.blocks + block], layers[block].get_seq_length()
        if stored.get_seq_length() != tokens:
            raise ValueError(
                f"the cache has {tokens} tokens and the sums of a clock for {stored.get_seq_length()}; "
                "another model or prefix tuning has filled it"
            )
        if tokens:
            sums = sums + stored.keys[:, :, -1:]
        every: Tensor = stored.update(sums, sums[..., :0])[0]
        return every
