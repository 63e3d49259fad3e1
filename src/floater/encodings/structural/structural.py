"""Modeling Graph Structure in Transformer for Better AMR-to-Text Generation (Zhu et al. 2019, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.registry import name_of, register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, PairVectors, Paths, Structured, mixture, scores
from floater.flow import sinusoid
from floater.positions import Positions


@register("structural")
class Structural(Structured):
    """Keys and values of a pair get a vector of the labels on the shortest path between the pair's nodes.

    Equation 28 of the survey, r from the path of the query's node to the key's. A label and the direction in
    which its edge is passed are one symbol; the empty path has a symbol of its own, and, beyond the paper, so
    does a missing path. Of several shortest paths the one over the lowest nodes is read. Two subwords of one
    word have the empty path. Each distinct sequence gets its vector once per forward pass.

    `encoder="attention"` is equation 29 of the survey: one head of self-attention over the symbols with
    sinusoids, scaled by dim^-1/2, pooled with weights softmax(W2 tanh(W1 M^T)). "cnn" convolves with kernels
    over `kernel` symbols, rectifies, and takes the maximum over the windows; shorter sequences are padded.
    The authors truncate sequences to 4 symbols, which leaves one window; here they are complete.

    W^r and W^f are (dim, dim), one pair a block, as the survey writes them. In the released code they are
    (head_dim, head_dim), have biases and are shared by the heads; its attention over paths does not pool, and
    its vectors of paths go through a layer norm; in training it drops components of symbols and paths out. As
    there all matrices and kernels start by Glorot's rule; the vectors of symbols start standard normal.

    Args:
        spec: the stack of blocks; dim must be even with "attention".
        labels: number of edge labels.
        encoder: "attention" or "cnn".
        width: inner width d_r of the pooling, with "attention".
        kernel: symbols under a kernel of the convolution, with "cnn".

    Raises:
        PositionError: if an option is not valid, the positions have no structure, or a label is out of range.

    Example:
        >>> model = Structural(StackSpec(dim=8, heads=2, layers=1, max_length=16), labels=3)
        >>> state = model.prepare(Positions.graph([[(0, 1, 2), (1, 2, 0)]]))
        >>> state.vectors.shape, state.pair.shape  # the empty path, three forward and three backward
        (torch.Size([1, 7, 8]), torch.Size([1, 3, 3]))
    """

    card = Card(
        paper="Zhu et al. 2019",
        link="https://arxiv.org/abs/1909.00136",
        stacks={"encoder": "graphs to text"},
        point="relative",
        equation="q_t (k_s + W^r r_{t,s}), sum_s A_ts (v_s + W^f r_{t,s})",
        parameters="(2 * l + 3) * d * d + (d + 1) * width + (2 * labels + 2) * d",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            unbound=True,
            parameters="5 * d^2 + (d + 1) * d_r",
            differs={"parameters": "W^r and W^f are those of one block; the symbols' vectors count too"},
        ),
        exceptions=WHOLE,
        structure="graph",
    )
    needs = "graph"

    def __init__(
        self,
        spec: StackSpec,
        *,
        labels: int = 1,
        encoder: str = "attention",
        width: int = 32,
        kernel: int = 4,
    ) -> None:
        super().__init__(spec)
        one_of("encoder", encoder, ("attention", "cnn"))
        at_least_one(labels=labels, width=width, kernel=kernel)
        for name, value, default, reads in (("width", width, 32, "attention"), ("kernel", kernel, 4, "cnn")):
            if encoder != reads and value != default:
                raise PositionError(f"{name} is {value}, which encoder={encoder!r} does not read")
        dim = spec.dim
        if encoder == "attention" and dim % 2:
            raise PositionError(f"dim is {dim}; the sinusoids of encoder='attention' need an even one")
        self.labels, self.encoder = labels, encoder
        self.symbol = nn.Embedding(2 * labels + 2, dim)
        if encoder == "attention":
            self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
            self.inner = nn.Linear(dim, width, bias=False)
            self.outer = nn.Linear(width, 1, bias=False)
        else:
            self.convolution = nn.Conv1d(dim, dim, kernel)
        self.keys = nn.Parameter(torch.empty(spec.layers, dim, dim))
        self.vectors = nn.Parameter(torch.empty(spec.layers, dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.children():
            if isinstance(module, nn.Embedding | nn.Conv1d):
                module.reset_parameters()
            if isinstance(module, nn.Linear | nn.Conv1d):
                nn.init.xavier_uniform_(module.weight)
        for weight in (*self.keys, *self.vectors):
            nn.init.xavier_uniform_(weight)

    def prepare(self, positions: Positions) -> PairVectors:
        paths = Paths(self.structure(positions), self.labels, name_of(self))
        encode = self._attend if self.encoder == "attention" else self._convolve
        return PairVectors(encode(self.symbol(paths.rows), paths)[paths.sample_rows], paths.pair)

    def _attend(self, x: Tensor, paths: Paths) -> Tensor:
        """Map (R, D, dim) to (R, dim)."""
        index = torch.arange(x.shape[1], device=x.device)
        x = x + sinusoid(index, self.spec.dim, dtype=x.dtype).to(x.dtype)
        mixed = F.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), attn_mask=paths.valid[:, None, :]
        )
        weight: Tensor = self.outer(torch.tanh(self.inner(mixed))).masked_fill(
            ~paths.valid[..., None], -torch.inf
        )
        pooled: Tensor = (weight.softmax(1) * mixed).sum(1)
        return pooled

    def _convolve(self, x: Tensor, paths: Paths) -> Tensor:
        """Map (R, D, dim) to (R, dim)."""
        kernel = self.convolution.kernel_size[0]
        x = F.pad(x * paths.valid[..., None], (0, 0, 0, max(0, kernel - x.shape[1])))
        windows: Tensor = self.convolution(x.transpose(1, 2)).relu()
        last = (paths.lengths[:, None, None] - kernel).clamp(min=0)
        within = torch.arange(windows.shape[-1], device=x.device) <= last
        return windows.masked_fill(~within, 0.0).amax(-1)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[PairVectors]) -> Tensor:
        table = context.state.heads(self.keys[context.layer], self.spec.heads).to(q.dtype)
        return scores(q, table, context.state.pair) * self.scale(q.shape[-1])

    def value_bias(self, weights: Tensor, context: AttentionContext[PairVectors]) -> Tensor:
        return mixture(
            weights, context.state.heads(self.vectors[context.layer], self.spec.heads), context.state.pair
        )
