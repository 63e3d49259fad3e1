"""The four terms of attention logits: units and positions by units and positions (Dufter et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from floater.encodings.attention import AttentionCall
from floater.errors import DataError
from floater.lab.study.analyses.attention import head_map
from floater.lab.study.analyses.plotting import label_outer
from floater.lab.study.analyses.probe import random_tokens, text_tokens
from floater.lab.study.analyses.subject import Source, example_inputs, load_subject, reader
from floater.lab.training.model import eval_mode
from floater.positions import Positions
from floater.transformer.attention import SharedInputs
from floater.transformer.stacks import Encoder
from floater.transformer.uncast import Uncast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST, ROWS = 64, 32


class Terms(NamedTuple):
    """Terms of the logits of a block, (rows, heads, T, S) each, NaN where a query may not attend.

    The query is named first: `unit_position` is that of the query's unit and the key's position.
    """

    unit_unit: Tensor
    unit_position: Tensor
    position_unit: Tensor
    position_position: Tensor

    @property
    def spread(self) -> Tensor:
        """Return the standard deviation of each term over the keys of a query, (4, heads).

        A constant that is added to all logits of a query changes no weight, so the mean over the keys is
        subtracted.
        """
        means = [term - term.nanmean(-1, keepdim=True) for term in self]
        return torch.stack([term.square().nanmean((0, 2, 3)).sqrt() for term in means])


@torch.no_grad()
def logit_terms(
    source: Source,
    length: int | None = None,
    text: Sequence[str] | None = None,
    *,
    rows: int = ROWS,
) -> dict[str, Terms]:
    r"""Split the attention logits of each block into the terms of units and of positions.

    Dufter et al. 2022, equation 4; the expansion of Ke et al. 2021, equation 6. With L(a, b) for the logits
    of queries with (a = 1) or without (a = 0) units and keys with or without units, both with positions:

        position_position = L(0, 0)
        unit_position     = L(1, 0) - L(0, 0)
        position_unit     = L(0, 1) - L(0, 0)
        unit_unit         = L(1, 1) - L(1, 0) - L(0, 1) + L(0, 0)

    They add up to the logits. For vectors that are added to the embeddings they are the products of equation
    4; biases of the projections belong to positions. A bias of the matrix is a term of positions, that of
    Shaw et al. has one with the query's unit, and a rotation acts within the term of units.

    The units of the first block are the embeddings, those of another block the outputs of the block before
    it, in which words and positions are mixed. A layer norm is applied to the parts with the standard
    deviation of their sum, so that the parts of its output also add up.

    Args:
        source: a model of this library that reads text; see
            `floater.lab.study.analyses.subject.load_subject`. In an encoder-decoder it is the encoder.
            What a text lacks, such as a tree, is as in `same_word_logits`.
        length: tokens of a row; by default the training length, at most 64.
        text: lines, which follow one another in the rows; without it tokens are random.
        rows: number of rows.

    Returns:
        Terms by block, of `rows` rows or as many as the text has.

    Raises:
        DataError: if it is another model, its attention is linear, it reads no tokens, or the text is too
            short.
        PositionError: if the position model does not reach that far.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> config = FloaterConfig.preset("tiny", vocab_size=9, position="alibi")
        >>> terms = logit_terms(FloaterModel(config), 3, rows=1)["block 1"]
        >>> terms.position_position[0, 0, 0].tolist(), float(terms.unit_position.abs().max())
        ([0.0, -0.25, -0.5], 0.0)
    """
    subject = load_subject(source)
    width = subject.length(length, LONGEST)
    stack = next((module for module in subject.model.modules() if isinstance(module, Encoder)), None)
    if stack is None:
        raise DataError(f"{subject.name} is not a model of this library, whose logits have the four terms")
    if stack.config.attention != "softmax":
        raise DataError(f"{subject.name} has linear attention: it has no logits")
    ids = random_tokens(subject, width, rows) if text is None else text_tokens(subject, text, width, rows)
    body, terms = reader(subject.model), {}
    with eval_mode(subject.model):
        entered: list[tuple[Any, ...]] = []
        before = stack.register_forward_pre_hook(lambda module, args: entered.append(args))
        try:
            body(**example_inputs(subject.model, ids))
        finally:
            before.remove()
        embeddings, positions = entered[0][:2]
        for layer, block_terms in enumerate(_blocks(stack, embeddings, positions), start=1):
            terms[f"block {layer}"] = block_terms
    return terms


def _blocks(stack: Encoder, x: Tensor, positions: Positions) -> Iterator[Terms]:
    """Yield the terms of each block for embeddings x (rows, T, dim)."""
    position, rule = stack.position, stack.rule(None, check=False)
    (positions,) = stack.timed(rule, positions)
    state = position.prepared(positions)
    shared = SharedInputs(position, Uncast(state), positions.visible, rule.temperature)
    bare = position.embed(torch.zeros_like(x), state)  # what positions add without units
    x = position.embed(x, state)
    bare, x = _normed(stack.embedding_norm, bare.expand_as(x), x), stack.embedding_norm(x)
    for layer, module in stack.steps():
        block: Any = module
        parts = position.block(bare, state, layer), position.block(x, state, layer)
        if block.attention_residual.norm_first:
            norm = block.attention_residual.norm
            parts = _normed(norm, *parts), norm(parts[1])
        yield _terms(*(block.attention.call(part, shared, layer=layer) for part in parts))
        x = block(x, shared, layer=layer)
        bare = torch.zeros_like(x)


def _terms(bare: AttentionCall, full: AttentionCall) -> Terms:
    """Return the terms for the calls without and with units."""

    def logits(query: AttentionCall, key: AttentionCall) -> Tensor:
        context = full.context if full in (query, key) else bare.context
        call = replace(full, context=context, q=query.q, k=key.k)
        out = call.logits()
        return out.masked_fill(out == -torch.inf, torch.nan).cpu()

    both = logits(full, full)
    positions, unit_position, position_unit = logits(bare, bare), logits(full, bare), logits(bare, full)
    return Terms(
        both - unit_position - position_unit + positions,
        unit_position - positions,
        position_unit - positions,
        positions,
    )


def _normed(norm: nn.Module, part: Tensor, whole: Tensor) -> Tensor:
    """Return the norm of a part of a sum, with the deviation of the whole and the norm's own bias."""
    if isinstance(norm, nn.Identity):
        return part
    if isinstance(norm, nn.LayerNorm):
        part, whole = (y - y.mean(-1, keepdim=True) for y in (part, whole))
    eps: Any = norm.eps
    eps = torch.finfo(whole.dtype).eps if eps is None else eps
    out = part / (whole.square().mean(-1, keepdim=True) + eps).sqrt()
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    out = out if weight is None else out * weight
    result: Tensor = out if bias is None else out + bias
    return result


def term_maps(figure: Figure, axes: list[Axes], terms: Terms) -> None:
    """Draw the four terms and their sum, mean over rows and heads, all with the same colours.

    The mean over the keys of each query is subtracted, as it changes no weight.

    Args:
        figure: figure of the axes.
        axes: five.
        terms: the terms.

    Example:
        >>> from floater.lab.study.analyses.plotting import panels
        >>> term_maps(*panels(5), Terms(*torch.randn(4, 1, 2, 3, 3)))
    """
    shown = torch.stack([*terms, sum(terms, torch.zeros_like(terms[0]))]).mean((1, 2))
    shown = shown - shown.nanmean(-1, keepdim=True)
    largest = float(shown.nan_to_num().abs().max()) or 1.0
    names = [name.replace("_", " by ") for name in Terms._fields]
    for at, part, name in zip(axes, shown, [*names, "sum"], strict=True):
        image = head_map(at, part, limits=(-largest, largest), title=name)
    label_outer(axes)
    figure.colorbar(image, ax=axes, label="logit less the query's mean")  # type: ignore[arg-type]
