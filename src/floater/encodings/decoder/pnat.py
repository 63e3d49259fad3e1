"""Non-autoregressive Transformer by Position Learning (Bao et al. 2019): PNAT."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings.absolute.tokens import even, skip_padding, whole_sequence
from floater.encodings.card import Card
from floater.encodings.decoder.pointer import PointerNetwork
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.positions import Positions


@register("pnat")
class PositionLearning(PositionModel):
    """Sinusoids in an order predicted from the tokens: for a decoder that writes all of them at once.

    Dufter et al. 2022, section 4.4, and the released program are the specification. A decoder that writes all
    tokens at once reads copies of the encoded source, in the order of the source. A pointer network predicts
    their permutation into the order of the target; in training the reference permutation is
    that of `heuristic_order`, and the pointer network learns it by a loss of its own. All of that is in
    `FloaterForNonAutoregressiveGeneration`, whose decoder gets the inputs in their new order, so that
    positions t are as usual. Anywhere else the model permutes the positions of the given tokens.

    Of the program's predictors this is the one that picks position after position, with less in it: GRUs and
    dot products. The program has LSTMs, after blocks that attend to the source, and an additive score. Its
    predictor of relative positions and the relative attention of its decoder are not implemented.

    Args:
        plain: use plain sinusoids, as the encoder of such a decoder does by default. The decoder has its
            pointer network in any case.

    Raises:
        PositionError: if dim is odd, decoding has a cache, or documents are packed.

    Example:
        >>> model = PositionLearning(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> out = model.embed(torch.zeros(1, 3, 2), model.prepare(Positions.arange(3)))
        >>> out[0, :, 0].sort().values  # sin 0, sin 2 and sin 1
        tensor([0.0000, 0.8415, 0.9093])
    """

    length_aware, autoregressive = True, False

    card = Card(
        paper="Bao et al. 2019",
        link="https://arxiv.org/abs/1911.10677",
        stacks={"decoder": "translation and paraphrases, all tokens at once"},
        point="absolute",
        equation="x_t + p_{z_t}; z a permutation: p(z | x) = prod_t p(z_t | z_{<t}, x) of a pointer network",
        parameters="23 * d * d // 2 + 13 * d",
        exceptions={
            "cache": "the permutation is one of the whole text, so it is decoded at once",
            "causal": "the permutation depends on every token",
            "gradients": "a permutation is picked, not weighed: its predictor learns from reference "
            "permutations, by a loss of its own",
            "compile": "PyTorch does not compile a GRU",
            "documents": "the permutation is one of the whole row",
        },
    )

    def __init__(self, spec: StackSpec, *, plain: bool = False) -> None:
        super().__init__(spec)
        even(spec)
        self.pointer = None if plain and spec.site != "decoder" else PointerNetwork(spec.dim)
        self.permutes = self.pointer is not None and spec.site != "decoder"
        if self.pointer is None:  # plain sinusoids
            self.card = replace(self.card, exceptions={})

    def reset_parameters(self) -> None:
        if self.pointer is not None:
            self.pointer.reset_parameters()

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        valid = None if self.pointer is None else whole_sequence(positions, "a predicted order")
        return sinusoid(positions.query, self.spec.dim, dtype=self.dtype), valid

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor | None]) -> Tensor:
        vectors, valid = state
        vectors = vectors.to(x.dtype).expand_as(x)
        if not self.permutes:
            return x + vectors
        full = torch.full((len(x),), x.shape[1], device=x.device)
        lengths = full if valid is None else valid.sum(1).expand(len(x))

        def along(pair: Tensor) -> Tensor:
            tokens, sinusoids = pair.chunk(2, dim=-1)
            assert self.pointer is not None
            order = self.pointer(tokens, lengths).argsort(1)
            return torch.cat([tokens, sinusoids.gather(1, order[..., None].expand_as(sinusoids))], dim=-1)

        return x + skip_padding(torch.cat([x, vectors], dim=-1), valid, along).chunk(2, dim=-1)[1]


@torch.no_grad()
def heuristic_order(inputs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the reference permutation: each decoder input goes to the target token that it is most like.

    Bao et al. 2019, their heuristic search. The pair of the largest cosine similarity is matched first, then
    the largest of those left, and so on. Pairs that are each other's best are matched all at once: that gives
    the same, in fewer rounds. Their program puts a softmax over each input's similarities before it compares.

    Args:
        inputs: (batch, T, dim) decoder inputs.
        targets: (batch, T, dim) embeddings of the target tokens.
        valid: (batch, T) bool, False where there is padding, on the right of both.

    Returns:
        z (batch, T): input t goes to position z_t; padding stays where it is.

    Example:
        >>> words = torch.eye(3)[None]
        >>> heuristic_order(words, words[:, [1, 2, 0]], torch.ones(1, 3, dtype=torch.bool))
        tensor([[2, 0, 1]])
    """
    like = F.normalize(inputs.float(), dim=-1) @ F.normalize(targets.float(), dim=-1).mT
    slots = torch.arange(inputs.shape[1], device=inputs.device)
    order = slots.repeat(len(inputs), 1)
    row, column = valid.clone(), valid.clone()
    while bool(row.any()):
        left = like.masked_fill(~(row[:, :, None] & column[:, None]), -torch.inf)
        best, back = left.argmax(2), left.argmax(1)
        matched = row & (back.gather(1, best) == slots)
        order = best.where(matched, order)
        column = column & ~(row.gather(1, back) & (best.gather(1, back) == slots))
        row = row & ~matched
    return order
