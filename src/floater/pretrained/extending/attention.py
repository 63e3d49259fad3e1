"""Attention of rotary models over grouped distances, and with a temperature that grows with length."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from floater.encodings.precise import at_least_float32
from floater.positions.inputs import visible_keys
from floater.pretrained.extending import rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.watch import PASS, PassPositions, require_pass

NAMES = {"eager": "floater_eager", "sdpa": "floater_sdpa"}
"""Names of our attention functions in Transformers, by the function that computes ungrouped attention."""

_ROWS = 64
"""Queries of a tile on a CPU, so that its logits fit into a core's cache; sixteen times as many elsewhere."""


@dataclass(eq=False)
class Rule:
    """Changes to an attention module for long texts: grouped distances and a logit temperature.

    Args:
        group: window w and group size G, for texts longer than in training; None keeps all distances.
        trained: training length L.
        temperature: True to multiply logits by a temperature.
        rotary: module with the frequencies.
        frequencies: name of the buffer with the frequencies in that module.
        halves: True if component i is rotated with component i + dim / 2, False if with its neighbour.
    """

    group: tuple[int, int] | None
    trained: int
    temperature: bool
    rotary: nn.Module
    frequencies: str
    halves: bool


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    function: str,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a module by its `Rule`, as an attention function of Transformers.

    **Grouped distances** (Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning",
    equation 4): for a query that sees L or more positions, a key at j that is w or more before the query at i
    is rotated as if the distance were floor(i / G) - floor(j / G) + w - floor(w / G). Queries and keys are
    passed rotated by their positions and are rotated further by the difference to the grouped positions.
    Therefore a cache contains the same keys as without groups. The paper groups the distances of all queries
    of a long text. Here those of the first L tokens of a causal model stay, as they do when the text is read
    token by token.

    **Temperature** (Su 2021; Chiang and Cholak 2022): a query that sees n keys, by the mask, is multiplied by
    max(1, log n / log L).

    Args:
        module: the attention module.
        query: rotated queries, (batch, heads, T, head_dim).
        key: rotated keys, (batch, key heads, S, head_dim).
        value: values, with the shape of the keys.
        attention_mask: mask, (batch or 1, 1, T, S), either added to the logits or True for visible keys; None
            for a causal mask or none.
        function: name of the function of Transformers that computes ungrouped attention.
        kwargs: the pass, by the name PASS; `scaling`, `dropout`, `softcap` and other arguments of the
            module's attention function.

    Returns:
        The output, (batch, T, heads, head_dim), and the attention weights, or None if they are not computed.
    """
    rule: Rule | None = module.__dict__.get("floater_rule")
    if rule is None:
        raise ExtendError(
            f"{type(module).__name__} is not extended, but has the attention function of a model that is: "
            "call model.set_attn_implementation('sdpa'), or load the model by from_pretrained"
        )
    current = require_pass(kwargs.pop(PASS, None))
    causal = bool(getattr(module, "is_causal", False))
    queries, keys, mask = current.query, _slots(current.key, key.shape[2]), attention_mask
    if rule.temperature:
        warm = torch.log(_seen(current, mask, causal, key.shape[2]).float()) / math.log(rule.trained)
        query = query * warm.clamp(min=1)[:, None, :, None].to(query.dtype)

    def plain(*inputs: Any) -> tuple[Tensor, Tensor | None]:
        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        original = ALL_ATTENTION_FUNCTIONS.get_interface(function, eager)
        return original(module, *inputs, **kwargs)  # type: ignore[no-any-return]

    if rule.group is None or not getattr(module, "floater_grouped", False):
        return plain(query, key, value, mask)
    counts_up, longest = current.read
    far = queries >= rule.trained if causal else _span(keys, queries, mask) >= rule.trained
    some, every = (longest >= rule.trained, True) if causal else torch.stack((far.any(), far.all())).tolist()
    if not some:
        return plain(query, key, value, mask)
    options = {name: kwargs[name] for name in ("scaling", "dropout", "softcap") if name in kwargs}
    grouped = _GroupedAttention(module, rule, rule.group, key, value, keys, **options)
    counts_up = counts_up and key.shape[2] == current.length
    if function == "eager" or not counts_up or not every:
        return grouped.attend(query, mask, queries, far)
    cached = key.shape[2] - query.shape[2]
    near = max(0, rule.trained - cached) if causal else 0
    if not near:
        return grouped.attend_in_tiles(query, mask, queries), None
    last = cached + near
    near_mask = None if mask is None else mask[:, :, :near, :last]
    begin, _ = plain(query[:, :, :near], key[:, :, :last], value[:, :, :last], near_mask)
    far_mask = None if mask is None else mask[:, :, near:]
    end = grouped.attend_in_tiles(query[:, :, near:], far_mask, queries[:, near:])
    return torch.cat((begin, end), 1), None


def _slots(keys: Tensor, size: int) -> Tensor:
    """Return the positions of the keys in the slots of a layer's cache, (batch or 1, S)."""
    keys = keys[:, -size:]  # a cache of a window has the last keys
    return F.pad(keys, (0, size - keys.shape[1]))  # a static cache has more slots, which are masked


