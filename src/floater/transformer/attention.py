"""Multi-head attention with the hooks of a position model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, EncoderDecoderCache

from floater.encodings import PositionModel, StackSpec
from floater.encodings.model import Projection
from floater.encodings.terms import AttentionTerms
from floater.transformer.biased import biased_attention, gradient_in_pieces
from floater.transformer.config import FloaterConfig
from floater.transformer.flex import flex_applies, flex_attention, flex_learns
from floater.transformer.linear import linear_attention
from floater.transformer.memory import Earlier
from floater.transformer.tiled import tiled_attention

# queries from which tiles are faster than matrices of all pairs: products with vectors of the distance take
# 0.65 to 0.92 of the time at 256, a bias 1.12 there and 0.94 at 512
TILED_FROM, BIAS_TILED_FROM = 256, 512


def project(linear: nn.Linear, x: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W + b + b(t), the positions' bias added by the product itself (Liu et al. 2020, equation 12).

    Args:
        linear: the projection, with a bias b or none.
        x: (batch, T, dim).
        bias: b(t), (batch or 1, T, width), or None.

    Returns:
        (batch, T, width); without b(t), or with one that is zero, exactly what the projection gives.

    Example:
        >>> linear = nn.Linear(2, 2)
        >>> x, bias = torch.randn(3, 4, 2), torch.ones(1, 4, 2)
        >>> torch.allclose(project(linear, x, bias), linear(x) + 1, atol=1e-6)
        True
    """
    # A module that replaces a linear layer, or has hooks, computes more than a product with its weights.
    plain = type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks
    if bias is None or not plain:
        out: Tensor = linear(x)
        return out if bias is None else out + bias.to(out.dtype)
    return added_product(bias.to(linear.weight.dtype), x, linear.weight.T, linear.bias)


