"""Training on events: that times are of use, runs that go on, and what is refused."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, dump, load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.events import Columns, read_sequences
from floater.lab.tasks.events import EventsSettings, configured, mean_nll
from helpers import equal_runs, train_killed

from .small import VALUES, clocks, settings, waves, write_config, write_csv

TASK = task("events")
train, evaluate, check = TASK.train, TASK.evaluate, TASK.check
LONG = {"learning_rate": 1e-2, "max_steps": 150, "save_steps": 75, "average_last": 0}
ROOT = Path(__file__).parents[4]
CONFIGS = sorted((ROOT / "configs" / "events").glob("*.yaml"))


def result(run: Path) -> dict[str, float]:
    actual: dict[str, float] = json.loads((run / "result.json").read_text())
    return actual


def test_equal_values_have_no_spread_of_rounding(tmp_path: Path) -> None:
    rows = [(name, time, x, 0.1) for name, time, x, _ in waves(10, seed=0)]
    data = VALUES | {"train": str(write_csv(tmp_path / "equal.csv", rows, "x", "y"))}
    config = settings(tmp_path, data=data, model={"goal": "interpolate"})
    sequences = read_sequences(config.data.train, config.data.columns)
    varied, equal = configured(config, sequences).scales
    assert varied == pytest.approx(0.7, abs=0.05)  # of a sine
    assert equal == 1.0


def test_times_tell_what_indices_do_not(trained: Path, folder: Path) -> None:
    """The next type follows from the time that has passed: a model that reads times can know it."""
    index = train(settings(folder, "index", model={"position_source": "index"}, training=LONG))
    assert result(trained)["accuracy"] > 80
    assert result(index)["accuracy"] < 70


def test_the_result_is_that_of_one_event_at_a_time(trained: Path, folder: Path) -> None:
    model, *_ = TASK.load(trained, "cpu")
    rows = clocks(8, seed=9)
    source = write_csv(folder / "some.csv", rows, "type")
    nats, error, right, count = 0.0, 0.0, 0, 0
    for sequence in read_sequences(source, Columns()):
        types = [model.config.types.index(name) for name in sequence.types]
        for i in range(1, len(types)):
            with torch.no_grad():
                out = model(torch.tensor([types[:i]]), torch.from_numpy(sequence.times[:i])[None])
            gap = torch.tensor([sequence.times[i] - sequence.times[i - 1]]).float()
            chances, gaps = out.type_logits[0, -1].log_softmax(-1), model.gaps(out.raw[:, -1])
            nats -= float(chances[types[i]]) + float(gaps.log_prob(gap))
            error += float((gaps.median() - gap).abs())
            right += int(chances.argmax()) == types[i]
            count += 1
    actual = evaluate(trained, source)
    assert count == len(rows) - 8
    assert str(actual).endswith(f"({count} events)")
    assert actual.scores["nll"] == pytest.approx(nats / count, rel=2e-4)
    assert actual.scores["mae"] == pytest.approx(error / count, rel=2e-4)
    assert actual.scores["accuracy"] == pytest.approx(100 * right / count, abs=1e-4)
    assert actual.scores["nll"] == pytest.approx(
        actual.scores["nll_time"] + actual.scores["nll_type"], abs=2e-4
    )


def test_a_longer_window_lets_events_be_told_from_more_of_those_before(trained: Path, folder: Path) -> None:
    source = folder / "clocks.csv"
    short, whole, longer = (evaluate(trained, source, window=n) for n in (1, None, 100))
    assert str(short).split("(")[1] == str(whole).split("(")[1]
    assert str(longer) == str(whole)  # no sequence is longer than a piece of the training
    assert short.scores["nll"] > whole.scores["nll"] + 0.1  # one event alone says nothing of what has passed


def test_sequences_are_scored_one_by_one_and_by_the_events_read_before(trained: Path, folder: Path) -> None:
    """A sequence has the score that it has alone; ranges restart with each piece and add up to the whole."""
    rows = clocks(6, seed=5)
    several = write_csv(folder / "several.csv", rows, "type")
    names = list(dict.fromkeys(name for name, _, _ in rows))
    plain = evaluate(trained, several, window=4)
    for index, name in enumerate(names):
        alone = write_csv(folder / "alone.csv", [row for row in rows if row[0] == name], "type")
        one = evaluate(trained, alone, window=4)
        for metric, score in one.scores.items():
            assert plain.score(metric, np.array([index])) == pytest.approx(score, abs=2e-4)
        assert plain.lengths[index] == sum(row[0] == name for row in rows) - 1
    binned = evaluate(trained, several, window=4, bins=(2, 4))
    assert [record["context"] for record in binned.bins] == [[1, 1], [2, 3], [4, 4]]
    assert sum(record["events"] for record in binned.bins) == plain.lengths.sum() == len(rows) - len(names)
    assert {*binned.lengths.tolist()} == {1, 2, 4}
    every = np.ones(len(binned.lengths), dtype=bool)
    assert binned.count(every) == plain.count(np.ones(len(names), dtype=bool)) == len(names)
    for metric, rows in plain.statistics.items():
        assert binned.by_unit(metric, every) == pytest.approx(rows)  # a sequence is resampled as a whole
    for record, low, high in zip(binned.bins, (1, 2, 4), (2, 4, 5), strict=True):
        within = (binned.lengths >= low) & (binned.lengths < high)
        for metric, score in binned.scores.items():
            assert binned.score(metric) == pytest.approx(score, abs=1e-4)
            assert binned.score(metric, within) == pytest.approx(record[metric], abs=1e-4)
    model, *_ = TASK.load(trained, "cpu")
    firsts = [
        float(model(types[:, begin : begin + 2], times[:, begin : begin + 2]).nll[0, 1])
        for sequence in read_sequences(several, Columns())
        for types in [torch.tensor([[model.config.types.index(name) for name in sequence.types]])]
        for times in [torch.from_numpy(sequence.times)[None]]
        for begin in range(0, len(sequence) - 1, 4)
    ]
    assert binned.bins[0]["nll"] == pytest.approx(np.mean(firsts), rel=2e-4)
    assert binned.bins[0]["events"] == len(firsts)
    assert str(binned).splitlines()[0] == str(plain)


def test_values_are_not_scored_by_the_events_before(folder: Path, tmp_path: Path) -> None:
    data = VALUES | {"train": str(folder / "waves.csv")}
    config = settings(tmp_path, data=data, model={"goal": "forecast"})
    with pytest.raises(
        DataError, match=r"bins \[4\]: only the goal 'next' is scored by the events read before"
    ):
        TASK.check_test(config, source=config.data.train, bins=(4,))
    with pytest.raises(DataError, match="window is 0; it must be at least 1 event"):
        TASK.check_test(config, source=config.data.train, window=0)


def test_a_hazard_comes_near_the_entropy_of_the_gaps(folder: Path) -> None:
    """They are uniform over 7.5 units of time: no model tells them for less than log 7.5 nats."""
    run = train(settings(folder, "hazard", model={"head": "hazard", "components": 8}, training=LONG))
    assert math.log(7.5) - 0.05 < result(run)["nll_time"] < math.log(7.5) + 0.1


@pytest.mark.parametrize("goal", ["interpolate", "forecast"])
def test_values_between_and_after_are_told_better_than_by_their_mean(folder: Path, goal: str) -> None:
    data = VALUES | {"train": str(folder / "waves.csv")}
    run = train(settings(folder, goal, data=data, model={"goal": goal}, training=LONG))
    # a circle of radius 1 in x and 2 in y: the root mean square about the mean is sqrt((1/2 + 4/2) / 2)
    assert result(run)["rmse"] < 0.9 * math.sqrt(1.25)
    said = str(evaluate(run, folder / "waves.csv", "test"))
    assert re.match(r"nll -?\d+\.\d+, rmse \d+\.\d+, mae \d+\.\d+ \(\d+ values\)$", said)


@pytest.mark.parametrize("goal", ["next", "interpolate"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(folder: Path, goal: str) -> None:
    parts = {"model": {"goal": goal}}
    if goal != "next":
        parts["data"] = VALUES | {"train": str(folder / "waves.csv")}
    whole = train(settings(folder, f"whole-{goal}", **parts))

    assert equal_runs(train_killed(TASK, settings(folder, f"part-{goal}", **parts)), whole)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ({"position": "tree"}, PositionError, "task 'events': 'tree' reads a tree"),
        ({"position": "learned"}, PositionError, "task 'events': 'learned' counts tokens"),
        (
            {"position": "ldpe", "position_source": "index"},
            PositionError,
            "task 'events': no target_length",
        ),
        ({"position": "shaw", "goal": "forecast"}, PositionError, "task 'events': 'shaw' counts tokens"),
    ],
)
def test_what_can_serve_no_sequence_is_refused_before_data_are_read(
    tmp_path: Path, model: dict[str, str], error: type[Exception], message: str
) -> None:
    """There is no table in the directory."""
    with pytest.raises(error, match=message):
        check(settings(tmp_path, model=model, data=VALUES if "goal" in model else {}))


@pytest.mark.parametrize(
    "data", [{}, {"time_per_position": 1e-6}, {"unit": 86400.0, "resolution": 2.0}, VALUES]
)
def test_what_can_serve_passes_and_draws_no_number(tmp_path: Path, data: dict[str, Any]) -> None:
    config = settings(tmp_path, data=data, model={"goal": "interpolate"} if data is VALUES else {})
    before = torch.get_rng_state()
    check(config)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("items", [None, torch.tensor(0)])
def test_a_batch_without_a_value_to_tell_costs_nothing(items: torch.Tensor | None) -> None:
    assert mean_nll({"nll": torch.zeros(2, 3)}, torch.full((2, 3), -100), items).item() == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"model": {"position_source": "sun"}},
            "'model.position_source' must be one of 'time', 'index', not 'sun'",
        ),
        ({"model": {"goal": "forecast"}}, "model.goal is 'forecast', which goes with data.columns.values"),
        ({"data": VALUES}, "model.goal is 'next', which goes with data.columns.type"),
        ({"data": {"time_per_position": 0.0}}, "time_per_position is 0.0; it must be positive"),
        ({"data": {"valid_share": 0.6, "test_share": 0.4}}, "leave nothing for training"),
        ({"data": {"valid_share": 0.0}}, "one of them must say what validates"),
        ({"data": VALUES, "model": {"goal": "forecast", "gap_feature": True}}, "goes with the goal 'next'"),
        ({"model": {"components": 1}}, "components is 1; it must be at least 2"),
    ],
)
def test_settings_that_cannot_be_used(
    folder: Path, parts: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(EventsSettings, write_config(folder, "bad", **parts))


def test_the_command_line_trains_and_evaluates(
    folder: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(folder, "typed", training={"max_steps": 2, "save_steps": 2, "average_last": 1})
    assert main(["train", str(config), "model.position=rotary"]) == 0
    assert re.search(r"^steps +2$", capsys.readouterr().out, re.MULTILINE)
    source = ["--source", str(folder / "clocks.csv"), "--part", "valid"]
    assert main(["evaluate", str(trained), *source]) == 0
    said = capsys.readouterr().out
    nll = re.match(r"nll (\S+), nll_time \S+, nll_type \S+, accuracy \S+, mae \S+ \(\d+ events\)\n$", said)
    assert nll is not None
    assert float(nll[1]) == pytest.approx(result(trained)["nll"], abs=1e-4)


def test_what_a_person_gets_wrong_is_one_line_and_nothing_is_written(
    folder: Path, trained: Path, said: Callable[..., str]
) -> None:
    config = str(write_config(folder, "new"))
    assert "none.csv: cannot be read (No such file or directory)" in said(
        "train", config, "data.train=none.csv"
    )
    assert "more than training.max_tokens, 9" in said("train", config, "training.max_tokens=9")
    learned = said("train", config, "model.position=learned")
    assert re.match(
        r"training sequence 'u\d+' \(times .*\): 'learned' counts tokens; real positions need", learned
    )
    table = said(
        "train", config, "model.position=learned", "model.position_source=index", "model.max_length=9"
    )
    assert re.match(r"training sequence 'u\d+' \(times .*\): 'learned' ends at position 8", table)
    ties = write_csv(folder / "ties.csv", [("a", 1.0, "x"), ("a", 1.0, "y"), ("b", 0.0, "x")], "type")
    assert "sequence 'a': events 0 and 1 are at one time" in said("train", config, f"data.train={ties}")
    source = ["--source", str(folder / "clocks.csv")]
    assert "takes no --stride" in said("evaluate", str(trained), *source, "--stride", "3")
    assert "window is 0; it must be at least 1 event" in said(
        "evaluate", str(trained), *source, "--window", "0"
    )
    strange = write_csv(folder / "strange.csv", [("a", 1.0, "x"), ("a", 2.0, "y")], "type")
    assert "type 'x' is in no training sequence" in said("evaluate", str(trained), "--source", str(strange))


def test_a_span_that_the_flow_cannot_cover_ends_with_the_scale_to_try(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floater.flow.collocation.mesh_selection.MAX_INTERVALS", 1)
    assert main(["train", str(write_config(folder, "far"))]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"training sequence 'u\d+' \(times .*\): the flow cannot be solved .* try time_scale=\S+ or less",
        said,
    )
    assert not (folder / "far").exists()


def test_a_span_far_beyond_the_starting_one_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(folder, "said", training={"max_steps": 1, "save_steps": 1, "average_last": 1})
    assert main(["train", str(config), "model.max_length=2"]) == 0
    assert "positions, model.max_length 2: a flow starts of order one" in capsys.readouterr().err


def test_waves_are_observed_nine_times_in_ten() -> None:
    values = [v for row in waves(50, seed=1) for v in row[2:]]
    assert 0.05 < sum(v is None for v in values) / len(values) < 0.15


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configurations_are_some(path: Path, tmp_path: Path) -> None:
    shipped = load(EventsSettings, path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# floater train configs/events/{path.name} run={shipped.run}"
    (tmp_path / "config.yaml").write_text(dump(shipped), encoding="utf-8")
    assert load(EventsSettings, tmp_path / "config.yaml") == shipped


def test_no_part_that_a_run_is_tested_on_was_trained_on(folder: Path) -> None:
    """Nor where validation has data of its own, and so no share."""
    write_csv(folder / "held.csv", clocks(5, seed=9), "type")
    for data in ({}, {"valid": str(folder / "held.csv")}):
        config = settings(folder, "parts", data={"test_share": 0.3, **data})
        asked = config.data
        every = read_sequences(asked.train, asked.columns)
        parts = {part: {each.id for each in asked.part(every, part)} for part in ("train", "test")}
        trained = {each.id for each in TASK.read(config).train}
        assert trained == parts["train"]
        assert parts["test"]
        assert not trained & parts["test"]


def test_gaps_that_are_equal_in_float32_make_no_edges(folder: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [
        (f"s{s}", float(t), "tick") for s in range(12) for t in 3600 * np.arange(20) + draw.random(20) * 1e-3
    ]
    write_csv(folder / "even.csv", rows, "type")
    data = {"train": str(folder / "even.csv")}
    run = train(settings(folder, "even", data=data, model={"head": "hazard", "components": 16}))
    assert math.isfinite(result(run)["nll"])


def test_a_position_model_that_shows_later_events_is_refused(folder: Path, ahead: str) -> None:
    with pytest.raises(DataError, match="'ahead' lets events attend to later ones"):
        train(settings(folder, "leak", model={"position": ahead, "position_source": "time"}))
    assert not (folder / "leak").exists()


def test_milliseconds_since_1970_are_trained_on_as_those_since_the_first_event(
    folder: Path, tmp_path: Path
) -> None:
    rows = [(name, round(1000 * time), kind) for name, time, kind in clocks(12, seed=3)]
    first: dict[str, int] = {}
    for name, time, _ in rows:
        first.setdefault(name, time)
    scores = []
    for offset in (0, 1_700_000_000_000):
        directory = tmp_path / str(offset)
        directory.mkdir()
        shifted = [(name, time - first[name] + offset, kind) for name, time, kind in rows]
        write_csv(directory / "clocks.csv", shifted, "type")
        run = TASK.train(settings(directory, training={"max_steps": 4}))
        scores.append(result(run)["nll"])
    assert scores[0] == scores[1]


def test_a_missing_time_among_milliseconds_is_no_divergence(folder: Path, tmp_path: Path) -> None:
    seen: set[str] = set()
    rows = []
    for name, time, kind in clocks(12, seed=3):
        rows.append((name, 1_700_000_000_000 + round(1000 * time) if name in seen else 0, kind))
        seen.add(name)
    write_csv(tmp_path / "clocks.csv", rows, "type")
    with pytest.raises(
        DataError, match=r"^training sequence '.*' \(times 0 to .*a time far from the others"
    ) as error:
        TASK.train(settings(tmp_path))
    assert "learning_rate" not in str(error.value)
    assert not (tmp_path / "run").exists()


def scaled_clocks(folder: Path, scale: float) -> Path:
    """Sequences from time 0, in another unit of time."""
    first: dict[str, float] = {}
    rows = [(name, scale * (time - first.setdefault(name, time)), kind) for name, time, kind in clocks(30, 0)]
    return write_csv(folder / "clocks.csv", rows, "type")


def test_times_beyond_the_largest_integer_are_trained_on_as_any_other(tmp_path: Path) -> None:
    """In units of their own they are the same times, but for rounding."""
    training = {"max_steps": 2, "save_steps": 2, "average_last": 1, "warmup_steps": 1}
    scores = []
    for name, scale in (("small", 1.0), ("large", 2.0**70)):
        scaled_clocks(tmp_path, scale)
        run = TASK.train(settings(tmp_path, name, data={"unit": scale}, training=training))
        scores.append(result(run)["nll"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.parametrize(
    ("scale", "override", "message"),
    [
        (
            1e290,
            "data.max_events=16",
            r"events 0 and 1 are \S+ units apart, infinite in float32; raise data.unit",
        ),
        (
            1e-50,
            "data.max_events=16",
            r"events 0 and 1 are \S+ units apart, 0 in float32; lower data.unit, 1",
        ),
        (
            1.0,
            "data.time_per_position=1e-200",
            r"positions of 1e-200 each, infinite in float32; raise data.t",
        ),
        (1.0, "data.unit=1e-200", r"are \S+ units apart, infinite in float32; raise data.unit, 1e-200"),
    ],
)
def test_times_that_float32_cannot_hold_are_refused(
    scale: float, override: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled_clocks(tmp_path, scale)
    assert main(["train", str(write_config(tmp_path)), override]) == 2
    assert re.search(rf"sequence 'u\d+': .*{message}", capsys.readouterr().err.splitlines()[-1])


def test_values_of_a_table_are_named_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(
        folder, "named", data=VALUES | {"train": str(folder / "waves.csv")}, model={"goal": "forecast"}
    )
    run = str(tmp_path / "run")
    assert main(["train", str(config), f"run={run}"]) == 0
    renamed = tmp_path / "renamed.csv"
    renamed.write_text((folder / "waves.csv").read_text().replace("id,time,x,y", "id,time,sine,cosine", 1))
    capsys.readouterr()
    assert main(["evaluate", run, "--source", str(folder / "waves.csv")]) == 0
    expected = capsys.readouterr().out
    columns = ["--columns", "values=sine,cosine"]
    assert main(["evaluate", run, "--source", str(renamed), *columns]) == 0
    assert capsys.readouterr().out == expected
    assert main(["evaluate", run, "--source", str(renamed), "--columns", "values=sine"]) == 2
    assert "names sine; the model reads x, y, in this order" in capsys.readouterr().err


@pytest.mark.parametrize(
    "model",
    [
        {"position": "sinusoidal", "times": {"mode": "stretch", "max_scale": 1.5}},
        {"position": "learned_grid"},
    ],
    ids=str,
)
def test_positions_up_to_the_last_event_suffice(folder: Path, tmp_path: Path, model: dict[str, Any]) -> None:
    """The check of causality moved the last event by 100 positions, which these do not have."""
    TASK.train(
        settings(
            folder, model=model | {"max_length": 40}, run=str(tmp_path / "run"), training={"max_steps": 4}
        )
    )


@pytest.mark.parametrize(("goal", "columns"), [("next", ("type",)), ("interpolate", ("x", "y"))])
def test_times_in_another_unit_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, goal: str, columns: tuple[str, ...]
) -> None:
    rows: list[Any] = clocks(20, seed=0) if goal == "next" else waves(20, seed=0)
    data = {"train": str(write_csv(tmp_path / "times.csv", rows, *columns)), "max_events": 16}
    data |= {} if goal == "next" else VALUES
    run = train(settings(tmp_path, data=data, model={"goal": goal}, training={"max_steps": 1}))
    assert not evaluate(run, tmp_path / "times.csv").notes
    for factor, wanted in ((3600, "longer"), (1e-3, "shorter"), (3, None)):
        other = [(name, time * factor, *rest) for name, time, *rest in rows]
        source = write_csv(tmp_path / "other.csv", other, *columns)
        notes = evaluate(run, source).notes
        assert len(notes) == (wanted is not None)
        for note in notes:
            assert note in caplog.text
            shown = re.search(rf"{source}: times between events are about ([\d,]+) times {wanted}", note)
            assert shown
            # the mean is that of the training part alone
            assert float(shown[1].replace(",", "")) == pytest.approx(max(factor, 1 / factor), rel=0.3)


def test_an_evaluated_sequence_that_cannot_be_read_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = write_csv(
        tmp_path / "far.csv",
        [("near", 0, "tick"), ("near", 1, "tock"), ("far", 0, "tick"), ("far", 10**30, "tock")],
        "type",
    )
    assert main(["evaluate", str(trained), "--source", str(far)]) == 2
    assert capsys.readouterr().err.startswith("floater: evaluated sequence 'far' (times 0 to 1e+30): ")
