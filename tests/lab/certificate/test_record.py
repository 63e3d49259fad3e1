"""Intervals, claims and the choice of a method, from records with known answers."""

import pytest

from floater.lab.certificate.certified_model import Method
from floater.lab.certificate.page import write_page
from floater.lab.certificate.record import Record, wilson
from floater.lab.certificate.summary import PLAIN, choose, claims

A, B = Method("self_extend"), Method("yarn")


def read(losses, tokens=8, **more):
    """Return a result with the given mean loss in each block of eight tokens."""
    short = {"tokens": 8, "equal": True, "change": 0.0, "largest": 0.0}
    summed = {"nats": [loss * tokens for loss in losses], "tokens": [tokens] * len(losses)}
    return summed | {"seconds": 1.0, "memory": 1, "promised": True, "short": short, "minutes": 0.1} | more


def record(**losses):
    """Return a record of a model of 256 tokens, read to 320: 32 blocks before, 8 beyond."""
    settings = {
        "checkpoint": "model",
        "length": 320,
        "texts": {"a": "0", "b": "0"},
        "model": {"old": 256, "kind": "causal"},
        "environments": [
            {"device": "cpu", "threads": 1, "software": {"python": "3", "versions": {}, "commit": None}}
        ],
    }
    results = {}
    names = {"plain": PLAIN, "a": A, "b": B}
    for trial in range(2):
        results[f"windows/{PLAIN}/320/{trial}"] = {
            "nats": [0.0] * 32 + [8 * 2.0] * 8, "tokens": [0] * 32 + [8] * 8, "seconds": 1.0, "minutes": 0.1,
        }  # fmt: skip
        for name, (before, beyond, more) in losses.items():
            rows = [before] * 32 + beyond
            results[f"loss/{names[name]}/320/{trial}"] = read(rows, **more)
    return Record(settings, results)


def answered(hits):
    return {
        "hits": {"passkey": hits},
        "prefill": 1.0,
        "decode": 0.1,
        "cache": 1.0,
        "tokens": 9,
        "minutes": 0.1,
    }


CHANGED = {"promised": False, "short": {"tokens": 8, "equal": False, "change": 0.01, "largest": 0.1}}


def test_a_constant_difference_has_an_interval_of_no_width():
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.0, [2.03] * 8, {}))
    difference = held.difference(A, PLAIN, 256, 320, windows=True)
    assert difference.value == pytest.approx(0.03)
    assert difference.high - difference.low == pytest.approx(0, abs=1e-9)
    assert held.loss(PLAIN, 0, 256) == pytest.approx(2.0)
    assert held.loss(PLAIN, 256, 320) == pytest.approx(5.0)
    assert [claim.holds for claim in claims(held, A)] == [True, True, None]


def test_means_are_over_the_texts_that_every_method_has_read():
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.0, [2.1] * 8, {}), b=(2.0, [2.2] * 8, {}))
    held.results[f"loss/{A}/320/1"] = read([3.0] * 32 + [9.0] * 8)  # a harder text, which B has not read
    del held.results[f"loss/{B}/320/1"]
    assert held.common == {0}
    assert held.loss(A, 256, 320) == pytest.approx(2.1)
    assert held.ranked([B, A]) == [A, B]
    assert held.difference(A, PLAIN, 256, 320).value == pytest.approx((2.1 - 5.0 + 9.0 - 5.0) / 2)


def test_an_interval_is_that_of_student():
    """Differences of 0.0 and 0.1 in turn: mean 0.05, and t with 15 degrees of freedom times s / 4."""
    held = record(a=(2.0, [2.0, 2.1] * 4, {}))
    difference = held.difference(A, PLAIN, 256, 320, windows=True)
    half = 2.131449546 * (16 * 0.05**2 / 15) ** 0.5 / 4
    assert difference == pytest.approx((0.05, 0.05 - half, 0.05 + half))
    assert claims(held, A)[1].holds is None  # the interval contains the goal


def test_claims_fail():
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.01, [2.2] * 8, CHANGED))
    held.results["filler/unextended/128/0"] = answered([5, 5])
    held.results["filler/self_extend/320/0"] = answered([3, 5])
    assert [claim.holds for claim in claims(held, A)] == [False, False, False]
    held.results["filler/self_extend/320/1"] = answered([5, 5])
    assert claims(held, A)[2].holds is True  # 80 %


def test_the_choice_keeps_short_inputs_and_then_has_the_least_loss():
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.0, [2.4] * 8, {}), b=(2.02, [2.1] * 8, CHANGED))
    method, reason = choose(held, [A, B])
    assert method == A
    assert "self_extend is the only method that changes the loss of short inputs by at most 0.1%" in reason
    both = record(plain=(2.0, [5.0] * 8, {}), a=(2.1, [2.4] * 8, CHANGED), b=(2.1, [2.1] * 8, CHANGED))
    method, reason = choose(both, [A, B])
    assert method == B
    assert "every method changes short inputs" in reason


def test_equal_losses_are_decided_by_needles():
    held = record(a=(2.0, [2.0, 2.1] * 4, {}), b=(2.0, [2.1, 2.0] * 4, {}))
    held.results["filler/self_extend/320/0"] = answered([2, 5])
    held.results["filler/yarn/320/0"] = answered([4, 5])
    method, reason = choose(held, [A, B])
    assert method == B
    assert "yarn finds the most needles (80%)" in reason


def test_a_wilson_interval_solves_its_equation():
    """Its ends are the shares p whose score test has the critical value at the observed share."""
    for hits, total in ((0, 7), (3, 9), (40, 41)):
        share, *ends = wilson(hits, total)
        for p in ends:
            assert (share - p) ** 2 == pytest.approx(1.959963984540054**2 * p * (1 - p) / total, abs=1e-12)


def test_a_page_says_what_is_missing(tmp_path):
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.0, [2.2] * 8, {}))
    held.results[f"loss/{B}/320/0"] = {"refused": "no such positions", "minutes": 0.0}
    lines = write_page(held, [A, B], "self_extend", tmp_path, "floater extend model 320")
    page = (tmp_path / "certificate.html").read_text()
    assert any(line.startswith("NO") and "+0.200" in line for line in lines)
    assert "yarn was refused: no such positions" in page
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org", "")  # self-contained


def test_needles_without_room_are_one_note_of_each_kind(tmp_path):
    held = record(plain=(2.0, [5.0] * 8, {}), a=(2.0, [2.2] * 8, {}))
    for kind, name, length, least in (
        ("filler", "unextended", 32, 411),
        ("filler", A, 320, 409),
        ("text", A, 320, 388),
    ):
        why = {"refused": f"the needles of '{kind}' need {least} tokens, more than {length}", "least": least}
        held.results[f"{kind}/{name}/{length}/0"] = why | {"minutes": 0.0}
    notes = [
        line
        for line in write_page(held, [A], "self_extend", tmp_path, "floater extend")
        if "needles of" in line
    ]
    assert notes == [
        "Not measured: the needles of 'filler' in 32 and 320 tokens; they need 411.",
        "Not measured: the needles of 'text' in 320 tokens; they need 388.",
    ]
