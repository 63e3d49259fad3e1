"""Linear probes that predict the position of a token from hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from floater.errors import DataError
from floater.lab.study.analyses.plotting import COLOURS, tidy
from floater.lab.study.analyses.subject import Source, Subject, check_vocabulary, load_subject, run_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST, HELD_OUT = 128, 0.25
PENALTIES = (1e-2, 1.0, 1e2, 1e4)


class Fit(NamedTuple):
    """Scores of a linear probe on held-out data.

    Args:
        r2: share of the variance of the position that the probe explains; negative if the mean does better.
        error: mean distance from the right position, in tokens.
    """

    r2: float
    error: float


@dataclass(frozen=True)
class Probe:
    """Fits of the probes on the input of the first block, "input", and on the output of each block.

    Args:
        fits: fits by the name of the states.
        positions: number of positions of each row.
        rows: number of rows that the probes were fitted to.
        held_out: number of rows that they were tested on.
        text: description of the rows' content.
    """

    fits: dict[str, Fit]
    positions: int
    rows: int
    held_out: int
    text: str


def linear_probe(states: Tensor, held_out: Tensor) -> Fit:
    """Fit a ridge regression of the position on the state, and test it on other rows.

    The penalty is chosen on the training rows by leave-one-out.

    Args:
        states: states to fit, (rows, positions, d).
        held_out: states to test, (other rows, positions, d).

    Example:
        >>> positions = torch.arange(9.0).view(1, 9, 1).expand(4, 9, 1)
        >>> linear_probe(positions, positions).r2 > 0.999
        True
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.metrics import mean_absolute_error, r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def parts(hidden: Tensor) -> tuple[np.ndarray, np.ndarray]:
        at = torch.arange(hidden.shape[1]).repeat(len(hidden))
        return hidden.flatten(0, 1).double().numpy(), at.double().numpy()

    probe = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    probe.fit(*parts(states))
    x, y = parts(held_out)
    predicted = probe.predict(x)
    return Fit(float(r2_score(y, predicted)), float(mean_absolute_error(y, predicted)))


def probe(
    source: Source,
    length: int | None = None,
    text: Sequence[str] | None = None,
    *,
    rows: int = 160,
) -> Probe:
    """Probe for positions in the input of the first block and the output of every block.

    Rows are full of tokens: of a text, or without one uniform over the vocabulary. A quarter of the rows is
    held out. In an encoder-decoder the encoder is probed.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`. What a text lacks, such as a tree, is
            as in `floater.lab.study.analyses.same_word.same_word_logits`.
        length: tokens of a row; by default the training length, at most 128.
        text: lines, which follow one another in the rows.
        rows: number of rows to fit and to test, together.

    Raises:
        DataError: if the model reads no tokens, has no tokenizer for the text, or that is too short.
        PositionError: if the position model does not reach that far.
    """
    subject = load_subject(source)
    width = subject.length(length, LONGEST)
    ids = random_tokens(subject, width, rows) if text is None else text_tokens(subject, text, width, rows)
    tested = max(1, int(HELD_OUT * len(ids)))
    layers = [run_tokens(subject.model, part) for part in torch.split(ids, 32)]
    fits = {}
    for i, states in enumerate(torch.cat(parts).float() for parts in zip(*layers, strict=True)):
        fits[f"block {i}" if i else "input"] = linear_probe(states[tested:], states[:tested])
    read = "random tokens" if text is None else "text"
    return Probe(fits, width, len(ids) - tested, tested, read)


def random_tokens(subject: Subject, width: int, rows: int) -> Tensor:
    """Sample token ids (rows, width) uniformly from the vocabulary.

    Raises:
        DataError: if the model reads no tokens.
    """
    vocabulary = getattr(subject.model.config.get_text_config(), "vocab_size", None)
    if not vocabulary:
        raise DataError(f"{subject.name} has no vocabulary: it reads no tokens")
    return torch.randint(int(vocabulary), (rows, width), generator=torch.Generator().manual_seed(0))


def text_tokens(subject: Subject, text: Sequence[str], width: int, rows: int) -> Tensor:
    tokenizer, lines = subject.tokenizer(), [line for line in text if line.strip()]
    encoded = tokenizer(lines, add_special_tokens=False)["input_ids"] if lines else []
    ids = torch.tensor([token for line in encoded for token in line][: rows * width], dtype=torch.long)
    if len(ids) < 8 * width:
        raise DataError(f"the text has {len(ids)} tokens; a probe over {width} positions needs {8 * width}")
    check_vocabulary(subject.name, tokenizer, ids)
    return ids[: len(ids) // width * width].view(-1, width)


def probe_bars(axes: Axes, probe: Probe, *, title: str = "") -> None:
    """Draw the R² of each linear probe on the held-out rows.

    Args:
        axes: axes to draw on.
        probe: result of `probe`.
        title: title of the axes.

    Example:
        >>> from matplotlib.figure import Figure
        >>> fits = {"input": Fit(1.0, 0.0), "block 1": Fit(0.8, 3.0)}
        >>> probe_bars(Figure().subplots(), Probe(fits, 64, 12, 4, "text"))
    """
    shown = [max(0.0, fit.r2) for fit in probe.fits.values()]
    bars = axes.bar(range(len(shown)), shown, color=COLOURS[0])
    axes.bar_label(bars, [f"{fit.r2:.2f}" for fit in probe.fits.values()])
    axes.set_xticks(range(len(shown)), list(probe.fits), rotation=45 if len(shown) > 8 else 0)
    axes.set_ylim(0, 1.08)
    tidy(axes, title=title, xlabel="what the probe reads", ylabel="R² of the position, held out")
