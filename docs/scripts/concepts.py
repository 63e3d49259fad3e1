"""Draw the figures of concepts.md and design/collocation.md: `make docs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import themed
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor

from floater import Positions, catalogue
from floater.encodings import AttentionContext, StackSpec
from floater.flow import FlowEncoder, MLPField, SinusoidField, Solution, solve, solve_dense
from floater.flow.collocation.quadrature import NODES, gauss_rule

FOLDER = Path(__file__).parents[1] / "concepts"
SOFT, RULE, PANEL = "#5b6570", "#c9cfd4", "#f1f4f6"  # lesser text, frames, grounds
FIRST, SECOND, THIRD = "#0072b2", "#d55e00", "#007a5a"  # lines that must be told apart
DARK = {
    SOFT: "#a9b2bb",
    RULE: "#59626c",
    PANEL: "#2c313d",
    FIRST: "#6cc0f5",
    SECOND: "#ff9a5c",
    THIRD: "#4fd6ab",
}
COMPONENT = 0  # of a solution, that a figure shows
TRAINED, SHOWN = 16, 28  # positions that training has, and those that a figure shows


def draw(name: str, plot: Callable[[], Figure]) -> None:
    """Write a figure."""
    style = {"axes.edgecolor": SOFT, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context({**style, "font.size": 10, "legend.frameon": False}):
        figure = plot()
        (FOLDER / f"{name}.svg").write_text(themed.svg(figure, name, DARK), encoding="utf-8")
        pyplot.close(figure)


def box(
    panel: Axes, corner: tuple[float, float], width: float, height: float, edge: str = SOFT, **style: Any
) -> None:
    """Draw a box with round corners."""
    radius, style = style.pop("radius", 0.08), {"facecolor": PANEL} | style
    round_ = f"round,pad=0,rounding_size={radius}"
    panel.add_patch(FancyBboxPatch(corner, width, height, boxstyle=round_, edgecolor=edge, **style))


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure without axes, whose unit is an inch."""
    figure, panel = pyplot.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    panel.set(xlim=(0, width), ylim=(0, height))
    panel.set_axis_off()
    return figure, panel


