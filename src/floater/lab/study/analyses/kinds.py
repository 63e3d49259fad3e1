"""The analyses by their names, as `floater plot` offers them: numbers, a figure and a caption each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from floater.encodings import PositionError
from floater.errors import DataError
from floater.flow import FlowEncoder
from floater.lab.study.analyses.attention import head_maps, positional_logits
from floater.lab.study.analyses.flow import curves, flow_curves
from floater.lab.study.analyses.plotting import panels
from floater.lab.study.analyses.probe import drawn, probe, probe_bars
from floater.lab.study.analyses.reordering import detect, detection_bars
from floater.lab.study.analyses.similarity import similarity, similarity_map
from floater.lab.study.analyses.smoothness import smoothness, smoothness_lines
from floater.lab.study.analyses.subject import Source, Subject, chosen, run_tokens, subject
from floater.lab.study.analyses.vectors import heat_map, placed_vectors, similar_order
from floater.lab.study.plots import PLOTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Options:
    """Options of an analysis.

    Args:
        where: the place in the model; by default the first.
        length: number of positions.
        trained: training length in tokens, if it differs from that of the model's configuration.
        text: lines that the model reads.
    """

    where: str | None = None
    length: int | None = None
    trained: int | None = None
    text: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class Plot:
    """An analysis of one model.

    Args:
        figure: the figure.
        title: title of the figure.
        text: the most important numbers in words; the caption of a report.
        numbers: all numbers by name.
    """

    figure: Figure
    title: str
    text: str
    numbers: dict[str, Tensor]


def _of_vectors(of: Subject, options: Options) -> Plot:
    place, vectors = placed_vectors(of, options.where, options.length)
    return _heat_map(of, place, vectors, {"vectors": vectors})


def _of_permuted(of: Subject, options: Options) -> Plot:
    place, vectors = placed_vectors(of, options.where, options.length)
    order = similar_order(vectors)
    plot = _heat_map(of, place, vectors[:, order], {"vectors": vectors, "order": order})
    plot.figure.axes[0].set_ylabel("dimension (permuted)")
    return replace(plot, text=f"{plot.text}; dimensions permuted, so that similar ones are neighbours")


def _heat_map(of: Subject, place: str, shown: Tensor, numbers: dict[str, Tensor]) -> Plot:
    figure, (axes,) = panels(1)
    title = f"{of.name}: position vectors\n{place}"
    heat_map(axes, shown, title=title)
    low, high = (float(end) for end in shown.aminmax())
    text = f"{len(shown)} positions x {shown.shape[1]} dimensions at {place}, from {low:.3g} to {high:.3g}"
    return Plot(figure, title, text, numbers)


def _of_similarity(of: Subject, options: Options) -> Plot:
    place, vectors = placed_vectors(of, options.where, options.length)
    found = similarity(vectors)
    figure, (axes,) = panels(1, width=5.6, height=4.8)
    title = f"{of.name}: cosine similarity of positions\n{place}"
    similarity_map(axes, found, title=title)
    known = [
        (gap, found.diagonal(gap).nanmean()) for gap in (1, 2, 4, 8, 16, 32, 64, 128, 256) if gap < len(found)
    ]
    text = f"{len(found)} positions at {place}; mean cosine at distance " + ", ".join(
        f"{gap}: {mean:.3f}" for gap, mean in known
    )
    undefined = int(found.diagonal().isnan().sum())
    if undefined:
        text += f"; {undefined} positions have a zero vector and no direction"
    return Plot(figure, title, text, {"similarity": found})


def _of_smoothness(of: Subject, options: Options) -> Plot:
    place, vectors = placed_vectors(of, options.where, options.length)
    found = smoothness(vectors)
    figure, (axes,) = panels(1)
    title = f"{of.name}: norm and smoothness\n{place}"
    smoothness_lines(axes, found, trained=options.trained or of.trained_at(place), title=title)
    text = (
        f"{len(vectors)} positions at {place}: norm {found.norm.mean():.3g} "
        f"({found.norm.min():.3g} to {found.norm.max():.3g}), step {found.step.mean():.3g}, "
        f"roughness {found.roughness:.3f} (1 for vectors that have nothing to do with each other)"
    )
    return Plot(figure, title, text, {"norm": found.norm, "step": found.step})


def _of_attention(of: Subject, options: Options) -> Plot:
    found = positional_logits(of, options.length)
    place, logits = chosen("positional attention", of.name, found, options.where)
    figure, axes = panels(len(logits))
    title = f"{of.name}: attention by position alone\n{place}"
    figure.suptitle(title)
    head_maps(figure, axes, logits)
    weights = logits.nan_to_num(nan=-float("inf")).softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).nanmean(-1)  # of queries that have a key
    text = (
        f"{len(logits)} heads x {logits.shape[-1]} positions at {place}; "
        "positions that a head would spread over without words (exp of the entropy): "
        + ", ".join("none" if math.isnan(e) else f"{math.exp(e):.1f}" for e in entropy.tolist())
    )
    return Plot(figure, title, text, found)


def _of_flow(of: Subject, options: Options) -> Plot:
    found = curves(of, options.length)
    place, curve = chosen("flow", of.name, found, options.where)
    positions, values = curve.positions, curve.values
    trained = options.trained or of.trained_at(place)
    figure, (axes,) = panels(1, width=7.6)
    title = f"{of.name}: the flow\n{place}"
    flow_curves(axes, positions, values, unit=curve.unit, trained=trained, title=title)
    end = float(positions[-1])
    text = (
        f"{values.shape[1]} components at {place} from position 0 to {end:g} "
        f"(time 0 to {end * curve.unit:.3g})" + (f", trained to {trained}" if trained else "") + "; "
        f"norm {values[0].norm():.3g} at the start, {values[-1].norm():.3g} at the end"
    )
    # those of other stacks may end elsewhere
    same = {name: other.values for name, other in found.items() if torch.equal(other.positions, positions)}
    return Plot(figure, title, text, {"positions": positions, **same})


def _of_probe(of: Subject, options: Options) -> Plot:
    found = probe(of, options.length, options.text)
    figure, (axes,) = panels(1, width=max(5.0, 0.7 * len(found.fits)))
    title = f"{of.name}: a linear probe reads the position"
    probe_bars(axes, found, title=title)
    lines = [f"{place}: R2 {fit.r2:.3f}, {fit.error:.1f} tokens off" for place, fit in found.fits.items()]
    text = (
        f"{found.positions} positions, {found.text}; fitted to {found.rows} rows, "
        f"tested on {found.held_out} others\n" + "\n".join(lines)
    )
    numbers = {
        "r2": Tensor([fit.r2 for fit in found.fits.values()]),
        "error": Tensor([fit.error for fit in found.fits.values()]),
    }
    return Plot(figure, title, text, numbers)


def _of_reordering(of: Subject, options: Options) -> Plot:
    if options.text is None:
        raise DataError("reordering needs sentences: give a file of lines with --text")
    found = detect(of, options.text)
    figure, (axes,) = panels(1)
    title = f"{of.name}: which word was moved"
    detection_bars(axes, found, title=title)
    text = (
        f"the moved word is found in {100 * found.inserted:.1f} %, where it came from in "
        f"{100 * found.original:.1f} %, both in {100 * found.both:.1f} % of {found.held_out} sentences "
        f"held out (chance {100 * found.chance:.1f} % of each); pointers trained on {found.sentences} "
        "others, the model frozen"
    )
    if found.too_long:
        text += f"; sentences excluded because they exceed the model's positions: {found.too_long}"
    numbers = {"accuracy": Tensor([found.inserted, found.original, found.both])}
    return Plot(figure, title, text, numbers)


@dataclass(frozen=True)
class Kind:
    """An analysis.

    Args:
        help: description of its content.
        draw: function of a subject and `Options`.
        needs: raises DataError or PositionError if the analysis does not apply to a model.
        takes: names of the `Options` that it uses.
        most: largest number of positions that it shows, if it takes a length.
    """

    help: str
    draw: Callable[[Subject, Options], Plot]
    needs: Callable[[Subject], object]
    takes: tuple[str, ...]
    most: int = 0


def _has_flow(of: Subject) -> None:
    if not any(isinstance(module, FlowEncoder) for module in of.model.modules()):
        raise DataError(f"{of.name} has no flow")


def _has_vectors(of: Subject) -> None:
    placed_vectors(of, length=2)


_PLACED = ("where", "length")
_LINE, _PAIRS = 32768, 2048  # more is not visible, and numbers of all pairs would fill the memory
_ANALYSES: dict[str, tuple[Any, ...]] = {
    "vectors": (_of_vectors, _has_vectors, _PLACED, _LINE),
    "permuted_vectors": (_of_permuted, _has_vectors, _PLACED, _LINE),
    "similarity": (_of_similarity, _has_vectors, _PLACED, _PAIRS),
    "smoothness": (_of_smoothness, _has_vectors, (*_PLACED, "trained"), _LINE),
    "attention": (_of_attention, positional_logits, _PLACED, _PAIRS),
    "flow": (_of_flow, _has_flow, (*_PLACED, "trained"), _LINE),
    "probe": (_of_probe, lambda of: run_tokens(of.model, drawn(of, 2, 1)), ("length", "text"), _PAIRS),
    "reordering": (_of_reordering, Subject.tokenizer, ("text",)),
}
KINDS = {name: Kind(description, *_ANALYSES[name]) for name, description in PLOTS.items()}


def kinds(source: Source) -> list[str]:
    """Return the analyses that apply to a model.

    Args:
        source: see `floater.lab.study.analyses.subject.subject`.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> kinds(FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="t5")))
        ['attention', 'probe']
    """
    of, found = subject(source), []
    for name, kind in KINDS.items():
        try:
            kind.needs(of)
        except (DataError, PositionError):
            continue
        found.append(name)
    return found


def draw(source: Source, kind: str, options: Options | None = None) -> Plot:
    """Analyse a model.

    Args:
        source: see `floater.lab.study.analyses.subject.subject`.
        kind: a key of `KINDS`.
        options: options of the analysis.

    Raises:
        DataError: if there is no such analysis, it does not use an option or show that many positions, or
            it does not apply to the model; the message names the analyses that do.
        PositionError: if the position model has fewer positions than requested.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="none"))
        >>> draw(model, "vectors")
        Traceback (most recent call last):
        floater.errors.DataError: FloaterModel adds no vectors of positions; floater plot shows: probe
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(KINDS)}"
        raise DataError(f"unknown kind of plot '{kind}'; {hint}")
    options = options or Options()
    for name, value in vars(options).items():
        if value is not None and name not in KINDS[kind].takes:
            raise DataError(f"'{kind}' takes no {name}; it takes: {', '.join(KINDS[kind].takes)}")
    if options.length is not None and options.length > KINDS[kind].most:
        raise DataError(f"length is {options.length}; '{kind}' shows at most {KINDS[kind].most} positions")
    of = subject(source)
    try:
        KINDS[kind].needs(of)
    except (DataError, PositionError) as error:
        others = ", ".join(kinds(of))
        raise DataError(f"{error}; floater plot shows: {others}" if others else str(error)) from error
    return KINDS[kind].draw(of, options)


def default_path(source: str, kind: str) -> Path:
    """Return the path of a figure: in the run's directory, or for a checkpoint's name in the working
    directory.

    Example:
        >>> str(default_path("FacebookAI/roberta-base", "similarity"))
        'roberta-base-similarity.png'
    """
    run = Path(source)
    return run / "plots" / f"{kind}.png" if run.is_dir() else Path(f"{run.name}-{kind}.png")
