"""Commands that train a model, translate with it and score it."""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from floater.lab.cli import main
from floater.lab.text.languages import lengths
from processes import in_process

# shown, as they are to a person; elsewhere in the tests warnings of floater are errors
pytestmark = pytest.mark.filterwarnings("default::floater.lab.tasks.translation.CutTranslation")
NOISE = re.compile(r"transformers\]|[Ww]arning|shards|Loading weights|Traceback")


def typed(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "floater", *arguments], capture_output=True, env=env, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def trained(work: Path) -> subprocess.CompletedProcess[bytes]:
    before = Path.cwd()
    os.chdir(work)
    try:
        return typed("train", "mine.yaml")
    finally:
        os.chdir(before)


def test_training_says_what_it_does_and_nothing_else(trained: subprocess.CompletedProcess[bytes]) -> None:
    said = trained.stderr.decode()
    assert trained.returncode == 0, said
    assert not NOISE.search(said)
    assert "120 training pairs" in said
    assert "parameters" in said
    assert "step 3 of 6: validation loss" in said
    assert "\r" not in said, "no bar in a file"
    assert "run/model" in said
    shown = dict(line.split(maxsplit=1) for line in trained.stdout.decode().splitlines())
    assert (shown["run"], shown["steps"]) == ("run", "6")
    assert float(shown["bleu"]) >= 0


def test_a_finished_run_says_so(trained: object, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    assert main(["train", "mine.yaml", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["steps"] == 6
    assert said.err == "run is finished; its model is in run/model\n"
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*")} == before


def translate_two_lines(folder: str) -> int:
    os.chdir(folder)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"Spain; Italy\n\n1 year ago\r\n")))
    return main(["translate", "run", "--output", "two.de"])


def test_translating_standard_input(trained: object, work: Path) -> None:
    """In a process of its own, where pytest does not show the warnings."""
    assert in_process(translate_two_lines, str(work), said=work / "said.txt") == 0
    lines = (work / "two.de").read_text(encoding="utf-8").split("\n")
    assert (len(lines), lines[1], lines[3]) == (4, "", "")
    said = (work / "said.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch("floater: warning: .* before they ended", line) for line in said)


def test_standard_input_that_is_not_text(
    trained: object, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"Spain\n\xff\n"))))
    said = fails("translate", "run")
    assert said.startswith("standard input, line 2: not UTF-8 (invalid start byte); convert text of another")


