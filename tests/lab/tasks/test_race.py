"""RACE: folders, choices, what is learned, accuracies by school, and what is refused."""

import json
import random
from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.race import Question, read_race
from floater.lab.tasks.finetuning import features
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.finetuning.features import LABEL, CutTexts, collate
from floater.lab.tasks.race import RaceSettings, encode
from helpers import write_run_config

TASK = task("race")
train, evaluate, predict = TASK.train, TASK.evaluate, TASK.predict
ARTICLE = "it was a good film in rome"


def write_race(folder: Path, count: int, seed: int) -> Path:
    """The right option is the one that says good."""
    draw = random.Random(seed)
    for level in ("middle", "high"):
        (folder / level).mkdir(parents=True)
        for i in range(count):
            questions, options, answers = [], [], []
            for _ in range(2):
                right = draw.randrange(4)
                questions.append("the film was _ ." if draw.random() < 0.5 else "what was it?")
                options.append(
                    ["good" if o == right else draw.choice(["bad", "not", "city"]) for o in range(4)]
                )
                answers.append("ABCD"[right])
            passage = {"article": ARTICLE, "questions": questions, "options": options, "answers": answers}
            (folder / level / f"{level}{i}.txt").write_text(json.dumps(passage), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoded = tmp_path_factory.mktemp("race")
    write_race(encoded / "train", 15, 0)
    write_race(encoded / "dev", 3, 1)
    return encoded


def write_config(folder: Path, checkpoint: Path, name: str) -> Path:
    config = {
        "task": "race",
        "data": {
            "train": str(folder / "train"),
            "valid": str(folder / "dev"),
            "max_length": 24,
            "max_option": 10,
        },
        "model": {"path": str(checkpoint)},
        "plug": {"options": {}},
        "training": {
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 4,
            "max_steps": 60,
            "save_steps": 30,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config)


def test_a_plugged_checkpoint_learns_to_choose(
    folder: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(load(RaceSettings, write_config(folder, bert, "run")))
    result = json.loads((run / "result.json").read_text())
    assert result["accuracy"] > 80
    scored = evaluate(run, str(folder / "dev"))
    actual, letters = scored.scores, json.loads(scored.lines[0])
    assert actual == {name: result[name] for name in ("accuracy", "middle", "high")}
    by_question = TASK.measure(run, str(folder / "dev"))
    assert by_question.score("accuracy") == pytest.approx(actual["accuracy"], abs=0.005)
    assert predict(run, str(folder / "dev")) == list(scored.lines)
    answers = json.loads((folder / "dev" / "high" / "high1.txt").read_text())["answers"]
    right = [letters[f"high1.txt/{i}"] == answer for i, answer in enumerate(answers)]
    assert sum(right) >= 1
    capsys.readouterr()
    assert main(["evaluate", str(run), "--source", str(folder / "dev" / "high")]) == 0
    assert capsys.readouterr().out == f"accuracy {actual['high']:.2f}\nhigh {actual['high']:.2f}\n"
    (folder / "long" / "high").mkdir(parents=True)
    passage = {"article": "the city " * 20, "questions": ["where?"], "options": [["rome", "bonn", "it", "a"]]}
    (folder / "long" / "high" / "high1.txt").write_text(json.dumps(passage))
    with pytest.warns(CutTexts, match=r"4 texts cut at data\.max_length or data\.max_option"):
        predict(run, str(folder / "long"))


def test_choices_hold_passage_question_and_option(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    asked = [
        Question("a", "high", "the city", "it is _ .", ("good", "bad", "a film", "rome"), 2),
        Question("b", "high", "it was in a city", "where?", ("rome", "bonn", "it", "a"), 0),
    ]
    encoded = encode(tokenizer, asked, max_length=24, max_option=10)
    said = [tokenizer.decode(ids) for row in encoded.rows for ids in row["input_ids"]]
    assert said[2] == "[CLS] the city [SEP] it is a film . [SEP]"
    assert said[5] == "[CLS] it was in a city [SEP] where ? bonn [SEP]"
    assert [row[LABEL] for row in encoded.rows] == [2, 0]
    assert encoded.cut == 0
    batch = collate(encoded.rows, tokenizer=tokenizer)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 4, 11)
    assert batch["labels"].tolist() == [2, 0]


def test_what_is_cut_is_counted(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    long = [Question("a", "high", "the city " * 10, "where?", ("rome", "bonn " * 9, "it", "a"), 0)]
    encoded = encode(tokenizer, long, max_length=16, max_option=6)
    assert encoded.cut == 5  # one option, and the passage four times
    assert all(len(ids) == 16 for ids in encoded.rows[0]["input_ids"][1:2])
    assert tokenizer.decode(encoded.rows[0]["input_ids"][0]).endswith("[SEP] where ? rome [SEP]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["E"]}, "question 0: answer 'E' is none of A, B, C, D"),
        ({"answers": ["A", "B"]}, "'answers' must be a list, as long as 'questions'"),
        ({"options": [["a", "b", "c"]]}, "question 0: a question must be a text with 4 options"),
        ({"article": None}, "there must be a text 'article'"),
        ({"questions": 5}, "there must be a list 'questions'"),
        ({"questions": None}, "there must be a list 'questions'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / "high").mkdir()
    file = tmp_path / "high" / "high1.txt"
    passage = {"article": "a", "questions": ["q"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}
    file.write_text(json.dumps(passage | change))
    with pytest.raises(DataError, match=message) as refused:
        read_race(tmp_path)
    assert str(refused.value).startswith(str(file))


def test_files_of_both_levels_may_have_one_name(tmp_path: Path) -> None:
    """As those of the official release, which are numbered."""
    write_race(tmp_path, 2, 0)
    for level in ("middle", "high"):
        for i in range(2):
            (tmp_path / level / f"{level}{i}.txt").rename(tmp_path / level / f"{i}.txt")
    ids = [question.id for question in read_race(tmp_path)]
    assert ids == [f"{level}{i}.txt/{n}" for level in ("middle", "high") for i in (0, 1) for n in (0, 1)]


def test_what_systems_leave_beside_passages_is_none(tmp_path: Path) -> None:
    write_race(tmp_path, 2, 0)
    questions = read_race(tmp_path)
    (tmp_path / "high" / "._high0.txt").write_bytes(b"\0\5\x16\7")
    assert read_race(tmp_path) == questions


def test_folders(tmp_path: Path, folder: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="no such directory"):
        read_race(tmp_path / "none")
    with pytest.raises(DataError, match="it must hold middle and high; it holds nothing"):
        read_race(tmp_path)
    (tmp_path / "high").mkdir()
    (tmp_path / "high" / "high1.txt").write_text("{")
    with pytest.raises(DataError, match="line 1, column 2: not JSON"):
        read_race(tmp_path)
    assert [question.level for question in read_race(folder / "dev")] == ["middle"] * 6 + ["high"] * 6
    config = str(write_config(folder, bert, "new"))
    assert main(["train", config, f"data.train={tmp_path}"]) == 2
    assert "not JSON" in capsys.readouterr().err
    assert not (folder / "new").exists()


@pytest.mark.parametrize("at_once", [1, 3, 5])
def test_choices_encoded_in_parts_are_those_encoded_at_once(
    bert: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where a part ends within a question."""
    tokenizer = load_tokenizer(str(bert))
    asked = [
        Question(f"{n}", "high", "the city " * n, "where _ ?", ("rome", "bonn " * n, "it", "a"), n % 4)
        for n in range(1, 9)
    ]
    whole = encode(tokenizer, asked, max_length=16, max_option=6)
    monkeypatch.setattr(features, "AT_ONCE", at_once)
    parts = encode(tokenizer, asked, max_length=16, max_option=6)
    assert list(parts.rows) == list(whole.rows)
    assert (parts.cut, parts.lengths) == (whole.cut, whole.lengths)


def test_questions_with_and_without_answers_are_encoded_together(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    options = ("rome", "bonn", "it", "a")
    asked = [
        Question(str(n), "high", "the city", "where?", options, answer) for n, answer in enumerate((None, 2))
    ]
    encoded = encode(tokenizer, asked, max_length=16, max_option=6)
    assert len(encoded.rows) == 2
    assert all(LABEL not in row for row in encoded.rows)
