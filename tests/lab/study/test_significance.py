"""Significance: against sacrebleu's own bootstrap, and the error rate under the null."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from scipy.stats import norm, ttest_ind

from floater.lab.study.significance import Difference, holm, paired_p, paired_t_p, resampled, welch_p
from floater.lab.tasks.measurement import METRICS
from floater.lab.tasks.translation import bleu

WORDS = ["ein", "Mann", "mit", "rotem", "Hut", "steht", "auf", "einer", "Straße", "."]


def sentences(random: np.random.Generator, count: int = 60) -> list[str]:
    return [" ".join(random.choice(WORDS, random.integers(4, 9))) for _ in range(count)]


def worse(lines: list[str], random: np.random.Generator, rate: float) -> list[str]:
    return [
        " ".join(random.choice(WORDS) if random.random() < rate else word for word in line.split())
        for line in lines
    ]


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU), ("chrf", CHRF)])
@pytest.mark.parametrize("rates", [(0.3, 0.32), (0.2, 0.4)])
def test_with_one_seed_the_samples_are_sacrebleus(
    name: str, metric: type[BLEU | CHRF], rates: tuple[float, float]
) -> None:
    random = np.random.default_rng(0)
    references = sentences(random)
    systems = [worse(references, random, rate) for rate in rates]
    named = list(zip(("baseline", "ours"), systems, strict=True))
    _, actual = PairedTest(named, {name: metric()}, [references], test_type="bs", n_samples=300)()
    wanted = actual[metric().corpus_score(systems[0], [references]).name][1].p_value

    statistics = [bleu.score(system, references).statistics[name] for system in systems]
    score = METRICS[name].score
    theirs, ours = (resampled(score, [part], 300) for part in statistics)
    difference = score(statistics[1].sum(0)) - score(statistics[0].sum(0))
    apart = np.abs(ours - theirs)
    p = (np.sum(apart - apart.mean() > abs(difference)) + 1) / 301  # sacrebleu's, which is one-sided
    assert p == pytest.approx(wanted, abs=1.01 / 301)  # float32 there


def test_several_seeds_count_by_their_mean() -> None:
    random = np.random.default_rng(1)
    seeds = [random.integers(0, 5, (30, 1)) * np.array([1, 0]) + np.array([0, 1]) for _ in range(3)]
    score = METRICS["accuracy"].score
    alone = [resampled(score, [part], 50) for part in seeds]
    assert resampled(score, seeds, 50) == pytest.approx(np.mean(alone, axis=0))


@pytest.mark.parametrize("examples", [1, 2, 3, 5, 8, 12, 80])
def test_chance_alone_is_seldom_called_a_difference(examples: int) -> None:
    """Two systems that are right equally often: at level 0.05, about one in twenty is called different."""
    called = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        both = [
            np.stack([random.random(examples) < 0.6, np.ones(examples)], axis=1).astype(float)
            for _ in range(2)
        ]
        score = METRICS["accuracy"].score
        ours, theirs = (resampled(score, [part], 200) for part in both)
        difference = score(both[0].sum(0)) - score(both[1].sum(0))
        called += paired_p(ours, theirs, difference, examples) < 0.05
    assert called <= 21  # the 99.9th percentile of 200 tests at the level


@pytest.mark.parametrize("better", [0.0, 0.02, 0.05, -0.03])
def test_of_many_examples_it_is_the_paired_z_test(better: float) -> None:
    random = np.random.default_rng(3)
    theirs = random.random(2000) < 0.6
    ours = np.where(random.random(2000) < 0.3, random.random(2000) < 0.6 + better / 0.3, theirs)
    both = [np.stack([right, np.ones(2000)], axis=1).astype(float) for right in (ours, theirs)]
    score = METRICS["accuracy"].score
    drawn = [resampled(score, [part], 4000) for part in both]
    apart = ours.astype(float) - theirs
    z = apart.mean() / (apart.std() / np.sqrt(2000))
    actual = paired_p(*drawn, score(both[0].sum(0)) - score(both[1].sum(0)), 2000)
    assert actual == pytest.approx(2 * norm.sf(abs(z)), abs=0.03)  # the spread of 4000 samples, and of counts


def test_no_difference_is_no_discovery() -> None:
    same = np.array([1.0, 2.0])
    assert paired_p(same, same, 0.0, 100) == 1.0


def test_samples_without_a_score_are_no_discovery() -> None:
    """As of a ratio whose denominator is 0 in all examples but two."""
    values = np.array([[1.0, 1], [1, 1], *[[0, 0]] * 98])
    ours, theirs = (
        resampled(METRICS["accuracy"].score, [of], 1000) for of in (values, values * np.array([0, 1]))
    )
    assert 0.1 < np.isnan(ours).mean() < 0.2
    assert paired_p(ours, theirs, 100.0, 100) > 0.1


@given(
    ours=st.lists(st.integers(0, 100).map(float), min_size=2, max_size=6),
    theirs=st.lists(st.integers(0, 100).map(float), min_size=2, max_size=6),
)
def test_welch_is_symmetric_and_a_probability(ours: list[float], theirs: list[float]) -> None:
    actual = welch_p(ours, theirs)
    assert actual is not None
    assert 0 <= actual <= 1
    assert actual == pytest.approx(welch_p(theirs, ours))


def test_welch_is_scipys_and_wants_two_seeds() -> None:
    ours, theirs = [30.1, 31.0, 29.5], [33.0, 32.2, 34.1]
    assert welch_p(ours, theirs) == pytest.approx(ttest_ind(ours, theirs, equal_var=False).pvalue)
    assert welch_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert welch_p([1.0], [1.0, 3.0]) is None


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_lies_between_none_and_bonferroni(values: list[float]) -> None:
    corrected = holm(values)
    for before, after in zip(values, corrected, strict=True):
        assert before <= after <= min(1.0, before * len(values)) or after == pytest.approx(before)
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert [corrected[i] for i in order] == sorted(corrected)


def test_both_nulls_must_be_rejected() -> None:
    assert Difference(1.0, p_examples=0.01, p_seeds=0.3).p == 0.3
    assert Difference(1.0, p_examples=0.4, p_seeds=0.01).p == 0.4
    assert Difference(1.0, p_examples=None, p_seeds=None).p is None


def test_differences_that_are_equal_but_for_rounding_have_no_spread() -> None:
    differences = [33.3 - 33.1, 50.2 - 50.0]
    assert len({*differences}) == 2
    assert paired_t_p(differences) == 0.0
    assert paired_t_p([0.0, 0.3 - 0.1 - 0.2]) == 1.0
