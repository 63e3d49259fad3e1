"""Texts of one's own in tables are classified: whole, cut, or in parts."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from floater.lab.cli import main
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.classification import ClassificationSettings, Text, classes_of
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.finetuning.features import CutTexts
from helpers import write_run_config

TASK = task("classification")
FEW = {"max_steps": 1, "eval_steps": 1, "save_steps": 1}
FILLER = "the film was good in rome it is not a bad city " * 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long texts whose class is their last word: one cut to 64 tokens does not have it."""
    folder = tmp_path_factory.mktemp("classification")
    rows = [(f"{'in ' * i}{FILLER}{word}", word) for i in range(20) for word in ("bad", "good")]
    for name, part in {"train": rows, "test": rows[:6]}.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("review", "sentiment"), *part])
    return folder


def write_config(folder: Path, checkpoint: Path, name: str, **parts: Any) -> Path:
    config = {
        "task": "classification",
        "data": {"train": str(folder / "train.csv"), "valid_share": 0.2, "max_length": 64},
        "model": {"path": str(checkpoint)},
        "training": {"learning_rate": 3e-3, "max_steps": 4, "save_steps": 4},
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def test_parts_are_consecutive_and_lose_nothing(folder: Path, bert: Path) -> None:
    settings = load(ClassificationSettings, write_config(folder, bert, "parts", data={"long": "parts"}))
    tokenizer = load_tokenizer(str(bert))
    texts = [Text(FILLER * 2, "a"), Text("rome", "b")]
    features = TASK.encode(settings, tokenizer, texts, training=True)
    whole = tokenizer(texts[0].id, add_special_tokens=False)["input_ids"]
    rows = [row["input_ids"] for row in features.rows]
    first = [ids for row, text in zip(rows, features.text_of, strict=True) if text == 0 for ids in row[1:-1]]
    assert first == whole
    assert features.sizes == [len(whole) + 2, 3]
    assert max(map(len, rows)) == 64
    assert [row["label"] for row in features.rows] == features.text_of
    cut = TASK.encode(load(ClassificationSettings, write_config(folder, bert, "c")), tokenizer, texts)
    assert (len(cut), cut.cut, cut.rows[0]["input_ids"]) == (2, 1, rows[0])


def test_a_text_in_parts_has_the_mean_of_their_logits(folder: Path, bert: Path) -> None:
    settings = load(ClassificationSettings, write_config(folder, bert, "mean", data={"long": "parts"}))
    features = TASK.encode(settings, load_tokenizer(str(bert)), [Text(FILLER * 2, "a"), Text("rome", "b")])
    count = features.text_of.count(0)
    logits = [[0.0, 1.0]] * (count - 1) + [[9.0, 0.0], [0.0, 3.0]]
    score = TASK.answer(settings, features, [torch.tensor(row).numpy() for row in logits])
    assert list(score.lines) == ["a" if count - 1 < 9 else "b", "b"]
    means = torch.tensor([[9 / count, (count - 1) / count], [0.0, 3.0]], dtype=torch.float64)
    loss = torch.nn.functional.cross_entropy(means, torch.tensor([0, 1]))
    assert score.scores["loss"] == round(loss.item(), 4)


def test_an_extended_run_is_a_model_of_transformers(folder: Path, bert: Path, capsys) -> None:
    extend = {"extend": {"length": 256}, "data": {"max_length": None}}
    config = write_config(folder, bert, "long", training=FEW, **extend)
    run = TASK.train(load(ClassificationSettings, config))
    source = str(folder / "test.csv")
    score = TASK.evaluate(run, source)
    predicted = TASK.predict(run, source)
    assert score.lines == predicted
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    rows = list(csv.reader((folder / "test.csv").open(encoding="utf-8")))[1:]
    longest = tokenizer([text for text, _ in rows], return_tensors="pt", padding=True)
    assert 64 < longest["input_ids"].shape[1] <= tokenizer.model_max_length == 256
    with torch.no_grad():
        best = model(**longest).logits.argmax(-1).tolist()
    assert [model.config.id2label[i] for i in best] == predicted
    assert (
        score.scores["accuracy"] == 100 * sum(a == b for a, (_, b) in zip(predicted, rows, strict=True)) / 6
    )
    result = json.loads((run / "result.json").read_text())
    assert TASK.evaluate(run).scores["accuracy"] == result["accuracy"]
    assert main(["predict", str(run), "--source", source]) == 0
    assert capsys.readouterr().out.splitlines() == predicted
    (folder / "lines.txt").write_text("".join(f"{text}\n" for text, _ in rows), encoding="utf-8")
    assert TASK.predict(run, str(folder / "lines.txt")) == predicted


def test_each_row_of_a_table_has_a_line(folder: Path, bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {"long": "parts"}
    run = TASK.train(
        load(ClassificationSettings, write_config(folder, bert, "lines", training=FEW, data=data))
    )
    (folder / "blank.csv").write_text("review,sentiment\nrome,bad\n,bad\ngood,good\n  ,good\n")
    score = TASK.evaluate(run, str(folder / "blank.csv"))
    assert [bool(line) for line in score.lines] == [True, False, True, False]
    assert len(score.lengths) == 2
    assert "2 rows without a text are skipped" in caplog.text


def test_cut_texts_of_a_finished_run_are_counted(folder: Path, bert: Path) -> None:
    run = TASK.train(load(ClassificationSettings, write_config(folder, bert, "cut", training=FEW)))
    with pytest.warns(CutTexts, match="6 texts cut at data.max_length"):
        TASK.evaluate(run, str(folder / "test.csv"))


def test_a_run_with_a_table_of_validation_is_read_again(
    folder: Path, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"train": str(folder / "train.csv"), "valid": str(folder / "test.csv"), "valid_share": None}
    data |= {"long": "parts"}
    run = TASK.train(
        load(ClassificationSettings, write_config(folder, bert, "tables", training=FEW, data=data))
    )
    assert "6 of 6 validation texts are in the training data, too" in caplog.text
    assert len(TASK.evaluate(run, str(folder / "test.csv")).lines) == 6


def test_a_table_may_have_other_columns_than_the_training(
    folder: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(folder, bert, "columns", training=FEW, data={"long": "parts"})
    run = TASK.train(load(ClassificationSettings, config))
    rows = (folder / "test.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "other.csv").write_text("".join(["My words,the: grade\n", *rows[1:]]), encoding="utf-8")
    other, texts = ["--source", str(folder / "other.csv")], ["--columns", "text=My words"]
    named = [*texts, "--columns", "label=the: grade"]
    printed = []
    for options in (["--source", str(folder / "test.csv")], [*other, *named]):
        assert main(["evaluate", str(run), *options]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert main(["predict", str(run), *other, *texts]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    for wrong, message in (
        ([], "choose one: data.columns.text=NAME, of a trained run --columns text=NAME"),
        (["--columns", "txt=My words"], "data.columns has 'txt', which this task does not read"),
        (["--columns", "text=words"], "no column 'words', data.columns.text; did you mean"),
    ):
        assert main(["predict", str(run), *other, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_equal_texts_are_in_one_part(folder: Path, bert: Path) -> None:
    twice = folder / "twice.csv"
    rows = [(f"text {i % 50}", i % 2) for i in range(100)]
    twice.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    data = {"train": str(twice), "test_share": 0.3}
    settings = load(ClassificationSettings, write_config(folder, bert, "twice", data=data))
    train, valid = TASK.read(settings)
    assert not {text.id for text in train} & {text.id for text in valid}
    assert {text.label for text in train} == {"0", "1"}


def test_what_a_person_gets_wrong(folder: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(folder, bert, "wrong"))

    def said(text: str, *changes: str) -> str:
        (folder / "mine.csv").write_text(text, encoding="utf-8")
        capsys.readouterr()
        assert main(["train", config, f"data.train={folder / 'mine.csv'}", *changes]) == 2
        assert not (folder / "wrong").exists()
        return capsys.readouterr().err.splitlines()[-1]

    rows = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
    assert "mine.csv, line 42, column 'label': there is no label" in said(f"text,label\n{rows}x,\n")
    assert "choose one: data.columns.label=NAME, of a trained run --columns label=NAME" in said(
        f"text,answer\n{rows}"
    )
    assert "all 1 texts have the label 'a'" in said("text,label\none,a\n")
    # these texts are short; a later one might not be
    assert "an example of 65 tokens" in said(f"text,label\n{rows}", "data.max_length=65")
    assert "lower data.max_length" in said(f"text,label\n{rows}", "data.max_length=null")
    unique = "".join(f"text {i},{i}\n" for i in range(40))
    assert "40 labels of 40 texts; is that the column of the classes?" in said(f"text,label\n{unique}")
    assert "this task does not read; did you mean 'text'" in said(
        f"text,label\n{rows}", "data.columns.txt=text"
    )
    assert "both given" in said(rows, "data.valid=a.csv")
    (folder / "valid.csv").write_text("text,label\nx,c\n")
    assert "valid.csv, line 2, column 'label': 'c' is none of a, b" in said(
        f"text,label\n{rows}", f"data.valid={folder / 'valid.csv'}", "data.valid_share=null"
    )
    assert "mine.txt: no table; its name must end in .csv" in said("", f"data.train={folder / 'mine.txt'}")


def test_classes_of_one_number_are_in_an_order_of_their_own() -> None:
    """Else it is that of a set of strings, which changes from process to process."""
    names = [f"{number:0{width}d}" for number in range(1, 5) for width in (5, 4, 3, 2, 1)]
    texts = [Text("text", name) for name in random.Random(0).sample(names, len(names))]
    assert classes_of(texts) == names
