"""A directory with a corpus and a configuration, in which commands run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from floater.lab.cli import main
from floater.lab.tasks.corpora import cldr


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


@pytest.fixture
def fails(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
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