@contextmanager
def axes(width: float = 4.1, height: float = 3.2) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure as wide as a phone, and its only axes."""
    figure, panel = pyplot.subplots(figsize=(width, height), layout="constrained")
    yield figure, panel


def field() -> MLPField:
    """Return a field of width 2 that does not read the time, so that arrows show it at any time."""
    torch.manual_seed(TURNING)
    learned = MLPField(2, hidden=12)
    with torch.no_grad():
        inner = 1.3 * torch.randn(12, 2)
        learned.inner.weight.copy_(torch.cat((inner, torch.zeros(12, 1)), 1))
        quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        outer = (0.26 * quarter - 0.01 * torch.eye(2)) @ inner.T
        learned.outer.weight.copy_(torch.cat((outer, torch.zeros(2, 1)), 1))
    return learned


STARTS = torch.tensor([[-2.0, -0.6], [0.3, 0.9]])
STEP = 0.15  # delta
TURNING = 3  # a seed


@torch.no_grad()
def path_plane() -> Figure:
    """Draw two paths of the field of width 2 through the arrows of the field."""
    learned = field()
    curve = solve(learned, STARTS, torch.linspace(0, STEP * SHOWN, 400))
    at = solve(learned, STARTS, STEP * torch.arange(SHOWN + 1.0))
    with axes() as (figure, panel):
        low, high = curve.flatten(0, 1).min(0).values - 0.5, curve.flatten(0, 1).max(0).values + 0.5
        x, y = torch.meshgrid(
            torch.linspace(low[0], high[0], 15), torch.linspace(low[1], high[1], 11), indexing="xy"
        )
        velocity = learned(torch.zeros(()), torch.stack((x, y), -1).view(-1, 2)).view(*x.shape, 2)
        panel.quiver(x, y, velocity[..., 0], velocity[..., 1], color=SOFT, alpha=0.5, width=0.004)
        for row, colour in enumerate((FIRST, SECOND)):
            trained = int(400 * TRAINED / SHOWN)
            panel.plot(*curve[: trained + 1, row].T, color=colour)
            panel.plot(*curve[trained:, row].T, color=colour, linestyle=(0, (2, 2)))
            panel.plot(*at[: TRAINED + 1, row].T, "o", color=colour, markersize=4)
            panel.plot(*at[TRAINED + 1 :, row].T, "o", color=colour, markersize=4, fillstyle="none")
            for i in (0, 1, 2, 3, TRAINED, SHOWN):
                panel.annotate(
                    "p(0)" if i == 0 else str(i), at[i, row], (5, 5), textcoords="offset points", fontsize=9
                )
        panel.set(xlabel="first component", ylabel="second component")
    return figure


@torch.no_grad()
def path_components() -> Figure:
    """Draw the components of one path over the position."""
    learned = field()
    time = torch.linspace(0, SHOWN, 300)
    curve = solve(learned, STARTS, STEP * time)[:, 0]
    at = solve(learned, STARTS, STEP * torch.arange(SHOWN + 1.0))[:, 0]
    with axes() as (figure, panel):
        panel.axvspan(TRAINED, SHOWN + 0.5, color=PANEL, zorder=0)
        for column, (colour, style, name) in enumerate(
            ((FIRST, "-", "first component"), (THIRD, "--", "second component"))
        ):
            panel.plot(time, curve[:, column], style, color=colour, label=name)
            panel.plot(at[:, column], "o", color=colour, markersize=3.5)
        low, top = panel.get_ylim()
        top += 0.15 * (top - low)
        for middle, text in ((TRAINED / 2, "training has these"), ((TRAINED + SHOWN) / 2, "untrained")):
            panel.text(middle, top, text, ha="center", va="top", color=SOFT)
        panel.set(xlabel="position i", ylabel="p(t)", xlim=(0, SHOWN + 0.5), ylim=(low, top))
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return figure


@torch.no_grad()
def sinusoid_plane() -> Figure:
    """Draw the circles of a fast and of a slow pair of components of the sinusoid."""
    solved = SinusoidField(16)
    at = solve(solved, solved.start()[None], torch.arange(9.0))[:, 0]
    angle = torch.linspace(0, 2 * torch.pi, 200)
    with axes(4.1, 2.3) as (figure, panel):
        for centre, first, colour, name in ((0.0, 0, FIRST, "fastest"), (3.1, 2, SECOND, "next")):
            panel.plot(centre + angle.cos(), angle.sin(), color=RULE)
            cosine, sine = at[:, first + 1], at[:, first]
            panel.plot(centre + cosine, sine, "o", color=colour, markersize=5)
            for i in range(len(at)):
                where = centre + 1.22 * cosine[i], 1.22 * sine[i]
                panel.text(*where, str(i), ha="center", va="center", fontsize=8)
            panel.text(centre, 0, f"{name}\npair", ha="center", va="center", color=SOFT)
        panel.set_aspect("equal")
        panel.set_axis_off()
    return figure


@torch.no_grad()
def sinusoid_components() -> Figure:
    """Draw the components of the closed form, and the solution of the field at the positions."""
    solved, rates = SinusoidField(16), 1e-4 ** (torch.arange(8) / 8)
    at = solve(solved, solved.start()[None], torch.arange(SHOWN + 1.0))[:, 0]
    time = torch.linspace(0, SHOWN, 400)
    with axes(4.1, 2.6) as (figure, panel):
        for pair, colour in enumerate((FIRST, SECOND, THIRD)):
            panel.plot(
                time, (time * rates[pair]).sin(), color=colour, label="closed form" if pair == 0 else None
            )
            panel.plot(
                at[:, 2 * pair],
                "o",
                color=colour,
                markersize=4,
                fillstyle="none",
                label="solved" if pair == 0 else None,
            )
        panel.set(xlabel="position i", ylabel="sine components")
        panel.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1))
    return figure


def blocks() -> Figure:
    """Draw where the vectors enter a Transformer."""
    figure, panel = canvas(4.1, 5.2)

    def named(x: float, y: float, width: float, height: float, text: str, edge: str = SOFT) -> None:
        box(panel, (x, y), width, height, edge)
        panel.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9.5)

    def arrow(start: tuple[float, float], end: tuple[float, float], colour: str = SOFT) -> None:
        looks = {"arrowstyle": "-|>", "mutation_scale": 10, "color": colour, "linewidth": 1.1}
        panel.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **looks))

    named(2.0, 0.1, 1.9, 0.42, "word vectors")
    named(2.0, 0.82, 1.9, 0.42, "+ sinusoids")
    arrow((2.95, 0.52), (2.95, 0.82))
    arrow((2.95, 1.24), (2.95, 1.56))
    for base, name in ((1.56, "block 1"), (3.32, "block 2")):
        box(panel, (1.85, base), 2.2, 1.5, RULE, facecolor="none", radius=0.1)
        panel.text(3.97, base + 1.4, name, ha="right", va="center", fontsize=8.5, color=SOFT)
        for letter, x in (("q", 2.0), ("k", 2.68), ("v", 3.36)):
            named(x, base + 0.12, 0.56, 0.4, letter, SECOND)
            arrow((x + 0.28, base + 0.52), (x + 0.28, base + 0.72))
        named(2.0, base + 0.72, 1.92, 0.5, "attention,\nfeed-forward")
    arrow((2.95, 3.06), (2.95, 3.32))
    arrow((2.95, 4.82), (2.95, 5.12))
    named(0.1, 2.7, 1.15, 0.75, "field h(t, p)\nfor all blocks", SECOND)
    for y, align, text in (
        (2.5, "top", "one solve,\na start for each\nof q, k, v in\neach block"),
        (3.6, "bottom", "vectors join\nqueries, keys\nand values"),
    ):
        panel.text(0.68, y, text, ha="center", va=align, fontsize=8.5, color=SOFT)
    arrow((1.25, 3.0), (1.98, 1.88), SECOND)
    arrow((1.25, 3.2), (1.98, 3.64), SECOND)
    return figure


def moments() -> Figure:
    """Draw when the flow is solved: a lane each for training, inference, longer texts, and baked vectors."""
    figure, panel = canvas(4.1, 3.1)
    lanes = (
        ("training", ("solve",) * 6),
        ("refresh_every: 3", ("solve", "read", "read") * 2),
        ("generation", ("solve", "read", "read", "read", "more", "read")),
        ("baked", ("read",) * 6),
    )
    for lane, (name, steps) in enumerate(lanes):
        y = 2.45 - 0.66 * lane
        panel.text(0.05, y + 0.2, name, va="center", fontsize=9.5)
        for column, step in enumerate(steps):
            x = 1.2 + 0.48 * column
            colour, edge, width = ("#000000", SECOND, 1.6) if step != "read" else (SOFT, RULE, 1.0)
            box(panel, (x, y), 0.43, 0.4, edge, radius=0.06, linewidth=width)
            panel.text(x + 0.215, y + 0.2, step, ha="center", va="center", fontsize=8.5, color=colour)
    panel.annotate("", (4.08, 0.3), (1.2, 0.3), arrowprops={"arrowstyle": "-|>", "color": SOFT})
    panel.text(2.6, 0.02, "steps of training, or tokens", ha="center", va="bottom", fontsize=8.5, color=SOFT)
    return figure


WORDS = ["The", "cat", "sat", ".", "It", "saw", "the", "dog", ".", "The", "dog", "sat", "."]
RATES = torch.tensor([2.5 if word == "." else 0.25 for word in WORDS])  # a clock that counts sentences


@torch.no_grad()
def matrix(kind: str) -> Figure:
    """Draw the part of the logits that depends on positions, of an untrained encoding of each kind."""
    torch.manual_seed(3)
    spec = StackSpec(dim=16, heads=2, layers=1, max_length=16)
    if kind == "absolute":
        model = catalogue()["floater"](spec)
        for flow in (module for module in model.modules() if isinstance(module, FlowEncoder)):
            flow.start.normal_()
        state = model.prepare(Positions.arange(len(WORDS)))
        query, key = (state.vectors[0].at(0, name)[0] for name in ("query", "key"))
        values = query @ key.T
    else:
        model = catalogue()["floater_relative"](spec)
        times = torch.arange(len(WORDS)).double() if kind == "relative" else RATES.double().cumsum(0)
        state = model.prepare(Positions.times(times[None]))
        zeros = torch.zeros(1, 2, len(WORDS), 8)
        values = model.bias(zeros, zeros, AttentionContext(state, 0))[0, 0]
    values = values - values.mean()
    with axes(3.6, 3.3) as (figure, panel):
        most = float(values.abs().max())
        panel.imshow(values, cmap="viridis", vmin=-most, vmax=most)
        ticks = range(len(WORDS))
        panel.set_xticks(ticks, WORDS, rotation=90, fontsize=8.5)
        panel.set_yticks(ticks, WORDS, fontsize=8.5)
        panel.set(xlabel="key", ylabel="query", title=kind)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    return figure


@torch.no_grad()
def solution() -> tuple[MLPField, Tensor, Solution]:
    """Return a field of width 16 at PyTorch's initial weights, the start of a row, and the solved curve."""
    torch.manual_seed(5)
    learned, start = MLPField(16), torch.randn(1, 16)
    with torch.no_grad():
        learned.inner.weight.mul_(2)
        learned.inner.weight[:, 16:].div_(4)
        learned.outer.weight[:, 16:].zero_()
    return learned, start, solve_dense(learned, start, 12.0)


