"""The scripts of the registered studies compute the tests of their plans."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "scripts"))

import copying
import event_times
import far
import few_data
import nine_problems
import protocol


def test_the_registered_test_is_paired_by_seed_and_corrected() -> None:
    """Against scipy's paired test, with Holm's factor of the smaller of two p values."""
    from scipy.stats import ttest_rel

    flow, mlp, alibi = [88.0, 87.0, 90.0, 86.0, 89.0], [87.0, 88.5, 88.0, 86.5, 87.0], [60.0, 64, 59, 61, 66]
    trials = {
        (name, rate, seed): {-1: loss, 0: 99.0, 80: 2 * score, 140: score}
        for name, scores in (("floater_relative", flow), ("distance_mlp", mlp), ("alibi", alibi))
        for rate, loss in (("1e-3", 1.0), ("2e-3", 0.5))
        for seed, score in zip(protocol.SEEDS, scores, strict=True)
    }
    assert set(protocol.chosen(trials).values()) == {"2e-3"}
    rows = {line.split("|")[1].strip(): line for line in protocol.against_rivals(trials).splitlines()[2:]}
    differences = [x - y for x, y in zip(flow, mlp, strict=True)]
    p, cells = f"{min(1.0, 8 * ttest_rel(flow, mlp).pvalue):.3f}", rows["`distance_mlp`"].split(" | ")
    assert cells[-4:-2] == [far.spread(differences, 1), p]
    assert cells[-2:] == [far.spread([1.5 * x for x in differences], 1), f"{p} |"]  # the mean of 80+ and 140+
    trials = {key: value for key, value in trials.items() if key[0] != "alibi"}
    trials |= {
        ("t5", "2e-3", seed): {-1: 0.5, 0: 99.0, 80: 2 * score, 140: score - 1}
        for seed, score in zip(protocol.SEEDS, mlp, strict=True)
    }
    row = next(line for line in protocol.against_rivals(trials).splitlines() if "`t5`" in line)
    assert f"| {min(1.0, 9 * ttest_rel(flow, [x - 1 for x in mlp]).pvalue):.3f} |" in row


def test_longer_trainings_take_the_place_of_shorter_ones() -> None:
    """Beside the others, in the same tests; the registered table has those of the plan alone."""
    scores = {-1: 0.5, 0: 99.0, 80: 90.0, 140: 80.0}
    names = ("floater_relative", "alibi", "alibi-3000", "alibi-6000", "t5", "t5-3000")
    trials = {(name, "2e-3", seed): dict(scores) for name in names for seed in protocol.SEEDS}
    kinds = [{name for name, _, _ in protocol.with_steps(trials, most)} for most in (0, 3000, protocol.MORE)]
    assert kinds == [
        {"floater_relative", "alibi", "t5"},
        {"floater_relative", "alibi-3000", "t5-3000"},
        {"floater_relative", "alibi-6000", "t5-3000"},
    ]
    assert "`alibi`, 6,000 steps" in protocol.table(protocol.with_steps(trials, protocol.MORE))
    rows = [line.strip("| ").split(" | ")[:2] for line in protocol.by_steps(trials).splitlines()[2:]]
    assert rows == [
        *(["`alibi`", steps] for steps in ("1,500", "3,000", "6,000")),
        *(["`t5`", steps] for steps in ("1,500", "3,000")),
    ]


def test_each_learned_function_is_tested_against_buckets_and_formulas() -> None:
    """With Holm's correction over the rivals of each function, the other learned ones among them."""
    from scipy.stats import ttest_rel

    scores = {
        "floater_relative": (88.0, 87.0, 90.0, 86.0, 89.0),
        "distance_mlp": (87.0, 88.5, 88.0, 86.5, 87.0),
        "dynamic_bias": (87.5, 88.0, 88.5, 86.0, 88.0),
        "t5-3000": (50.0, 54.0, 51.0, 52.0, 57.0),
        "kerple-3000": (85.0, 70.0, 88.0, 80.0, 86.0),
        "alibi-6000": (70.0, 71.0, 66.0, 69.0, 68.0),
    }
    trials = {
        (name, "2e-3", seed): {-1: 0.5, 0: 99.0, 80: 95.0, 140: score}
        for name, by_seed in scores.items()
        for seed, score in zip(protocol.SEEDS, by_seed, strict=True)
    }
    rows = [line.strip("| ").split(" | ") for line in protocol.learned(trials).splitlines()]
    assert [row[0] for row in rows[2:]] == [
        "`t5`, 3,000 steps",
        "`kerple`, 3,000 steps",
        "`alibi`, 6,000 steps",
    ]
    assert rows[0][1:] == ["`floater_relative`", "`distance_mlp`", "`dynamic_bias`"]
    for column, ours in enumerate(("floater_relative", "distance_mlp", "dynamic_bias"), 1):
        ps = {name: ttest_rel(scores[ours], other).pvalue for name, other in scores.items() if name != ours}
        factor = 9 - sorted(ps.values()).index(ps["kerple-3000"])
        assert rows[3][column].endswith(f", p {min(1.0, factor * ps['kerple-3000']):.3f}")


