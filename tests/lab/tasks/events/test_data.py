"""Reading events: every format gives the same sequences, and what is wrong is named."""

import gzip
import json
import lzma
import os
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from floater.errors import DataError
from floater.lab.tasks import task
from floater.lab.tasks.corpora import text
from floater.lab.tasks.corpora.events import Columns, EventSequence, read_sequences
from floater.lab.tasks.events.examples import pieces, values_batch
from floater.transformer.events import EventsConfig

ROWS = "id,time,type\nb,10,x\na,3,y\nb,10.5,z\na,3,x\nb,11,x\n"
DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[5] / "shared" / "data"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text(ROWS)
    return path


def plain(sequences):
    return [(s.id, s.times.tolist(), s.types) for s in sequences]


WANTED = [("b", [10.0, 10.5, 11.0], ("x", "z", "x")), ("a", [3.0, 3.0], ("y", "x"))]


def test_a_table_is_read_by_its_ids_in_the_order_of_its_rows(table, tmp_path, monkeypatch):
    assert plain(read_sequences(table, Columns())) == WANTED
    read = pa.csv.read_csv(table)
    pa.parquet.write_table(read, tmp_path / "events.parquet")
    assert plain(read_sequences(tmp_path / "events.parquet", Columns())) == WANTED
    asked = []

    def offline(name, config, split):
        asked.append((name, split))
        return datasets.Dataset(read)

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert plain(read_sequences("hf:someone/events:validation", Columns())) == WANTED
    assert asked == [("someone/events", "validation")]


def test_events_of_a_folder_are_read_anew(tmp_path):
    path, columns = tmp_path / "train.csv", Columns(type=None, values=["x"])
    path.write_text("id,time,x\n1,10,0\n1,11,0\n")
    before = path.stat()
    assert read_sequences(f"hf:{tmp_path}", columns)[0].times.tolist() == [10.0, 11.0]
    path.write_text("id,time,x\n1,20,0\n1,22,0\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p and rsync do
    assert read_sequences(f"hf:{tmp_path}", columns)[0].times.tolist() == [20.0, 22.0]


def test_lines_of_text_are_sequences(tmp_path):
    (tmp_path / "time.txt").write_text("10 10.5 11\n3 3\n")
    (tmp_path / "event.txt").write_text("x z x\ny x\n")
    assert [s[1:] for s in plain(read_sequences(tmp_path, Columns()))] == [s[1:] for s in WANTED]
    (tmp_path / "event.txt").write_text("x z\ny x\n")
    with pytest.raises(DataError, match="line 1: 3 times and 2 types"):
        read_sequences(tmp_path, Columns())
    for number in ("2_0", "soon", "٢"):
        (tmp_path / "time.txt").write_text(f"10 {number}\n3 3\n")
        with pytest.raises(DataError, match=rf"time.txt, line 1: '{number}' is not a number$"):
            read_sequences(tmp_path, Columns())
    (tmp_path / "time.txt").write_text("1.50 1e0\n3 3\n")
    with pytest.raises(DataError, match=r"event 1 \(1e0\) is earlier than event 0 \(1.50\)"):
        read_sequences(tmp_path, Columns())


LISTED = [
    {"id": "b", "time": [10, 10.5, 11], "type": ["x", "z", "x"], "note": 1},
    {"id": "none", "time": [], "type": []},
    {"id": "a", "time": [3, 3], "type": ["y", "x"]},
]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_row_is_an_event_or_with_lists_a_sequence(tmp_path, suffix, listed):
    path = tmp_path / f"events{suffix}"
    events = [dict(zip(("id", "time", "type"), line.split(","), strict=True)) for line in ROWS.split()[1:]]
    rows = LISTED if listed else [each | {"time": float(each["time"])} for each in events]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".json":
        path.write_text(json.dumps({"version": 1, "data": rows}))
    else:
        (gzip.open if suffix.endswith(".gz") else open)(path, "wt").write(lines)
    assert plain(read_sequences(path, Columns())) == WANTED


def test_lists_keep_exact_times_and_tell_values_that_were_not_observed(tmp_path):
    path, columns = tmp_path / "events.jsonl", Columns(type=None, values=["x", "y"])
    path.write_text(
        '{"id": 1, "time": [1152921504606846976, 1152921504606846977], "x": [0.5, null], "y": [null, 2]}'
    )
    (sequence,) = read_sequences(path, columns)
    assert sequence.times.tolist() == [0.0, 1.0]
    assert sequence.values.tolist() == [[0.5, 0.0], [0.0, 2.0]]
    assert sequence.observed.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"time": [1, 2], "type": ["x"]}], r"line 2: 2 values in column 'time' and 1 in 'type'$"),
        ([{"time": [1, 2], "type": "x"}], "column 'type' has values of several types"),
        (
            [{"id": "b", "time": [1], "type": ["x"]}],
            r"line 2, column 'id': 'b' is that of an earlier row",
        ),
        (
            [{"time": [2, 1], "type": ["x", "x"]}],
            r"sequence 'c': event 1 \(1.0\) is earlier than event 0 \(2.0\)",
        ),
        ([{"time": [2, float("nan")], "type": ["x", "x"]}], "sequence 'c': the time of event 1 is nan"),
        ([{"time": [2, 3], "type": ["x", None]}], "sequence 'c': event 1 has no type"),
    ],
)
def test_wrong_lists_are_named_with_their_line(tmp_path, rows, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in [LISTED[0], *({"id": "c"} | row for row in rows)])
    )
    with pytest.raises(DataError, match=message):
        read_sequences(path, Columns())


