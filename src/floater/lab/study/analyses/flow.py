"""The flow as curves over time (Liu et al. 2020, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from floater.errors import DataError
from floater.flow import FlowEncoder
from floater.lab.study.analyses.plotting import COLOURS, tidy
from floater.lab.study.analyses.smoothness import mark_trained
from floater.lab.study.analyses.subject import LONGEST, Source, enter, label, load_subject
from floater.lab.training.model import eval_mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Curve:
    """A trajectory of a flow, at many positions between the integer ones.

    Args:
        positions: (P,), from 0, in tokens.
        values: (P, d).
        unit: time between two neighbouring tokens.
    """

    positions: Tensor
    values: Tensor
    unit: float


@torch.no_grad()
def curves(source: Source, length: int | None = None, points: int = 600) -> dict[str, Curve]:
    """Solve the flows of a model over twice their trained range.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`.
        length: end of the curves in tokens; by default twice the training length, at most 512.
        points: number of positions.

    Returns:
        The curve of each location: the stack if there are several, the block and the name of the vector.

    Raises:
        DataError: if the model has no flow, or two at one location.
        FlowError: if the solve fails.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, training_length=20))
        >>> by_location = curves(model, points=5)
        >>> list(by_location)[:2], by_location["block 1 key"].positions.tolist()
        (['block 1 query', 'block 1 key'], [0.0, 10.0, 20.0, 30.0, 40.0])
    """
    subject = load_subject(source)
    flows = {
        name: module for name, module in subject.model.named_modules() if isinstance(module, FlowEncoder)
    }
    if not flows:
        raise DataError(f"{subject.name} has no flow")
    stacks = [_stack(name) for name in flows]
    several = len(set(stacks)) > 1
    by_location: dict[str, Curve] = {}
    with eval_mode(subject.model):
        for stack, flow in zip(stacks, flows.values(), strict=True):
            end = length or min(2 * (subject.trained_at(stack) or 256), LONGEST)
            positions = torch.linspace(0, end, points, device=subject.model.device)
            solved = flow(positions[None])
            for block in flow.blocks:
                for name in flow.names:
                    location = label(stack if several else "", f"block {block + 1}", name)
                    values = solved.at(block, name)[0].float().cpu()
                    enter(
                        subject.name,
                        by_location,
                        location,
                        Curve(positions.cpu(), values, flow.delta * flow.time_scale),
                    )
    return by_location


def _stack(name: str) -> str:
    """Return the stack of a flow from the name of its module; in a plugged model the stack is the site.

    Example:
        >>> _stack("encoder.position.flows.0"), _stack("decoder.cross_position.flows.1")
        ('encoder', 'cross')
        >>> _stack("floater.encoders.decoder.768")
        'decoder'
    """
    _, plugged, site = name.rpartition(".encoders.")
    if plugged:
        return site.partition(".")[0]
    return name.partition(".flows")[0].removesuffix("position").rstrip("._").rpartition(".")[2]


def flow_curves(
    axes: Axes,
    positions: Tensor,
    values: Tensor,
    *,
    unit: float | None = None,
    trained: int | None = None,
    title: str = "",
) -> None:
    """Draw the six components of a flow that move most, over position, with the trained range marked.

    Args:
        axes: axes to draw on.
        positions: (P,), in tokens.
        values: (P, d).
        unit: time between two neighbouring tokens, for a second scale; None for none.
        trained: training length in tokens.
        title: title of the axes.

    Example:
        >>> from matplotlib.figure import Figure
        >>> t = torch.linspace(0, 9, 50)
        >>> flow_curves(Figure().subplots(), t, torch.stack([t.sin(), t.cos()], 1), trained=5)
    """
    most = values.std(0).argsort(descending=True)[:6].tolist()
    styles = ("-", "--", "-.", ":")
    for i, component in enumerate(most):
        axes.plot(
            positions.numpy(),
            values[:, component].numpy(),
            color=COLOURS[i % len(COLOURS)],
            linestyle=styles[i % len(styles)],
            label=f"component {component}",
        )
    mark_trained(axes, trained, int(positions[-1]) + 1)
    tidy(axes, title=title, xlabel="position", ylabel="value")
    if unit is not None:
        scale = partial(mul, unit), partial(mul, 1 / unit)
        times = axes.secondary_xaxis("top", functions=scale)
        times.set_xlabel("time t of dp/dt = h(t, p)")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
