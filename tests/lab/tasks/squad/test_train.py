"""Fine-tuning on SQuAD: what it learns, predictions, thresholds, and what is refused."""

import json
from pathlib import Path

import pytest

from floater.lab.cli import main
from floater.lab.tasks import task
from floater.lab.tasks.corpora.squad import read_squad
from floater.lab.tasks.finetuning.features import CutTexts
from floater.lab.tasks.squad.score import score

from .small import asked, settings, squad, write_config, write_squad

TASK = task("squad")
train, evaluate, predict = TASK.train, TASK.evaluate, TASK.predict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("squad")
    for version in ("", "2"):
        write_squad(directory / f"train{version}.json", 12, 0, bool(version))
        write_squad(directory / f"valid{version}.json", 4, 1, bool(version))
    return directory


def test_a_plugged_checkpoint_learns_to_find_the_city(folder: Path, bert: Path) -> None:
    run = train(settings(folder, bert, "one", plug={"options": {}}, data={"max_question": 10}))
    result = json.loads((run / "result.json").read_text())
    assert result["f1"] > 90
    actual = evaluate(run, str(folder / "valid.json"))
    assert actual.scores == {name: result[name] for name in ("exact", "f1")}
    assert predict(run, str(folder / "valid.json")) == list(actual.lines)
    questions = read_squad(folder / "valid.json").questions
    assert str(score(questions, json.loads(actual.lines[0]))) == str(actual)
    assert "(8 questions)" in str(evaluate(run, f"{folder / 'valid.json'}[:1]"))
    (folder / "long.json").write_text(
        json.dumps(squad([("rome", [asked("q", "where " * 12 + "?", "rome", "rome")])]))
    )
    with pytest.warns(CutTexts, match=r"1 texts cut at data\.max_question"):
        predict(run, str(folder / "long.json"))


def test_no_answer_and_its_threshold(folder: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {name: str(folder / f"{name}2.json") for name in ("train", "valid")}
    run = train(settings(folder, bert, "two", data=data, answers={"threshold": 0.0}))
    result = json.loads((run / "result.json").read_text())
    assert result["best_f1"] >= result["f1"] > 80
    assert result["no_answer_exact"] > 50
    best = evaluate(run, data["valid"], threshold=result["best_f1_threshold"])
    assert best.scores["f1"] == pytest.approx(result["best_f1"], abs=0.01)
    assert set(json.loads(evaluate(run, data["valid"], threshold=-1e9).lines[0]).values()) == {""}
    output = folder / "two.json"
    command = ["evaluate", str(run), "--source", data["valid"], "--output", str(output), "--threshold", "1e9"]
    assert main(command) == 0
    assert "without an answer: exact match 0.00" in capsys.readouterr().out
    assert all(json.loads(output.read_text()).values())


def test_what_is_wrong_with_the_data_is_said(
    folder: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(write_config(folder, bert, "new"))
    both = f"data.valid={folder / 'train.json'}[:1]"
    assert main(["train", config, both]) == 2
    assert "8 questions of" in capsys.readouterr().err
    assert not (folder / "new").exists()
    read = json.loads((folder / "train.json").read_text())
    read["data"][0]["paragraphs"][3]["qas"][0]["answers"][0]["answer_start"] += 1
    (tmp_path / "bad.json").write_text(json.dumps(read))
    few = ["training.max_steps=1", "training.eval_steps=1", "training.save_steps=1"]
    assert main(["train", config, f"data.train={tmp_path / 'bad.json'}", *few]) == 0
    assert (
        "1 training answers do not stand in their context; questions excluded: 0-0-3"
        in capsys.readouterr().err
    )
    read["data"][0]["paragraphs"][3]["qas"][0]["answers"][0] = {"text": "o", "answer_start": 1}
    read["data"][0]["paragraphs"][3]["context"] = "rome"
    (tmp_path / "inside.json").write_text(json.dumps(read))
    assert (
        main(["train", config, f"data.train={tmp_path / 'inside.json'}", f"run={tmp_path / 'run'}", *few])
        == 0
    )
    assert "learned as none" not in capsys.readouterr().err
    longest = "the film was good " * 30
    read["data"][0]["paragraphs"][3]["context"] = longest
    read["data"][0]["paragraphs"][3]["qas"][0]["answers"][0] = {"text": longest, "answer_start": 0}
    (tmp_path / "long.json").write_text(json.dumps(read))
    assert (
        main(["train", config, f"data.train={tmp_path / 'long.json'}", f"run={tmp_path / 'long'}", *few]) == 0
    )
    assert (
        "1 training answers are whole in no window and are learned as none: 0-0-3" in capsys.readouterr().err
    )
    text = json.loads((folder / "valid.json").read_text())
    for article in text["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"][0].pop("answers")
    (tmp_path / "test.json").write_text(json.dumps(text))
    assert main(["evaluate", str(folder / "new"), "--source", str(tmp_path / "test.json")]) == 2
    assert "without 'answers'" in capsys.readouterr().err
    assert main(["predict", str(folder / "new"), "--source", str(tmp_path / "test.json")]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 32


def test_text_without_spaces_between_words_is_said(
    tmp_path: Path, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A part of an answer has no F1 there, as the answer is one word."""
    texts = {"train": ("在罗马的参议院里。", "参议院"), "valid": ("In the Senate in Rome.", "Senate")}
    for name, (context, answer) in texts.items():
        questions = squad([(context, [asked(name, "?", context, answer)])])
        (tmp_path / f"{name}.json").write_text(json.dumps(questions), encoding="utf-8")
    TASK.read(settings(tmp_path, bert))
    (line,) = [record.getMessage() for record in caplog.records if "spaces" in record.getMessage()]
    assert line.startswith(f"{tmp_path / 'train.json'}: the texts have no spaces between words, so that F1")