def test_few_data_has_the_tests_of_its_plan(tmp_path: Path) -> None:
    """Against scipy's paired test, with Holm's factors over all numbers of examples, bin by bin."""
    from scipy.stats import ttest_rel

    seeds = (26, 27, 28, 29, 30)
    scores = {
        ("floater_relative-500-1e-3", 0): (40.0, 42.0, 38.0, 41.0, 43.0),
        ("t5-500-3e-3", 0): (30.0, 41.0, 29.0, 38.0, 34.0),
        ("floater_relative-5000-3e-3", 0): (90.0, 92.0, 88.0, 91.0, 93.0),
        ("t5-5000-3e-3", 0): (91.0, 90.0, 89.5, 88.0, 93.0),
        ("floater_relative-500-1e-3", 17): (0.0, 0.0, 0.0, 0.0, 0.0),
        ("t5-500-3e-3", 17): (0.0, 0.0, 0.0, 0.0, 0.0),
        ("floater_relative-5000-3e-3", 17): (40.0, 42.0, 38.0, 41.0, 43.0),
        ("t5-5000-3e-3", 17): (20.0, 22.0, 18.0, 21.0, 23.0),  # twenty less with each seed
    }
    file = tmp_path / "scores.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["model", "seed", "test", "metric", "low", "score"])
        for (name, low), by_seed in scores.items():
            for seed, score in zip(seeds, by_seed, strict=True):
                writer.writerows(
                    [(name, seed, "lengths", metric, low, score) for metric in ("exact", "token")]
                )
    rows = [line.strip("| ").split(" | ") for line in few_data.few_data(file).splitlines()]
    assert [row[:2] for row in rows[2:]] == [
        *(["500", "`floater_relative`"], ["500", "`t5`"], ["5000", "`floater_relative`"], ["5000", "`t5`"]),
    ]
    few = ttest_rel(scores["floater_relative-500-1e-3", 0], scores["t5-500-3e-3", 0]).pvalue
    many = ttest_rel(scores["floater_relative-5000-3e-3", 0], scores["t5-5000-3e-3", 0]).pvalue
    assert few < many
    columns = {name: position for position, name in enumerate(rows[0])}
    assert rows[3][columns["p, to 16"]] == f"{18 * few:.3f}"
    assert rows[5][columns["p, to 16"]] == f"{min(1.0, 17 * many):.3f}"
    assert rows[5][columns["flow better by, 17–32"]] == "20.0 ± 0.0"
    assert [rows[i][columns["p, 17–32"]] for i in (3, 5)] == ["1.000", "< 0.001"]


def test_the_table_of_few_data_is_that_of_the_scores() -> None:
    page = (few_data.DOCS / "protocol.md").read_text(encoding="utf-8")
    assert few_data.few_data(few_data.DOCS / "protocol" / "few_data.csv") in page, "run `make docs`"


def test_scores_of_an_open_choice_are_refused_and_a_variant_without_rivals_has_no_test(
    tmp_path: Path,
) -> None:
    lines = ["model,seed,test,metric,low,score", "t5-500-1e-3,26,lengths,exact,0,90"]
    file = tmp_path / "scores.csv"
    file.write_text("\n".join(lines))
    (row,) = few_data.few_data(file).splitlines()[2:]
    assert row.split("|")[1:6] == [" 500 ", " `t5` ", " 90.0 ", "  ", "  "]
    file.write_text("\n".join([*lines, "t5-500-3e-3,26,lengths,exact,0,10"]))
    with pytest.raises(ValueError, match="has scores of t5-500-1e-3 and t5-500-3e-3; one must be chosen"):
        few_data.few_data(file)


