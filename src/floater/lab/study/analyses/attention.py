"""Attention logits of each head that depend on position alone (Ke et al. 2021, Figure 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from floater.errors import DataError
from floater.lab.study.analyses.plotting import label_outer, matrix
from floater.lab.study.analyses.subject import (
    Source,
    Subject,
    foreign,
    label,
    load_subject,
    reader,
)
from floater.lab.study.analyses.untrained import example_positions
from floater.lab.training.model import eval_mode
from floater.transformer.attention import SharedInputs
from floater.transformer.blocks import Block
from floater.transformer.stacks import Decoder, Encoder
from floater.transformer.uncast import Uncast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@torch.no_grad()
def positional_logits(source: Source, length: int | None = None) -> dict[str, Tensor]:
    """Return the part of the attention logits that depends on positions alone: the logits of zero embeddings.

    For TUPE, T5, ALiBi and Transformer-XL this is the correlation, the bias or the terms of u and v that they
    add; for vectors at the input, such as learned ones, the product (p_t W_Q) (p_s W_K) in the first block;
    and for FLOATER's biases the product of (W_Q x + b + b(t)) at x = 0. A block where positions have no
    effect without words, as with rotary embeddings (except for biases of the projections), is excluded, and
    so is one that is equal to the block before.

    A model of another library is run on zero embeddings; the logits are the input of the first softmax, in
    its encoder or its only stack.

    Args:
        source: a model that reads text; see `floater.lab.study.analyses.subject.load_subject`.
        length: number of positions; by default the training length, at most 64.

    Returns:
        (heads, T, S) by block, scaled as the model scales them; NaN where a query may not attend.

    Raises:
        DataError: if no block has such a part, the model does not attend from all positions to all, there are
            fewer than two positions, or the position model does not reach that far.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> config = FloaterConfig.preset("tiny", vocab_size=9, position="alibi")
        >>> positional_logits(FloaterModel(config), 3)["block 1"][0, 0].tolist()
        [0.0, -0.25, -0.5]
    """
    of = load_subject(source)
    stacks = {
        name.rpartition(".")[2]: module
        for name, module in of.model.named_modules()
        if isinstance(module, Encoder | Decoder)
    }
    if stacks and of.model.config.attention != "softmax":
        raise DataError(f"{of.name} has linear attention: it has no logits")
    with eval_mode(of.model):
        blocks = {
            name: _logits(stack, of.model, of.length(length, 64, name)) for name, stack in stacks.items()
        } or _first(of, of.length(length, 64))
    if len(stacks) == 1:
        blocks = dict(zip([""], blocks.values(), strict=True))
    positional: dict[str, Tensor] = {}
    for name, each in blocks.items():
        before: Tensor | None = None
        for block, logits in enumerate(each, start=1):
            if _tells(logits) and (before is None or not torch.allclose(logits, before, equal_nan=True)):
                positional[label(name, f"block {block}")] = logits
            before = logits
    if not positional:
        raise DataError(f"{of.name} has no part of its attention that positions give without words")
    return positional


def _first(of: Subject, length: int) -> dict[str, list[Tensor]]:
    """Return the logits (heads, T, S) of the first softmax of another library's model."""
    model = of.model
    stack = reader(model)
    before, seen = stack.config._attn_implementation, _Softmax(length)
    with foreign(f"{of.name} cannot be run on {length} embeddings of zero"):
        dim = stack.get_input_embeddings().weight.shape[-1]
        zeros = torch.zeros(1, length, dim, device=model.device, dtype=model.dtype)
        mask = torch.ones(1, length, dtype=torch.long, device=model.device)
        try:
            stack.set_attn_implementation("eager")  # others have no softmax of their own
            with seen:
                stack(inputs_embeds=zeros, attention_mask=mask)
        finally:
            stack.set_attn_implementation(before)
    if seen.logits is None:
        raise DataError(f"{of.name} has no attention of all positions to all")
    (logits,) = seen.logits.float().cpu()
    masked = logits < torch.finfo(model.dtype).min / 2
    return {"encoder" * model.config.is_encoder_decoder: [logits.masked_fill(masked, torch.nan)]}


class _Softmax(TorchFunctionMode):
    """Mode that records the input of the first softmax over (1, heads, T, T)."""

    _FUNCTIONS = (torch.softmax, Tensor.softmax, F.softmax)

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.logits: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.logits is None and func in self._FUNCTIONS:
            logits = args[0] if args else kwargs["input"]
            if logits.dim() == 4 and logits.shape[-2:] == (self.length, self.length):
                self.logits = logits
        return func(*args, **(kwargs or {}))


def _tells(logits: Tensor) -> bool:
    """Return whether a query distinguishes keys, by their logits or by a mask that is more than causal."""
    masked = logits.isnan()
    most, least = (
        logits.masked_fill(masked, -torch.inf).amax(-1),
        logits.masked_fill(masked, torch.inf).amin(-1),
    )
    later = torch.ones_like(masked[0]).triu(1)
    return float((most - least).max()) > 1e-6 or bool((masked != (later & masked.any())).any())


def _logits(stack: Encoder | Decoder, model: PreTrainedModel, length: int) -> list[Tensor]:
    """Return (heads, T, S) of each block's self-attention when all embeddings are zero."""
    position, rule = stack.position, stack.rule(None, check=False)
    state = position.prepare(example_positions(position, length).to(model.device))
    shared = SharedInputs(position, Uncast(state), sharpen=rule.temperature)
    zeros = torch.zeros(1, length, model.config.hidden_size, device=model.device, dtype=model.dtype)
    blocks = []
    for layer in range(stack.repeats * len(stack.blocks)):
        block = stack.blocks[layer % len(stack.blocks)]
        assert isinstance(block, Block)
        x = position.block(position.embed(zeros, state) if layer == 0 else zeros, state, layer)
        residual = block.attention_residual
        x = residual.norm(x) if residual.norm_first else x
        blocks.append(block.attention.call(x, shared, layer=layer).logits()[0])
    return [logits.masked_fill(logits == -torch.inf, torch.nan).float().cpu() for logits in blocks]


def head_map(
    axes: Axes, logits: Tensor, *, limits: tuple[float, float] | None = None, title: str = ""
) -> object:
    """Draw the positional logits of one head: a row per query, a column per key; white if masked.

    Args:
        axes: to draw on.
        logits: (T, S).
        limits: values of the first and the last colour; by default those of the logits, around zero.
        title: title of the axes.

    Returns:
        The image.

    Example:
        >>> from matplotlib.figure import Figure
        >>> _ = head_map(Figure().subplots(), torch.eye(3), title="head 1")
    """
    image = matrix(
        axes, logits, limits=limits or _limits(logits), bar=limits is None, title=title, square=True
    )
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    return image


def head_maps(figure: Figure, axes: list[Axes], logits: Tensor) -> None:
    """Draw all heads of a block with the same colours.

    Args:
        figure: figure of the axes.
        axes: one for each head.
        logits: (heads, T, S).

    Example:
        >>> from floater.lab.study.analyses.plotting import panels
        >>> head_maps(*panels(2), torch.eye(3).expand(2, 3, 3))
    """
    limits = _limits(logits)
    for head, (at, head_logits) in enumerate(zip(axes, logits, strict=True), start=1):
        image = head_map(at, head_logits, limits=limits, title=f"head {head}")
    label_outer(axes)
    figure.colorbar(image, ax=axes, label="logit")  # type: ignore[arg-type]


def _limits(logits: Tensor) -> tuple[float, float]:
    largest = float(logits.nan_to_num().abs().max()) or 1.0
    return -largest, largest