def test_texts_in_lists_are_named_with_their_row_and_lists_beside_none_are_refused(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(
        '{"id": 1, "time": ["2024-01-31", "2024-02-01"], "type": ["x", "x"]}\n'
        '{"id": 2, "time": ["soon"], "type": ["x"]}\n'
    )
    with pytest.raises(DataError, match="line 2, column 'time': 'soon' is not a number or a date"):
        read_sequences(path, Columns())
    path.write_text('{"id": 1, "time": [1, 2], "type": "x"}\n')
    with pytest.raises(DataError, match="column 'time' has lists and 'type' none"):
        read_sequences(path, Columns())
    for empty in ("", '{"id": 1, "time": [], "type": []}\n'):
        path.write_text(empty)
        with pytest.raises(DataError, match="holds no event"):
            read_sequences(path, Columns())


def test_dates_are_seconds_and_large_stamps_keep_their_microseconds(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text("id,time,type\n1,2012-01-02 03:58:28,x\n1,2012-01-02 03:58:29,x\n")
    assert read_sequences(path, Columns())[0].times.tolist() == [1325476708.0, 1325476709.0]
    path.write_text("id,time,type\n1,1325476708.000001,x\n1,1325476708.000002,x\n")
    assert np.diff(read_sequences(path, Columns())[0].times) == pytest.approx(1e-6, rel=0.3)


def test_values_that_were_not_observed_are_empty(tmp_path):
    path = tmp_path / "values.csv"
    path.write_text("id,time,x,y\n1,0,2.5,\n1,1,,-1\n")
    columns = Columns(type=None, values=["x", "y"])
    (sequence,) = read_sequences(path, columns)
    assert sequence.values.tolist() == [[2.5, 0.0], [0.0, -1.0]]
    assert sequence.observed.tolist() == [[True, False], [False, True]]
    path.write_text("id,time,x,y\n1,0,2.5,inf\n")
    with pytest.raises(DataError, match="sequence '1': 'y' of event 0 is inf; leave it empty"):
        read_sequences(path, columns)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("7,2,x\n7,1,x\n", r"sequence '7': event 1 \(1\) is earlier than event 0 \(2\); times must not fall"),
        ("7,2,x\n7,nan,x\n", r"sequence '7': the time of event 1 is nan; every time must be finite"),
        ("7,2,x\n7,,x\n", r"line 3, column 'time': '' is not a number or a date in ISO 8601 like"),
        ("7,inf,x\n", r"sequence '7': the time of event 0 is inf"),
        ("7,soon,x\n", r"line 2, column 'time': 'soon' is not a number or a date in ISO 8601; dates must"),
        (
            "7,1,x\n\n7,soon,x\n7,3,x\n",
            r"line 4, column 'time': 'soon' is not a number or a date in ISO 8601 like",
        ),
        ("7,2024-01-31,x\n7,,x\n7,31.1.2024,x\n", r"line 3, column 'time': '' is not a number or a date"),
        ("7,2024-01-31,x\n7,31.1.2024,x\n", r"line 3, column 'time': '31.1.2024' is not a number or a date"),
        (
            "7,2024-01-31T12:30,x\n7,2024-01-31T12:00,x\n",
            r"event 1 \(2024-01-31T12:00\) is earlier than event 0 \(2024-01-31T12:30\)",
        ),
        ("7,12:30:00,x\n7,12:31:00,x\n", r"line 2, column 'time': '12:30:00' is not a number or a date"),
        ("7,0x10,x\n7,17,x\n", r"line 2, column 'time': '0x10' is not a number or a date"),
        ("7,2,x\n,3,x\n", r"row 1 \(from 0\) has no 'id'"),
        ("7,2,\n", r"sequence '7': event 0 has no type"),
        ("", "holds no event"),
    ],
)
def test_what_is_wrong_is_named_with_its_sequence_and_index(tmp_path, rows, message):
    path = tmp_path / "bad.csv"
    path.write_text("id,time,type\n" + rows)
    with pytest.raises(DataError, match=message):
        read_sequences(path, Columns())