def test_copying_has_the_tests_of_its_plan(tmp_path: Path) -> None:
    """Against scipy's paired test, with Holm's factors over the eight rivals of each function."""
    from scipy.stats import ttest_rel

    scores = {
        "floater_relative": (88.0, 87.0, 90.0, 86.0, 89.0),
        "distance_mlp": (87.0, 88.5, 88.0, 86.5, 87.0),
        "dynamic_bias": (87.5, 88.0, 88.5, 86.0, 88.0),
        "t5": (50.0, 54.0, 51.0, 52.0, 57.0),
        "kerple": (85.0, 70.0, 88.0, 80.0, 86.0),
        "alibi": (70.0, 71.0, 66.0, 69.0, 68.0),
        "floater_relative-unclipped": (80.0, 85.0, 71.0, 77.0, 89.5),
    }
    write_exact_matches(tmp_path / "scores.csv", scores)
    rows = [
        line.strip("| ").split(" | ") for line in copying.by_variant(tmp_path / "scores.csv").splitlines()
    ]
    assert [row[0] for row in rows[2:]] == [
        far.words(name) for name in sorted(scores, key=lambda name: -np.mean(scores[name]))
    ]
    table = {row[0]: dict(zip(rows[0], row, strict=False)) for row in rows[2:]}
    learned = copying.learned(tmp_path / "scores.csv").splitlines()
    cells = dict(zip(*([cell.strip() for cell in learned[i].split("|")] for i in (0, 2)), strict=True))
    for ours in ("floater_relative", "dynamic_bias"):
        ps = {name: ttest_rel(scores[ours], other).pvalue for name, other in scores.items() if name != ours}
        assert min(ps, key=ps.get) == "t5"
        assert cells[f"`{ours}`"].endswith(f", p {protocol.shown_p(8 * ps['t5'])}")
    p = ttest_rel(scores["floater_relative"], scores["t5"]).pvalue
    assert table["`t5`"]["p, 33–64"] == table["`t5`"]["p, 17–32"] == protocol.shown_p(8 * p)


