"""Data and settings that a person has got wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from floater.lab.cli import main
from floater.lab.training import other_arguments


def test_bad_data_is_named(fails: Callable[..., str], work: Path) -> None:
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


def test_bad_settings_are_named(fails: Callable[..., str]) -> None:
    def said(*overrides: str) -> str:
        return fails("train", "mine.yaml", "run=new", *overrides)

    assert "did you mean 'floater'?" in said("model.position=floatr")
    assert "did you mean 'model.preset'?" in said("modl.preset=tiny")
    assert "'training.learning_rate' must be float" in said("training.learning_rate=fast")
    assert said("training.learning_rate=inf").endswith("is inf; it must be a finite number")
    assert said("training.learning_rate=.inf").endswith("is inf; it must be a finite number, positive")
    assert said("model.position_options.delta=a").endswith("delta is 'a'; it must be a finite number")
    assert said("training.eval_strategy=no").endswith("write false, or 'no' in quotes")
    assert "is not a multiple of changes.num_attention_heads 3" in said("model.changes.num_attention_heads=3")
    assert said("run=''") == "mine.yaml: run is ''; it must name a directory, as . for this one"
    assert said("data.train_source=''") == "mine.yaml: data.train_source is ''; it must name a file"
    assert said("data.train_source=[]") == "mine.yaml: data.train_source is []; it must name a file"
    assert said("data.train_source=-").endswith("not a list of null, as YAML reads -")
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


def test_an_argument_that_this_machine_cannot_serve_is_refused_before_anything_is_written(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The corrected command would otherwise be refused because of the files of the first one."""
    monkeypatch.setattr(other_arguments, "is_liger_kernel_available", lambda: False)
    assert main(["train", "mine.yaml", "run=new", "training.use_liger_kernel=true"]) == 2
    assert "floater: training.use_liger_kernel is True, which needs liger-kernel" in capsys.readouterr().err
    assert not (work / "new").exists()


def test_a_link_that_leads_nowhere_is_named(fails: Callable[..., str], tmp_path: Path) -> None:
    gone, around = tmp_path / "gone", tmp_path / "around"
    gone.symlink_to("no-such-directory")
    around.symlink_to("around")
    for run, link in ((gone, gone), (gone / "run", gone), (around, around)):
        assert fails("train", "mine.yaml", f"run={run}") == f"{link}: a link that leads nowhere"


def test_a_file_whose_name_begins_with_a_dash_is_no_option(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "-mine.yaml").write_text((work / "mine.yaml").read_text())
    with pytest.raises(SystemExit) as stop:
        main(["train", "-mine.yaml", "run=new"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "floater: floater train takes no '-mine.yaml'; the file of this name is ./-mine.yaml\n"
    )


@pytest.mark.parametrize("bins", ["3,2", "0,4", "a", "2,,3", ""])
def test_bad_bins_are_named(bins: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run", "--source", "a", "--reference", "b", "--bins", bins])
    assert stop.value.code == 2
    assert f"'{bins}' is not a list of increasing numbers" in capsys.readouterr().err