@torch.no_grad()
def collocation_intervals() -> Figure:
    """Draw a component of a solution over its intervals, with their nodes."""
    _, _, curve = solution()
    nodes = gauss_rule(NODES).nodes
    with axes() as (figure, panel):
        times = torch.linspace(0, 12, 500)
        panel.plot(times, curve.at(times)[:, 0, COMPONENT], color=FIRST)
        for index, (left, right) in enumerate(pairwise(curve.edges)):
            at = left + (right - left) * nodes
            panel.plot(at, curve.at(at)[:, 0, COMPONENT], "o", color=SECOND, markersize=3.5)
            if index % 2 == 0:
                panel.axvspan(left, right, color=PANEL, zorder=0)
        panel.set(xlabel="time t", ylabel="a component of p(t)", xlim=(0, 12))
    return figure


@torch.no_grad()
def collocation_iterations() -> Figure:
    """Draw the change in each fixed-point iteration on an interval of three lengths."""
    learned, start, curve = solution()
    learned, rule = learned.double(), gauss_rule(NODES)
    longest = max(right - left for left, right in pairwise(curve.edges))
    with axes() as (figure, panel):
        for part, colour, mark in ((1, SECOND, "o"), (2, FIRST, "s"), (4, THIRD, "^")):
            length, states, changes = longest / part, start.double().expand(NODES, -1), []
            for _ in range(9):
                velocities = torch.cat(
                    [learned(length * node, p[None]) for node, p in zip(rule.nodes, states, strict=True)]
                )
                following = start.double() + length * rule.quadrature @ velocities
                changes.append(float((following - states).abs().max()))
                states = following
            label = "longest chosen" if part == 1 else f"1/{part} of it"
            panel.semilogy(
                range(1, 10), changes, mark, linestyle="-", color=colour, markersize=4, label=label
            )
        panel.set(xlabel="iteration", ylabel="change of the states")
        panel.legend()
    return figure


def main() -> None:
    """Draw all figures."""
    FOLDER.mkdir(exist_ok=True)
    plots: dict[str, Callable[[], Figure]] = {
        "path-plane": path_plane,
        "path-components": path_components,
        "sinusoid-plane": sinusoid_plane,
        "sinusoid-components": sinusoid_components,
        "blocks": blocks,
        "moments": moments,
        "collocation-intervals": collocation_intervals,
        "collocation-iterations": collocation_iterations,
    }
    for name, plot in plots.items():
        draw(name, plot)
    for kind in ("absolute", "relative", "clock"):
        draw(kind, partial(matrix, kind))


if __name__ == "__main__":
    main()