def test_cells_with_line_breaks_stay_whole_in_files_of_several_blocks(tmp_path):
    path, rows = tmp_path / "events.csv", 120_000
    # the second line of each type looks like an event; some block of 1 MB ends between the lines
    path.write_text("id,time,type\n" + "".join(f'a,{row},"x\nb,{row},y"\n' for row in range(rows)))
    (sequence,) = read_sequences(path, Columns())
    assert sequence.times.tolist() == list(range(rows))
    assert sequence.types[:2] == ("x\nb,0,y", "x\nb,1,y")


def test_a_packed_table_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "most_unpacked", lambda packed: 10**5)
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b"id,time,type\n" + b"a,1,x\n" * 10**5))
    with pytest.raises(DataError, match=r"a\.csv\.gz: it unpacks to more than 100,000 bytes, too many"):
        read_sequences(file, Columns())


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize(("suffix", "pack"), [(".csv.xz", lzma.compress), (".CSV", gzip.compress)])
def test_delimiter_and_compression_are_those_of_other_tables(tmp_path, delimiter, suffix, pack):
    path = tmp_path / f"events{suffix}"
    path.write_bytes(pack(ROWS.replace(",", delimiter).encode()))
    assert plain(read_sequences(path, Columns())) == WANTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,time,w\na,1,2\n\na,2,-\n", "line 4, column 'w': '-' is not a number"),
        ('id;time;w\na;1;2\na;2;"1,5"\n', "line 3, column 'w': '1,5' is not a number"),
        ("id,time,w\na,1,2\na,2\n", "line 3: 2 cells, but the header has 3"),
        ("id,time,w\na\xe4,1,2\n", "line 2: not UTF-8"),
        ('id,time,w\na,1,"2\n', "line 2: a quote is never closed"),
    ],
)
def test_a_cell_of_a_csv_that_cannot_be_read_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "events.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=message):
        read_sequences(path, Columns(type=None, values=["w"]))


def test_what_cannot_be_read_is_named(table, tmp_path):
    with pytest.raises(DataError, match="has no column 'when'; it has: id, time, type"):
        read_sequences(table, Columns(time="when"))
    twice = tmp_path / "twice.csv"
    twice.write_text("id,time,type,time\na,1,x,2\n")
    with pytest.raises(DataError, match="has two columns 'time'; it has: id, time, type, time"):
        read_sequences(twice, Columns())
    latin = tmp_path / "latin.csv"
    latin.write_bytes("id,time,type,größe\na,1,x,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.csv, line 1: not UTF-8"):
        read_sequences(latin, Columns())
    with pytest.raises(DataError, match=r"events are read from \.csv"):
        read_sequences(tmp_path / "events.txt", Columns())
    with pytest.raises(DataError, match="cannot be read"):
        read_sequences(tmp_path / "none.parquet", Columns())
    with pytest.raises(ValueError, match="name the column of the types, or those of the values"):
        Columns(values=["x"])


def numbered(count, length=3):
    none = np.zeros((length, 0))
    return [
        EventSequence(str(i), np.arange(length) * 1.0, ("x",) * length, none, none > 0) for i in range(count)
    ]


@pytest.mark.parametrize("length", [2, 5, 6, 11])
def test_every_event_but_the_first_is_predicted_in_one_piece(length):
    config = EventsConfig(types=["x"])
    examples = pieces(numbered(1, length), config, size=5, origin="here")
    predicted = [time for piece in examples.source for time in piece.times[1:].tolist()]
    assert predicted == list(range(1, length))
    assert max(examples.lengths) <= 6


