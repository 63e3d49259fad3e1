"""Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation (He et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from floater.encodings.absolute.abacus import since, tokens_and_documents
from floater.encodings.absolute.tokens import skip_padding, whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.registry import register
from floater.encodings.relative.alibi import slopes
from floater.encodings.relative.rotary import Rotary
from floater.encodings.spec import StackSpec
from floater.positions import Positions


class Levels(NamedTuple):
    """The offset of each token in its segment, (batch or 1, T), and the state of the encoding between
    segments."""

    offset: Tensor
    turns: tuple[Tensor, Tensor] | None
    bias: Tensor | None


@register("bipe")
class BiPE(PositionModel):
    """A learned vector for the offset in a segment, and a relative encoding of the number of the segment.

    A segment is a sentence: it ends with a token of `delimiters`. Token t gets e[i], i its position in its
    segment, from 0; positions past the table have its last vector, as released (which is zero and not trained
    there, as the configurations have a padding index of -1). Attention reads the
    difference of two segments' numbers by `between`: "rotary", or "alibi" with slopes 96 times those of
    ALiBi (BiPE-RoPE and BiPE-ALiBi, section 3). Positions are not read, only tokens and their order.

    Args:
        spec: the stack of blocks; the table has max_length vectors.
        delimiters: token ids that end a segment, of which they are a part; without any a text is one segment,
            and nothing reads the other options.
        between: "rotary" or "alibi".
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
            Only "rotary" has them.
        base: base of the frequencies of "rotary", above 1.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if there are delimiters and no token ids, or
            keys of an earlier step.

    Example:
        >>> model = BiPE(StackSpec(dim=8, heads=2, layers=1, max_length=16), delimiters=[9])
        >>> at = torch.arange(6)[None]
        >>> offset, number = model.levels(Positions(at, at, token=torch.tensor([[5, 7, 9, 6, 9, 5]])))
        >>> offset.tolist(), number.tolist()
        ([[0, 1, 2, 0, 1, 0]], [[0, 0, 0, 1, 1, 2]])
    """

    card = Card(
        paper="He et al. 2024",
        link="https://arxiv.org/abs/2401.16421",
        stacks={"causal": "language models"},
        point="both",
        equation="x_t + e[i_t], i_t the place in segment n_t; rotary or ALiBi of n_t",
        parameters="t_max * d",
        exceptions={
            "real": "tokens of a segment are counted",
            "cache": "it counts the tokens of a segment, whose ids the cache does not hold",
            "shift": "positions are counted within a segment, and segments within a text",
        },
        pair_matrix="with between='alibi', since segments differ from text to text",
    )
    stage = Stage.ROTATE
    derives_positions = True
    reads_content = False

    def __init__(
        self,
        spec: StackSpec,
        *,
        delimiters: Sequence[int] = (),
        between: str = "rotary",
        pairs: str = "half",
        base: float = 10000.0,
    ) -> None:
        super().__init__(spec)
        one_of("between", between, ("rotary", "alibi"))
        for name, value, default in (
            ("between", between, "rotary"),
            ("pairs", pairs, "half"),
            ("base", base, 10000.0),
        ):
            if value == default:
                continue
            if between == "alibi" and name != "between":
                raise PositionError(f"{name} is {value!r}, but between='alibi' rotates no pairs")
            if not delimiters:
                raise PositionError(f"{name} is {value!r}, but without delimiters a text is one segment")
        if any(token < 0 for token in delimiters):
            raise PositionError(f"delimiters is {delimiters!r}; token ids are not negative")
        self.delimiters = tuple(delimiters)
        self.rotary = Rotary(spec, pairs=pairs, base=base) if between == "rotary" else None
        self.table = nn.Parameter(torch.empty(spec.max_length, spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.spec.init_table(self.table)

    def levels(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return the offset of each token in its segment and the number of the segment, (batch or 1, T)."""
        if not self.delimiters and positions.token is None:
            positions = Positions(
                positions.query,
                positions.key,
                positions.key_valid,
                document=positions.document,
                token=torch.zeros_like(positions.query, dtype=torch.long),
            )
        token, document = tokens_and_documents(positions, "bipe")

        def both(pair: Tensor) -> Tensor:
            ends = torch.isin(pair[..., 0], pair.new_tensor(self.delimiters))
            documents, begins = torch.zeros_like(ends), torch.zeros_like(ends)
            documents[:, 1:] = pair[:, 1:, 1] != pair[:, :-1, 1]
            begins[:, 1:] = ends[:, :-1] | documents[:, 1:]
            count = begins.cumsum(1)
            first = torch.where(documents, count, 0).cummax(1).values  # a document's own count begins at 0
            return torch.stack([since(begins), count - first], -1)

        levels = skip_padding(torch.stack([token, document], -1), positions.key_valid, both)
        return levels[..., 0], levels[..., 1]

    def prepare(self, positions: Positions) -> Levels:
        whole_numbers(positions, "bipe")
        offset, number = self.levels(positions)
        offset = offset.clamp(max=len(self.table) - 1)
        if self.rotary is not None:
            return Levels(offset, self.rotary.prepare(Positions(number, number)), None)
        far = (number[:, None, :] - number[:, :, None]).abs()[:, None]
        slope = 96 * slopes(self.spec.heads, far.device)
        return Levels(offset, None, -far * slope.to(self.table.dtype)[:, None, None])

    def embed(self, x: Tensor, state: Levels) -> Tensor:
        return x + self.table[state.offset].to(x.dtype)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Levels]) -> QKV:
        if self.rotary is None or context.state.turns is None:
            return q, k, v
        return self.rotary.qkv(q, k, v, context.with_state(context.state.turns))

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Levels]) -> Tensor | None:
        return context.state.bias
