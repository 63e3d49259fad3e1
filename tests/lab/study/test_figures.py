"""Figures of made-up results."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from floater.lab.study import figures, panels

from .made_up import build_study


def test_lines_differ_by_more_than_their_colour() -> None:
    variants = ["none", *(f"variant{i}" for i in range(7))]
    actual = build_study(variants, [1], lambda variant, seed: np.ones(400))
    log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    logged = replace(actual, outcomes=[replace(o, log=log) for o in actual.outcomes])
    drawn = io.StringIO()
    figures.learning(logged, "loss", "training loss").savefig(drawn, format="svg")
    styles = set(re.findall(r'style="(fill: none;[^"]*stroke: #0404[^"]*width: 1.5[^"]*)"', drawn.getvalue()))
    assert len({re.sub(r"stroke: #\w+", "", style) for style in styles}) == len(styles) == 8


@pytest.mark.parametrize(
    "long", [f"floater_relative-{'long-' * 12}{{}}", "floater_relative-lr{}-of-all-weights"]
)
def test_a_long_name_leaves_room_for_the_lines(long: str) -> None:
    """Names may differ at the end, or in the middle."""
    variants = ["none", long.format("a"), long.format("b")]
    actual = build_study(variants, [1], lambda variant, seed: np.ones(400))
    figure = figures.score_by_length(actual, actual.columns(), actual.grid.variants[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of axes that collapse
        figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_position().width > 0.35
    names = [text.get_text() for text in axes.texts]
    assert len({*names}) == 3
    assert {*figures.shortened(variants)} == {*names}


def test_losses_by_position_reach_as_far_as_the_longest_seed() -> None:
    actual = build_study(["none"], [1, 2], lambda variant, seed: np.ones(400))
    for outcome, length in zip(actual.outcomes, (4, 2), strict=True):
        numbers = {"position_nats": np.arange(1.0, length + 1), "position_tokens": np.ones(length, dtype=int)}
        outcome.measured["lengths"] = replace(outcome.measured["lengths"], **numbers)
    (line,) = figures.loss_by_position(actual, "lengths").axes[0].lines
    assert list(line.get_ydata()) == [1.0, 2.0, 3.0, 4.0]


def test_a_cost_that_no_trial_recorded_has_no_figure() -> None:
    """As the speed of a training that ends before its first log entry."""
    actual = build_study(["none", "alibi"], [1], lambda variant, seed: np.ones(400))
    outcomes = [replace(outcome, cost={"memory_mib": 500}) for outcome in actual.outcomes]
    assert [panel.name for panel in panels.costs(replace(actual, outcomes=outcomes))] == ["cost-memory_mib"]


@pytest.mark.parametrize(
    ("tokens", "drawn"), [([], False), ([400], False), ([400, 0], False), ([400, 9], True)]
)
def test_losses_of_answers_of_one_token_are_no_line(tokens: list[int], drawn: bool) -> None:
    actual = build_study(["none"], [1], lambda variant, seed: np.ones(400))
    for outcome in actual.outcomes:
        numbers = {
            "position_nats": np.array(tokens, dtype=float),
            "position_tokens": np.array(tokens, dtype=int),
        }
        outcome.measured["lengths"] = replace(outcome.measured["lengths"], **numbers)
    titles = [picture.title for picture in panels.lengths(actual)]
    assert titles[0] == "Exact match (%) by length (test set: lengths)"
    assert ("Loss per token by position (test set: lengths)" in titles) == drawn


def test_of_many_rows_the_baseline_and_the_best_are_drawn() -> None:
    rates = {"none": 0} | {f"variant{i}": i for i in range(40)}
    actual = build_study([*rates], [1], lambda variant, seed: np.arange(400) % 41 < rates[variant])
    names = [variant.name for variant in figures.shown_variants(actual)]
    assert names == ["none", *(f"variant{i}" for i in range(33, 40))]
    few = build_study(["none", "variant1"], [1], lambda variant, seed: np.zeros(400))
    assert [variant.name for variant in figures.shown_variants(few)] == ["none", "variant1"]


def test_a_seed_that_failed_early_does_not_cut_the_learning_curve() -> None:
    actual = build_study(
        ["none"], [1, 2, 3], lambda variant, seed: np.ones(400), finished=lambda variant, seed: seed < 3
    )
    losses = [{10: 3.0, 20: 1.0, 30: 1.0}, {10: 5.0, 30: 3.0}, {10: 9.0}]
    outcomes = [
        replace(o, log=[{"step": step, "loss": loss} for step, loss in logged.items()])
        for o, logged in zip(actual.outcomes, losses, strict=True)
    ]
    (line,) = figures.learning(replace(actual, outcomes=outcomes), "loss", "loss").axes[0].lines
    assert [*map(list, (line.get_xdata(), line.get_ydata()))] == [[10, 20, 30], [4.0, 2.5, 2.0]]
    running = [replace(o, status="open", measured={}) for o in outcomes]
    (line,) = figures.learning(replace(actual, outcomes=running), "loss", "loss").axes[0].lines
    assert list(line.get_ydata()) == [17 / 3, 2.5, 2.0]


def test_a_single_value_of_a_log_is_a_mark() -> None:
    actual = build_study(["none"], [1], lambda variant, seed: np.ones(400))
    for steps, marked in ([200], True), ([100, 200], False):
        log = [{"step": step, "loss": 2.0} for step in steps]
        outcomes = [replace(outcome, log=log) for outcome in actual.outcomes]
        (line,) = figures.learning(replace(actual, outcomes=outcomes), "loss", "loss").axes[0].lines
        assert (line.get_marker() != "None") == marked


def test_bars_of_a_row_are_not_drawn_around_a_difference() -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.arange(400) % (seed + 2) == 0)
    for less, bars in ((None, 2), (actual.grid.variants[0], 0)):
        (axes,) = figures.score_by_length(actual, actual.columns()[1:], less).axes
        assert sum(container.has_yerr for container in axes.containers) == bars


def test_labels_keep_their_distance_and_stay_inside() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        moved = figures.apart(sorted(draw.random(8) ** 3))
        assert all(np.diff(moved) > 0.0749)
        assert min(moved) >= 0
        assert max(moved) <= 1
    near = figures.apart([0.5] * 5)
    assert np.mean(near) == pytest.approx(0.5)


def test_a_cost_is_labelled_beside_its_point_and_a_percentage_has_ends() -> None:
    """Two variants near 0 %, one of which is right with one of three seeds, and one that is always right."""
    shares = {("b", 1): 0.1, ("c", 1): 1, ("c", 2): 1, ("c", 3): 0.9}
    right = {key: np.arange(400) % 100 < 100 * share for key, share in shares.items()}
    actual = build_study(
        ["a", "b", "c"], [1, 2, 3], lambda variant, seed: right.get((variant, seed), np.zeros(400))
    )
    outcomes = [replace(o, cost={"memory_mib": 500 + i}) for i, o in enumerate(actual.outcomes)]
    measured = replace(actual, outcomes=outcomes)
    (axes,) = figures.cost(measured, measured.columns()[0], "memory_mib", "peak memory, MiB").axes
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    points = {text.get_text(): axes.transLimits.transform(text.xy)[1] for text in axes.texts}
    assert heights["a"] < heights["b"] < heights["c"]
    assert all(abs(heights[name] - points[name]) < 0.1 for name in "abc")
    bars = [container.lines[2][1].get_segments()[0][:, 1] for container in axes.containers]
    ends = np.array(bars)
    assert ends.min() >= 0
    assert ends.max() <= 100
    assert ends[1, 0] == 0, "cut: the deviation is larger than the mean"
