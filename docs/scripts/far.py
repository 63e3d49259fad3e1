"""Draw the figures of far.md, and compute its tables, from the scores of the studies: `make docs`.

The scores are the `scores.csv` that a study writes, kept as docs/far/NAME.csv.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from textwrap import fill

import themed
from matplotlib import rc_context
from matplotlib.figure import Figure
from tables import read
from tables import table as markdown
from themed import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

DOCS = Path(__file__).parents[1]
SCORES, PAGE = DOCS / "far", DOCS / "far.md"
# colour, line and marker: an encoding looks the same in all panels, and unlike all others, in grey as well
LOOKS = {
    "floater_relative-cross": (VERMILION, "-", "o"),
    "floater_relative-sinusoidal": (VERMILION, "--", "^"),
    "floater_relative": (ORANGE, "-", "s"),
    "floater_relative-tail": (ORANGE, "--", "v"),
    "floater_relative-stretched": (ORANGE, ":", "^"),
    "floater": (GREY, "-", "D"),
    "alibi-cross": (BLUE, "-", "X"),
    "alibi-sinusoidal": (BLUE, ":", "X"),
    "alibi": (BLUE, "--", "D"),
    "sinusoidal": (BLACK, "--", "x"),
    "none": (GREY, ":", "o"),
    "none-logn": (BLACK, ":", "o"),
    "dynamic_bias-cross": (GREEN, "-", "P"),
    "rotary": (GREEN, "-.", "*"),
    "t5": (GREEN, "--", "v"),
    "fire": (PURPLE, "-.", "<"),
    "chang": (PURPLE, "--", "p"),
    "shaw": (SKY, "-.", ">"),
}
WORDS = {
    "cross": "sinusoids in cross-attention",
    "input": "at the input",
    "random": "random times",
    "sinusoidal": "sinusoids at the input",
    "floater": "FLOATER at the input",
    "alibi": "with `alibi`",
    "tail": "KERPLE's tail",
    "stretched": "stretched distances",
    "second": "in the second block",
    "zero": "starting at zero",
    "logn": "log-n temperature",
    "twice": "6,000 steps",
    "6000": "6,000 steps",
    "lr1e3": "half the learning rate",
    "lr5e4": "a quarter of the learning rate",
    "lr2e3": "the full learning rate",
    "clock": "with a clock",
    "b0": "from b = 0",
    "index": "at the index",
    "free": "with a convolution in place of `rotary`",
    "unclipped": "without a clip",
}
"""Meaning of each part of a variant's name in a configuration."""


@dataclass(frozen=True)
class Study:
    """A study of the page.

    Args:
        name: of its scores.
        command: that computed them.
        title: above its panel and its table.
        drawn: the encodings that have a line.
        metric: as the scores name it.
        label: of the metric.
        trained: the greatest length of training.
        longest: the greatest length of the tests.
        test: as the scores name it.
        digits: of a score, after the point.
        lower: whether a lower score is better.
    """

    name: str
    command: str
    title: str
    drawn: tuple[str, ...]
    metric: str = "bleu"
    label: str = "BLEU"
    trained: int = 80
    longest: int = 250
    test: str = "lengths"
    digits: int = 1
    lower: bool = False


