"""The analyses by their names, as `floater plot` offers them: numbers, a figure and a caption each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from floater.encodings import PositionError
from floater.encodings.model import count_parameters
from floater.errors import DataError, nearest
from floater.flow import FlowEncoder
from floater.lab.study.analyses.attention import head_maps, positional_logits
from floater.lab.study.analyses.flow import curves, flow_curves
from floater.lab.study.analyses.patterns import first_column, pattern, toeplitz_share
from floater.lab.study.analyses.plotting import Plot, panels
from floater.lab.study.analyses.probe import probe, probe_bars, random_tokens
from floater.lab.study.analyses.reordering import detect, detection_bars
from floater.lab.study.analyses.same_word import same_word_logits
from floater.lab.study.analyses.similarity import similarity, similarity_map
from floater.lab.study.analyses.smoothness import smoothness, smoothness_lines
from floater.lab.study.analyses.subject import (
    Source,
    Subject,
    chosen,
    load_subject,
    position_models,
    run_tokens,
)
from floater.lab.study.analyses.terms import Terms, logit_terms, term_maps
from floater.lab.study.analyses.vectors import heat_map, locate_vectors, similar_order
from floater.lab.study.plots import PLOTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Options:
    """Options of an analysis.

    Args:
        where: location in the model; by default the first.
        length: number of positions.
        trained: training length in tokens, if it differs from that of the model's configuration.
        text: lines that the model reads.
    """

    where: str | None = None
    length: int | None = None
    trained: int | None = None
    text: Sequence[str] | None = None


def _draw_vectors(subject: Subject, options: Options) -> Plot:
    location, vectors = locate_vectors(subject, options.where, options.length)
    return _heat_map(subject, location, vectors, {"vectors": vectors})


def _draw_permuted(subject: Subject, options: Options) -> Plot:
    location, vectors = locate_vectors(subject, options.where, options.length)
    stacks = position_models(subject.model)
    if stacks and not count_parameters(subject.model):  # as in Figure 3a
        plot = _heat_map(
            subject, location, vectors, {"vectors": vectors, "order": torch.arange(len(vectors[0]))}
        )
        return replace(plot, text=f"{plot.text}; dimensions in their order, as none is learned")
    order = similar_order(vectors)
    plot = _heat_map(subject, location, vectors[:, order], {"vectors": vectors, "order": order})
    plot.figure.axes[0].set_ylabel("dimension (permuted)")
    return replace(plot, text=f"{plot.text}; dimensions permuted, so that similar ones are neighbours")


def _heat_map(subject: Subject, location: str, shown: Tensor, numbers: dict[str, Tensor]) -> Plot:
    figure, (axes,) = panels(1)
    title = f"{subject.name}: position vectors\n{location}"
    heat_map(axes, shown, title=title)
    low, high = (float(end) for end in shown.aminmax())
    text = f"{len(shown)} positions x {shown.shape[1]} dimensions at {location}, from {low:.3g} to {high:.3g}"
    return Plot(figure, title, text, numbers)


def _draw_similarity(subject: Subject, options: Options) -> Plot:
    location, vectors = locate_vectors(subject, options.where, options.length)
    cosines = similarity(vectors)
    figure, (axes,) = panels(1, width=5.6, height=4.8)
    title = f"{subject.name}: cosine similarity of positions\n{location}"
    similarity_map(axes, cosines, title=title)
    means = [
        (gap, cosines.diagonal(gap).nanmean())
        for gap in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        if gap < len(cosines)
    ]
    text = f"{len(cosines)} positions at {location}; mean cosine at distance " + ", ".join(
        f"{gap}: {mean:.3f}" for gap, mean in means
    )
    undefined = int(cosines.diagonal().isnan().sum())
    if undefined:
        text += f"; {undefined} positions have a zero vector and no direction"
    return Plot(figure, title, text, {"similarity": cosines})


def _draw_smoothness(subject: Subject, options: Options) -> Plot:
    location, vectors = locate_vectors(subject, options.where, options.length)
    norms = smoothness(vectors)
    figure, (axes,) = panels(1)
    title = f"{subject.name}: norm and smoothness\n{location}"
    smoothness_lines(axes, norms, trained=options.trained or subject.trained_at(location), title=title)
    text = (
        f"{len(vectors)} positions at {location}: norm {norms.norm.mean():.3g} "
        f"({norms.norm.min():.3g} to {norms.norm.max():.3g}), step {norms.step.mean():.3g}, "
        f"roughness {norms.roughness:.3f} (1 for vectors that have nothing to do with each other)"
    )
    return Plot(figure, title, text, {"norm": norms.norm, "step": norms.step})


def _draw_heads(logits: Tensor, title: str) -> Figure:
    figure, axes = panels(len(logits))
    figure.suptitle(title)
    head_maps(figure, axes, logits)
    return figure


def _draw_attention(subject: Subject, options: Options) -> Plot:
    by_location = positional_logits(subject, options.length)
    location, logits = chosen("positional attention", subject.name, by_location, options.where)
    title = f"{subject.name}: attention by position alone\n{location}"
    figure = _draw_heads(logits, title)
    weights = logits.nan_to_num(nan=-float("inf")).softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).nanmean(-1)  # of queries that have a key
    text = (
        f"{len(logits)} heads x {logits.shape[-1]} positions at {location}; "
        "positions that a head would spread over without words (exp of the entropy): "
        + ", ".join("none" if math.isnan(e) else f"{math.exp(e):.1f}" for e in entropy.tolist())
    )
    if logits.shape[-1] < 3 or bool(logits.isnan().any()):  # a causal head attends to previous ones
        return Plot(figure, title, text, by_location)
    numbers = {"toeplitz_share": toeplitz_share(logits[:, 1:, 1:]), "first_column": first_column(logits)}
    text += (
        f"; they attend {', '.join(map(pattern, logits))} (Ke et al. 2021, Figure 5)"
        "; without the first position, the nearest Toeplitz matrix explains of the variance of the logits: "
        + ", ".join(f"{share:.2f}" for share in numbers["toeplitz_share"].tolist())
        + "; logits to the first position, in standard deviations above the others: "
        + ", ".join(f"{column:+.1f}" for column in numbers["first_column"].tolist())
    )
    return Plot(figure, title, text, by_location | numbers)


def _draw_same_word(subject: Subject, options: Options) -> Plot:
    by_location = same_word_logits(subject, options.length)
    location, logits = chosen("attention", subject.name, by_location, options.where)
    title = f"{subject.name}: logits of the same word everywhere, less their mean\n{location}"
    figure = _draw_heads(logits, title)
    spread = ", ".join(f"{float(head.square().nanmean().sqrt()):.3g}" for head in logits)
    text = (
        f"{len(logits)} heads x {logits.shape[-1]} positions at {location}, mean over words; standard "
        f"deviation over the keys of a query: {spread}"
    )
    return Plot(figure, title, text, by_location)


def _draw_terms(subject: Subject, options: Options) -> Plot:
    by_location = logit_terms(subject, options.length, options.text)
    location, terms = chosen("attention", subject.name, by_location, options.where)
    figure, axes = panels(5)
    title = f"{subject.name}: terms of the logits, query by key\n{location}, mean over texts and heads"
    figure.suptitle(title)
    term_maps(figure, axes, terms)
    spread, names = terms.spread, [name.replace("_", " by ") for name in Terms._fields]
    read = f"{len(terms.unit_unit)} rows of " + ("random tokens" if options.text is None else "text")
    text = (
        f"{read} at {location}; standard deviation over the keys of a query, mean over heads: "
        + ", ".join(f"{name} {float(values.mean()):.3g}" for name, values in zip(names, spread, strict=True))
    )
    numbers = {name: torch.stack([*each]).mean(1) for name, each in by_location.items()}
    return Plot(figure, title, text, numbers)


def _draw_flow(subject: Subject, options: Options) -> Plot:
    by_location = curves(subject, options.length)
    location, curve = chosen("flow", subject.name, by_location, options.where)
    positions, values = curve.positions, curve.values
    trained = options.trained or subject.trained_at(location)
    figure, (axes,) = panels(1, width=7.6)
    title = f"{subject.name}: the flow\n{location}"
    flow_curves(axes, positions, values, unit=curve.unit, trained=trained, title=title)
    end = float(positions[-1])
    text = (
        f"{values.shape[1]} components at {location} from position 0 to {end:g} "
        f"(time 0 to {end * curve.unit:.3g})" + (f", trained to {trained}" if trained else "") + "; "
        f"norm {values[0].norm():.3g} at the start, {values[-1].norm():.3g} at the end"
    )
    # those of other stacks may end elsewhere
    same = {
        name: other.values for name, other in by_location.items() if torch.equal(other.positions, positions)
    }
    return Plot(figure, title, text, {"positions": positions, **same})


def _draw_probe(subject: Subject, options: Options) -> Plot:
    fitted = probe(subject, options.length, options.text)
    figure, (axes,) = panels(1, width=max(5.0, 0.7 * len(fitted.fits)))
    title = f"{subject.name}: a linear probe reads the position"
    probe_bars(axes, fitted, title=title)
    lines = [
        f"{location}: R2 {fit.r2:.3f}, {fit.error:.1f} tokens off" for location, fit in fitted.fits.items()
    ]
    text = (
        f"{fitted.positions} positions, {fitted.text}; fitted to {fitted.rows} rows, "
        f"tested on {fitted.held_out} others\n" + "\n".join(lines)
    )
    numbers = {
        "r2": Tensor([fit.r2 for fit in fitted.fits.values()]),
        "error": Tensor([fit.error for fit in fitted.fits.values()]),
    }
    return Plot(figure, title, text, numbers)


def _draw_reordering(subject: Subject, options: Options) -> Plot:
    if options.text is None:
        raise DataError("reordering needs sentences: give a file of lines with --text")
    detection = detect(subject, options.text)
    figure, (axes,) = panels(1)
    title = f"{subject.name}: which word was moved"
    detection_bars(axes, detection, title=title)
    text = (
        f"the moved word is found in {100 * detection.inserted:.1f} %, where it came from in "
        f"{100 * detection.original:.1f} %, both in {100 * detection.both:.1f} % of "
        f"{detection.held_out} sentences held out (chance {100 * detection.chance:.1f} % of each); "
        f"pointers trained on {detection.sentences} others, the model frozen"
    )
    if detection.too_long:
        text += f"; sentences excluded because they exceed the model's positions: {detection.too_long}"
    numbers = {"accuracy": Tensor([detection.inserted, detection.original, detection.both])}
    return Plot(figure, title, text, numbers)


@dataclass(frozen=True)
class Kind:
    """An analysis.

    Args:
        help: description of its content.
        draw: function of a subject and `Options`.
        needs: function that raises DataError or PositionError if the analysis does not apply to a model.
        takes: names of the `Options` that the analysis uses.
        most: largest number of positions that it shows, if it takes a length.
    """

    help: str
    draw: Callable[[Subject, Options], Plot]
    needs: Callable[[Subject], object]
    takes: tuple[str, ...]
    most: int = 0


def _has_flow(subject: Subject) -> None:
    if not any(isinstance(module, FlowEncoder) for module in subject.model.modules()):
        raise DataError(f"{subject.name} has no flow")


def _has_vectors(subject: Subject) -> None:
    locate_vectors(subject, length=2)


_LOCATION_OPTIONS = ("where", "length")
_LINE, _PAIRS = 32768, 2048  # more is not visible, and numbers of all pairs would fill the memory
_ANALYSES: dict[str, tuple[Any, ...]] = {
    "vectors": (_draw_vectors, _has_vectors, _LOCATION_OPTIONS, _LINE),
    "permuted_vectors": (_draw_permuted, _has_vectors, _LOCATION_OPTIONS, _LINE),
    "similarity": (_draw_similarity, _has_vectors, _LOCATION_OPTIONS, _PAIRS),
    "smoothness": (_draw_smoothness, _has_vectors, (*_LOCATION_OPTIONS, "trained"), _LINE),
    "attention": (_draw_attention, positional_logits, _LOCATION_OPTIONS, _PAIRS),
    "same_word": (
        _draw_same_word,
        lambda subject: same_word_logits(subject, 2, words=1),
        _LOCATION_OPTIONS,
        _PAIRS,
    ),
    "terms": (
        _draw_terms,
        lambda subject: logit_terms(subject, 2, rows=1),
        (*_LOCATION_OPTIONS, "text"),
        512,
    ),
    "flow": (_draw_flow, _has_flow, (*_LOCATION_OPTIONS, "trained"), _LINE),
    "probe": (
        _draw_probe,
        lambda subject: run_tokens(subject.model, random_tokens(subject, 2, 1)),
        ("length", "text"),
        _PAIRS,
    ),
    "reordering": (_draw_reordering, Subject.tokenizer, ("text",)),
}
KINDS = {name: Kind(description, *_ANALYSES[name]) for name, description in PLOTS.items()}


def kinds(source: Source) -> list[str]:
    """Return the names of the analyses that apply to a model.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> kinds(FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="t5")))
        ['attention', 'same_word', 'terms', 'probe']
    """
    subject, names = load_subject(source), []
    for name, kind in KINDS.items():
        try:
            kind.needs(subject)
        except (DataError, PositionError):
            continue
        names.append(name)
    return names


def draw(source: Source, kind: str, options: Options | None = None) -> Plot:
    """Analyse a model.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`.
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
        floater.errors.DataError: FloaterModel adds no vectors of positions; floater plot shows: same_...
    """
    if kind not in KINDS:
        raise DataError(f"unknown kind of plot '{kind}'; {nearest(kind, KINDS)}")
    options = options or Options()
    for name, value in vars(options).items():
        if value is not None and name not in KINDS[kind].takes:
            raise DataError(f"'{kind}' takes no {name}; it takes: {', '.join(KINDS[kind].takes)}")
    if options.length is not None and options.length > KINDS[kind].most:
        raise DataError(f"length is {options.length}; '{kind}' shows at most {KINDS[kind].most} positions")
    subject = load_subject(source)
    try:
        KINDS[kind].needs(subject)
    except (DataError, PositionError) as error:
        others = ", ".join(kinds(subject))
        raise DataError(f"{error}; floater plot shows: {others}" if others else str(error)) from error
    return KINDS[kind].draw(subject, options)


def default_path(source: str, kind: str) -> Path:
    """Return the path of a figure: in the run's directory, or for a checkpoint in the working directory.

    Example:
        >>> str(default_path("FacebookAI/roberta-base", "similarity"))
        'roberta-base-similarity.png'
    """
    run = Path(source)
    return run / "plots" / f"{kind}.png" if run.is_dir() else Path(f"{run.name}-{kind}.png")
