"""Measurements, held against scores that do not know of them."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from floater.lab.tasks.measurement import METRICS, Measurement, positions
from floater.lab.tasks.translation.bleu import score

LINES = st.lists(st.sampled_from(["ein Hut", "ein roter Hut .", "der Mann", "auf dem", "", "x"]), min_size=1)


@given(LINES, st.randoms(use_true_random=False))
@examples(max_examples=40)
def test_summed_statistics_give_sacrebleus_scores(hypotheses: list[str], random: object) -> None:
    references = hypotheses[1:] + hypotheses[:1]
    actual = score(hypotheses, references).statistics
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    chrf = sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert METRICS["bleu"].score(actual["bleu"].sum(0)) == pytest.approx(bleu)
    assert METRICS["chrf"].score(actual["chrf"].sum(0)) == pytest.approx(chrf)


def test_the_length_ratio_is_of_the_tokens_that_bleu_counts() -> None:
    actual = score(["ein Hut.", "", "x"], ["ein roter Hut .", "auf dem", ""], lengths=[4, 2, 0])
    assert actual.score("length_ratio") == pytest.approx((3 + 0 + 1) / (4 + 2 + 0))
    assert actual.score("length_ratio", actual.lengths == 2) == 0.0
    assert actual.score("length_ratio", actual.lengths == 0) is None


def test_positions_count_every_token_once() -> None:
    rows = [np.arange(n, dtype=float) for n in (3, 0, 5)]
    sums, counts = positions(rows)
    assert (sums.sum(), counts.sum()) == (sum(row.sum() for row in rows), 8)
    assert counts.tolist() == [2, 2, 2, 1, 1]


def test_what_could_not_be_scored_has_no_score() -> None:
    actual = Measurement(np.array([1, 9]), {"exact": np.array([[1, 1], [np.nan, np.nan]])})
    assert actual.score("exact") is None
    assert actual.score("exact", actual.lengths < 5) == 100.0
    assert actual.score("exact", actual.lengths > 9) is None