def test_what_is_hidden_is_asked_and_never_shown():
    times = np.arange(10.0)
    values = np.arange(20.0).reshape(10, 2)
    sequence = EventSequence("a", times, (), values, values % 3 > 0)
    config = EventsConfig(goal="forecast", features=["x", "y"])
    examples = pieces([sequence], config, size=50, origin="here")
    for goal in ("interpolate", "forecast"):
        batch = values_batch([examples[0]], goal=goal, mask_ratio=0.3, seed=(1,))
        both = batch["shown"] & batch["asked"]
        assert not both.any()
        assert ((batch["shown"] | batch["asked"])[0].numpy() == sequence.observed).all()
        hidden = (~batch["shown"] & (batch["asked"] | ~batch["asked"]))[0].numpy().all(1)
        assert hidden.sum() == 3
        assert (hidden[-3:].all()) == (goal == "forecast")
        again = values_batch([examples[0]], goal=goal, mask_ratio=0.3, seed=(1,))
        assert bool((again["shown"] == batch["shown"]).all())


def test_no_event_is_asked_for_without_another():
    none = np.ones((5, 1))
    sequence = EventSequence("a", np.arange(5.0), (), none, none > 0)
    config = EventsConfig(goal="interpolate", features=["x"])
    assert pieces([sequence], config, size=4, origin="here").lengths == [4]


def test_the_piece_of_the_longest_span_is_tried_wherever_it_is_in_its_sequence():
    none = np.zeros((9, 0))
    times = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 50])
    sequence = EventSequence("a", times, ("x",) * 9, none, none > 0)
    examples = pieces([sequence], EventsConfig(types=["x"]), size=4, origin="here")
    assert list(task("events").hardest(examples)) == [0, 1]


def test_a_type_that_was_not_trained_on_is_named():
    with pytest.raises(DataError, match="here, sequence '0': type 'x' is in no training sequence"):
        pieces(numbered(1), EventsConfig(types=["y"]), size=5, origin="here")


@pytest.mark.skipif(not (DATA / "so_badges").is_dir(), reason="the StackOverflow badges are not here")
def test_the_badges_of_stackoverflow():
    sequences = read_sequences(DATA / "so_badges", Columns())
    assert len(sequences) == 4468
    assert sum(map(len, sequences)) == 327487
    assert len({name for sequence in sequences for name in sequence.types}) == 22
    gaps = np.concatenate([np.diff(sequence.times) / 86400 for sequence in sequences])
    assert float(np.median(gaps)) == pytest.approx(5.43, abs=0.01)


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_offset_changes_no_time_between_events_in_any_unit(tmp_path, per_second, suffix):
    stamps = [1_700_000_000 * per_second + step for step in (0, 1, 1, 4, 5 * per_second)]
    table = pa.table({"id": ["a"] * 5, "time": stamps, "type": ["x"] * 5})
    path = tmp_path / f"events{suffix}"
    (pa.parquet.write_table if suffix == ".parquet" else pa.csv.write_csv)(table, path)
    (sequence,) = read_sequences(path, Columns())
    assert np.diff(sequence.times).tolist() == [1, 0, 3, 5 * per_second - 4]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_keep_their_smallest_unit(tmp_path, unit):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    stamps = pa.array([1_700_000_000 * per_second, 1_700_000_000 * per_second + 1], pa.timestamp(unit))
    pa.parquet.write_table(
        pa.table({"id": ["a"] * 2, "time": stamps, "type": ["x"] * 2}), tmp_path / "a.parquet"
    )
    (sequence,) = read_sequences(tmp_path / "a.parquet", Columns())
    assert np.diff(sequence.times).tolist() == [1 / per_second]


def test_negative_times_and_dates_with_zones_are_times(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,time,type\n1,-2.5,x\n1,-1,x\n1,0,x\n")
    assert read_sequences(path, Columns())[0].times.tolist() == [-2.5, -1, 0]
    path.write_text("id,time,type\n1,1970-01-01T01:00:00+01:00,x\n1,1970-01-01T00:00:07Z,x\n")
    assert read_sequences(path, Columns())[0].times.tolist() == [0, 7]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            pa.array([1.7e12, 1.7e12], pa.float32()),
            "'time' is float, which holds whole times up to 16,777,216 only",
        ),
        (pa.array([False, True]), "'time' is bool, not times"),
        (pa.array(["yesterday", "today"]), "row 1, column 'time': 'yesterday' is not a number or a date"),
        (pa.array([1, 2], pa.duration("s")), r"'time' is duration\[s\], not times .*; times are numbers, or"),
        (pa.array([1, 2], pa.time32("s")), r"'time' is time32\[ms\], not times .*; times are numbers"),
        (pa.array([1, None]), "the time of event 1 is nan"),
    ],
)
def test_columns_that_hold_no_exact_times_are_refused(tmp_path, times, message):
    pa.parquet.write_table(
        pa.table({"id": ["a"] * 2, "time": times, "type": ["x"] * 2}), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match=message):
        read_sequences(tmp_path / "a.parquet", Columns())


