"""Damaged and strange files: runs, model directories and data."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import floater
from floater.lab.cli import main
from floater.lab.settings import make
from floater.lab.tasks import task
from floater.lab.tasks.generated import GeneratedSettings
from helpers import kill
from hostile import corrupted
from pretrained import extended
from strangers import STRANGE, stranger

from .families import noisy
from .fuzzing import Refused, Silent, checked
from .launched import Ended, is_refusal, same_weights, tree_of, write


def typed(*arguments: str) -> Ended:
    """Run the command line in this process, and return its end; raise an error that it does not report."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 2
    return Ended(code, output.getvalue())


def refused(*arguments: str) -> bool:
    """Run the command line; return whether it refused in a line."""
    ended = typed(*arguments)
    if "Traceback" in ended.text:
        raise RuntimeError(ended.text[-2000:])
    return is_refusal(ended)


MODELS = {
    "clex": ("llama", "clex"),
    "yarn": ("llama", "yarn"),
    "table": ("gpt2", None),
    "bias": ("bloom", None),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, a killed one, and plugged and extended models."""
    folder = tmp_path_factory.mktemp("damage")
    assert not refused("train", write(tree_of(folder / "whole"), folder / "whole.yaml"))
    kill(task("generated"), make(GeneratedSettings, tree_of(folder / "killed"), "a run"), 5)
    for name, (family, method) in MODELS.items():
        model = extended.build(family)
        floater.extend(model, 128, method)
        if family != "bloom":
            floater.plug(model)
        noisy(model).save_pretrained(folder / "models" / name)
    return folder


@contextlib.contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """Give a copy of a directory beside it, which is removed afterwards."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    yield copy
    shutil.rmtree(copy, ignore_errors=True)


@given(st.randoms(use_true_random=False))
@checked("Damaged runs", 2)
def test_a_damaged_run_resumes_to_the_same_weights_or_is_refused(work: Path, chance: random.Random) -> None:
    with copied(work / "killed") as run:
        file = chance.choice(sorted(path for path in run.rglob("*") if path.is_file()))
        how = f"{file.relative_to(run)}: {corrupted(file, chance)}"
        note(how)
        ended = typed("train", write(tree_of(run), work / "copy.yaml"))
        if is_refusal(ended):
            raise Refused(ended.lines[-1])
        if "the final model is a mean without" not in ended.text:
            same_weights(run, work / "whole", how)


@given(st.randoms(use_true_random=False))
@checked("Damaged runs", 3)
def test_a_damaged_model_of_a_run_is_refused_or_the_same(work: Path, chance: random.Random) -> None:
    expected = typed("evaluate", str(work / "whole")).text
    with copied(work / "whole") as run:
        file = chance.choice(sorted((run / "model").iterdir()))
        how = f"{file.name}: {corrupted(file, chance)}"
        note(how)
        ended = typed("evaluate", str(run))
        if is_refusal(ended):
            raise Refused(ended.lines[-1])
        if not ended.text.endswith(expected):  # lines of the log may precede the scores
            raise Silent(f"{how}: exit code 0 and {ended.text} in place of {expected}")


@given(st.sampled_from(sorted(MODELS)), st.randoms(use_true_random=False))
@checked("Strange model directories", 6)
def test_a_strange_model_directory_is_loaded_or_refused(work: Path, name: str, chance: random.Random) -> None:
    """A damaged file, a value of another type, or tensors of other names, shapes, types and numbers."""
    with copied(work / "models" / name) as folder:
        how = stranger(folder, chance)
        note(how)
        model = floater.load(folder)
        if not all(bool(weight.isfinite().all()) for weight in model.state_dict().values()):
            raise Silent(f"{how}: a model with weights that are not finite is loaded")


@given(st.sampled_from(["yarn", "table"]), st.randoms(use_true_random=False))
@checked("Strange model directories", 4)
def test_a_strange_checkpoint_is_extended_or_refused(work: Path, name: str, chance: random.Random) -> None:
    with copied(work / "models" / name) as folder:
        config = json.loads((folder / "config.json").read_text())
        plain = {key: value for key, value in config.items() if not key.startswith("floater")}
        (folder / "config.json").write_text(
            json.dumps(plain | {"rope_parameters": None, "fusion_config": None})
        )
        how = stranger(folder, chance)
        note(how)
        shutil.rmtree(to := work / "longer", ignore_errors=True)
        ended = typed("extend", str(folder), "256", "--to", str(to))
        if is_refusal(ended):
            raise Refused(ended.lines[-1])
        if not to.is_dir():
            raise Silent(f"{how}: exit code 0, and no model")


@given(st.data())
@checked("Settings and data", 3)
def test_a_strange_setting_is_served_or_refused(work: Path, data: Any) -> None:
    tree = tree_of(work / "set")
    section = data.draw(st.sampled_from([tree, tree["data"], tree["model"], tree["training"]]))
    key = data.draw(st.sampled_from(sorted(section)))
    section[key] = data.draw(st.one_of(st.sampled_from(STRANGE), st.integers(1, 9), st.floats(0, 1)))
    if key == "run" and isinstance(section[key], str):
        section[key] = str(work / "set")
    shutil.rmtree(work / "set", ignore_errors=True)
    with contextlib.chdir(work):
        if refused(
            "train", write(tree, work / "set.yaml"), *["training.max_steps=2"] * (section is not tree)
        ):
            raise Refused("refused")


CORPORA: dict[str, dict[str, Any]] = {
    "events": {"train": "events.csv"},
    "language_modeling": {"train": "source.txt", "valid": "valid.txt", "block": 32},
    "translation": {
        "train_source": "source.txt",
        "train_target": "target.txt",
        "valid_source": "valid.txt",
        "valid_target": "valid.txt",
        "vocabulary_size": 280,
    },
}


@given(st.sampled_from(sorted(CORPORA)), st.randoms(use_true_random=False))
@checked("Settings and data", 2)
def test_damaged_data_are_read_or_refused(work: Path, name: str, chance: random.Random) -> None:
    folder = work / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "events.csv").write_text(
        "id,time,type\n" + "".join(f"{row},{time},{time % 3}\n" for row in range(40) for time in range(5))
    )
    for file, count in (("source.txt", 90), ("target.txt", 90), ("valid.txt", 9)):
        (folder / file).write_text("".join(f"the {n} words of line {n}\n" for n in range(count)))
    file = folder / chance.choice(
        sorted({value for value in CORPORA[name].values() if isinstance(value, str)})
    )
    corrupted(file, chance)
    tree = tree_of(work / "of data")
    shutil.rmtree(work / "of data", ignore_errors=True)
    tree |= {"task": name, "data": CORPORA[name]}
    with contextlib.chdir(folder):
        if refused("train", write(tree, work / "data.yaml"), "training.max_steps=2", "training.save_steps=2"):
            raise Refused("refused")
