"""The command line: what a person types, reads and gets wrong."""

import contextlib
import csv
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from floater import catalogue
from floater.encodings.bibliography import read as read_bibtex
from floater.errors import install
from floater.lab.cli import main
from floater.lab.tasks.corpora import cldr
from processes import in_process

PROGRAM = [sys.executable, "-m", "floater"]
# shown, as they are to a person; elsewhere in the tests warnings of floater are errors
pytestmark = pytest.mark.filterwarnings("default::floater.lab.tasks.translation.CutTranslation")
NOISE = re.compile(r"transformers\]|[Ww]arning|shards|Loading weights|Traceback")


def typed(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, env=env, timeout=600, check=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a corpus, a configuration and, after `trained`, its run."""
    folder = tmp_path_factory.mktemp("work")
    parts = cldr.split(train=120, valid=5, test=6, mean_tokens=10, longest=200)
    cldr.write(folder / "corpus", parts, source="en", target="de")
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "decoder_layers": 1}
    config = {
        "run": "run",
        "data": {
            "train_source": "corpus/train.en",
            "train_target": "corpus/train.de",
            "valid_source": "corpus/valid.en",
            "valid_target": "corpus/valid.de",
            "vocabulary_size": 300,
        },
        "model": {"preset": "tiny", "max_length": 80, "changes": sizes},
        "training": {
            "warmup_steps": 3,
            "max_steps": 6,
            "save_steps": 3,
            "eval_steps": 3,
            "average_last": 2,
            "early_stopping_patience": 5,
        },
        "decoding": {"beam": 2, "max_ratio": 0.2},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)


@pytest.fixture(scope="module")
def trained(work: Path) -> subprocess.CompletedProcess[bytes]:
    before = Path.cwd()
    os.chdir(work)
    try:
        return typed("train", "mine.yaml")
    finally:
        os.chdir(before)


Says = Callable[..., str]


@pytest.fixture
def fails(work: Path, capsys: pytest.CaptureFixture[str]) -> Says:
    """Run a command that a person has got wrong: one line, exit code 2, nothing written."""

    def run(*arguments: str) -> str:
        before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
        capsys.readouterr()
        assert main(arguments) == 2
        said = capsys.readouterr()
        after = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
        assert after == before
        assert said.out == ""
        *told, last = said.err.splitlines()
        assert all("pairs" in line for line in told), "only how much was read may come before"
        assert last.startswith("floater: ")
        return last.removeprefix("floater: ")

    return run


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
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"Spain; Italy\n\n1 year ago\r\n"))
    return main(["translate", "run", "--output", "two.de"])


def test_translating_standard_input(trained: object, work: Path) -> None:
    """In a process of its own, where pytest does not show the warnings."""
    assert in_process(translate_two_lines, str(work), said=work / "said.txt") == 0
    lines = (work / "two.de").read_text(encoding="utf-8").split("\n")
    assert (len(lines), lines[1], lines[3]) == (4, "", "")
    said = (work / "said.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch("floater: warning: .* before they ended", line) for line in said)


def test_standard_input_that_is_not_text(
    trained: object, fails: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Spain\n\xff\n")))
    said = fails("translate", "run")
    assert said.startswith("standard input, line 2: not UTF-8 (invalid start byte); convert text of another")


def test_translating_files(trained: object, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (work / "corpus" / "test.en").read_bytes()
    with gzip.open(work / "test.en.gz", "wb") as file:
        file.write(source)
    assert main(["translate", "run", "--source", "corpus/test.en"]) == 0
    expected = capsys.readouterr().out
    assert expected.count("\n") == 6
    assert main(["translate", "run", "--source", "test.en.gz", "--output", "out.de"]) == 0
    assert capsys.readouterr().out == ""
    assert (work / "out.de").read_text(encoding="utf-8") == expected
    rule = ["--reading", "interpolate=true,length=900"]
    assert main(["translate", "run", "--source", "corpus/test.en", *rule]) == 0
    assert capsys.readouterr().out.count("\n") == 6
    assert main(["translate", "run", "--source", "corpus/test.en", "--reading", "length=0"]) == 2
    assert "reading.length is 0; it must be at least 1 token" in capsys.readouterr().err


def test_a_source_longer_than_the_training_length(trained: object, work: Path) -> None:
    (work / "long.en").write_text("Spain " * 300 + "\n", encoding="utf-8")
    assert main(["translate", "run", "--source", "long.en", "--output", "long.de"]) == 0
    assert (work / "long.de").read_text(encoding="utf-8").count("\n") == 1


def test_evaluating_prints_scores_with_signatures_and_bins(
    trained: object, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--source", "corpus/test.en", "--reference", "corpus/test.de"]
    assert main(["evaluate", "run", *files, "--bins", "2,400", "--output", "scored.de"]) == 0
    bleu, chrf, tokenised, *bins = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"BLEU \d+\.\d\d \(nrefs:1\|.*version:.*\)", bleu)
    assert re.fullmatch(r"chrF \d+\.\d\d \(nrefs:1\|.*version:.*\)", chrf)
    assert re.fullmatch(r"tokenised BLEU \d+\.\d\d \(.*moses-de.*\)", tokenised)
    short = sum(len(line.split()) < 2 for line in (work / "corpus" / "test.en").read_text().splitlines())
    assert [line.split(" lines")[0].split() for line in bins] == [
        ["0", "to", "1", "words", str(short)],
        ["2", "to", "399", "words", str(6 - short)],
        ["400", "words", "and", "more", "0"],
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


def test_models_are_listed_with_measured_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:7] for line in lines[5:]}
    assert list(rows) == list(catalogue())
    assert rows["floater"] == ["2020", "absolute", "both", "yes", "yes", "535,552"]
    assert rows["sinusoidal"] == ["2017", "absolute", "APE", "no", "yes", "0"]
    assert rows["none"] == ["2017", "none", "-", "no", "no", "0"]
    sizes = ["--dim", "64", "--heads", "2", "--layers", "1", "--max-length", "100"]
    assert main(["models", "learned", *sizes]) == 0
    assert "6,400 at dim 64" in capsys.readouterr().out


def test_models_are_found_by_their_properties(fails: Says, capsys: pytest.CaptureFixture[str]) -> None:
    def names(*arguments: str) -> set[str]:
        assert main(["models", "--format", "json", *arguments]) == 0
        return {row["name"] for row in json.loads(capsys.readouterr().out)}

    some = ("rotary", "alibi", "t5", "xpos", "shaw", "sinusoidal")
    assert names(*some, "--point", "relative", "--kernel", "sdpa") == {"rotary", "xpos"}
    assert names(*some, "--injection", "MAM", "--unbound", "--kernel", "flex") == {"alibi"}
    assert names(*some, "--kernel", "bias", "--no-unbound") == {"t5"}
    assert names("--structure", "tree") == {"floater_tree", "spr_absolute", "spr_relative", "tree"}
    assert names("--survey", "--year", "2021", "--no-learnable") == {"rotary", "shortformer"}
    assert names("t5", "alibi", "t5", "--year", "2021-2022") == {"alibi"}
    assert fails("models", "--structure", "tree", "--no-learnable", "--year", "2026") == (
        "no position encoding has all these properties; leave out one of them"
    )


def test_the_survey_is_shown_beside_what_is_measured(fails: Says, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["axial", "laplacian", "rotary", "alibi"]
    assert main(["models", "--survey", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line for line in lines[1:4]}
    assert set(rows) == {"axial", "laplacian", "rotary"}
    assert "both (APE)  yes (no)   yes (no)   yes      0 *" in rows["laplacian"]
    assert any(line.startswith("  laplacian, learnable: the eigenvectors are projected") for line in lines)
    assert main(["models", "--survey", *names, "--format", "json"]) == 0
    laplacian = next(r for r in json.loads(capsys.readouterr().out) if r["name"] == "laplacian")
    assert (laplacian["learnable"], laplacian["learnable survey"]) == (True, False)
    assert laplacian["#param survey"] == "0"
    assert main(["models", "--topics", "--format", "csv"]) == 0
    topics = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {
        "topic": "decoder",
        "point": "absolute",
        "paper": "Bao et al. 2019",
        "encodings": "pnat",
    } in topics
    assert fails("models", "--survey", "--columns", "name") == "--survey takes no --columns"
    assert fails("models", "--topics", "--year", "2020") == "--topics takes no --year"
    assert fails("models", "t5", "--bibtex", "--format", "csv") == "--bibtex takes no --format"
    assert main(["models", "t5", "floater_rotary", "--bibtex"]) == 0
    assert read_bibtex(capsys.readouterr().out).keys() == {
        *("raffel2020exploring", "liu2020floater", "su2021roformer")
    }


def test_the_columns_of_models_are_chosen(fails: Says, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "t5", "--columns", "name,doi,arxiv,title"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("t5         1910.10683  Exploring the Limits")
    assert fails("models", "--columns", "tite") == "there is no column 'tite'; did you mean 'title'?"


def test_models_are_listed_for_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--format", "csv"]) == 0
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert list(rows) == list(catalogue())
    assert rows["rnn"]["parameters"] == str(263_168 + 3_072)  # Table 6, and the starts
    assert rows["shaw"]["options"] == "clip=16, values=True, vectors='learned'"
    assert main(["models", "shaw_absolute", "--format", "markdown"]) == 0
    header, line, row = capsys.readouterr().out.splitlines()
    assert header.count("|") == line.count("|") == row.count("|")
    assert row.endswith("| `2 * t_max**2 * (d // h) * l` | 201,326,592 |")


def test_one_model_is_told_of(fails: Says, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "floater"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "equation W x_t + b + b(t); db/dt = " in said
    assert "9,216 of them in start vectors, 526,336 in the rest" in said  # Table 6: 526.3 K
    assert "refresh_every=1 steps in training between solves" in said
    assert "injection APE in the survey: vectors join queries, keys and values" in said
    assert main(["models", "tree"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "reads Positions.tree" in said
    assert "cache it reads a tree or a graph over all tokens at once" in said
    assert fails("models", "flaoter") == "unknown position model 'flaoter'; did you mean 'floater'?"


def test_bad_data_is_named(fails: Says, work: Path) -> None:
    (work / "short.en").write_text("one\ntwo\n")
    (work / "latin.en").write_bytes(b"one\ncaf\xe9\n")
    (work / "empty.en").touch()

    def said(*overrides: str) -> str:
        return fails("train", "mine.yaml", "run=new", *overrides)

    assert (
        said("data.train_source=short.en") == "short.en and corpus/train.de are not aligned: 2 and 120 lines"
    )
    assert said("data.train_source=latin.en").startswith("latin.en, line 2: not UTF-8")
    assert said("data.train_source=none.en") == "none.en: cannot be read (No such file or directory)"
    empty = said("data.train_source=empty.en", "data.train_target=empty.en")
    assert empty.startswith("empty corpus: no pair of sentences")
    assert "more than training.max_tokens, 5" in said("training.max_tokens=5")
    assert said("data.vocabulary_size=9") == "mine.yaml: data: vocabulary_size is 9; it must be at least 259"


def test_a_vocabulary_smaller_than_asked_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mine.yaml", "run=new", "data.vocabulary_size=50000", "training.max_tokens=5"]) == 2
    assert "not data.vocabulary_size=50,000: the training text has no more" in capsys.readouterr().err


def test_an_empty_side_is_skipped_and_said(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    german = (work / "corpus" / "train.de").read_text(encoding="utf-8").splitlines()
    (work / "gaps.de").write_text("\n".join(["", "  ", *german[2:]]) + "\n", encoding="utf-8")
    assert main(["train", "mine.yaml", "run=gaps", "data.train_target=gaps.de", "training.max_tokens=5"]) == 2
    assert "118 training pairs; 2 with an empty side skipped\n" in capsys.readouterr().err


def test_bad_settings_are_named(fails: Says) -> None:
    def said(*overrides: str) -> str:
        return fails("train", "mine.yaml", "run=new", *overrides)

    assert "did you mean 'floater'?" in said("model.position=floatr")
    assert "did you mean 'model.preset'?" in said("modl.preset=tiny")
    assert "'training.learning_rate' must be float" in said("training.learning_rate=fast")
    assert said("training.learning_rate=inf").endswith("is inf; it must be a finite number")
    assert said("training.learning_rate=.inf").endswith("is inf; it must be a finite number, positive")
    assert said("model.position_options.delta=a").endswith("delta is 'a'; it must be a finite number")
    assert said("training.eval_strategy=no").endswith("write false, or 'no' in quotes")
    assert "is not a multiple of num_attention_heads 3" in said("model.changes.num_attention_heads=3")
    assert said("nonsense") == "override 'nonsense': expected key=value"
    assert fails("train", "none.yaml") == (
        "none.yaml: there is no such file; floater configs lists those to begin with"
    )
    for wrong in ("copy.yaml", "generated/copy", "configs/generated/copy.yaml"):
        said_of = fails("train", wrong)
        assert said_of.endswith("no such file; type: floater init generated/copy copy.yaml")
    assert "is a setting; the configuration comes first" in fails("train", "run=new", "mine.yaml")
    assert said("model.position_options={delta:0.1}") == (
        "override 'model.position_options={delta:0.1}': 'delta:0.1' needs a space after the colon: delta: 0.1"
    )
    assert fails("study", ".") == ". is a directory; floater study takes a configuration, a .yaml file"
    assert fails("study", "mine.yaml").endswith("type: floater train mine.yaml, not floater study")
    assert len(fails("train", "corpus/train.en")) < 400
    assert fails("plot", "mine.yaml", "vectors").startswith("mine.yaml is a file; give the directory")


def test_a_directory_that_is_no_run_is_left_alone(fails: Says, trained: object) -> None:
    assert fails("train", "mine.yaml", "run=corpus").startswith("corpus is not empty and holds no run")
    other = fails("train", "mine.yaml", "training.seed=2")
    assert other == "run holds a run with other settings: training.seed is 1 there and 2 here"
    assert fails("translate", "corpus").startswith("corpus holds no trained model")
    assert fails("evaluate", "corpus") == "corpus holds no run; a saved model needs --source"
    assert fails("translate", "rum") == "rum: there is no such directory; did you mean run?"
    assert fails("glue", "rum") == "rum: there is no such directory; did you mean run?"
    assert fails("glue", "corpus") == "corpus holds no run (no config.yaml)"
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


def test_output_that_cannot_be_written_is_named_before_the_work(fails: Says, trained: object) -> None:
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
    assert fails("evaluate", "run", *source, *unknown).startswith("no Moses rules for language 'xx'; known: ")
    scored = ["--reference", "corpus/test.de", "--output", "none/out.de"]
    assert fails("evaluate", "run", *source, *scored) == "none: no such directory"


def test_learned_positions_end(fails: Says, work: Path) -> None:
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


def test_search_and_device_can_be_chosen(
    trained: object, fails: Says, capsys: pytest.CaptureFixture[str]
) -> None:
    """A beam of 1 is greedy search, and neither batches nor the device change a translation."""
    source = ["translate", "run", "--source", "corpus/test.en"]
    assert (
        main([*source, "--beam", "1", "--length-penalty", "0", "--batch-tokens", "9", "--device", "cpu"]) == 0
    )
    greedy = capsys.readouterr().out
    assert main([*source, "--beam", "1"]) == 0
    assert capsys.readouterr().out == greedy
    for device in ("tpu:7", "meta"):
        assert fails(*source, "--device", device).startswith(
            f"device '{device}' is not there; there are: cpu"
        )
    with pytest.raises(SystemExit):
        main([*source, "--length-penalty", "inf"])
    assert "'inf' is no finite number" in capsys.readouterr().err


def test_a_finished_run_trains_for_longer(
    trained: object, work: Path, fails: Says, capsys: pytest.CaptureFixture[str]
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


@pytest.mark.parametrize("bins", ["3,2", "0,4", "a", "2,,3", ""])
def test_bad_bins_are_named(bins: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run", "--source", "a", "--reference", "b", "--bins", bins])
    assert stop.value.code == 2
    assert f"'{bins}' is no list of growing numbers" in capsys.readouterr().err


def test_bad_dimensions_of_models(fails: Says) -> None:
    assert fails("models", "--dim", "7") == "dim 7 is not a multiple of heads 8"
    said = fails("models", "--dim", "7", "--heads", "1")
    assert re.fullmatch(r"\w+: \w*dim is 7; \w+ positions need an even one", said)
    assert "layers is 0" in fails("models", "--layers", "0")


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
from floater.lab.cli import main
sys.exit(main(sys.argv[2:]))
"""


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    done = without("docstring_parser", "train", "mine.yaml", "run=new")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "docstring_parser" in done.stderr
    assert done.stderr.endswith(f"{install('lab')}\n")


def test_models_are_shown_without_the_packages_for_training() -> None:
    extra = "accelerate,babel,datasets,docstring_parser,matplotlib,sacrebleu,sacremoses,tensorboard"
    done = without(extra, "models", "floater")
    assert (done.returncode, done.stderr) == (0, "")
    assert "floater" in done.stdout


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "configs"], stdout=writer, stderr=subprocess.PIPE, timeout=600, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_output_on_a_full_disk_is_an_error_of_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "configs"], stdout=full, stderr=subprocess.PIPE, timeout=600, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"floater: No space left on device\n")


def test_an_interrupted_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    for command, message in {
        "models": "start it again",
        "train x": "resumes from its last checkpoint",
    }.items():
        name, *words = command.split()
        monkeypatch.setattr(f"floater.lab.cli.commands.{name}.run", interrupted)
        assert main([name, *words]) == 130
        assert message in capsys.readouterr().err


def test_an_interruption_that_an_import_turns_into_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where torch drops it while it imports NumPy."""

    def imports(*arguments: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr("floater.lab.cli.commands.models.run", imports)
    assert main(["models"]) == 130
    said = capsys.readouterr().err
    assert said.startswith("floater: stopped by SIGINT")
    assert said.count("\n") == 1


def test_a_mistake_of_the_program_is_not_called_one_of_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("this is a bug")

    monkeypatch.setattr("floater.lab.cli.commands.models.run", broken)
    with pytest.raises(ValueError, match="this is a bug"):
        main(["models"])
