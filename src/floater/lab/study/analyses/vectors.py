"""The position vectors of a model, and their heat map (Liu et al. 2020, Figure 3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.encodings import PositionModel
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.spec import Site
from floater.errors import DataError
from floater.lab.study.analyses.plotting import matrix
from floater.lab.study.analyses.subject import (
    Source,
    Subject,
    chosen,
    enter,
    foreign,
    label,
    load_subject,
    position_models,
)
from floater.lab.study.analyses.untrained import example_positions
from floater.lab.training.model import eval_mode
from floater.pretrained.plugged import flows_of, plugged, trained_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWS = 8  # words in which vectors must be the same; an order of two that words predict is so in half of them
_PROJECTIONS: dict[Site, tuple[Projection, ...]] = {
    "self": ("query", "key", "value"),
    "decoder": ("query", "key", "value", "cross_query"),
    "cross": ("key", "value"),
}
# names of the position modules of Hugging Face's models
NAMES = ("position_embeddings", "position_embedding", "embed_positions", "wpe", "pos_embed")


def vectors(source: Source, where: str | None = None, length: int | None = None) -> Tensor:
    """Return the vectors that a model adds for positions 0, 1, 2, ... at one location.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`.
        where: one of the keys of `all_vectors`; by default its first.
        length: number of positions; by default the training length, at most 512.

    Returns:
        (positions, d), in float32. Fewer than requested if a table of another library is shorter.

    Raises:
        DataError: if the model adds no such vectors, or none at that location.
        PositionError: if the position model does not reach that far.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="sinusoidal"))
        >>> vectors(model, length=3)[:, 0]  # sin(0), sin(1), sin(2)
        tensor([0.0000, 0.8415, 0.9093])
    """
    return locate_vectors(source, where, length)[1]


def locate_vectors(source: Source, where: str | None = None, length: int | None = None) -> tuple[str, Tensor]:
    """Return the location of the vectors that `vectors` returns, and the vectors."""
    subject = load_subject(source)
    by_location = all_vectors(subject, length)
    if not by_location:
        raise DataError(f"{subject.name} adds no vectors of positions")
    return cast(tuple[str, Tensor], chosen("vectors", subject.name, by_location, where))


def all_vectors(source: Source, length: int | None = None) -> dict[str, Tensor]:
    """Return the vectors of positions by the location where a model adds them, learned ones first.

    At a location the model adds a vector that depends on the position and not on the token. In the reference
    Transformer, and for a flow that was plugged into another model, locations are called "input", "block 2",
    "block 1 query" and so on, preceded by the name of the stack if there are several.

    In other models a location has the name of a module. Modules are searched by the names of Hugging Face's
    position modules; one counts if its output changes the input of the first block. Tables whose first rows
    are not positions, as RoBERTa's and BART's, are returned without those rows.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`.
        length: number of positions; by default the training length, at most 512.

    Returns:
        (positions, d) by location. Fewer than requested where a table of another library, or a flow that was
        baked, ends before.

    Raises:
        DataError: if there are fewer than two positions, or a model of another library cannot be run.
        PositionError: if the position model does not reach that far.
    """
    subject = load_subject(source)
    with eval_mode(subject.model):
        by_location = _plugged(subject, length)
        if stacks := position_models(subject.model):
            model_vectors = _stacked(subject, stacks, length)
        else:
            readable = subject.model.main_input_name == "input_ids"
            model_vectors = _tables(subject, length) if readable or not by_location else {}
    for location, vectors in model_vectors.items():
        enter(subject.name, by_location, location, vectors)
    return by_location


def _stacked(subject: Subject, stacks: Mapping[str, PositionModel], length: int | None) -> dict[str, Tensor]:
    """Return the vectors that position models of the reference Transformer add, learned ones first."""
    by_location = {
        label(stack, location): vectors
        for stack, model in stacks.items()
        for location, vectors in _added(
            model, subject.length(length, location=stack), subject.model.device
        ).items()
    }
    learned_first = sorted(by_location.items(), key=lambda item: not item[1].requires_grad)
    return {location: vectors.detach().float().cpu() for location, vectors in learned_first}


@torch.no_grad()
def _plugged(subject: Subject, length: int | None) -> dict[str, Tensor]:
    """Return the vectors of a plugged flow, baked or not, that depend on positions, by location."""
    by_location: dict[str, Tensor] = {}
    if plugged(subject.model) is None:
        return by_location
    flows, most = flows_of(subject.model), subject.length(length)
    positions = torch.arange(min(most, flows.length or most), device=subject.model.device)[None]
    for site, fields in flows.layout.items():
        solved = flows(site, positions)
        for field, (blocks, names) in fields.items():
            for block, name in itertools.product(blocks, names):
                rows = solved[field].at(block, name)[0].float().cpu()
                if _depends(rows):
                    location = label(site if len(flows.layout) > 1 else "", f"block {block + 1}", name)
                    enter(subject.name, by_location, location, rows)
    return by_location


def _depends(rows: Tensor) -> bool:
    """Return whether vectors (positions, d) differ from one another."""
    return not torch.allclose(rows, rows[:1], atol=1e-7)


def _added(model: PositionModel, length: int, device: torch.device) -> dict[str, Tensor]:
    """Return the vectors that the hooks of a position model add to any x, by location."""
    state = model.prepare(example_positions(model, length).to(device))
    zeros = torch.zeros(1, length, model.spec.dim, device=device)
    generator = torch.Generator().manual_seed(0)
    by_location: dict[str, Tensor] = {}

    def look(location: str, change: Callable[[Tensor], Tensor]) -> None:
        added = change(zeros) - zeros
        if added.shape != zeros.shape or not _depends(added[0]):
            return
        for _ in range(DRAWS):
            noise = torch.randn(zeros.shape, generator=generator).to(device)
            if not torch.allclose(added, change(noise) - noise, atol=1e-5):
                return
        by_location[location] = added[0]

    before_blocks = model.spec.site != "cross"  # where only projections are read
    if before_blocks and model.overrides("embed"):
        look("input", lambda x: model.embed(x, state))
    for layer in range(model.spec.layers):
        block = f"block {layer + 1}"
        if before_blocks and model.overrides("block"):
            look(block, lambda x, layer=layer: model.block(x, state, layer))  # type: ignore[misc]
        if before_blocks and model.overrides("inputs"):
            for i, name in enumerate(("query", "key", "value")):

                def read(x: Tensor, layer: int = layer, i: int = i) -> Tensor:
                    return model.inputs(AttentionContext(state, layer, x))[i]

                look(f"{block} {name}", read)
        for name in _PROJECTIONS[model.spec.site]:
            bias = model.projection_bias(name, AttentionContext(state, layer))
            if bias is not None:
                look(f"{block} {name}", lambda x, bias=bias: x + bias)  # type: ignore[misc]
    return by_location


def reach(subject: Subject) -> int | None:
    """Return the number of positions of a model; None if it is unknown."""
    with eval_mode(subject.model):
        if stacks := position_models(subject.model):
            ends = [model.max_positions for model in stacks.values()]
        else:
            ends = [None if table is None else len(table) for table in _modules(subject).values()]
    if plugged(subject.model) is not None:
        ends.append(trained_part(subject.model).length)
    return min((end for end in ends if end is not None), default=None)


def _tables(subject: Subject, length: int | None) -> dict[str, Tensor]:
    """Return the position vectors of another library's model, by the names of their modules."""
    tables, most = {}, subject.length(length)
    for name, table in _modules(subject).items():
        if table is None:
            table = _read(subject.model, {name: subject.model.get_submodule(name)}, most)[0][name]
        if _depends(table[:most]):
            tables[name] = table[:most].float().cpu()
    return tables


