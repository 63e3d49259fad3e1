"""The wheel has the configurations, its hints name commands that work, and its extras have what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import floater

ROOT = Path(floater.__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # the files of a new user's first hour

RUN_ALL = """
import sys
from floater.lab.cli import main
for command in sys.stdin.read().splitlines():
    if code := main(command.split()):
        sys.exit(f"{command}: {code}")
"""
TASKS = [
    "train generated.yaml",
    "train translation.yaml",
    "translate runs/translation --source test.en --output test.out",
    "evaluate runs/translation --source test.en --reference test.de",
    "train causal.yaml",
    "train tagging.yaml",
    "train events.yaml",
    "train documents.yaml",
    "train digits.yaml",
    "train cola.yaml",
    "train reviews.yaml",
    "predict runs/reviews --source new.txt",
    "train squad.yaml",
    "extend bert 160 --to longer",
    "train race.yaml",
    "train filled.yaml plug.options={} plug.train=flow",
    "train longer.yaml train=lora",
    "plot runs/generated similarity",
    "cite runs/generated",
    "completion bash",
    "init classify/long long.yaml",
]
"""A command of each task, and those that need other packages than a training."""
EXTRAS = {
    "": "from floater.encodings import catalogue; from floater.flow import MLPField; assert catalogue()",
    "hf": "import floater; from transformers import BertConfig as C, BertForMaskedLM as M; "
    "m = M(C(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)); "
    "floater.plug(m); floater.save(m, 'flow'); floater.extend(m, 1024); m.save_pretrained('m')",
    "tensorboard": "from tensorboard.summary import Writer",
    "ray": "import ray",
    "slurm": "import submitit",
    "docs": "import material, mkdocstrings_handlers.python",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder), "-q"]
    done = subprocess.run(build, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.splitlines()[-1]}")
    (path,) = folder.glob("*.whl")
    return path


def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel itself says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return [*map(Requirement, message_from_bytes(archive.read(name)).get_all("Requires-Dist") or [])]


def needed(wheel: Path, extra: str) -> Iterator[metadata.Distribution]:
    """The distributions that pip installs with an extra of the wheel: those that are here, without others."""
    waiting = [(each, {"", *extra.split(",")}) for each in requirements(wheel)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        need, extras = waiting.pop()
        key = canonicalize_name(need.name), frozenset(need.extras)
        if key in seen or not any(
            need.marker is None or need.marker.evaluate({"extra": each}) for each in extras
        ):
            continue
        seen.add(key)
        if key[0] == "floater":
            waiting += [(each, set(need.extras)) for each in requirements(wheel)]
            continue
        distribution = metadata.distribution(need.name)
        assert need.specifier.contains(distribution.version, prereleases=True), need
        yield distribution
        waiting += [(Requirement(each), {"", *need.extras}) for each in distribution.requires or []]


def environment(folder: Path, wheel: Path, extra: str | None) -> Path:
    """Return the Python of a clean environment with the wheel and, as links, what an extra installs.

    Without an extra there is nothing but the wheel.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = folder.glob("lib/*/site-packages")
    for distribution in needed(wheel, extra) if extra is not None else ():
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    return python


def said(program: Path, *words: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [program, *words], cwd=folder, env=variables, input=stdin, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_command_without_its_packages_names_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "bare", wheel, None)
    done = said(python.with_name("floater"), "configs", folder=tmp_path)
    assert done.returncode == 0
    done = said(python.with_name("floater"), "extend", "bert", "1024", "--to", "longer", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"pip install '{wheel}[lab]'\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_has_the_packages_of_what_it_is_for(wheel: Path, tmp_path: Path, extra: str) -> None:
    done = said(environment(tmp_path / "env", wheel, extra), "-c", EXTRAS[extra], folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_command_of_each_task_works_with_the_packages_of_the_laboratory(
    wheel: Path, tmp_path: Path
) -> None:
    from first_hour_files import prepare

    prepare(tmp_path)
    question = {"article": "the film is in rome", "questions": ["where is it ? _ ."] * 2}
    question |= {"options": [["rome", "bonn", "city", "film"]] * 2, "answers": ["A", "A"], "id": "high1.txt"}
    (tmp_path / "race" / "high").mkdir(parents=True)
    (tmp_path / "race" / "high" / "1.txt").write_text(json.dumps(question))
    race = yaml.safe_load((tmp_path / "squad.yaml").read_text())
    data = {"train": "race", "valid": "race", "max_length": 160}
    race |= {"task": "race", "run": "runs/race", "data": data, "model": {"path": "longer"}}
    (tmp_path / "race.yaml").write_text(yaml.safe_dump(race))
    python = environment(tmp_path / "env", wheel, "lab")
    done = said(python, "-c", RUN_ALL, folder=tmp_path, stdin="\n".join(TASKS))
    assert done.returncode == 0, done.stderr[-2000:]