DEMO = ("sinusoidal", "floater", "floater_relative-cross", "dynamic_bias-cross")
LEAGUE = (
    *("sinusoidal", "rotary", "alibi", "alibi-cross", "dynamic_bias-cross"),
    *("floater_relative", "floater_relative-sinusoidal", "floater_relative-cross"),
)
OPENING = "builtin_far", "causal_far"
TUNED = "chang-lr1e3", "floater_relative-lr1e3", "floater_relative-stretched-lr1e3"
TWICE = "chang-lr1e3-twice", "floater_relative-stretched-lr1e3-twice", "t5-lr1e3"
STUDIES = (
    Study(
        name="demo",
        command="make demo",
        title="Translation, trained below 80 words",
        drawn=DEMO,
    ),
    Study(
        name="builtin_far",
        command="floater study configs/study/builtin_far.yaml short_to_long.seed=1",
        title="Translation of another corpus, below 80 words",
        drawn=LEAGUE,
    ),
    Study(
        name="multi30k_s2l",
        command="floater study configs/study/multi30k_s2l.yaml",
        title="Translation of captions, below 15 words",
        drawn=("sinusoidal-input", "floater_relative", "floater_relative-cross"),
        metric="chrf",
        label="chrF",
        trained=15,
        longest=40,
    ),
    Study(
        name="news_s2l",
        command="floater study configs/study/news_s2l.yaml",
        title="Translation of news, below 80 words",
        drawn=("sinusoidal", "alibi", "floater_relative-cross"),
        metric="chrf",
        label="chrF",
        longest=527,
    ),
    Study(
        name="causal_far",
        command="floater study configs/study/causal_far.yaml",
        title="Language model of news, trained on 128 tokens",
        drawn=("alibi", "floater_relative", "floater_relative-tail"),
        metric="loss",
        label="loss, nats",
        trained=128,
        longest=2048,
        test="far",
        digits=3,
        lower=True,
    ),
    *(
        Study(
            name=f"generated_{problem}",
            command=f"floater study configs/study/generated_{problem}.yaml",
            title=f"{title}, trained to 16 {'keys' if problem == 'recall' else 'symbols'}",
            drawn=drawn,
            metric="exact",
            label="exact match, %",
            trained=16,
            longest=128,
        )
        for problem, title, drawn in (
            ("copy_tuned", "Copy, 3,000 steps", TUNED),
            ("copy", "Copy", ("none", "t5", "shaw", "chang", "floater_relative")),
            ("reverse_tuned", "Reverse, 3,000 and 6,000 steps", TWICE),
            ("reverse", "Reverse", ("t5", "chang", "floater_relative")),
            ("sort_tuned", "Sort, 3,000 steps", ("none", "none-logn", "floater_relative-second-zero-logn")),
            ("sort", "Sort", ("none", "alibi", "rotary", "t5", "floater_relative")),
            ("recall", "Recall", ("none-6000", "alibi-6000", "floater_relative-6000")),
        )
    ),
)
NEWS = next(study for study in STUDIES if study.name == "news_s2l")
TABLES = {
    **{study.name: study for study in STUDIES},
    "news_s2l-bleu": replace(NEWS, metric="bleu", label="BLEU"),
    "news_s2l-loss": replace(NEWS, metric="loss", label="loss, nats", digits=2, lower=True),
}
"""The study of each table of the page, by the table's name."""


def scores(study: Study) -> dict[str, dict[tuple[int, int], list[float]]]:
    """Return the scores of all seeds by encoding and bin of length; the last bin ends at the longest test."""
    by_model: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read(SCORES / f"{study.name}.csv"):
        wanted = row["test"] == study.test and row["metric"] == study.metric
        if wanted and row["low"] and row["score"]:
            ends = int(row["low"]), int(row["high"] or study.longest + 1)
            by_model[row["model"]][ends].append(float(row["score"]))
    return by_model


def exact_matches(file: Path, low: int, names: str) -> dict[tuple[str, ...], dict[int, float]]:
    """Return the exact matches of a bin of lengths by seed; see `scores_by_seed`."""
    return scores_by_seed(file, "lengths", "exact", names, str(low))


def scores_by_seed(
    file: Path, test: str, metric: str, names: str, low: str = ""
) -> dict[tuple[str, ...], dict[int, float]]:
    """Return the scores of a test set by seed, for the groups of a pattern of names.

    Args:
        file: `scores.csv` of a study.
        test: test set.
        metric: metric.
        names: pattern of the names of the variants.
        low: lower bound of the bin of lengths; empty for the whole test set.

    Raises:
        ValueError: if the file has several names of a variant, as while the choice of its rate is open.
    """
    by_variant: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    models: dict[tuple[str, ...], str] = {}
    for row in read(file):
        if (row["test"], row["metric"], row["low"]) == (test, metric, low):
            key = re.fullmatch(names, row["model"]).groups()  # type: ignore[union-attr]
            if models.setdefault(key, row["model"]) != row["model"]:
                raise ValueError(f"{file} has scores of {models[key]} and {row['model']}; one must be chosen")
            by_variant[key][int(row["seed"])] = float(row["score"])
    return dict(by_variant)


def just_beyond(study: Study, by_model: dict[str, dict[tuple[int, int], list[float]]]) -> tuple[int, int]:
    """Return the first bin beyond the trained length."""
    return min(ends for of in by_model.values() for ends in of if ends[0] >= study.trained)


def table(study: Study) -> str:
    """Return means and deviations over the seeds as Markdown, the best just beyond training first."""
    by_model = scores(study)
    bins = sorted({ends for of in by_model.values() for ends in of})
    beyond = just_beyond(study, by_model)
    order = sorted(by_model, key=lambda name: mean(by_model[name][beyond]), reverse=not study.lower)
    lines = [
        {"encoding": words(name, study.name)}
        | {f"{low}–{high - 1}": spread(by_model[name][low, high], study.digits) for low, high in bins}
        | {"seeds": str(max(map(len, by_model[name].values())))}
        for name in order
    ]
    return f"**{study.title}** ({study.label}; `{study.command}`)\n\n" + markdown(lines)