def test_translating_files(
    trained: object, work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (work / "corpus" / "test.en").read_bytes()
    with gzip.open(work / "test.en.gz", "wb") as file:
        file.write(source)
    assert main(["translate", "run", "--source", "corpus/test.en"]) == 0
    expected = capsys.readouterr().out
    assert expected.count("\n") == 6
    assert main(["translate", "run", "--source", "test.en.gz", "--output", "out.de"]) == 0
    assert capsys.readouterr().out == ""
    assert (work / "out.de").read_text(encoding="utf-8") == expected
    with (work / "test.en.gz").open("rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        assert main(["translate", "run"]) == 0
    assert capsys.readouterr().out == expected
    rule = ["--reading", "interpolate=true,length=900"]
    assert main(["translate", "run", "--source", "corpus/test.en", *rule]) == 0
    assert capsys.readouterr().out.count("\n") == 6
    assert main(["translate", "run", "--source", "corpus/test.en", "--reading", "length=0"]) == 2
    assert "reading.length is 0; it must be at least 1 token" in capsys.readouterr().err


def test_a_run_that_was_trained_on_text_reads_columns_of_a_table(
    trained: object, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("table.jsonl").write_text('{"words": "Spain", "wanted": "Spanien"}\n', encoding="utf-8")
    Path("text.en").write_text("Spain\n", encoding="utf-8")
    table = ["run", "--source", "table.jsonl", "--columns", "source=words"]
    outputs = []
    for command in (["translate", *table], ["translate", "run", "--source", "text.en"]):
        assert main(command) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert main(["evaluate", *table, "--columns", "target=wanted"]) == 0
    assert fails("train", "mine.yaml", "run=new", "data.columns.source=words") == (
        "data.columns names columns of tables, but data.train and data.valid are not given"
    )


def test_a_source_longer_than_the_training_length(trained: object, work: Path) -> None:
    (work / "long.en").write_text("Spain " * 300 + "\n", encoding="utf-8")
    assert main(["translate", "run", "--source", "long.en", "--output", "long.de"]) == 0
    assert (work / "long.de").read_text(encoding="utf-8").count("\n") == 1


def test_evaluating_prints_scores_with_signatures_and_bins(
    trained: object, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--source", "corpus/test.en", "--reference", "corpus/test.de"]
    assert main(["evaluate", "run", *files, "--bins", "2,400", "--output", "scored.de"]) == 0
    bleu, chrf, tokenised, unit, *bins = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"BLEU \d+\.\d\d \(nrefs:1\|.*version:.*\)", bleu)
    assert re.fullmatch(r"chrF \d+\.\d\d \(nrefs:1\|.*version:.*\)", chrf)
    assert re.fullmatch(r"tokenised BLEU \d+\.\d\d \(.*moses-de.*\)", tokenised)
    short = sum(n < 2 for n in lengths((work / "corpus" / "test.en").read_text().splitlines()))
    assert unit == "words and punctuation marks of the source, or characters of scripts without spaces:"
    assert [line.split(" lines")[0].split() for line in bins] == [
        ["0", "to", "1", str(short)],
        ["2", "to", "399", str(6 - short)],
        ["400", "and", "more", "0"],
    ]
    assert (work / "scored.de").read_text(encoding="utf-8").count("\n") == 6
    assert main(["evaluate", "run", *files, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert bleu == f"BLEU {actual['scores']['bleu']:.2f} ({actual['signatures']['bleu']})"
    assert actual["bins"] == []
    assert main(["evaluate", "run", *files, "--json", "--bins", "2,400"]) == 0
    by_length = json.loads(capsys.readouterr().out)["bins"]
    assert [(each["lengths"], each["examples"]) for each in by_length] == [
        ([0, 1], short),
        ([2, 399], 6 - short),
        ([400, None], 0),
    ]
    assert by_length[1]["bleu"] is not None
    assert by_length[2]["bleu"] is None


def test_evaluating_says_if_the_run_was_trained_on_the_source(
    trained: object, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contents of the file count, not its name."""
    for name in ("en", "de"):
        shutil.copy(work / "corpus" / f"train.{name}", work / f"new.{name}")
    noted = {}
    for source in ("new", "corpus/valid"):
        files = ["--source", f"{source}.en", "--reference", f"{source}.de"]
        assert main(["evaluate", "run", *files, "--json"]) == 0
        noted[source] = json.loads(capsys.readouterr().out)["notes"]
    assert "new.en: the run was trained on examples of it" in noted["new"]
    assert not any("trained" in note for note in noted["corpus/valid"])


def test_a_directory_that_is_no_run_is_left_alone(fails: Callable[..., str], trained: object) -> None:
    assert fails("train", "mine.yaml", "run=corpus").startswith("corpus is not empty and holds no run")
    other = fails("train", "mine.yaml", "training.seed=2")
    assert other == "run holds a run with other settings: training.seed is 1 there and 2 here"
    assert fails("translate", "corpus").startswith("corpus holds no trained model")
    assert fails("evaluate", "corpus") == "corpus holds no run; a saved model needs --source"
    assert fails("predict", "corpus", "--source", "corpus/test.en") == "corpus holds no run (no config.yaml)"
    assert fails("translate", "rum") == "rum: there is no such directory; did you mean run?"
    assert fails("glue", "rum") == "rum: there is no such directory; did you mean run?"
    assert fails("glue", "corpus") == "corpus holds no run (no config.yaml)"
    Path("llama").mkdir()
    Path("llama/config.json").write_text('{"model_type": "llama"}')
    for command in ("evaluate", "translate"):
        told = fails(command, "llama", "--source", "new.en")
        assert told.startswith("llama holds no run (no config.yaml) but a checkpoint of model type 'llama'; ")
    assert fails("translate", "corpus/test.en").startswith("corpus/test.en is a file; the run's directory")
    none = fails("train", "mine.yaml", "run=new", "training.warm_start=none", "data.train_source=none.en")
    assert none == "none holds no trained model, which training.warm_start needs"
    warm = fails(
        "train",
        "mine.yaml",
        "run=new",
        "training.warm_start=run",
        "model.position=learned",
        "model.max_length=500",
    )
    assert "'floater', which 'learned' cannot continue" in warm


@pytest.mark.parametrize("command", ["predict", "evaluate", "translate"])
def test_the_model_of_a_run_is_no_run(work: Path, fails: Callable[..., str], command: str) -> None:
    (work / "classified" / "model").mkdir(parents=True, exist_ok=True)
    (work / "classified" / "config.yaml").write_text("task: classification\n", encoding="utf-8")
    told = fails(command, "classified/model", "--source", "corpus/test.en")
    assert told == "classified/model holds no run (no config.yaml); name the run, classified"
    (work / "classified" / "saved").mkdir(exist_ok=True)  # a model beside the settings of something else
    assert "name the run" not in fails(command, "classified/saved", "--source", "corpus/test.en")


def test_output_that_cannot_be_written_is_named_before_the_work(
    fails: Callable[..., str], trained: object
) -> None:
    source = ["--source", "corpus/test.en"]
    assert fails("translate", "run", *source, "--output", "none/out.de") == "none: no such directory"
    assert fails("translate", "run", *source, "--output", "corpus") == "corpus: Is a directory"
    same = "the output ./corpus/test.en is an input of the command; name another file"
    assert fails("translate", "run", "--source", "corpus/test.en", "--output", "./corpus/test.en") == same
    assert (
        fails("translate", "run", *source, "--output", "/proc/none")
        == "/proc/none: No such file or directory"
    )
    unknown = ["--reference", "corpus/test.de", "--language", "xx"]
    assert fails("evaluate", "run", *source, *unknown).startswith("'xx' is no code of a language")
    target = fails("train", "mine.yaml", "run=other", "data.target=german")
    assert target.startswith("data.target: 'german' is no code of a language")
    scored = ["--reference", "corpus/test.de", "--output", "none/out.de"]
    assert fails("evaluate", "run", *source, *scored) == "none: no such directory"


def test_learned_positions_end(fails: Callable[..., str], work: Path) -> None:
    learned = ["model.position=learned", "model.max_length=400", "training.eval_strategy='no'"]
    learned.append("training.eval_steps=null")
    assert (
        main(
            [
                "train",
                "mine.yaml",
                "run=learned",
                "training.max_steps=1",
                "training.early_stopping_patience=0",
                *learned,
            ]
        )
        == 0
    )
    (work / "endless.en").write_text("Spain\n" + "Spain " * 400 + "\n", encoding="utf-8")
    said = fails("translate", "learned", "--source", "endless.en")
    assert re.fullmatch(r"line 2 has \d+ tokens, but the model has 400 learned positions", said)


def test_a_language_without_moses_rules_is_scored_without_tokenised_bleu(
    trained: object, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--source", "corpus/test.en", "--reference", "corpus/test.de", "--language"]
    printed = {}
    for language in ("tr", "de"):
        assert main(["evaluate", "run", *source, language]) == 0
        printed[language] = capsys.readouterr().out.splitlines()
    assert printed["tr"][:2] == printed["de"][:2], "BLEU and chrF have no rules of a language here"
    assert "none (not computed: no Moses rules for language 'tr'" in printed["tr"][2]


def test_search_and_device_can_be_chosen(
    trained: object, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A beam of 1 is greedy search, and neither batches nor the device change a translation."""
    source = ["translate", "run", "--source", "corpus/test.en"]
    assert main([*source, "--beam", "1", "--batch-tokens", "9", "--device", "cpu"]) == 0
    greedy = capsys.readouterr().out
    assert main([*source, "--beam", "1"]) == 0
    assert capsys.readouterr().out == greedy
    for device in ("tpu:7", "meta"):
        assert fails(*source, "--device", device).startswith(
            f"device '{device}' is not available; there are: cpu"
        )
    assert fails(*source, "--beam", "1", "--length-penalty", "0").startswith(
        "length_penalty is 0, which only a beam above 1 reads"
    )
    with pytest.raises(SystemExit):
        main([*source, "--length-penalty", "inf"])
    assert "'inf' is not a finite number" in capsys.readouterr().err


def test_a_finished_run_trains_for_longer(
    trained: object, work: Path, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(work / "run", work / "longer")
    mine = ["train", "mine.yaml", "run=longer"]
    assert (
        fails(*mine, "--steps", "6") == "longer trains to training.max_steps=6 already; give more than that"
    )
    assert fails(*mine, "--epochs", "9") == "training.max_steps is 6: give --steps, not --epochs"
    assert fails(*mine, "--steps", "9", "training.seed=7").startswith(
        "longer holds a run with other settings"
    )
    assert main([*mine, "--steps", "9"]) == 0
    said = capsys.readouterr()
    assert re.search("^steps +9$", said.out, re.MULTILINE)
    assert "resuming from longer/checkpoint-6" in said.err
    assert "missing keys" not in said.err, "a tied weight is not missing"
    log = json.loads((work / "longer" / "log.json").read_text(encoding="utf-8"))
    assert max(entry["step"] for entry in log) == 9
    assert yaml.safe_load((work / "longer" / "config.yaml").read_text())["training"]["max_steps"] == 9
    assert main(["train", "mine.yaml", "run=longer", "training.max_steps=9"]) == 0  # it is that run now
    assert "is finished" in capsys.readouterr().err
