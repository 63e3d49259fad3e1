"""Files of GLUE as they are: marks, quotes, headers, fields, and what is refused with its line."""

import json
import os
from pathlib import Path

import datasets
import pytest

from floater.errors import DataError
from floater.lab.tasks.corpora.glue import TASKS, find_file, read_dataset, read_examples

DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[5] / "shared" / "data")) / "glue"
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"


def written(folder: Path, text: str | bytes, name: str = "x.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_mark_and_quotes_are_read_as_they_stand(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + MRPC.encode() + b'1\t1\t2\t"The pie\tHe said "so" .\r\n0\t1\t2\ta\tb\n\n'
    actual = read_examples(written(tmp_path, text), TASKS["MRPC"])
    assert actual.texts == (['"The pie', "a"], ['He said "so" .', "b"])
    assert actual.labels == [1, 0]
    assert actual.indices == ["0", "1"]


def test_scores_come_with_seven_nine_or_ten_fields(tmp_path: Path) -> None:
    local = read_examples(
        written(tmp_path, "g\tf\ty\t1\t5.000\ta\tb\ng\tf\ty\t2\t0.4\tc\td\tsource\tsource\n"), TASKS["STS-B"]
    )
    assert local.texts == (["a", "c"], ["b", "d"])
    assert local.labels == [5.0, 0.4]
    official = read_examples(written(tmp_path, STS + "9\tg\tf\ty\t1\ts\ts\ta\tb\t3.25\n"), TASKS["STS-B"])
    assert (official.texts, official.labels, official.indices) == ((["a"], ["b"]), [3.25], ["9"])


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    head = "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    actual = read_examples(written(tmp_path, head + "4\t1\tg\ta\tb\tneutral\tcontradiction\n"), TASKS["MNLI"])
    assert (actual.texts, actual.labels, actual.indices) == ((["a"], ["b"]), [2], ["4"])


def test_a_test_set_has_no_labels(tmp_path: Path) -> None:
    actual = read_examples(written(tmp_path, "index\tsentence\n5\tHim left.\n"), TASKS["CoLA"])
    assert (actual.texts, actual.labels, actual.indices) == ((["Him left."],), None, ["5"])


def test_only_the_broken_lines_of_qqp_are_left_out(tmp_path: Path) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = head + "1\t1\t2\ta\tb\t1\n2\t1\t2\tbroken\n3\t1\t2\tc\td\t0\n"
    actual = read_examples(written(tmp_path, text), TASKS["QQP"])
    assert (actual.labels, actual.left_out, actual.indices) == ([1, 0], 1, ["1", "3"])
    with pytest.raises(DataError, match=r"line 3: 4 fields between tabs"):  # each line wants a prediction
        read_examples(written(tmp_path, text), TASKS["QQP"], labelled=False)


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("MRPC", "", "the file is empty"),
        ("MRPC", "\n \n", "the file is empty"),
        ("MRPC", MRPC, "there is no example in it"),
        ("MRPC", MRPC + "1\t1\t2\ta\n", "line 2: 4 fields between tabs; it must have 5"),
        (
            "MRPC",
            MRPC + "2\t1\t2\ta\tb\n",
            "line 2: label '2' is none of MRPC; there are: 0, 1",
        ),
        ("STS-B", "g\tf\ty\t1\t5.1\ta\tb\n", "line 1: score '5.1' is not a number from 0 to 5"),
        ("STS-B", "g\tf\ty\t1\tnan\ta\tb\n", "line 1: score 'nan' is not"),
        (
            "STS-B",
            "g\tf\ty\t1\t5\ta\tb\ng\tf\ty\t1\t5\ta\tb\tc\n",
            "line 2: 8 fields between tabs; it must have 7 or 9",
        ),
        ("CoLA", "a,b\n", "line 1: not a file of CoLA"),
        ("RTE", b"\xff\n", "line 1: not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(
    tmp_path: Path, task: str, text: str | bytes, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as refused:
        read_examples(path, TASKS[task])
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)


def test_a_folder_is_of_all_tasks_or_of_one(tmp_path: Path) -> None:
    folder = tmp_path / "glue" / "STS-B"
    folder.mkdir(parents=True)
    file = written(folder, "", "sts-dev.csv")
    assert find_file(str(tmp_path / "glue"), TASKS["STS-B"], "dev") == file
    assert find_file(str(folder), TASKS["STS-B"], "dev") == file
    with pytest.raises(DataError, match=r"there is no train.tsv of STS-B; the folder holds sts-dev.csv"):
        find_file(str(folder), TASKS["STS-B"], "train")
    with pytest.raises(DataError, match=r"no such directory; did you mean .*glue"):
        find_file(str(tmp_path / "gleu"), TASKS["STS-B"], "train")


def test_a_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of nyu-mll/glue: splits by their own names, labels as numbers, -1 in a test set."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "glue"
    (folder / "mrpc").mkdir(parents=True)
    for split, labels in (("validation", [1, 0]), ("test", [-1, -1]), ("train", [0, 2])):
        rows = [{"sentence1": "a", "sentence2": "b", "label": y, "idx": i + 5} for i, y in enumerate(labels)]
        (folder / "mrpc" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(
        f"  - split: {split}\n    path: mrpc/{split}.jsonl\n" for split in ("train", "validation", "test")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    actual = read_dataset(str(folder), "dev", TASKS["MRPC"])
    assert (actual.texts, actual.labels, actual.indices) == ((["a", "a"], ["b", "b"]), [1, 0], ["5", "6"])
    assert read_dataset(str(folder), "test", TASKS["MRPC"]).labels is None
    with pytest.raises(DataError, match="row 1: label 2 is not from 0 to 1"):
        read_dataset(str(folder), "train", TASKS["MRPC"])
    (folder / "mnli.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}\n')
    more = "- config_name: mnli\n  data_files:\n  - split: validation_matched\n    path: mnli.jsonl\n"
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}{more}---\n"
    )
    actual = read_dataset(str(folder), "dev_matched", TASKS["MNLI"])
    assert (actual.texts, actual.labels) == ((["a"], ["b"]), [2])
    with pytest.raises(DataError, match="cola, train cannot be loaded"):
        read_dataset(str(folder), "train", TASKS["CoLA"])


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
@pytest.mark.parametrize(
    ("task", "counts"),
    [
        ("CoLA", (8551, 1043)),
        ("SST-2", (67349, 872)),
        ("MRPC", (3668, 408)),
        ("STS-B", (5749, 1500)),
        ("RTE", (2490, 277)),
        ("WNLI", (635, 71)),
    ],
)
def test_real_files(task: str, counts: tuple[int, int]) -> None:
    files = [find_file(str(DATA), TASKS[task], split) for split in ("train", "dev")]
    parts = [read_examples(file, TASKS[task]) for file in files]
    assert tuple(map(len, parts)) == counts
    assert all(part.labels and len(set(part.labels)) > 1 for part in parts)
    assert all(text for part in parts for column in part.texts for text in column)


def test_labels_of_a_test_set_may_be_anything(tmp_path: Path) -> None:
    file = tmp_path / "test.tsv"
    file.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t-1\n")
    with pytest.raises(DataError, match="label '-1' is none of RTE"):
        read_examples(file, TASKS["RTE"])
    assert read_examples(file, TASKS["RTE"], labelled=False).labels is None


@pytest.mark.parametrize("label", [True, 0.5, "1", None])
def test_a_label_of_the_hub_is_a_number_of_a_class(monkeypatch: pytest.MonkeyPatch, label: object) -> None:
    rows = datasets.Dataset.from_list([{"sentence1": "a", "sentence2": "b", "label": label}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **more: rows)
    with pytest.raises(DataError, match=rf"row 0: label {label!r} is not from 0 to 1"):
        read_dataset("here", "train", TASKS["MRPC"])
