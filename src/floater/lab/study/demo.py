"""`floater demo`: four position encodings on the built-in corpus, trained on short texts and tested on long
ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floater.lab.study.results import Results
from floater.lab.study.run import study
from floater.lab.study.settings import ShortToLong, StudySettings

_SINUSOIDS = {"name": "sinusoidal", "injection": "cross"}
_CROSS = {
    "max_length": 128,  # tokens of the training length
    # so that the times of a text four times as long occur in training
    "settings": {"model": {"times": {"mode": "stretch", "max_scale": 4.0}}},
}
MODELS: dict[str, dict[str, Any]] = {
    # an MLP, or a flow, of the log distance encodes order; sinusoids give positions to cross-attention alone
    "dynamic_bias-cross": _CROSS | {"position": ["dynamic_bias", _SINUSOIDS]},
    "floater_relative-cross": _CROSS | {"position": ["floater_relative", _SINUSOIDS]},
    "floater": {"max_length": 128},  # of the paper: at the input of every block, trained at fixed times
    "sinusoidal": {"max_length": 1024},
}
NOTE = (
    "What to expect: `floater`, the encoding of the paper, and `sinusoidal`, that of the plain Transformer, "
    "fail on longer sentences, as both then read position vectors that never occurred in training. "
    "`dynamic_bias-cross` and `floater_relative-cross` keep their scores. Cross-attention reads sinusoids at "
    "times that training stretches to those of sentences four times as long; self-attention reads a learned "
    "function of the logarithm of the distance, an MLP in the first and a flow in the second. Over five "
    "seeds the two do not differ significantly (docs/protocol.md), so the simpler one is the one to choose."
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
        ['dynamic_bias-cross', 'floater_relative-cross', 'floater', 'sinusoidal']
    """
    return StudySettings(
        folder=str(folder),
        title="Four position encodings, short to long",
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
            ["dynamic_bias-cross", "sinusoidal"],
            ["floater_relative-cross", "dynamic_bias-cross"],
            ["floater_relative-cross", "sinusoidal"],
            ["floater_relative-cross", "floater"],
            ["floater", "sinusoidal"],
        ],
        short_to_long=ShortToLong(builtin=train, builtin_test=test),
    )


def demo(folder: Path) -> Results:
    """Train an MLP and a flow of the distance, FLOATER as in the paper, and sinusoids; compare by length.

    Sentences of fewer than 80 words train; the paper's four bins of longer ones test. Started again, it
    resumes. The models are trained side by side, one process and one core each: about 11 minutes on two idle
    cores.

    Args:
        folder: folder of the corpus, the runs, the tables and the report.

    Returns:
        The results.
    """
    return study(settings(folder), f"{folder}/study.yaml")
