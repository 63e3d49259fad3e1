"""Short to long: train on short sentences, score longer ones (Liu et al. 2020, section 4.3, Figure 2)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floater.tasks import cldr
from floater.tasks.scores import score
from floater.tasks.text import read_pairs
from floater.tasks.translation import Decoding, TranslationSettings, load_run, train, translate
from floater.tasks.translation.settings import Data, Model, Training

# learned vectors need a table that covers the long tests; a flow starts of order one over what it trains on
DEMO_MODELS: dict[str, dict[str, Any]] = {
    "floater": {"position": "floater", "max_length": 128},
    "sinusoidal": {"position": "sinusoidal", "max_length": 1024},
    "learned": {"position": "learned", "max_length": 1024},
}
DEMO_PAIRS = 20_000


@dataclass(frozen=True)
class Row:
    """One position model: parameters of its position models, minutes of training, BLEU per test set."""

    name: str
    parameters: int
    minutes: float
    bleu: dict[str, float]


def demo(folder: Path) -> list[Row]:
    """Train FLOATER, sinusoids and a learned table on the built-in corpus, and compare them by length.

    Sentences of fewer than 80 words train; the paper's four bins of longer ones test. Prints a table and
    writes it to `table.md`, and the picture of BLEU by length to `bleu_by_length.png`. Started again, it
    goes on where it was.

    Args:
        folder: gets the corpus, the runs, the table and the picture.

    Returns:
        One row per position model.
    """
    parts = cldr.split(train=DEMO_PAIRS)
    tests = {name: pairs for name, pairs in parts.items() if name.startswith("test")}
    files = cldr.write(folder / "corpus", parts, source="en", target="de")
    rows = [_row(name, Model(preset="tiny", **options), folder, files, tests) for name, options in DEMO_MODELS.items()]
    text = table(rows, [_label(name) for name in tests])
    (folder / "table.md").write_text(text, encoding="utf-8")
    picture(rows, [_label(name) for name in tests], folder / "bleu_by_length.png")
    print(text)
    print(f"written: {folder / 'table.md'}, {folder / 'bleu_by_length.png'}")
    return rows


def demo_settings(name: str, model: Model, folder: Path, files: Mapping[str, tuple[Path, Path]]) -> TranslationSettings:
    """The run of one position model of the demo: about two minutes on two cores."""
    return TranslationSettings(
        run=str(folder / name),
        data=Data(
            train_source=str(files["train"][0]),
            train_target=str(files["train"][1]),
            valid_source=str(files["valid"][0]),
            valid_target=str(files["valid"][1]),
            vocabulary_size=1500,
        ),
        model=model,
        training=Training(
            lr=4e-3,
            warmup=300,
            max_tokens=3000,
            max_steps=900,
            epochs=100,
            validate_every=300,
            samples=1,
            save_every=100,
            average=3,
        ),
        decoding=Decoding(beam=1, max_tokens=16384),
    )


def _row(
    name: str,
    model: Model,
    folder: Path,
    files: Mapping[str, tuple[Path, Path]],
    tests: Mapping[str, Sequence[cldr.Pair]],
) -> Row:
    print(f"\n{name}", file=sys.stderr)
    began = time.perf_counter()
    settings = demo_settings(name, model, folder, files)
    run = train(settings)
    minutes = (time.perf_counter() - began) / 60
    trained, tokenizer = load_run(run)
    bleu = {}
    for test in tests:
        pairs = read_pairs(*files[test])
        hypotheses = translate(trained, tokenizer, pairs.source, settings.decoding)
        bleu[_label(test)] = score(hypotheses, pairs.target, language=settings.data.target).bleu
    parameters = sum(p.numel() for n, p in trained.named_parameters() if ".position." in n or ".memory." in n)
    return Row(name, parameters, minutes, bleu)


def _label(test: str) -> str:
    """The length bin of a test set, as a reader writes it.

    Example:
        >>> [_label(name) for name in ("test", "test_80_100", "test_140_up")]
        ['< 80', '80-99', '140+']
    """
    if test == "test":
        return f"< {cldr.BINS[0][0]}"
    low, high = test.removeprefix("test_").split("_")
    return f"{low}+" if high == "up" else f"{low}-{int(high) - 1}"


def table(rows: Sequence[Row], tests: Sequence[str]) -> str:
    """A Markdown table: one line per position model, BLEU per test set.

    Example:
        >>> print(table([Row("none", 0, 1.5, {"< 80": 50.0})], ["< 80"]), end="")
        | position model | position parameters | minutes | < 80 |
        |---|---:|---:|---:|
        | none | 0 | 1.5 | 50.0 |
    """
    head = ["position model", "position parameters", "minutes", *tests]
    lines = [head, ["---", "---:", "---:", *["---:"] * len(tests)]]
    lines += [
        [row.name, f"{row.parameters:,}", f"{row.minutes:.1f}", *(f"{row.bleu[test]:.1f}" for test in tests)]
        for row in rows
    ]
    bars = ["| " + " | ".join(line) + " |" for line in lines]
    bars[1] = "|" + "|".join(lines[1]) + "|"
    return "\n".join(bars) + "\n"


def picture(rows: Sequence[Row], tests: Sequence[str], path: Path) -> None:
    """BLEU by source length, a line per position model, written as a PNG (Liu et al. 2020, Figure 2)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, marker in zip(rows, "osD^v<>", strict=False):
        axes.plot(range(len(tests)), [row.bleu[test] for test in tests], marker=marker, label=row.name)
    axes.axvspan(-0.4, 0.5, color="0.93", zorder=0)
    axes.text(0.05, 1, "lengths trained on", fontsize=9, color="0.35", ha="center")
    axes.set_xticks(range(len(tests)), tests)
    axes.set_xlim(-0.4, len(tests) - 0.6)
    axes.set_ylim(0, 100)
    axes.set_xlabel("source length (words and punctuation marks)")
    axes.set_ylabel("BLEU")
    axes.set_title("Trained on short sentences, tested on longer ones")
    axes.grid(axis="y", color="0.85")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
