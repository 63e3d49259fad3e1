"""`floater demo`: three position encodings on the built-in corpus, trained on short texts and tested on long
ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floater.lab.study.results import Results
from floater.lab.study.run import study
from floater.lab.study.settings import ShortToLong, StudySettings

MODELS: dict[str, dict[str, Any]] = {
    # a flow over the log distance encodes order; sinusoids give positions to cross-attention alone, at times
    # that training stretches and shifts, so that the times of a text four times as long occur in training
    "floater_relative-cross": {
        "position": ["floater_relative", {"name": "sinusoidal", "injection": "cross"}],
        "max_length": 128,  # tokens of the training length
        "settings": {"model": {"times": {"mode": "stretch", "max_scale": 4.0}}},
    },
    "floater": {"max_length": 128},  # of the paper: at the input of every block, trained at fixed times
    "sinusoidal": {"max_length": 1024},
}
NOTE = (
    "What to expect: `floater`, the encoding of the paper, and `sinusoidal`, that of the plain Transformer, "
    "fail on longer sentences, as both then read position vectors that never occurred in training. "
    "`floater_relative-cross` keeps its scores, as all that it reads occurs in training: in self-attention "
    "the logarithm of the distance, up to half the training length, and in cross-attention sinusoids at "
    "times that training stretches to those of sentences four times as long. A learned function of that "
    "logarithm is what extends it, not the differential equation: an MLP in its place, `dynamic_bias`, "
    "has scores that do not differ significantly (docs/far.md)."
)


def settings(folder: Path, *, train: int = 20_000, test: int = 80, steps: int = 1500) -> StudySettings:
    """Return the settings of the demo's study: about five minutes of one core per model.

    Args:
        folder: folder of the corpus, the runs, the tables and the report.
        train: training pairs.
        test: pairs of each bin of length, and of the validation.
        steps: training steps.

    Example:
        >>> list(settings(Path("runs/demo")).models)
        ['floater_relative-cross', 'floater', 'sinusoidal']
    """
    return StudySettings(
        folder=str(folder),
        title="Three position encodings, short to long",
        question="Trained on made-up sentences of fewer than 80 words: which position encoding still "
        "translates the longer ones?",
        note=NOTE,
        settings={
            "data": {"vocabulary_size": 1500},
            "model": {
                "preset": "tiny",
                # the corpus is memorised item by item: nothing to regularise, and pre-norm learns it fastest
                "changes": {"intermediate_size": 256, "norm_first": True, "dropout": 0.0},
            },
            "training": {
                "learning_rate": 2e-3,
                "warmup_steps": 200,
                "max_grad_norm": 1.0,
                "max_tokens": 1500,
                "max_steps": steps,
                "label_smoothing_factor": 0.0,
                "eval_steps": max(1, steps // 3),
                "samples": 1,
                "save_steps": max(1, steps // 9),
                "average_last": 3,
            },
            "decoding": {"beam": 1, "max_ratio": 1.2, "max_tokens": 16384},
        },
        models=dict(MODELS),
        seeds=[1],
        baseline="sinusoidal",
        comparisons=[
            ["floater_relative-cross", "sinusoidal"],
            ["floater_relative-cross", "floater"],
            ["floater", "sinusoidal"],
        ],
        short_to_long=ShortToLong(builtin=train, builtin_test=test),
    )


def demo(folder: Path) -> Results:
    """Train FLOATER, as a relative bias and as in the paper, and sinusoids, and compare them by length.

    Sentences of fewer than 80 words train; the paper's four bins of longer ones test. Started again, it
    resumes. The models are trained side by side, one process and one core each: about 8 minutes on two idle
    cores.

    Args:
        folder: folder of the corpus, the runs, the tables and the report.

    Returns:
        The results.
    """
    return study(settings(folder), f"{folder}/study.yaml")
