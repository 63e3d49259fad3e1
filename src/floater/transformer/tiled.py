"""Attention with terms of the distance, in tiles that fit a core's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings.terms import AttentionTerms
from floater.flow.second_derivatives import refuse_second_derivatives

_TILE = 2**18
"""Numbers of a tile of the logits: a megabyte, which fits a core's cache with intermediate results."""

_BLOCK = 32
"""Keys that are multiplied with the same vectors of distances; _BLOCK - 1 products of each are not used."""


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: AttentionTerms,
    scale: float,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return attention with terms of the distance, without a matrix (batch, heads, T, S) in memory.

    Query t and key s meet entry s - t + T - 1 of a table. With the queries in reversed order that is
    t + s, so a tile of a bias is a view of its table, and products with vectors of the distance are a view
    of products with consecutive entries. In the backward pass, which computes the weights again, sums along
    diagonals are sums of columns.

    Source: Dao et al., "FlashAttention" (2022), section 3.1, with the terms of Shaw et al. (2018) and Dai et
    al. (2019).

    Args:
        q: (batch, heads, T, head_dim).
        k: (batch, heads, S, head_dim).
        v: (batch, heads, S, head_dim).
        terms: terms that are added to the products of q and k, and to v.
        scale: factor of the products, unless the terms have one.
        mask: bool mask of the keys that a query may attend to, broadcastable to (batch, heads, T, S).
        causal: whether query t, counted from 0, may attend to the first S - T + 1 + t keys only.

    Returns:
        (batch, heads, T, head_dim), zero where a query may attend to nothing. Its gradient cannot be
        differentiated again.

    Example:
        >>> q = torch.randn(1, 2, 3, 8)
        >>> terms = AttentionTerms(bias=torch.tensor([[0.0, 0.0, 0.0, 9e9, 0.0, 0.0]]))
        >>> out = tiled_attention(q, q, q, terms, 1.0)  # each query attends to the next key
        >>> torch.equal(out[:, :, :2], q[:, :, 1:])
        True
    """
    heads, length, slots = q.shape[1], q.shape[2], k.shape[2]
    scale = scale if terms.scale is None else terms.scale
    tables = [
        None if table is None else table.to(q.dtype).expand(heads, *table.shape[-2:])
        for table in (terms.queries, terms.keys, terms.values)
    ]
    bias = terms.bias
    if causal:
        bias = q.new_zeros(1, length + slots) if bias is None else bias
        bias = bias.index_fill(1, torch.arange(slots, length + slots, device=q.device), -torch.inf)
    if bias is not None:
        bias = bias.to(q.dtype).expand(heads, -1).contiguous()
        learns = torch.is_grad_enabled() and bias.requires_grad
        if not learns and mask is None and terms.content is None and tables == [None] * 3:
            # PyTorch's kernel reads a bias from a view, but has no gradient for it
            view = bias.as_strided((1, heads, length, slots), (0, bias.shape[1], 1, 1))
            return F.scaled_dot_product_attention(q.flip(2), k, v, attn_mask=view, scale=scale).flip(2)
    distance_queries = q if terms.distance_queries is None else terms.distance_queries
    q, k = (q, k) if terms.content is None else terms.content
    plan = _Plan(length, slots, scale, causal, terms.first_entry)
    asked = None if tables[0] is None else distance_queries
    out: Tensor = _Tiled.apply(q, k, v, asked, bias, *tables, plan, mask)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class _Plan:
    """The sizes of an attention, and its division into tiles."""

    length: int
    slots: int
    scale: float
    causal: bool
    before: int | None

    def tiles(self, batch: int, heads: int) -> Iterator[tuple[slice, slice, slice]]:
        """Yield samples, heads and reversed queries; more than one of the former with all of the latter."""
        plane = max(1, self.length * self.slots)
        samples = max(1, _TILE // (heads * plane))
        together = min(heads, max(1, _TILE // plane))
        few = min(self.length, max(1, _TILE // max(1, together * self.slots)))
        for b in range(0, batch, samples):
            for head in range(0, heads, together):
                for row in range(0, self.length, few):
                    ends = min(b + samples, batch), min(head + together, heads), min(row + few, self.length)
                    yield slice(b, ends[0]), slice(head, ends[1]), slice(row, ends[2])

    def keys(self, rows: slice) -> int:
        """Return how many keys some query of a tile may attend to."""
        return max(1, self.slots - rows.start) if self.causal else self.slots


def _diagonal(x: Tensor, keys: int) -> Tensor:
    """View (..., R, keys + R - 1) as (..., R, keys): row r from its column r on."""
    *shape, rows, width = x.shape
    return x.as_strided((*shape, rows, keys), (*x.stride()[:-2], width + 1, 1))


class _Table:
    """Vectors of the distance (heads, N, D) and their gradients.

    Args:
        table: all entries, or those from `before` on.
        before: see `AttentionTerms`.
    """

    def __init__(self, table: Tensor, before: int | None) -> None:
        self.table, self.before = table, before
        self.gradient = torch.zeros_like(table, memory_format=torch.contiguous_format)

    def _part(self, heads: slice, first: int, width: int, batch: int) -> Tensor:
        whole = self.table[heads]
        part = whole[:, first : first + width] if self.before is None else whole
        return part if batch == 1 else part.repeat(batch, 1, 1)

    def _ends(self, first: int, width: int) -> tuple[int, int, int]:
        """Return how many columns have the first and the last entry, and the entry after the former."""
        assert self.before is not None
        left = min(max(self.before - first + 1, 0), width)
        right = min(max(first + width - self.before - self.table.shape[1] + 1, 0), width)
        return left, right, first + left - self.before

    def dots(self, x: Tensor, heads: slice, first: int, width: int) -> Tensor:
        """Return the products of x (g, R, D) with entries first, first + 1, ...: (g, R, width)."""
        part = self._part(heads, first, width, len(x) // (heads.stop - heads.start))
        dots = torch.bmm(x, part.mT)
        if self.before is None:
            return dots
        left, right, entry = self._ends(first, width)
        middle = dots[..., entry : entry + width - left - right]
        ends = dots[..., :1].expand(-1, -1, left), dots[..., -1:].expand(-1, -1, right)
        return torch.cat([ends[0], middle, ends[1]], -1)

    def weighted(self, sums: Tensor, heads: slice, first: int) -> tuple[Tensor, Tensor]:
        """Return (g, R, width) times the entries, (g, R, D), and the weights of the table's own entries."""
        width = sums.shape[-1]
        if self.before is not None:
            left, right, entry = self._ends(first, width)
            entries = sums.new_zeros(*sums.shape[:-1], self.table.shape[1])
            entries[..., entry : entry + width - left - right] = sums[..., left : width - right]
            entries[..., 0] += sums[..., :left].sum(-1)
            entries[..., -1] += sums[..., width - right :].sum(-1)
            sums = entries
        return sums @ self._part(heads, first, width, len(sums) // (heads.stop - heads.start)), sums

    def learn(self, sums: Tensor, x: Tensor, heads: slice, first: int, scale: float) -> None:
        """Add to the gradient that of the products of x (g, R, D) with weights of `weighted`."""
        into = self.gradient[heads]
        into = into[:, first : first + sums.shape[-1]] if self.before is None else into
        if len(x) == len(into):
            into.baddbmm_(sums.mT, x, alpha=scale)
        else:
            into.add_((sums.mT @ x).view(-1, *into.shape).sum(0), alpha=scale)


class _KeyTable:
    """Vectors of the distance (heads, N, D) that keys meet, block by block, and their gradients.

    Args:
        table: all entries.
        k: keys (batch, heads, S, D).
        scale: factor of the products.
        zeros: makes zeros of a shape, the same tensor for the same shape.
    """

    def __init__(self, table: Tensor, k: Tensor, scale: float, zeros: Callable[..., Tensor]) -> None:
        self.entries, self.zeros, self.scale = table.shape[1], zeros, scale
        self.table = F.pad(table, (0, 0, 0, 2 * _BLOCK))  # the last blocks may reach past the end
        self.gradient = torch.zeros_like(self.table)
        # scaled and in whole blocks, (batch, heads, blocks, _BLOCK, D)
        self.blocks = F.pad(k * scale, (0, 0, 0, -k.shape[2] % _BLOCK)).view(
            *k.shape[:2], -1, _BLOCK, k.shape[3]
        )

    def _met(self, tile: tuple[slice, slice, slice], count: int) -> tuple[Tensor, Tensor]:
        """Return blocks of keys (g, blocks, _BLOCK, D) and the entries that each meets in a tile.

        The latter are (g, blocks, rows + _BLOCK - 1, D).
        """
        samples, heads, rows = tile
        many, window = -(-count // _BLOCK), rows.stop - rows.start + _BLOCK - 1
        blocks = self.blocks[samples, heads, :many].flatten(0, 1)
        windows = self.table[heads, rows.start :].unfold(1, window, _BLOCK)[:, :many].mT
        batch = samples.stop - samples.start
        return blocks, windows if batch == 1 else windows.repeat(batch, 1, 1, 1)

    @staticmethod
    def _pairs(products: Tensor, rows: int) -> Tensor:
        """View products of windows and keys, (g, blocks, window, _BLOCK), as (g, rows, blocks, _BLOCK)."""
        g, blocks, window, keys = products.shape
        strides = blocks * window * keys, keys, window * keys, keys + 1
        return products.as_strided((g, rows, blocks, keys), strides)

    def add_to(self, logits: Tensor, tile: tuple[slice, slice, slice]) -> None:
        """Add k_s c_{r + s} to the logits of a tile, (g, R, keys), for reversed queries r."""
        rows, count = logits.shape[1:]
        blocks, windows = self._met(tile, count)
        pairs, whole = self._pairs(windows @ blocks.mT, rows), count // _BLOCK
        logits[..., : whole * _BLOCK].view(len(logits), rows, whole, _BLOCK).add_(pairs[:, :, :whole])
        if rest := count % _BLOCK:
            logits[..., -rest:] += pairs[:, :, -1, :rest]

    def learn(self, logits_gradient: Tensor, keys_gradient: Tensor, tile: tuple[slice, slice, slice]) -> None:
        """Add to the gradients of the table and of keys, (g, keys, D), those of the sums of `add_to`."""
        rows, count = logits_gradient.shape[1:]
        blocks, windows = self._met(tile, count)
        (g, many), heads, first = blocks.shape[:2], tile[1], tile[2].start
        products = self.zeros(g, many, windows.shape[2], _BLOCK)
        padded = F.pad(logits_gradient, (0, many * _BLOCK - count)) if count % _BLOCK else logits_gradient
        self._pairs(products, rows).copy_(padded.view(g, rows, many, _BLOCK))
        keys_gradient.add_((products.mT @ windows).flatten(1, 2)[:, :count], alpha=self.scale)
        for start in range(0, products.shape[2], _BLOCK):
            part = products[:, :, start : start + _BLOCK]
            ends = first + start, first + start + many * _BLOCK
            for n in range(g):
                into = self.gradient[heads.start + n % (heads.stop - heads.start), slice(*ends)]
                into.view(many, _BLOCK, -1)[:, : part.shape[2]].baddbmm_(part[n], blocks[n])


class _Tiled(torch.autograd.Function):
    """Attention tile by tile; in here queries are reversed."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        distance_queries: Tensor | None,
        bias: Tensor | None,
        queries: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        plan: _Plan,
        mask: Tensor | None,
    ) -> Tensor:
        tensors = q, k, v, distance_queries, bias, queries, keys, values
        work = _Work(tensors, plan, mask)
        out = v.new_empty(*q.shape[:3], v.shape[-1])
        lse = q.new_empty(*q.shape[:3], 1)
        for tile in plan.tiles(*q.shape[:2]):
            work.forward(tile, out, lse)
        ctx.save_for_backward(*tensors, mask, out, lse)
        ctx.plan = plan
        return out.flip(2)

    @staticmethod
    @refuse_second_derivatives("attention in tiles", "model.set_attn_implementation('eager')")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, mask, out, lse = ctx.saved_tensors
        work = _Work(tensors, ctx.plan, mask)
        return *work.backward(gradients[0].flip(2).contiguous(), out, lse), None, None


class _Work:
    """One attention: its tensors as the tiles read them."""

    def __init__(self, tensors: Iterable[Any], plan: _Plan, mask: Tensor | None) -> None:
        q, k, v, distance_queries, bias, queries, keys, values = tensors
        # so that samples and heads flatten without a copy
        self.q, self.k, self.v = (x.contiguous() for x in (q.flip(2), k, v))
        self.distance_queries = (
            None
            if distance_queries is None
            else self.q
            if distance_queries is q
            else distance_queries.flip(2).contiguous()
        )
        self.bias, self.plan = bias, plan
        self.zeros = cache(q.new_zeros)  # entries outside of a diagonal view stay zero
        self.queries = None if queries is None else _Table(queries, plan.before)
        self.values = None if values is None else _Table(values, plan.before)
        self.keys = None if keys is None else _KeyTable(keys, self.k, plan.scale, self.zeros)
        self.closed = None
        if mask is not None:
            mask = mask.view(*(1,) * (4 - mask.ndim), *mask.shape)
            closed = ~(mask.flip(2) if mask.shape[2] > 1 else mask)
            self.closed = closed.expand(*q.shape[:3], k.shape[2])

    def logits(self, tile: tuple[slice, slice, slice], q: Tensor, k: Tensor) -> Tensor:
        """Return the logits of a tile, (g, R, keys), in memory that is theirs alone."""
        (samples, heads, rows), plan = tile, self.plan
        count, slots, first = rows.stop - rows.start, k.shape[1], rows.start
        width = slots + count - 1
        if self.queries is not None:
            assert self.distance_queries is not None
            distance_queries = self.distance_queries[tile].flatten(0, 1)
            dots = self.queries.dots(distance_queries * plan.scale, heads, first, width)
            if self.bias is not None:
                by_head = dots.view(-1, heads.stop - heads.start, count, width)
                by_head += self.bias[heads, None, first : first + width]
            logits = _diagonal(dots, slots).baddbmm_(q, k.mT, alpha=plan.scale)
        elif self.bias is not None:
            base = self.bias[heads, first : first + width].unfold(1, slots, 1)
            if (batch := samples.stop - samples.start) > 1:
                base = base.repeat(batch, 1, 1)
            logits = torch.baddbmm(base, q, k.mT, alpha=plan.scale)
        else:
            logits = torch.bmm(q, k.mT).mul_(plan.scale)
        if self.keys is not None:
            self.keys.add_to(logits, tile)
        if self.closed is not None:
            logits.masked_fill_(self.closed[tile][..., :slots].flatten(0, 1), -torch.inf)
        return logits

    def forward(self, tile: tuple[slice, slice, slice], out: Tensor, lse: Tensor) -> None:
        """Compute the outputs of a tile and the logarithms of its sums."""
        samples, heads, rows = tile
        slots = self.plan.keys(rows)
        q, k, v = (
            x.flatten(0, 1) for x in (self.q[tile], *(y[samples, heads, :slots] for y in (self.k, self.v)))
        )
        logits = self.logits(tile, q, k)
        most = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
        weights = logits.sub_(most).exp_()
        total = weights.sum(-1, keepdim=True)
        nothing = total == 0  # of a query that may attend to no key
        total.masked_fill_(nothing, 1.0)
        into = out[tile].flatten(0, 1)
        torch.bmm(weights, v, out=into)
        if self.values is not None:
            skewed = self.zeros(len(q), q.shape[1], slots + q.shape[1] - 1)
            _diagonal(skewed, slots).copy_(weights)
            into += self.values.weighted(skewed, heads, rows.start)[0]
        into /= total
        lse[tile] = most.add_(total.log_()).masked_fill_(nothing, torch.inf).view_as(lse[tile])

    def backward(self, above: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v, distance_queries, bias and the tables."""
        plan = self.plan
        mean = (above * out).sum(-1, keepdim=True)
        q_gradient, k_gradient = torch.empty_like(self.q), torch.zeros_like(self.k)
        v_gradient = torch.zeros_like(self.v)
        distance_query_gradient = (
            None if self.distance_queries is None else torch.empty_like(self.distance_queries)
        )
        bias_gradient = None if self.bias is None else torch.zeros_like(self.bias)
        for tile in plan.tiles(*self.q.shape[:2]):
            samples, heads, rows = tile
            slots, first = plan.keys(rows), rows.start
            near = samples, heads, slice(slots)
            q, k, v = (x.flatten(0, 1) for x in (self.q[tile], self.k[near], self.v[near]))
            g = above[tile].flatten(0, 1)
            weights = self.logits(tile, q, k).sub_(lse[tile].flatten(0, 1)).exp_()
            shape = len(q), q.shape[1], slots + q.shape[1] - 1
            v_gradient[near].flatten(0, 1).baddbmm_(weights.mT, g)
            if self.values is None:
                weights_gradient = torch.bmm(g, v.mT)
            else:
                skewed = self.zeros(*shape)
                _diagonal(skewed, slots).copy_(weights)
                self.values.learn(self.values.weighted(skewed, heads, first)[1], g, heads, first, 1.0)
                base = _diagonal(self.values.dots(g, heads, first, shape[2]), slots)
                weights_gradient = torch.baddbmm(base, g, v.mT)
            weights_gradient.sub_(mean[tile].flatten(0, 1))
            if bias_gradient is None and self.queries is None:
                logits_gradient = weights_gradient.mul_(weights)
            else:
                skewed = self.zeros(*shape)
                logits_gradient = torch.mul(weights_gradient, weights, out=_diagonal(skewed, slots))
                if bias_gradient is not None:
                    sums = skewed.sum(1).view(-1, heads.stop - heads.start, shape[2])
                    bias_gradient[heads, first : first + shape[2]] += sums.sum(0)
                if self.queries is not None:
                    assert self.distance_queries is not None
                    assert distance_query_gradient is not None
                    weighted, sums = self.queries.weighted(skewed, heads, first)
                    torch.mul(weighted, plan.scale, out=distance_query_gradient[tile].flatten(0, 1))
                    distance_queries = self.distance_queries[tile].flatten(0, 1)
                    self.queries.learn(sums, distance_queries, heads, first, plan.scale)
            torch.bmm(logits_gradient, k, out=q_gradient[tile].flatten(0, 1)).mul_(plan.scale)
            into = k_gradient[near].flatten(0, 1)
            into.baddbmm_(logits_gradient.mT, q, alpha=plan.scale)
            if self.keys is not None:
                self.keys.learn(logits_gradient, into, tile)
        tables = (
            None if self.queries is None else self.queries.gradient,
            None if self.keys is None else self.keys.gradient[:, : self.keys.entries],
            None if self.values is None else self.values.gradient,
        )
        return (
            q_gradient.flip(2),
            k_gradient,
            v_gradient,
            None if distance_query_gradient is None else distance_query_gradient.flip(2),
            bias_gradient,
            *tables,
        )