def test_unsigned_integers_are_exact_times(tmp_path):
    stamps = 1_700_000_000_000_000_000 + np.arange(5) * 40
    for kind in (pa.int64(), pa.uint64()):
        table = {"id": ["a"] * 5, "time": pa.array(stamps, kind), "type": ["x"] * 5}
        pa.parquet.write_table(pa.table(table), tmp_path / "a.parquet")
        assert np.diff(read_sequences(tmp_path / "a.parquet", Columns())[0].times).tolist() == [40] * 4
    table["time"] = pa.array([2**63 + step for step in (0, 1, 3, 4, 9)], pa.uint64())
    pa.parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    assert read_sequences(tmp_path / "a.parquet", Columns())[0].times.tolist() == [0, 1, 3, 4, 9]


DIGITS = ["1700000000.100000001", "1700000000.100000002", "1700000000.2"]


@pytest.mark.parametrize(
    "times",
    [
        pa.array(DIGITS),
        pa.array(DIGITS, pa.large_string()),
        pa.array(DIGITS).dictionary_encode(),
        pa.array(list(map(Decimal, DIGITS)), pa.decimal128(30, 9)),
        "csv",
        "lines",
    ],
    ids=lambda times: str(getattr(times, "type", times)),
)
def test_decimal_times_keep_all_digits(tmp_path, times):
    if times == "lines":
        (tmp_path / "time.txt").write_text(" ".join(DIGITS))
        (tmp_path / "event.txt").write_text("x x x")
        source = tmp_path
    elif times == "csv":
        source = tmp_path / "a.csv"
        source.write_text("id,time,type\n" + "".join(f"a, {digits},x\n" for digits in DIGITS))
    else:
        source = tmp_path / "a.parquet"
        pa.parquet.write_table(pa.table({"id": ["a"] * 3, "time": times, "type": ["x"] * 3}), source)
    assert read_sequences(source, Columns())[0].times.tolist() == [0, 1e-9, 0.099999999]


def test_integers_of_any_size_are_exact_times(tmp_path):
    source = tmp_path / "a.csv"
    for first in (-(2**63), 2**63 + 1, 10**22):
        source.write_text(f"id,time,type\na,{first},x\na,{first + 3},x\na,{first + 2**63 + 2**20},x\n")
        assert read_sequences(source, Columns())[0].times.tolist() == [0, 3, 2**63 + 2**20]
    source.write_text("id,time,type\na,9223372036854775809,x\na,9223372036854775808,x\n")
    with pytest.raises(DataError, match=r"event 1 \(9223372036854775808\) is earlier than event 0"):
        read_sequences(source, Columns())


@pytest.mark.parametrize(
    "dates",
    [
        ["2012-01-02T03:58:28.5", "2012-01-02 03:58:29"],
        ["2012-01-02T03:58:28.5Z", "2012-01-02T04:58:29+01:00"],
        ["9012-01-02T03:58:28.5Z", "9012-01-02T03:58:29Z"],
    ],
)
def test_texts_of_dates_are_dates(tmp_path, dates):
    table = pa.table({"id": ["a"] * 2, "time": dates, "type": ["x"] * 2})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert read_sequences(tmp_path / "a.parquet", Columns())[0].times.tolist() == [0, 0.5]


def test_dates_with_and_without_zone_cannot_be_compared(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("id,time,type\na,2012-01-02T03:58:28Z,x\na,2012-01-02T03:58:29,x\n")
    with pytest.raises(
        DataError, match=r"line 3, column 'time': .*; dates must all have a time zone, or none"
    ):
        read_sequences(source, Columns())


def test_nan_is_no_id_and_no_type(tmp_path):
    source, nan = tmp_path / "a.parquet", float("nan")
    pa.parquet.write_table(pa.table({"id": [1.0, nan], "time": [1, 2], "type": ["x"] * 2}), source)
    with pytest.raises(DataError, match=r"row 1 \(from 0\) has no 'id'"):
        read_sequences(source, Columns())
    pa.parquet.write_table(pa.table({"id": ["a", "a"], "time": [1, 2], "type": [1.0, nan]}), source)
    with pytest.raises(DataError, match="sequence 'a': event 1 has no type"):
        read_sequences(source, Columns())


def test_ids_are_told_apart_to_their_last_character(tmp_path):
    source = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"id": ["a", "a\0"], "time": [1, 2], "type": ["x"] * 2}), source)
    assert [sequence.id for sequence in read_sequences(source, Columns())] == ["a", "a\0"]