def summary(studies: tuple[Study, ...]) -> str:
    """Return as Markdown the three best encodings just beyond the trained length, and at the end."""
    lines = []
    for study in studies:
        by_model = scores(study)
        bins = sorted({ends for of in by_model.values() for ends in of if ends[0] >= study.trained})
        line = {"task, trained length": f"{study.title} ({study.label})"}
        for title, (low, high) in (("best just beyond it", bins[0]), ("best at the longest tests", bins[-1])):
            means = {name: mean(of[low, high]) for name, of in by_model.items() if (low, high) in of}
            best = sorted(means, key=lambda name: means[name] * (1 if study.lower else -1))[:3]
            shown = [
                f"{words(name, study.name)}: {spread(by_model[name][low, high], study.digits)}"
                for name in best
            ]
            equal = len({f"{means[name]:.{study.digits}f}" for name in best}) == 1
            line[title] = f"**{low}–{high - 1}** " + ("no difference" if equal else "; ".join(shown))
        lines.append(line)
    return markdown(lines)


def spread(values: list[float], digits: int) -> str:
    """Return a mean and, of several values, their standard deviation.

    >>> spread([1.0, 2.0], 1), spread([3.0], 1)
    ('1.5 ± 0.7', '3.0')
    """
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def words(name: str, study: str = "") -> str:
    """Return the name of a variant in words, without the parts that all variants of its table share.

    >>> words("rotary-clock"), words("t5-lr1e3-twice", "generated_copy")
    ('`rotary` with a clock', '`t5`, half the learning rate, 3,000 steps')
    """
    encoding, *parts = name.split("-")
    common = {"generated_copy_tuned": ["lr1e3"], "generated_reverse_tuned": ["lr1e3"]}.get(study, [])
    texts = [WORDS[part] for part in parts if part not in common]
    if study == "generated_copy":
        texts = ["3,000 steps" if text == WORDS["twice"] else text for text in texts]
    return re.sub(", (with|without|from) ", r" \1 ", ", ".join([f"`{encoding}`", *texts]))


def looks(name: str) -> tuple[str, str, str]:
    """Return the colour, line and marker of an encoding, whatever its learning rate, steps and blocks.

    >>> looks("chang-lr1e3-twice") == looks("chang")
    True
    """
    return LOOKS[re.sub(r"(-input|-lr.e.|-twice|-6000|-second(-zero)?-logn)+$", "", name)]


def draw(studies: tuple[Study, ...], columns: int) -> Figure:
    """Return a figure of the score of each encoding against the length over the trained one, by study."""
    rows = -(-len(studies) // columns)
    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(4.1 * columns, 4.1 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel in panels[len(studies) :]:
        panel.set_axis_off()
    for study, panel in zip(studies, panels, strict=False):
        by_model = scores(study)
        beyond = just_beyond(study, by_model)
        order = sorted(study.drawn, key=lambda name: mean(by_model[name][beyond]), reverse=not study.lower)
        lines = {name: [mean(values) for _, values in sorted(by_model[name].items())] for name in order}
        for rank, name in enumerate(order):
            colour, line, mark = looks(name)
            x = [(low + high - 1) / 2 / study.trained for low, high in sorted(by_model[name])]
            # where later lines cover this one, it is seen around them
            wider = sum(covers(lines[other], lines[name], lines) for other in order[rank + 1 :])
            panel.plot(
                x,
                lines[name],
                color=colour,
                linestyle=line,
                marker=mark,
                markersize=4 + 2.5 * wider,
                linewidth=1.3 + 1.7 * wider,
                label=fill(words(name, study.name).replace("`", ""), 46),
            )
        panel.legend(
            loc="upper left",
            bbox_to_anchor=(-0.1, -0.17),
            frameon=False,
            fontsize=8,
            handlelength=3.4,
            ncols=1,
        )
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        panel.set(xlabel="length / trained length", ylabel=study.label)
        panel.set_title(fill(study.title, 46), loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.05)
    return figure


def covers(upper: list[float], lower: list[float], lines: Mapping[str, list[float]]) -> bool:
    """Return whether a line hides most of another, over three points, in a panel of these lines.

    >>> lines = {"a": [100.0, 50.0, 0.0], "b": [100.0, 51.0, 1.0], "c": [100.0, 10.0, 0.0]}
    >>> covers(lines["b"], lines["a"], lines), covers(lines["c"], lines["a"], lines)
    (True, False)
    """
    values = [value for line in lines.values() for value in line]
    near = [abs(x - y) < 0.03 * (max(values) - min(values)) for x, y in zip(upper, lower, strict=True)]
    return any(all(near[start : start + 3]) for start in range(len(near) - 2))


def written() -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {"summary": summary(STUDIES), **{name: table(study) for name, study in TABLES.items()}}


def main() -> None:
    """Write the figures."""
    opening = tuple(study for study in STUDIES if study.name in OPENING)
    for name, studies, columns in (("opening", opening, 2), ("lengths", STUDIES, 2)):
        for ending, number in (("", columns), ("-narrow", 1)):  # the second for phones
            text = themed.svg(draw(studies, number), name + ending)
            (SCORES / f"{name}{ending}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
