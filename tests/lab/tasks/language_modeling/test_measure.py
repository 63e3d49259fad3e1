"""Study scores of language models, against `evaluate`."""

from pathlib import Path

import numpy as np
import pytest

from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.language_modeling import LanguageModelingSettings

from .small import settings, write_config, write_texts

TASK = task("language_modeling")
train, evaluate, measure = TASK.train, TASK.evaluate, TASK.measure


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_it_has_the_loss_of_evaluate(tmp_path: Path, objective: str) -> None:
    write_texts(tmp_path)
    run = train(load(LanguageModelingSettings, write_config(tmp_path, objective=objective)))
    source = str(tmp_path / "valid.txt")
    actual, wanted = measure(run, source), evaluate(run, source)
    parts = measure(run, source, bins=(3,))
    every = np.ones(len(parts.lengths), dtype=bool)
    assert parts.by_unit("loss", every) == pytest.approx(actual.statistics["loss"])  # whole windows
    assert parts.count(every) == len(actual.lengths)
    assert actual.score("loss") == pytest.approx(wanted.loss, rel=1e-5)
    assert actual.position_tokens.sum() == wanted.tokens == actual.lengths.sum()
    assert actual.position_nats.sum() == pytest.approx(wanted.nats, rel=1e-5)
    # of a masked model <s>, of a causal one nothing stands at the first place
    assert (actual.position_tokens[0] == 0) == (objective == "masked")


def test_rows_without_a_predicted_token_are_no_examples(tmp_path: Path) -> None:
    """If segments of several documents share a batch, a short document ends before a long one."""
    write_texts(tmp_path)
    memory = {"block": 8, "memory": 16}
    run = train(settings(tmp_path, model={"position": "transformer_xl"}, data=memory))
    source = str(tmp_path / "valid.txt")
    actual, wanted = measure(run, source), evaluate(run, source)
    assert actual.lengths.min() > 0
    assert actual.lengths.sum() == wanted.tokens
    assert actual.score("loss") == pytest.approx(wanted.loss, rel=1e-5)
