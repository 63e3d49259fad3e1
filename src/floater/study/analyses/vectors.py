"""The vectors that stand for positions in a model, and their heat map (Liu et al. 2020, Figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.encodings import PositionModel
from floater.encodings.model import Projection, Site
from floater.positions import Positions
from floater.study.analyses.pictures import matrix
from floater.study.analyses.subject import Source, Subject, chosen, foreign, label, position_models, subject
from floater.tasks.text import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PROJECTIONS: dict[Site, tuple[Projection, ...]] = {
    "self": ("query", "key", "value"),
    "decoder": ("query", "key", "value", "cross"),
    "memory": ("key", "value"),
}
# what Hugging Face's models call the module that turns positions into vectors
NAMES = ("position_embeddings", "position_embedding", "embed_positions", "wpe", "pos_embed")


def vectors(source: Source, where: str | None = None, length: int | None = None) -> Tensor:
    """The vectors that a model adds for positions 0, 1, 2, ... at one place.

    Args:
        source: see `floater.study.analyses.subject.subject`.
        where: one of the keys of `all_vectors`; by default its first.
        length: how many positions; by default the training length, at most 512.

    Returns:
        (positions, d), in float32. Fewer than asked for where a table of another library ends before.

    Raises:
        DataError: if the model adds no such vectors, or none there.
        PositionError: if the position model does not reach that far.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="sinusoidal"))
        >>> vectors(model, length=3)[:, 0]  # sin(0), sin(1), sin(2)
        tensor([0.0000, 0.8415, 0.9093])
    """
    of = subject(source)
    found = all_vectors(of, length)
    if not found:
        raise DataError(f"{of.name} adds no vectors of positions")
    return cast(Tensor, chosen("vectors", of.name, found, where)[1])


def all_vectors(source: Source, length: int | None = None) -> dict[str, Tensor]:
    """The vectors of positions by the place where a model adds them, learned ones first.

    Found by what the model does, not by its name: a place is one where something is added that depends on the
    position and not on the token. In the reference Transformer places are called "input", "block 2",
    "block 1 query" and so on, with the name of the stack before them where there are several; in other models
    they have the names of their modules. Tables whose first rows stand for no position, as RoBERTa's and
    BART's, are given without those rows.

    Args:
        source: see `floater.study.analyses.subject.subject`.
        length: how many positions; by default the training length, at most 512.

    Returns:
        (positions, d) by place.
    """
    of = subject(source)
    models = position_models(of.model)
    if not models:
        return _tables(of, length)
    found = {
        label(stack, place): vectors
        for stack, model in models.items()
        for place, vectors in _added(model, of.length(length), of.model.device).items()
    }
    learned_first = sorted(found.items(), key=lambda item: not item[1].requires_grad)
    return {place: vectors.detach().float().cpu() for place, vectors in learned_first}


def _added(model: PositionModel, length: int, device: torch.device) -> dict[str, Tensor]:
    """What the hooks of a position model add to any x, where that depends on the position alone."""
    state = model.prepare(Positions.arange(length, device=device))
    zeros = torch.zeros(1, length, model.frame.dim, device=device)
    noise = torch.randn(zeros.shape, generator=torch.Generator().manual_seed(0)).to(device)
    found: dict[str, Tensor] = {}

    def enter(place: str, change: Callable[[Tensor], Tensor]) -> None:
        added = change(zeros) - zeros
        depends = added.shape == zeros.shape and not torch.allclose(added, added[:, :1], atol=1e-7)
        if depends and torch.allclose(added, change(noise) - noise, atol=1e-5):
            found[place] = added[0]

    before_blocks = model.frame.site != "memory"  # where only projections are read
    if before_blocks and model.overrides("embed"):
        enter("input", lambda x: model.embed(x, state))
    for layer in range(model.frame.layers):
        block = f"block {layer + 1}"
        if before_blocks and model.overrides("block"):
            enter(block, lambda x, layer=layer: model.block(x, state, layer))  # type: ignore[misc]
        if before_blocks and model.overrides("inputs"):
            for i, name in enumerate(("query", "key", "value")):
                enter(f"{block} {name}", lambda x, layer=layer, i=i: model.inputs(x, state, layer)[i])  # type: ignore[misc]
        for name in _PROJECTIONS[model.frame.site]:
            own = model.projection(name, state, layer)
            if own is not None:
                enter(f"{block} {name}", lambda x, own=own: x + own)  # type: ignore[misc]
    return found


def _tables(of: Subject, length: int | None) -> dict[str, Tensor]:
    """The position vectors of a Hugging Face model of another library, by the names of their modules."""
    named = {
        name: module
        for name, module in of.model.named_modules()
        if name.rpartition(".")[2] in NAMES and isinstance(module, nn.Embedding)
    }
    found = {}
    for name, rows in _seen(of.model, named, tokens=2).items():
        table = named[name].weight.detach()
        # the model itself says which row is position 0's
        starts = (table[:-1] == rows[0]).all(1) & (table[1:] == rows[1]).all(1)
        if bool(starts.any()):
            found[name] = table[int(starts.nonzero()[0, 0]) :][:length].float().cpu()
    return found


@torch.no_grad()
def _seen(model: PreTrainedModel, modules: Mapping[str, nn.Module], tokens: int) -> dict[str, Tensor]:
    """What modules give when the model reads a few tokens, (tokens, d)."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, given: Any, out: Tensor) -> None:
            out = out[0] if isinstance(out, tuple) else out
            seen[name] = out.reshape(-1, out.shape[-1])[:tokens]

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    pad = getattr(model.config, "pad_token_id", None)
    ids = torch.tensor([[i for i in range(tokens + 1) if i != pad][:tokens]], device=model.device)
    ids = ids.clamp(max=max(vocabulary - 1, 0))
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    try:
        with foreign(f"{type(model).__name__} cannot be run on tokens"):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def heat_map(axes: Axes, vectors: Tensor, *, title: str = "") -> None:
    """Draw position vectors, a column per position and a row per dimension (Liu et al. 2020, Figure 3).

    Blue is below zero and red above; the 1 % of values that are farthest out share the last colour.

    Args:
        axes: to draw on.
        vectors: (positions, d).
        title: of the axes.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots()
        >>> heat_map(axes, torch.eye(4), title="one by one")
        >>> axes.get_title()
        'one by one'
    """
    limit = float(vectors.abs().flatten().kthvalue(max(1, int(0.99 * vectors.numel()))).values) or 1.0
    matrix(axes, vectors.T, limits=(-limit, limit), extend="both", title=title)
    axes.set_xlabel("position")
    axes.set_ylabel("dimension")
