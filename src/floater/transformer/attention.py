"""Multi-head attention: projections, the cache, and the kernel that computes the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from floater.encodings import PositionError, PositionModel, StackSpec
from floater.encodings.attention import AttentionCall, mask_of_pairs, project, project_qkv
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.sharded import split_heads
from floater.transformer.config import FloaterConfig
from floater.transformer.kernels import Kernel, LinearKernel, check_part, kernel_for
from floater.transformer.memory import Earlier
from floater.transformer.uncast import Uncast

_SPEC = StackSpec(dim=1, heads=1, layers=1, max_length=1)
_IDENTITY = PositionModel(_SPEC)


class _Unscaled(PositionModel):
    def scale(self, head_dim: int) -> float:
        return 1.0


_UNSCALED = _Unscaled(_SPEC)


class SharedInputs(NamedTuple):
    """The inputs that all blocks of a stack share in one forward pass.

    Args:
        position: the position model.
        state: its state of this forward pass.
        visible: (batch, S) bool, False where a key is padding, or (batch, T, S), by query; None for all keys.
        sharpen: whether logits get the temperature "log" (see `FloaterConfig`) in evaluation.
    """

    position: PositionModel
    state: Uncast[Any]
    visible: Tensor | None = None
    sharpen: bool = False


class Attention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2).

    The hooks that the position model overrides, the configuration and the device decide the kernel: see
    `floater.transformer.kernels`. With `config.attention_temperature` logits grow with the number of keys
    that a query sees.

    Args:
        config: sizes and dropout.
        layer: index of the block, from 0.
        causal: a query may attend to its own and earlier slots only.

    Example:
        >>> from floater.encodings import build
        >>> config = FloaterConfig(hidden_size=8, num_attention_heads=2)
        >>> position = build("none", dim=8, heads=2, layers=1, max_length=16)
        >>> x, _ = Attention(config, 0)(torch.zeros(1, 3, 8), SharedInputs(position, Uncast(None)))
        >>> x.shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: FloaterConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.causal = causal
        self.heads = config.num_attention_heads
        bias = config.resolved_recipe.bias
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.key = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.value = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        if config.attention_temperature == "learned":
            self.temperature = nn.Parameter(torch.full((self.heads,), 1 / math.log(config.training_length)))

    def forward(
        self,
        x: Tensor,
        shared: SharedInputs,
        cache: Cache | None = None,
        layer: int | None = None,
        earlier: Earlier | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute self-attention.

        Args:
            x: (batch, T, dim).
            shared: position model, its state, and the keys that may be seen.
            cache: keys and values of earlier steps.
            layer: index of the block where one block is applied several times; None means its own.
            earlier: input of the block in earlier segments; these tokens are keys and values, too.

        Returns:
            (batch, T, dim), zero before the output projection where a query may attend to no key; and the
            weights (batch, heads, T, S), None if the kernel does not keep them.
        """
        return self.attend(self.call(x, shared, cache, layer, earlier))

    def call(
        self,
        x: Tensor,
        shared: SharedInputs,
        cache: Cache | None = None,
        layer: int | None = None,
        earlier: Earlier | None = None,
    ) -> AttentionCall:
        """Return what self-attention computes, after the projections; arguments as in `forward`."""
        position = shared.position
        layer = self.layer if layer is None else layer
        projections = {"query": self.query, "key": self.key, "value": self.value}
        context = AttentionContext(shared.state.value, layer, x, projections)
        if earlier is None:
            q, k, v = project_qkv(position, context)
        else:
            whole = torch.cat([earlier.hidden.to(x.dtype), x], 1)
            q, k, v = project_qkv(position, AttentionContext(earlier.state.value, layer, whole, projections))
            q = q[:, :, whole.shape[1] - x.shape[1] :]
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        if cache is not None:
            filled = int(cache.get_seq_length(layer)) + k.shape[2]
            k, v = (slots[:, :, :filled] for slots in cache.update(k, v, layer))  # StaticCache has more
        return self._call(position, context, q, k, v, shared.visible, shared.sharpen)

    def _call(
        self,
        position: PositionModel,
        context: AttentionContext[Any],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor | None,
        sharpen: bool,
    ) -> AttentionCall:
        mask = mask_of_pairs(visible)
        dropout = self.config.attention_dropout if self.training else 0.0
        return AttentionCall(
            position, context, q, k, v, mask, self.causal, dropout, self._temperature(sharpen)
        )

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute a call by the kernel that supports it, and project its outputs; returns as `forward`."""
        kernel: Kernel
        if self.config.attention_temperature == "learned" and call.q.shape[1] != self.heads:
            raise PositionError(
                f"{call.q.shape[1]} of {self.heads} heads are on this process; attention_temperature "
                "'learned' needs all"
            )
        if self.config.attention == "softmax":
            kernel = kernel_for(call, self.config._attn_implementation)
        else:
            performer = self.config.attention == "performer"
            kernel = LinearKernel(
                self.config.attention_features or 0 if performer else None, call.context.layer
            )
        check_part(call, kernel)
        out, weights = kernel.attend(call)
        return self.output(out.transpose(1, 2).flatten(-2)), weights

    def _temperature(self, sharpen: bool) -> Callable[[Tensor], Tensor] | None:
        """Return the factor of the logits as a function of the logarithm of the number of keys seen."""
        kind = self.config.attention_temperature or ("log" if sharpen else None)
        if kind is None:
            return None
        if kind == "learned":
            return lambda logs: self.temperature[:, None, None] * logs
        return lambda logs: (logs / math.log(self.config.training_length)).clamp(min=1)


class Source(NamedTuple):
    """The source that the blocks of a decoder attend to.

    Args:
        hidden: (batch, S, dim), the encoder's output.
        position: the position model of its keys and values.
        state: the state of that model at the positions of the source.
        valid: (batch, S) bool, False where the source is padding; None when all are tokens.
    """

    hidden: Tensor
    position: PositionModel
    state: Uncast[Any]
    valid: Tensor | None


class CrossAttention(Attention):
    """Attention of the decoder to the source; scaled if the recipe has `scale_cross_attention`.

    Args:
        config: sizes and dropout.
        layer: index of the block, from 0.
    """

    def __init__(self, config: FloaterConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.scaled = config.resolved_recipe.scale_cross_attention

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        source: Source,
        shared: SharedInputs,
        cache: Cache | None = None,
        layer: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute cross-attention; keys and values are computed once per source when there is a cache.

        Args:
            x: (batch, T, dim) of the target.
            source: the encoder's output and its positions.
            shared: the decoder's position model, and its state at the target positions.
            cache: an `EncoderDecoderCache`.
            layer: index of the block where one block is applied several times; None means its own.

        Returns:
            As `Attention.forward`.
        """
        layer = self.layer if layer is None else layer
        context = AttentionContext(shared.state.value, layer, x)
        q = self._project("cross_query", self.query, shared.position, context)
        pair = cache if isinstance(cache, EncoderDecoderCache) else None
        if pair is not None and pair.is_updated.get(layer, False):
            cached: Any = pair.cross_attention_cache.layers[layer]
            k, v = cached.keys, cached.values
        else:
            at_source = AttentionContext(source.state.value, layer, source.hidden)
            k = self._project("key", self.key, source.position, at_source)
            v = self._project("value", self.value, source.position, at_source)
            if pair is not None:
                k, v = pair.cross_attention_cache.update(k, v, layer)
                pair.is_updated[layer] = True
        identity = _IDENTITY if self.scaled else _UNSCALED
        bare = context.with_state(None)
        return self.attend(self._call(identity, bare, q, k, v, source.valid, shared.sharpen))

    def _project(
        self, name: Projection, linear: nn.Linear, position: PositionModel, context: AttentionContext[Any]
    ) -> Tensor:
        """Project the context's x to (batch, heads, T, head_dim), with the positions' bias."""
        y = project(linear, context.x, position.projection_bias(name, context))
        return split_heads(y, position.spec).transpose(1, 2)
