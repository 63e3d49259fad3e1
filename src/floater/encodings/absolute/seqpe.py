"""SeqPE: Transformer with Sequential Position Encoding (Li et al. 2025, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one, probability
from floater.encodings.registry import register
from floater.encodings.relative.bias import PositionBias, ProductBias
from floater.encodings.spec import StackSpec
from floater.encodings.stored import Stored
from floater.positions import Positions


class _Block(nn.Module):
    """A block of GPT-2: attention and two linear layers, each after a layer norm."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.inner, self.outer = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, tokens, dim) from inputs of the same shape."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + F.dropout(self.output(y), self.dropout, self.training)
        y = self.outer(F.gelu(self.inner(self.feed_forward_norm(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


@register("seqpe")
class SeqPE(Stored, PositionBias):
    """A small Transformer over the digits of a position, whose products of vectors are added to the logits.

    The tokens are the digits, padded with leading zeros, each with a vector of its place, and a last token
    that attends to all of them; its output after a layer norm and a linear layer is p(t). All blocks add
    (p(t) W_Q + b_Q) (p(s) W_K + b_K) / sqrt(d_h), as the authors' language model does. Positions of more
    digits are an error.

    The authors add two losses to that of the task, over positions that they sample: one contrastive, one
    that distils vectors of trained positions into those of untrained ones. Neither is implemented.

    Args:
        digits: digits of a position; there are 10 ** digits positions.
        depth: blocks of the small Transformer.
        dropout: dropout of its residual branches.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real or have more digits.

    Example:
        >>> model = SeqPE(StackSpec(dim=8, heads=2, layers=3, max_length=16), digits=2)
        >>> model.max_positions, model.digit_values(torch.tensor([7, 42])).tolist()
        (100, [[0, 7], [4, 2]])
    """

    card = Card(
        paper="Li et al. 2025",
        link="https://arxiv.org/abs/2506.13277",
        stacks={"encoder": "images", "causal": "language models"},
        point="absolute",
        equation="(q_t k_s + (W_Q p(t) + b_Q) (W_K p(s) + b_K)) / sqrt(d_h), p(t) = Transformer(digits of t)",
        parameters="d * (10 + digits + 1 + depth * (12 * d + 13) + 3 * d + 5)",
        exceptions={"real": "it reads the digits of integers"},
    )

    def __init__(self, spec: StackSpec, *, digits: int = 5, depth: int = 2, dropout: float = 0.1) -> None:
        super().__init__(spec)
        at_least_one(digits=digits, depth=depth)
        probability(dropout=dropout)
        dim = spec.dim
        self.value = nn.Embedding(10, dim)
        self.add_module("place", nn.Embedding(digits, dim))
        self.last = nn.Parameter(torch.empty(dim))
        self.blocks = nn.ModuleList(_Block(dim, spec.heads, dropout) for _ in range(depth))
        self.norm, self.out, self.projections = (
            nn.LayerNorm(dim),
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
        )
        self.reset_parameters()

    @property
    def ranks(self) -> Tensor:
        """Return the vectors (digits, dim) of the ranks of digits, whose table saved models call `place`."""
        table: Tensor = self.get_submodule("place").weight  # type: ignore[assignment]
        return table

    @property
    def max_positions(self) -> int:
        """Return the number of positions with at most that number of digits."""
        return int(10 ** len(self.ranks))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.last, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)

    def digit_values(self, at: Tensor) -> Tensor:
        """Return the digits of integers (N,), the highest first, (N, digits)."""
        powers = 10 ** torch.arange(len(self.ranks) - 1, -1, -1, device=at.device)
        return at[:, None] // powers % 10

    def vectors(self, at: Tensor) -> Tensor:
        """Return p of integer positions (N,), (N, dim)."""
        x = self.value(self.digit_values(at)) + self.ranks
        # A size, as len() of a symbolic size would become a constant of an exported program.
        x = torch.cat([x, self.last.to(x.dtype).expand(x.shape[0], 1, -1)], 1)
        for block in self.blocks:
            x = block(x)
        p: Tensor = self.out(self.norm(x[:, -1]))
        return p

    def prepare(self, positions: Positions) -> ProductBias:
        whole_numbers(positions, "seqpe", self.max_positions)
        sides = positions.query, positions.key
        if positions.below is None:
            at = torch.cat([side.flatten() for side in sides])
            index = torch.arange(len(at), device=at.device)
            if not torch.compiler.is_compiling():  # the number of distinct positions depends on the data
                at, index = torch.unique(at, return_inverse=True)
            rows = torch.split(index, [side.numel() for side in sides])
            sides = rows[0].view(sides[0].shape), rows[1].view(sides[1].shape)
        else:
            at = torch.arange(positions.below, device=positions.key.device)
        (table,) = self.look_up(at, lambda new, *_: self.projections(self.vectors(new))[:, None])
        both = table.view(*table.shape[:-1], 2, self.spec.heads, self.spec.dim // self.spec.heads)
        query, key = (both[side, n].transpose(1, 2) for n, side in enumerate(sides))
        return ProductBias(query * self.scale(query.shape[-1]), key)
