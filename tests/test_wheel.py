"""The wheel: it has the configurations, and its hints name a command that works."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import floater

ROOT = Path(floater.__file__).parents[2]
TASKS = {
    "translation": "data: {train: pairs.csv, valid: pairs.csv, vocabulary_size: 300}",
    "language_modeling": "data: {train: texts.csv, valid: texts.csv, vocabulary_size: 300, block: 16}",
    "generated": "data: {problem: copy, train: 20, valid: 5}",
    "documents": "data: {train: texts.csv, valid_share: 0.3}",
}
TRAINING = "{max_tokens: 400, max_steps: 1, eval_steps: 1, save_steps: 1, warmup_steps: 1, average_last: 1}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder), "-q"]
    done = subprocess.run(build, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.splitlines()[-1]}")
    (path,) = folder.glob("*.whl")
    return path


def environment(folder: Path, wheel: Path, *, packages: bool) -> Path:
    """Return the command floater of a new environment, with or without the packages of this one."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True, capture_output=True)
    if packages:
        inside = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        Path(inside.strip(), "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "floater"


def said(command: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([command, *words], cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.slow
def test_a_command_without_its_packages_names_the_wheel(wheel: Path, tmp_path: Path) -> None:
    command = environment(tmp_path / "bare", wheel, packages=False)
    done = said(command, "configs", folder=tmp_path)
    assert done.returncode == 0
    done = said(command, "extend", "bert", "1024", "--to", "longer", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"pip install '{wheel}[lab]'\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_command_of_each_task_works_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    command = environment(tmp_path / "full", wheel, packages=True)
    rows = "".join(f"number {i},Nummer {i}\n" for i in range(30))
    (tmp_path / "pairs.csv").write_text(f"en,de\n{rows}")
    rows = "".join(f"number {i},{'ab'[i % 2]}\n" for i in range(30))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    for task, data in TASKS.items():
        training = f"training: {TRAINING}\nmodel: {{preset: tiny}}\n"
        (tmp_path / f"{task}.yaml").write_text(f"task: {task}\nrun: runs/{task}\n{data}\n{training}")
        done = said(command, "train", f"{task}.yaml", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    done = said(command, "init", "classify/long", "my.yaml", folder=tmp_path)
    assert "then run: floater study my.yaml" in done.stderr