def _modules(subject: Subject) -> dict[str, Tensor | None]:
    """Find the modules that add position vectors in a model of another library, by name.

    Returns:
        The tables by module, from the row of position 0 on; None for a module that computes the vectors.
    """
    named = {
        name: module for name, module in subject.model.named_modules() if name.rpartition(".")[2] in NAMES
    }
    seen, entered = _read(subject.model, named, 2)
    tables: dict[str, Tensor | None] = {}
    for name, rows in seen.items():
        _, otherwise = _read(subject.model, named, 2, doubled=name)
        if all(map(torch.equal, entered, otherwise)):
            continue  # it is not added: RoFormer's has the angles of its rotations
        module = named[name]
        if not isinstance(module, nn.Embedding):
            tables[name] = None
            continue
        table = module.weight.detach()
        # the model itself decides which row is that of position 0
        starts = (table[:-1] == rows[0]).all(1) & (table[1:] == rows[1]).all(1)
        if bool(starts.any()):
            tables[name] = table[int(starts.nonzero()[0, 0]) :]
    return tables


@torch.no_grad()
def _read(
    model: PreTrainedModel, modules: Mapping[str, nn.Module], tokens: int, doubled: str | None = None
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Run a model of another library on one repeated token.

    Args:
        model: a Hugging Face model.
        modules: some of its modules by name.
        tokens: number of tokens.
        doubled: the module whose output is doubled.

    Returns:
        The output of each module, (tokens, d), and the input of the first block of each stack.
    """
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, out: Any) -> Any:
            first, *others = out if isinstance(out, tuple) else (out,)
            seen[name] = first.reshape(-1, first.shape[-1])[:tokens]
            if name != doubled:
                return out
            return (2 * first, *others) if others else 2 * first

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    pad = getattr(model.config, "pad_token_id", None)
    ids = torch.full((1, tokens), int(pad == 0), device=model.device)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    try:
        with foreign(f"{type(model).__name__} cannot be run on {tokens} tokens"):
            out = model.base_model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                output_hidden_states=True,
                return_dict=True,
                **more,
            )
            states = [value for name, value in out.items() if name.endswith("hidden_states")]
    finally:
        for hook in hooks:
            hook.remove()
    return seen, [several[0] for several in states if isinstance(several, tuple | list)]


def heat_map(axes: Axes, vectors: Tensor, *, title: str = "") -> None:
    """Draw position vectors, a column per position and a row per dimension (Liu et al. 2020, Figure 3).

    Blue is below zero and yellow above; the 1 % of values with the largest magnitude share the last colour.

    Args:
        axes: axes to draw on.
        vectors: (positions, d).
        title: title of the axes.

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


def similar_order(vectors: Tensor) -> Tensor:
    """Return an order of the dimensions that puts those with similar values side by side.

    Liu et al. (2020) permute the dimensions in Figure 3b to 3d "for better visualization" and do not say
    how. This is the optimal leaf order (Bar-Joseph et al. 2001) of a clustering of the dimensions by the
    distance of their values at all positions; above 1,024 dimensions, where that takes too long, any order
    of its leaves.

    Args:
        vectors: (positions, d).

    Returns:
        (d,), a permutation.

    Example:
        >>> similar_order(torch.tensor([[0.0, 5.0, 0.1, 9.0], [0.0, 5.0, 0.1, 9.0]])).tolist()
        [0, 2, 1, 3]
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    dimensions = vectors.T.double().numpy()
    tree = linkage(dimensions, "average", optimal_ordering=len(dimensions) <= 1024)
    order = torch.from_numpy(leaves_list(tree)).long()
    return order if order[0] <= order[-1] else order.flip(0)  # either end may come first
