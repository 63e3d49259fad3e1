"""Position encodings before any training: what they add to the inputs, or their logits for equal words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from floater.encodings import AttentionContext, StackSpec, catalogue, options
from floater.encodings.measure import attend
from floater.errors import DataError
from floater.lab.study.analyses.plotting import Plot, matrix
from floater.positions import Positions

DRAWN = StackSpec(dim=64, heads=8, layers=2, max_length=32)
AXES = {
    "vectors": ("component", "position", "value"),
    "logits": ("key", "query", "logit less its mean"),
    "weights": ("key", "query", "weight less its mean"),
}
"""Labels of x, of y and of the values of each kind of panel."""
MOST = 2048
_SIDE = 8  # positions of a segment of `axial`


def compare(names: Sequence[str], length: int | None = None) -> Plot:
    """Draw encodings side by side: the first head, and the last one where heads differ.

    Args:
        names: names of encodings with their default options.
        length: number of positions; by default that of `DRAWN`.

    Raises:
        DataError: if the length cannot be drawn.
        PositionError: if there is no such encoding.

    Example:
        >>> compare(["alibi", "sinusoidal"], 16).numbers["alibi"].shape
        torch.Size([8, 16, 16])
    """
    from matplotlib.figure import Figure

    length = DRAWN.max_length if length is None else length
    if not 2 <= length <= MOST:
        raise DataError(f"length is {length}; encodings are drawn at 2 to {MOST} positions")
    drawn = {name: pictures(name, replace(DRAWN, max_length=length)) for name in dict.fromkeys(names)}
    heads = {name: shown if len(shown) < 2 else [shown[0], shown[-1]] for name, (_, shown) in drawn.items()}
    rows = max(map(len, heads.values()))
    figure = Figure(figsize=(3.4 * len(drawn), 3.0 * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, len(drawn), squeeze=False)
    texts = []
    for column, (name, (kind, shown)) in enumerate(drawn.items()):
        x_label, y_label, value = AXES[kind]
        stacked = torch.stack(shown)
        most = max(float(torch.quantile(_sample(stacked[stacked.isfinite()]).abs(), 0.98)), 1e-4)
        for row in range(rows):
            axes = grid[row, column]
            if row >= len(heads[name]):
                axes.remove()
                continue
            head = ", head " + str(1 if row == 0 else len(shown)) if len(shown) > 1 else ""
            values = heads[name][row]
            visible = values.masked_fill(~values.isfinite(), torch.nan)
            image = matrix(axes, visible, limits=(-most, most), title=name + head, bar=False)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            figure.colorbar(image, ax=axes, shrink=0.9, label=value, extend="both")
        count = f"{len(shown)} heads" if len(shown) > 1 else "one panel for all heads" * (kind != "vectors")
        texts.append(f"{name}: {kind}{', ' * bool(count)}{count}, colours to ±{most:.3g}")
    numbers = {name: torch.stack(shown) for name, (_, shown) in drawn.items()}
    title = f"{', '.join(drawn)} at {length} positions, untrained"
    return Plot(figure, title, "\n".join(texts), numbers)


def _sample(values: Tensor) -> Tensor:
    """Return values, or every n-th of many: quantiles are of at most 16 million."""
    return values[:: max(1, len(values) // 2**20)]


@torch.no_grad()
def pictures(name: str, spec: StackSpec) -> tuple[str, list[Tensor]]:
    """Return the effect of an encoding before any training.

    Args:
        name: name of the encoding, with its default options.
        spec: the stack that it is built for; `max_length` is the number of positions.

    Returns:
        The kind, a key of `AXES`, and the panels: the vectors (positions, components) that it adds to the
        inputs, or the logits or weights (queries, keys) of each head of the first block where every token is
        the same word, less their mean; one panel where all heads agree.

    Raises:
        PositionError: if there is no such encoding, or it refuses the sizes.

    Example:
        >>> kind, panels = pictures("sinusoidal", DRAWN)
        >>> kind, panels[0].shape
        ('vectors', torch.Size([32, 64]))
    """
    options(name)  # refuses an unknown name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kind, panels = _pictures(name, spec)
    return kind, [panel.float() for panel in panels]


def _pictures(name: str, spec: StackSpec) -> tuple[str, list[Tensor]]:
    model_class = catalogue()[name]
    # in float64: float32 would round small differences away beside the product of the words
    model = model_class(spec, **({"segment": _SIDE} if name == "axial" else {})).eval().double()
    positions = example_positions(model, spec.max_length)
    state = model.prepare(positions)
    x = torch.zeros(1, positions.query.shape[1], spec.dim, dtype=torch.float64)
    if model.overrides("qkv", "bias", "logits", "weights", "value_bias") or (
        model.overrides("mask") and not model.overrides("embed")
    ):
        heads, kind = attend(model, state, 0, x + torch.randn(spec.dim).double()).logits[0], "logits"
        if model.overrides("weights"):
            heads, kind = model.weights(heads[None], AttentionContext(state, 0))[0], "weights"
        seen = heads.isfinite()
        heads = heads - (heads.masked_fill(~seen, 0.0).sum((1, 2)) / seen.sum((1, 2)))[:, None, None]
        agree = torch.allclose(heads, heads[:1].expand_as(heads), atol=1e-5)
        return kind, list(heads[:1] if agree else heads)
    if model.overrides("projection_bias"):
        context = AttentionContext(state, 0, x, {"query": lambda y: y})
        vectors = model.projection_bias("query", context)
    elif model.card.point == "relative":  # what one word in the middle changes
        word = x.clone()
        word[0, x.shape[1] // 2] = 1.0
        vectors = model.embed(word, state) - model.embed(x, state)
    else:
        if name == "complex":  # it multiplies
            x = x + torch.tensor([1.0, 0.0]).repeat(spec.dim // 2)
        vectors = model.inputs(AttentionContext(state, 0, model.block(model.embed(x, state), state, 0)))[0]
    assert vectors is not None
    return "vectors", [vectors[0]]


def example_positions(model: nn.Module, length: int) -> Positions:
    """Return positions with all fields that a model reads; trees and graphs are a binary tree.

    Args:
        model: a position model, or a model that holds one.
        length: number of positions.

    Example:
        >>> from floater import build
        >>> example_positions(build("xl", dim=8, heads=1, layers=1, max_length=16), 4).reordered
        tensor([[1, 1, 0, 0]])
    """
    at = torch.arange(length)[None]
    positions = Positions(at, at)
    if any(hasattr(module, "needs") for module in model.modules()):
        positions = Positions.tree([[(i - 1) // 2 if i else -1 for i in range(length)]])
    return positions.but(
        target_length=torch.tensor([length]),
        language=at * 0,
        reordered=(length - 1 - at) // 2,
        token=at * 0,
    )