def write_exact_matches(path: Path, scores: dict[str, tuple[float, ...]]) -> None:
    """Write scores by seed, less the lower bound of each bin."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "seed", "test", "metric", "low", "score"])
        for name, values in scores.items():
            for seed, score in enumerate(values, 51):
                for low in copying.BINS:
                    writer.writerow([f"{name}-1e-3", seed, "lengths", "exact", low, score - low])


def test_the_clip_has_the_tests_of_its_plan(tmp_path: Path) -> None:
    """Against scipy's paired test, with Holm's factors over the six comparisons of a score."""
    from scipy.stats import ttest_rel

    flow = (88.0, 87.0, 90.0, 86.0, 89.0)
    plain = {"dynamic_bias": (7.0, 9.0, 2.0, 4.0, 8.0), "alibi": (0.0, 1.0, 0.0, 2.0, 0.0)}
    with_it = {"dynamic_bias": (85.0, 88.5, 79.0, 86.5, 84.0), "alibi": (0.5, 0.0, 3.0, 9.0, 1.0)}
    write_exact_matches(tmp_path / "plain.csv", plain | {"floater_relative": flow})
    write_exact_matches(tmp_path / "clip.csv", {f"{name}_clipped": each for name, each in with_it.items()})
    table = copying.clip(tmp_path / "plain.csv", tmp_path / "clip.csv")
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    cells = [dict(zip(names, row, strict=True)) for row in rows]
    assert [(row["symbols"], row["function"]) for row in cells] == [
        *(("33–64", "`dynamic_bias`"), ("33–64", "`alibi`")),
        *(("17–32", "`dynamic_bias`"), ("17–32", "`alibi`")),
    ]
    sides = {("p, clip", name): (with_it[name], plain[name]) for name in plain}
    sides |= {("p, flow", name): (flow, with_it[name]) for name in plain}
    ps = sorted((ttest_rel(*pair).pvalue, *side) for side, pair in sides.items())
    corrected = np.maximum.accumulate([p * (4 - rank) for rank, (p, *_) in enumerate(ps)])
    for (_, column, name), p in zip(ps, corrected, strict=True):
        row = next(row for row in cells if row["function"] == f"`{name}`")
        assert row[column] == protocol.shown_p(min(p, 1.0))
    assert cells[1]["better with it by"] == "2.1 ± 3.1"


def test_events_have_the_tests_of_their_plan(tmp_path: Path) -> None:
    """Against scipy's test of Welch, with Holm's factors over the seven comparisons of a score."""
    from scipy.stats import ttest_ind

    draws = np.random.default_rng(2).normal(0, 0.01, (9, 2, 5))
    names = sorted({name for pair in event_times.PAIRS for name in pair})
    nats = {
        (name, test): 4.6 + 0.01 * i + draws[i, j]
        for i, name in enumerate(names)
        for j, test in enumerate(event_times.TESTS)
    }
    with (tmp_path / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "seed", "test", "metric", "low", "score"])
        for (name, test), values in nats.items():
            for seed, value in enumerate(values, 61):
                for metric in event_times.METRICS:
                    writer.writerow([f"{name}-3e-3", seed, test, metric, "", value])
    rows = [
        line.strip("| ").split(" | ")
        for line in event_times.compared(event_times.PAIRS, tmp_path / "scores.csv").splitlines()[2:]
    ]
    assert [row[:2] for row in rows] == [[far.words(name) for name in pair] for pair in event_times.PAIRS]
    for column, test in enumerate(event_times.TESTS):
        ps = [
            ttest_ind(nats[one, test], nats[other, test], equal_var=False).pvalue
            for one, other in event_times.PAIRS
        ]
        largest = 0.0
        for rank, i in enumerate(np.argsort(ps)):
            largest = max(largest, min(1.0, (7 - rank) * ps[i]))
            one, other = event_times.PAIRS[i]
            better = np.mean(nats[other, test]) - np.mean(nats[one, test])
            assert rows[i][2 + 2 * column : 4 + 2 * column] == [f"{better:.3f}", protocol.shown_p(largest)]


def test_nine_problems_have_the_tests_of_their_plan(tmp_path: Path) -> None:
    """Against scipy's test of Welch, with Holm's factors over all encodings and problems."""
    from scipy.stats import ttest_ind

    draws = np.random.default_rng(0).normal(0, 3, (4, 2, 5))
    names = ("rotary-clock", "floater_relative-clock", "floater_relative", "path")
    means = {"s3": (90, 80, 60, 93), "sort": (50, 49, 48, 47)}
    rows = [
        (
            f"{name}-{problem}-1e-3",
            seed,
            "lengths",
            metric,
            low,
            means[problem][i] + draws[i, j, k] - low / 41,
        )
        for low in (0, 21, 41)
        for i, name in enumerate(names)
        for j, problem in enumerate(means)
        for k, seed in reversed([*enumerate((41, 42, 43, 44, 45))])
        for metric in ("exact", "token")
    ]
    with (tmp_path / "scores.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("model", "seed", "test", "metric", "low", "score"), *rows])
    of = nine_problems.scores([tmp_path / "scores.csv"], 21)
    values = means["s3"][0] + draws[0, 0] - 21 / 41
    np.testing.assert_allclose(of["rotary-clock", "s3"], values)

    def p(one: str, other: str, problem: str) -> float:
        return float(ttest_ind(of[one, problem], of[other, problem], equal_var=False).pvalue)

    every = {(name, problem): p("rotary-clock", name, problem) for name in names[1:] for problem in means}
    ranks = {key: rank for rank, key in enumerate(sorted(every, key=every.get))}
    corrected = nine_problems.main_test(of)
    largest = 0.0
    for key in ranks:
        largest = max(largest, min(1.0, every[key] * (108 - ranks[key])))
        assert corrected[key] == pytest.approx(largest)
    table = [line.strip("| ").split(" | ") for line in nine_problems.goal(of).splitlines()[2:]]
    best = [max(names, key=lambda name: np.mean(of[name, problem])) for problem in means]
    assert [row[1] for row in table] == [far.words(name) for name in best]
    worse = [
        name != names[0] and corrected[name, problem] < 0.05
        for name, problem in zip(best, means, strict=True)
    ]
    assert [row[4] for row in table] == ["yes" if each else "no" for each in worse]
    corrected |= {(name, "sort"): 1.0 for name in names[1:]} | {("floater_relative", "s3"): 0.25}
    (row,) = nine_problems.against_others(of, {"rotary-clock": corrected}).splitlines()[2:]
    difference = np.mean(of["rotary-clock", "s3"]) - np.mean(of["floater_relative", "s3"])
    assert f"`floater_relative` by {difference:.1f}, p 0.250" in row.split("|")[3]
    flow = (
        nine_problems.two(of, "floater_relative-clock", "floater_relative")
        .splitlines()[2]
        .strip("| ")
        .split(" | ")
    )
    ps = [p("floater_relative-clock", "floater_relative", problem) for problem in means]
    assert flow[-1] == nine_problems.shown_p(min(1.0, ps[0] * (9 if ps[0] == min(ps) else 8)))
    of |= {("forgetting", "s3"): [80.0, 81.0], ("forgetting-b0", "s3"): [70.0, 72.0]}
    replaced = nine_problems.main_test(nine_problems.with_start_at_zero(of))
    assert ("forgetting-b0", "s3") in replaced
    assert ("forgetting", "s3") not in replaced
    assert f"**{far.spread(of['path', 's3'], 1)}**" in nine_problems.by_problem(of)
    seeds = {("path", "s3"): [0.0, 9.0, 20.1], ("none", "s3"): [50.0, 51.0], ("none", "sort"): [0.0, 90.0]}
    assert nine_problems.by_seed(seeds).splitlines()[2:] == ["| `path` |  | 0, 9, 20 |  |  |"]


def test_the_driven_flow_is_tested_with_the_seeds_that_its_rivals_have(tmp_path: Path) -> None:
    """Against scipy's Welch test, with Holm's correction for 36 comparisons; only the rivals are compared."""
    from scipy.stats import ttest_ind

    draws = np.random.default_rng(1).normal(50, 3, (5, 5))
    names = {"flow": ("floater_cde", "floater_cde-free"), "others": ("path", "rotary-clock", "none")}
    scores = dict(zip((name for each in names.values() for name in each), draws, strict=True))
    for file, models in names.items():
        seeds = {"path": 5, "rotary-clock": 5, "none": 2}  # the flow has four
        rows = [
            (f"{name}-s3-1e-3", seed, "lengths", "exact", 21, value)
            for name in models
            for seed, value in list(enumerate(scores[name], 41))[: seeds.get(name, 4)]
        ]
        with (tmp_path / file).open("w", newline="") as stream:
            csv.writer(stream).writerows([("model", "seed", "test", "metric", "low", "score"), *rows])
    others, flow = tmp_path / "others", tmp_path / "flow"
    assert {len(values) for values in nine_problems.scores([others], 21).values()} == {2}
    of = nine_problems.scores(
        [flow, others], 21, [*nine_problems.FLOWS, *nine_problems.RIVALS], "floater_cde"
    )
    assert {name for name, _ in of} == {"floater_cde", "floater_cde-free", "path", "rotary-clock"}
    assert {len(values) for values in of.values()} == {4}
    ps = nine_problems.flow_tests(of)
    raw = [
        ttest_ind(scores[flow][:4], scores[rival][:4], equal_var=False).pvalue
        for flow in names["flow"]
        for rival in ("path", "rotary-clock")
    ]
    assert min(p for each in ps.values() for p in each.values()) == pytest.approx(min(1.0, 36 * min(raw)))
    ps["floater_cde"]["path", "s3"] = 0.5
    row = nine_problems.against_others(of, ps).splitlines()[2]
    difference = abs(np.mean(scores["floater_cde"][:4]) - np.mean(scores["path"][:4]))
    assert f"`path` by {difference:.1f}, p 0.500" in row
    assert not any("none" in key for key in nine_problems.scores([flow, others], 21, seeds_of="floater_cde"))
