"""Pointer Networks (Vinyals, Fortunato, Jaitly 2015): a permutation, predicted item by item."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from floater.flow.precision import without_autocast


class PointerNetwork(nn.Module):
    """p(picks | x) = prod_t p(pick_t | picks before it, x), over the remaining items (section 2.3).

    One GRU reads the items x in both directions, another the items picked so far; the dot product of the two
    (the paper has a layer with tanh) points at the next item. It computes in the precision of its parameters.

    Args:
        dim: width of the items; even.

    Shapes: items come first in each row, padding after them. picks (batch, T): the slot of the t-th
    item; slot t itself if t is padding.

    Example:
        >>> pointer, items = PointerNetwork(4), torch.randn(1, 3, 4)
        >>> pointer(items, torch.tensor([3])).sort().values
        tensor([[0, 1, 2]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reader = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.picker = nn.GRU(dim, dim, batch_first=True)
        self.query = nn.Linear(dim, dim, bias=False)
        self.first = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters."""
        for module in (self.reader, self.picker, self.query):
            module.reset_parameters()
        nn.init.normal_(self.first)

    @torch.no_grad()
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the likeliest pick at each step, (batch, T), for items (batch, T, dim), lengths (batch,)."""
        batch, length, _ = x.shape
        slots = torch.arange(length, device=x.device)
        picks = slots.repeat(batch, 1)
        if not length:
            return picks
        with without_autocast(x):
            x, keys = self._read(x, lengths)
            left = slots < lengths[:, None]
            last, hidden = self.first.expand(batch, 1, -1), None
            for step in range(length):
                query, hidden = self.picker(last, hidden)
                logits = (self.query(query) @ keys.mT).squeeze(1).masked_fill(~left, -torch.inf)
                picked = logits.argmax(1).where(step < lengths, step)[:, None]
                picks[:, step : step + 1] = picked
                left = left.scatter(1, picked, False)
                last = x.gather(1, picked[..., None].expand(-1, -1, x.shape[-1]))
        return picks

    def loss(self, x: Tensor, lengths: Tensor, picks: Tensor) -> Tensor:
        """Return -log p(picks | x) in nats per item, a scalar.

        Args:
            x: (batch, T, dim) items.
            lengths: (batch,) number of items of each row.
            picks: (batch, T) as `forward` gives them.

        Example:
            >>> pointer, items = PointerNetwork(4), torch.randn(1, 1, 4)
            >>> pointer.loss(items, torch.tensor([1]), torch.tensor([[0]])).item()  # there is no other pick
            0.0
        """
        with without_autocast(x):
            x, keys = self._read(x, lengths)
            picked = x.gather(1, picks[:, :-1, None].expand(-1, -1, x.shape[-1]))
            queries, _ = self.picker(torch.cat([self.first.expand(len(x), 1, -1), picked], dim=1))
            slots = torch.arange(x.shape[1], device=x.device)
            item = slots < lengths[:, None]
            left = picks.argsort(1)[:, None] >= slots[:, None]
            left = left & (item[:, None] | ~item[..., None])  # rows of padding are not predicted
            logits = (self.query(queries) @ keys.mT).masked_fill(~left, -torch.inf)
            return F.cross_entropy(logits.mT, picks.where(item, -100))

    def _read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return items in the precision of the parameters, and the keys that queries point at, scaled."""
        x = x.to(self.first.dtype)
        if lengths.is_meta:  # which have no values
            keys, _ = self.reader(x)
        else:
            sizes = lengths.clamp(min=1).cpu()
            packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
            keys, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True, total_length=x.shape[1])
        return x, keys * x.shape[-1] ** -0.5
