"""A stack of Transformer blocks around an encoding, in torch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings import PositionModel
from floater.encodings.attention import AttentionCall, mask_of_pairs, project_qkv
from floater.encodings.context import AttentionContext
from floater.positions import Positions

_INNER_WIDTH = 24


class KeyValueCache:
    """The keys and values of earlier calls, by layer.

    Example:
        >>> cache, one = KeyValueCache(), torch.ones(1, 1, 1, 2)
        >>> _ = cache.update(one, one, layer=0)
        >>> cache.update(one, one, layer=0)[0].shape
        torch.Size([1, 1, 2, 2])
    """

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, heads, T, head_dim), and return all of the layer."""
        if layer in self.layers:
            earlier_key, earlier_value = self.layers[layer]
            key, value = torch.cat([earlier_key, key], 2), torch.cat([earlier_value, value], 2)
        self.layers[layer] = key, value
        return key, value


class SelfAttention(nn.Module):
    """Attention with the hooks of an encoding, as matrices of all pairs.

    Args:
        dim: width of the model.
        layer: index of the block.
        causal: whether a query attends to its own and earlier keys only.
    """

    def __init__(self, dim: int, layer: int, *, causal: bool) -> None:
        super().__init__()
        self.layer, self.causal = layer, causal
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(
        self,
        x: Tensor,
        position: PositionModel,
        state: Any,
        visible: Tensor | None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: (batch, T, dim).
            position: the encoding.
            state: what it prepared.
            visible: see `Positions.visible`.
            cache: keys and values of earlier calls, which is extended.

        Returns:
            (batch, T, dim).
        """
        linear = {"query": self.query, "key": self.key, "value": self.value}
        context = AttentionContext(state, self.layer, x, linear)
        q, k, v = project_qkv(position, context)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        call = AttentionCall(position, context, q, k, v, mask_of_pairs(visible), self.causal)
        out, _ = call.attend(call.logits())
        return self.output(out.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Self-attention and feed-forward, with a residual connection and a norm after each.

    Args:
        dim: width of the model.
        layer: index of the block.
        causal: whether a query attends to its own and earlier keys only.
    """

    def __init__(self, dim: int, layer: int, *, causal: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, layer, causal=causal)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.inner, self.outer = nn.Linear(dim, _INNER_WIDTH), nn.Linear(_INNER_WIDTH, dim)

    def forward(
        self,
        x: Tensor,
        position: PositionModel,
        state: Any,
        visible: Tensor | None,
        cache: KeyValueCache | None,
    ) -> Tensor:
        """Apply the block; see `SelfAttention.forward` for the arguments."""
        x = position.block(x, state, self.attention.layer)
        out = self.attention(x, position, state, visible, cache)
        x = self.attention_norm(x + out if position.residual(self.attention.layer) else out)
        out = self.outer(self.inner(x).relu())
        return self.feed_forward_norm(x + out)  # type: ignore[no-any-return]


class Stack(nn.Module):
    """A stack of blocks around an encoding, in torch alone: every hook where a Transformer calls it.

    It computes what `floater.transformer.stacks.Encoder` does with the same weights, by the shortest code:
    without kernels, dropout or a loss.

    Args:
        position: the encoding, for the width and the number of blocks of its `spec`.

    Example:
        >>> from floater import build
        >>> stack = Stack(build("alibi", dim=8, heads=2, layers=2, max_length=16))
        >>> stack(torch.randn(3, 5, 8), Positions.arange(5)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, position: PositionModel) -> None:
        super().__init__()
        self.position = position
        spec = position.spec
        self.blocks = nn.ModuleList(
            Block(spec.dim, layer, causal=spec.causal) for layer in range(spec.layers)
        )

    def forward(self, x: Tensor, positions: Positions, cache: KeyValueCache | None = None) -> Tensor:
        """Encode embeddings.

        Args:
            x: (batch, T, dim).
            positions: positions of the tokens, and of the cached ones before them.
            cache: keys and values of earlier calls (a causal stack), which is extended.

        Returns:
            (batch, T, dim).
        """
        state = self.position.prepared(positions)
        x = self.position.embed(x, state)
        for block in self.blocks:
            x = block(x, self.position, state, positions.visible, cache)
        return x
