"""Metrics against scikit-learn and scipy, and the files that the benchmark takes."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax
from sklearn import metrics

from floater.lab.tasks.corpora.glue import TASKS
from floater.lab.tasks.glue.score import measure, predictions, submission

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.labels], ids=lambda task: task.name)
def test_metrics_of_labels_are_those_of_scikit_learn(task) -> None:
    classes = len(task.labels)
    outputs, gold = DRAW.normal(size=(200, classes)), DRAW.integers(classes, size=200)
    actual = measure(list(outputs), gold.tolist(), task)
    said = outputs.argmax(-1)
    expected = {
        "accuracy": metrics.accuracy_score(gold, said),
        "f1": metrics.f1_score(gold, said) if classes == 2 else 0,
        "matthews": metrics.matthews_corrcoef(gold, said),
    }
    loss = -log_softmax(outputs, axis=-1)[np.arange(200), gold].mean()
    assert actual == {"loss": round(loss, 4)} | {n: round(100 * expected[n], 2) for n in task.metrics}


def test_correlations_are_those_of_scipy() -> None:
    outputs, gold = DRAW.normal(size=(100, 1)), DRAW.uniform(0, 5, size=100)
    actual = measure(list(outputs), gold.tolist(), TASKS["STS-B"])
    assert actual["pearson"] == pytest.approx(100 * stats.pearsonr(outputs[:, 0], gold)[0], abs=0.01)
    assert actual["spearman"] == pytest.approx(100 * stats.spearmanr(outputs[:, 0], gold)[0], abs=0.01)
    assert actual["loss"] == pytest.approx(np.mean((outputs[:, 0] - gold / 5) ** 2), abs=1e-4)


def test_the_first_metric_is_that_of_the_papers_table() -> None:
    firsts = {task.name: task.metrics[0] for task in TASKS.values()}
    assert firsts.pop("CoLA") == "matthews"
    assert firsts.pop("STS-B") == "pearson"
    assert set(firsts.values()) == {"accuracy"}


def test_scores_that_do_not_vary_are_said() -> None:
    with pytest.warns(stats.ConstantInputWarning):
        assert measure([np.ones(1)] * 3, [1.0, 2.0, 3.0], TASKS["STS-B"])["pearson"] == 0


def test_submissions() -> None:
    outputs = [np.array([0.0, 2.0, 1.0]), np.array([0.0, 1.0, 2.0])]
    said = predictions(outputs, TASKS["MNLI"])
    assert submission(said, ["9", "4"], TASKS["MNLI"]) == [
        "index\tprediction",
        "9\tneutral",
        "4\tcontradiction",
    ]
    scores = predictions([np.array([0.5]), np.array([-0.1]), np.array([1.2])], TASKS["STS-B"])
    assert submission(scores, ["0", "1", "2"], TASKS["STS-B"])[1:] == ["0\t2.500", "1\t0.000", "2\t5.000"]