def _seen(current: PassPositions, mask: Tensor | None, causal: bool, keys: int) -> Tensor:
    """Return the number of keys that each query sees, (batch or 1, T), of all keys."""
    if mask is not None:
        return visible_keys(mask).sum(-1)
    count, length = current.query.shape[1], current.length
    if not causal:  # in cross-attention the keys are those of the source
        return torch.full((1, count), keys, device=current.key.device)
    return torch.arange(length - count + 1, length + 1, device=current.key.device)[None]


def _span(keys: Tensor, queries: Tensor, mask: Tensor | None) -> Tensor:
    """Return the largest distance between two keys that a query sees, (batch or 1, T)."""
    if mask is None:
        return (keys.amax(1, keepdim=True) - keys.amin(1, keepdim=True)).expand(-1, queries.shape[1])
    hidden, pairs = ~visible_keys(mask), keys[:, None]
    end = torch.iinfo(keys.dtype).max
    high, low = pairs.masked_fill(hidden, -1).amax(-1), pairs.masked_fill(hidden, end).amin(-1)
    return torch.where(low == end, 0, high - low)


@dataclass(eq=False)
class _GroupedAttention:
    """Attention of queries far into a text, over grouped distances; see `attend`.

    Args:
        module: the attention module.
        rule: its rule.
        group: window and group size of the rule.
        key: rotated keys, (batch, key heads, S, head_dim).
        value: values, with the shape of the keys.
        keys: positions of the keys, (batch or 1, S).
        scaling: factor of the logits.
        dropout: dropout rate of the weights.
        softcap: bound of the logits; None for none.
    """

    module: nn.Module
    rule: Rule
    group: tuple[int, int]
    key: Tensor
    value: Tensor
    keys: Tensor
    scaling: float
    dropout: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        self.window, self.size = self.group
        self.causal = bool(getattr(self.module, "is_causal", False))
        self.far_key = rotated(self.rule, self.key, self.keys // self.size - self.keys)

    def rotated(self, query: Tensor, queries: Tensor, direction: int) -> Tensor:
        """Rotate queries to their grouped positions, for keys before (1) or after (-1) them."""
        shift = self.window - self.window // self.size
        return rotated(self.rule, query, queries // self.size + direction * shift - queries)

    def attend(
        self, query: Tensor, mask: Tensor | None, queries: Tensor, far: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the output, (batch, T, heads, head_dim), and the weights.

        Args:
            query: rotated queries, (batch, heads, T, head_dim).
            mask: mask, (batch or 1, 1, T, S), or None.
            queries: positions of the queries, (batch or 1, T).
            far: whether distances from a query are grouped, (batch or 1, T).
        """
        repeats = query.shape[1] // self.key.shape[1]

        def logits(q: Tensor, k: Tensor) -> Tensor:
            return q @ k.repeat_interleave(repeats, 1).transpose(2, 3)

        delta = (self.keys[:, None, :] - queries[:, :, None]).masked_fill(~far[..., None], 0)[:, None]
        scores = logits(query, self.key)
        past = logits(self.rotated(query, queries, 1), self.far_key)
        scores = torch.where(delta <= -self.window, past, scores)
        if not self.causal:
            future = logits(self.rotated(query, queries, -1), self.far_key)
            scores = torch.where(delta >= self.window, future, scores)
        scores = scores * self.scaling
        if mask is None and self.causal and query.shape[2] > 1:  # Transformers leaves it to the kernel
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = _masked(scores, mask, self.softcap)
        weights = F.softmax(scores, -1, dtype=at_least_float32(query.dtype)).to(query.dtype)
        dropped = F.dropout(weights, self.dropout, self.module.training)
        output = dropped @ self.value.repeat_interleave(repeats, 1)
        return output.transpose(1, 2).contiguous(), weights

    def attend_in_tiles(self, query: Tensor, mask: Tensor | None, queries: Tensor) -> Tensor:
        """Return the output of `attend` for consecutive positions and far queries, in tiles of queries.

        Logits of a tile are computed with near keys at their own distances and with far keys at grouped ones.
        Only keys at the edges of the tile's windows take part twice, and in a causal model later keys do not
        take part.
        """
        past = self.rotated(query, queries, 1)
        future = None if self.causal else self.rotated(query, queries, -1)
        rows = query.shape[2]
        count = _ROWS if query.device.type == "cpu" else 16 * _ROWS
        # the number of tiles, and not of rows, is a constant of a compiled graph
        tiles = [slice(i * count, min((i + 1) * count, rows)) for i in range(-(-rows // count))]
        outputs = [self._tile(tile, query, past, future, mask, queries) for tile in tiles]
        return torch.cat(outputs, 2).transpose(1, 2).contiguous()

    def _tile(
        self,
        tile: slice,
        query: Tensor,
        past: Tensor,
        future: Tensor | None,
        mask: Tensor | None,
        queries: Tensor,
    ) -> Tensor:
        """Return the output of a tile, (batch, heads, rows of the tile, head_dim)."""
        window, heads, slots = self.window, self.key.shape[1], self.key.shape[2]
        cached, repeats = slots - query.shape[2], query.shape[1] // heads
        until = self.causal and mask is None
        low, high = cached + tile.start, cached + tile.stop
        end = high if until else slots if self.causal else min(slots, high + window - 1)
        # queries, keys, and the first and last key of each kind of distance
        spans = [
            (query, self.key, max(0, low - window + 1), end),
            (past, self.far_key, 0, max(0, high - window)),
        ]
        if future is not None:
            spans.append((future, self.far_key, min(slots, low + window), slots))
        logits = []
        for kind, (q, k, begin, stop) in enumerate(spans):
            # queries of heads that share keys are the rows of one matrix product
            rows = q[:, :, tile].reshape(len(q), heads, -1, q.shape[-1]) * self.scaling
            shape = len(q), heads, repeats, high - low, stop - begin
            scores = (rows @ k[:, :, begin:stop].mT).view(shape)
            visible = None if mask is None else mask[:, :, None, tile, begin:stop]
            scores = _masked(scores, visible, self.softcap)
            delta = self.keys[0, begin:stop] - queries[0, tile, None]
            if kind == 0:
                beyond = 1 if until else slots if self.causal else window
                scores.masked_fill_((delta <= -window) | (delta >= beyond), -torch.inf)
            elif kind == 1:  # the keys before these are far from every query of the tile
                edge = max(0, low - window + 1)
                scores[..., edge:].masked_fill_(delta[:, edge:] > -window, -torch.inf)
            else:
                edge = high + window - 1 - begin
                scores[..., :edge].masked_fill_(delta[:, :edge] < window, -torch.inf)
            logits.append(scores)
        weights = F.softmax(torch.cat(logits, -1), -1, dtype=at_least_float32(query.dtype)).to(query.dtype)
        weights = F.dropout(weights, self.dropout, self.module.training).flatten(2, 3)
        shares = torch.split(weights, [stop - begin for _, _, begin, stop in spans], -1)
        products = [
            share @ self.value[:, :, begin:stop]
            for share, (_, _, begin, stop) in zip(shares, spans, strict=True)
        ]
        output = sum(products[1:], products[0])
        return output.view(len(query), query.shape[1], high - low, self.value.shape[-1])


def _masked(scores: Tensor, mask: Tensor | None, softcap: float | None) -> Tensor:
    """Return logits after the soft cap, if a model has one, and a mask, boolean or added."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask


def rotated(rule: Rule, x: Tensor, shift: Tensor) -> Tensor:
    """Rotate x (batch, heads, T, head_dim) further by a shift of positions (batch or 1, T)."""
    frequencies: Tensor = getattr(rule.rotary, rule.frequencies)
    angle = (shift[:, None, :, None].double() * frequencies.double()).float()
    sin, cos = angle.sin(), angle.cos()
    width = 2 * len(frequencies)
    turned, rest = x[..., :width].float(), x[..., width:]
    a, b = turned.chunk(2, -1) if rule.halves else (turned[..., 0::2], turned[..., 1::2])
    pair = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(a * sin, b, cos)
    both = torch.cat(pair, -1) if rule.halves else torch.stack(pair, -1).flatten(-2)
    return torch.cat((both.to(x.dtype), rest), -1)


def groups(length: int, trained: int, window: int) -> int:
    """Return the smallest group size with which no distance in a text is longer than in training.

    Args:
        length: number of tokens of the text.
        trained: training length.
        window: distance below which distances are not grouped; less than the training length.

    Example:
        >>> groups(16384, 4096, 1024)
        5
    """
    return math.ceil((length - window) / (trained - window))


def grouped_layer(module: nn.Module, config: Any, trained: int) -> bool:
    """Return whether an attention module rotates queries and keys over distances beyond the training length.

    Args:
        module: attention module.
        config: configuration of its model.
        trained: training length.
    """
    return not rotary.windowed(module, config, trained) and bool(getattr(module, "use_rope", True))


for _name, _mask in (("eager", eager_mask), ("sdpa", sdpa_mask)):
    ALL_ATTENTION_FUNCTIONS.register(NAMES[_name], partial(attend, function=_name))
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAMES[_name], _mask)