def added_product(rows: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute rows + bias + x W, the first two in the memory of the product, which adds to them.

    Args:
        rows: (1 or batch, T, width) of the dtype of the weight.
        x: (batch, T, dim).
        weight: (dim, width).
        bias: (width,) or None.

    Returns:
        (batch, T, width).

    Example:
        >>> added_product(torch.ones(1, 2, 1), torch.zeros(3, 2, 4), torch.zeros(4, 1)).sum()
        tensor(6.)
    """
    shape, flat = (*x.shape[:-1], rows.shape[-1]), x.flatten(0, -2)
    trained = torch.is_grad_enabled() and (rows.requires_grad or (bias is not None and bias.requires_grad))
    if trained or torch.compiler.is_compiling():
        # No view may be added to in place: its backward pass would copy the gradient four times.
        own = rows.flatten(0, 1).clone() if bias is None else rows.flatten(0, 1) + bias
        # Sizes, as len() of a symbolic size would become a constant of an exported program.
        if own.shape[0] != flat.shape[0]:
            own = own.expand(x.shape[0], *own.shape).reshape(flat.shape[0], shape[-1]).contiguous()
    else:
        own = rows.new_empty(flat.shape[0], shape[-1])
        if bias is None:
            own.view(shape).copy_(rows)
        else:
            torch.add(rows.expand(shape), bias, out=own.view(shape))
    # Autocast supports only the product that copies its addend.
    kind = x.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    product = torch.addmm if autocast else Tensor.addmm_
    return product(own, flat, weight).view(shape)


_SPEC = StackSpec(dim=1, heads=1, layers=1, max_length=1)
_IDENTITY = PositionModel(_SPEC)


class _Unscaled(PositionModel):
    def scale(self, head_dim: int) -> float:
        return 1.0


_UNSCALED = _Unscaled(_SPEC)


class Attention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2).

    The hooks that the position model overrides decide the kernel: with `logits`, `weights` or `value_bias`
    the plain path, else PyTorch's `scaled_dot_product_attention`, without a mask where none is needed. On a
    GPU, `attn_implementation="flex_attention"` passes masks and biases of consecutive integer positions to
    FlexAttention, in uncompiled code without dropout of weights or a temperature; all else uses SDPA.

    Args:
        config: sizes and dropout.
        layer: index of the block, from 0.
        causal: a query may attend to its own and earlier slots only.

    With `config.attention_temperature` logits grow with the number of keys that a query sees.

    Example:
        >>> from floater.encodings import build
        >>> config = FloaterConfig(hidden_size=8, num_attention_heads=2)
        >>> position = build("none", dim=8, heads=2, layers=1, max_length=16)
        >>> x, _ = Attention(config, 0)(torch.zeros(1, 3, 8), position, None, None, None)
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

    def project(
        self, name: Projection, linear: nn.Linear, x: Tensor, position: PositionModel, state: Any, layer: int
    ) -> Tensor:
        """Project (batch, T, dim) to (batch, T, heads, head_dim), with the positions' bias."""
        y = project(linear, x, position.projection_bias(name, state, layer))
        return y.view(*x.shape[:-1], self.heads, y.shape[-1] // self.heads)

    def forward(
        self,
        x: Tensor,
        position: PositionModel,
        state: Any,
        key_valid: Tensor | None,
        cache: Cache | None,
        layer: int | None = None,
        earlier: Earlier | None = None,
        sharpen: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute self-attention.

        Args:
            x: (batch, T, dim).
            position: the position model, and
            state: its state of this forward pass.
            key_valid: (batch, S) bool, False where a key is padding, or (batch, T, S), by query.
            cache: keys and values of earlier steps.
            layer: index of the block where one serves as several; None means its own.
            earlier: input of the block in earlier segments; these tokens are keys and values, too.
            sharpen: whether logits get the temperature "log" (see `FloaterConfig`) in evaluation.

        Returns:
            (batch, T, dim), and the weights (batch, heads, T, S) on the plain path.
        """
        layer = self.layer if layer is None else layer
        read, at = x, state
        if earlier is not None:
            read, at = torch.cat([earlier.hidden.to(x.dtype), x], 1), earlier.state
        if position.overrides("on_projections"):
            position.on_projections({"query": self.query, "key": self.key, "value": self.value}, state, layer)
        xq, xk, xv = position.inputs(read, at, layer)
        q = self.project("query", self.query, xq, position, at, layer)
        k = self.project("key", self.key, xk, position, at, layer)
        v = self.project("value", self.value, xv, position, at, layer)
        q, k, v = position.qkv(q, k, v, at, layer)
        q = q[:, read.shape[1] - x.shape[1] :].transpose(1, 2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            k, v = own.update(k, v, layer)
        return self.attend(q, k, v, position, state, key_valid, layer, sharpen)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position: PositionModel,
        state: Any,
        key_valid: Tensor | None,
        layer: int,
        sharpen: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute softmax(q k^T scale + bias) v, projected.

        Args:
            q: (batch, heads, T, head_dim).
            k: (batch, heads, S, head_dim), cached ones first.
            v: (batch, heads, S, head_dim).
            position: the position model, and
            state: its state of this forward pass.
            key_valid: (batch, S) bool, False where a key is padding, or (batch, T, S), by query.
            layer: index of the block.
            sharpen: see `forward`.

        Returns:
            (batch, T, dim), and the weights (batch, heads, T, S) on the plain path. A query that may attend
            to no key gets zeros before the projection.
        """
        length, slots = q.shape[2], k.shape[2]
        if self.config.attention == "linear":
            out = linear_attention(
                q, k, v, scale=position.scale(q.shape[-1]), valid=key_valid, causal=self.causal
            )
            return self.output(out.transpose(1, 2).flatten(-2)), None
        mask = None if key_valid is None else key_valid[:, None]
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        scale = position.scale(q.shape[-1])
        dropout = self.config.attention_dropout if self.training else 0.0
        eager = self.config._attn_implementation == "eager"
        sharpened = sharpen or self.config.attention_temperature is not None
        plain = position.overrides("logits", "weights", "value_bias") or eager
        fused = not (eager or dropout or sharpened)
        flexible = fused and self.config._attn_implementation == "flex_attention" and flex_applies(q, v)
        terms = self._terms(q, k, position, state, layer, flexible) if fused else None
        allowed = None if terms is not None and terms.masks else position.mask(state, layer)
        if allowed is not None:
            mask = allowed if mask is None else mask & allowed
        content, (q, k) = (q, k), position.rotated(q, k, state, layer)
        if terms is not None and not flexible:
            out = tiled_attention(q, k, v, terms, scale, mask=mask, causal=self.causal)
            return self.output(out.transpose(1, 2).flatten(-2)), None
        # without a bias or a mask of pairs SDPA has a fused kernel of its own
        masked = mask is not None and not (plain or position.overrides("bias"))
        if flexible and (terms is not None or masked):
            table = None if terms is None else terms.bias
            out = flex_attention(q, k, v, scale, bias=table, mask=mask, causal=self.causal)
            return self.output(out.transpose(1, 2).flatten(-2)), None
        bias = position.bias(*content, state, layer)
        # the kernel's own causal path needs no mask; it counts slots from the first, so it serves no cache
        kernel_causal = self.causal and not plain and mask is None and bias is None and length == slots
        if self.causal and not kernel_causal and length > 1:
            earlier = torch.ones(length, slots, dtype=torch.bool, device=q.device).tril(slots - length)
            mask = earlier if mask is None else mask & earlier
        factor = self.sharpness(mask, length, slots, q, sharpen)
        if plain:
            return self._plain(q, k, v, content, position, state, bias, mask, scale, dropout, layer, factor)
        if factor is not None:
            q = q * factor
            bias = None if bias is None else bias * factor
        if bias is not None:
            bias = bias.to(q.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        if mask is not None and mask.requires_grad and not dropout and gradient_in_pieces(q):
            out = biased_attention(q, k, v, mask, scale)
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=kernel_causal, scale=scale
            )
        return self.output(out.transpose(1, 2).flatten(-2)), None

    def sharpness(
        self, mask: Tensor | None, length: int, slots: int, q: Tensor, sharpen: bool
    ) -> Tensor | None:
        """Return the factor of the logits, by the number of keys that each query sees.

        Args:
            mask: mask of the keys that a query may attend to, broadcastable to (batch, heads, T, S); None for
                all keys, in a causal block for all but later ones.
            length: number of queries T.
            slots: number of keys S.
            q: (batch, heads, T, head_dim), of its dtype and device.
            sharpen: see `forward`.

        Returns:
            Broadcastable to (batch, heads, T, 1); None for no factor.
        """
        kind = self.config.attention_temperature or ("log" if sharpen else None)
        if kind is None:
            return None
        if mask is not None:
            seen = mask.expand(*mask.shape[:-1], slots).sum(-1, keepdim=True)
        else:
            first = slots - length + 1 if self.causal else slots
            seen = torch.arange(first, slots + 1, device=q.device)[:, None]
        logs = seen.clamp(min=1).log()
        if kind == "learned":
            return (self.temperature[:, None, None] * logs).to(q.dtype)
        return (logs / math.log(self.config.training_length)).clamp(min=1).to(q.dtype)

    def _terms(
        self, q: Tensor, k: Tensor, position: PositionModel, state: Any, layer: int, flexible: bool
    ) -> AttentionTerms | None:
        """Return the terms for a kernel that computes no matrix of pairs: FlexAttention if `flexible`, or
        tiles.

        Returns:
            None where that kernel does not serve or is slower.
        """
        # compiled code must not compute terms: the first condition ends it
        tiled = gradient_in_pieces(q) and q.shape[2] >= TILED_FROM
        if not (flexible or tiled) or not position.has_terms:
            return None
        terms = position.attention_terms(q, k, state, layer)
        if terms is None or not terms.bias_alone:
            return None if flexible else terms
        fits = flex_learns(terms.bias) if flexible else q.shape[2] >= BIAS_TILED_FROM
        return terms if fits else None

    def _plain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        content: tuple[Tensor, Tensor],
        position: PositionModel,
        state: Any,
        bias: Tensor | None,
        mask: Tensor | None,
        scale: float,
        dropout: float,
        layer: int,
        factor: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        logits = q @ k.transpose(-1, -2) * scale
        if bias is not None:
            logits = logits + bias.to(logits.dtype)
        logits = position.logits(logits, *content, state, layer)
        if factor is not None:
            logits = logits * factor
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        weights = position.weights(logits, state, layer)
        dropped = F.dropout(weights, dropout)
        out = dropped @ v
        more = position.value_bias(dropped, state, layer)
        if more is not None:
            out = out + more
        return self.output(out.transpose(1, 2).flatten(-2)), weights


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
        source: Tensor,
        position: PositionModel,
        state: Any,
        source_position: PositionModel,
        source_state: Any,
        key_valid: Tensor | None,
        cache: Cache | None,
        layer: int | None = None,
        sharpen: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute cross-attention; keys and values are computed once per source when there is a cache.

        Args:
            x: (batch, T, dim) of the target.
            source: (batch, S, dim), the encoder's output.
            position: the decoder's position model, and
            state: its state at the target positions.
            source_position: the position model of the keys and values, and
            source_state: its state at the source positions.
            key_valid: (batch, S) bool, False where the source is padding.
            cache: an `EncoderDecoderCache`.
            layer: index of the block where one serves as several; None means its own.
            sharpen: see `Attention.forward`.

        Returns:
            (batch, T, dim), and the weights (batch, heads, T, S) on the plain path.
        """
        layer = self.layer if layer is None else layer
        q = self.project("cross_query", self.query, x, position, state, layer).transpose(1, 2)
        known = isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(layer, False)
        if isinstance(cache, EncoderDecoderCache) and known:
            held: Any = cache.cross_attention_cache.layers[layer]
            k, v = held.keys, held.values
        else:
            k = self.project("key", self.key, source, source_position, source_state, layer).transpose(1, 2)
            v = self.project("value", self.value, source, source_position, source_state, layer).transpose(
                1, 2
            )
            if isinstance(cache, EncoderDecoderCache):
                k, v = cache.cross_attention_cache.update(k, v, layer)
                cache.is_updated[layer] = True
        return self.attend(q, k, v, _IDENTITY if self.scaled else _UNSCALED, None, key_valid, layer, sharpen)
