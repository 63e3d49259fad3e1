"""Untrusted files are data: what docs/howto/security.md says of them, line by line."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

import floater
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, dump
from floater.lab.study import analyses
from floater.lab.study.trial import MEASURED, read
from floater.lab.tasks import registry
from floater.lab.text.bpe import train_bpe
from floater.pretrained import PlugError
from lab.training.small_run import TASK, settings

CODE = "from pathlib import Path\nPath('executed').touch()\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TASK.train(settings(tmp_path_factory.mktemp("trained") / "run", max_steps=4))


@pytest.fixture
def elsewhere(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Path]:
    """A run that names a module beside it, in the working directory, with the answer "y" to any question."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))
    theirs = shutil.copytree(trained, tmp_path / "theirs")
    (theirs / "helper.py").write_text(CODE)
    name_modules(theirs / "config.yaml", ["theirs.helper"])
    capfd.readouterr()
    yield theirs
    for name in ("theirs", "theirs.helper"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def name_modules(config: Path, modules: list[str]) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"imports": modules}))


def executed() -> bool:
    return Path("executed").exists()


READERS = [
    ["evaluate", "theirs"],
    ["plot", "theirs", "similarity"],
    ["translate", "theirs"],
    ["predict", "theirs", "--source", "test.tsv"],
    ["train", "theirs/config.yaml"],
    ["train", "theirs/config.yaml", "--steps", "8"],
    ["train", "theirs/config.yaml", "run=mine"],
]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("package", [False, True])
def test_a_run_imports_its_modules_with_consent_alone(
    command: list[str], package: bool, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if package:
        (elsewhere / "__init__.py").write_text(CODE)
    assert main(command) == 2
    (line,) = capfd.readouterr().err.splitlines()
    files = [elsewhere / "__init__.py"] * package + [elsewhere / "helper.py"]
    assert line.startswith(
        "floater: theirs/config.yaml: imports: the module 'theirs.helper' would run the code"
    )
    assert all(str(file) in line for file in files)
    assert "--trust-code" in line
    assert not executed()
    assert not {"theirs", "theirs.helper"} & sys.modules.keys()
    main([*command, "--trust-code"])
    assert executed()


def test_with_consent_a_run_is_what_it_would_be_without_modules(
    elsewhere: Path, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "theirs", "--trust-code"]) == 0
    told = capfd.readouterr().out
    assert main(["evaluate", str(trained)]) == 0
    assert capfd.readouterr().out == told


@pytest.mark.parametrize(
    "module", ["antigravity", "no_such_module", "theirs", "theirs.nothing", "theirs.helper.more"]
)
def test_modules_of_python_and_modules_that_are_not_there_are_refused(
    module: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name_modules(elsewhere / "config.yaml", [module])
    assert main(["evaluate", "theirs"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("floater: theirs/config.yaml: imports: ")
    assert not executed()
    assert module not in sys.modules


@pytest.mark.parametrize("imports", ["theirs.helper", [1], {"theirs.helper": 1}])
def test_other_values_of_imports_are_refused(imports: Any, elsewhere: Path) -> None:
    name_modules(elsewhere / "config.yaml", imports)
    for command in (
        ["evaluate", "theirs"],
        ["plot", "theirs", "similarity"],
        ["plot", "theirs", "similarity", "--trust-code"],
    ):
        assert main(command) == 2
    assert not executed()


def test_in_python_a_module_that_is_imported_needs_no_consent(elsewhere: Path) -> None:
    for read_run in (registry.from_run, analyses.draw):
        with pytest.raises(SettingsError, match="in Python, import it first"):
            read_run("theirs", *(["similarity"] if read_run is analyses.draw else []))
    assert not executed()
    sys.path.append(os.getcwd())
    importlib.import_module("theirs.helper")
    task, run = registry.from_run("theirs")
    assert (task, run.settings.imports) == (TASK, ["theirs.helper"])  # type: ignore[union-attr]
    analyses.draw("theirs", "similarity")


def test_the_yaml_of_a_user_is_consent(elsewhere: Path, tmp_path: Path) -> None:
    Path("helper.py").write_text(CODE)
    Path("mine.yaml").write_text(dump(settings(Path("mine"), max_steps=4)))
    assert main(["train", "mine.yaml", "imports=[no_such_module]"]) == 2
    name_modules(Path("mine.yaml"), ["helper"])
    try:
        assert main(["train", "mine.yaml"]) == 0
        assert executed()
        Path("executed").unlink()
        sys.modules.pop("helper")
        assert main(["train", "mine.yaml", "--steps", "6"]) == 0
        assert executed()
        Path("executed").unlink()
        sys.modules.pop("helper")
        assert main(["train", "theirs/config.yaml", "imports=[helper]"]) in (0, 2)
        assert executed()
    finally:
        sys.modules.pop("helper", None)


STUDY = {
    "folder": "study",
    "task": "generated",
    "imports": ["theirs.helper"],
    "models": {"sinusoidal": {}},
    "seeds": [1],
}


@pytest.mark.parametrize("more", [[], ["--report"]])
@pytest.mark.parametrize("config", ["study/study.yaml", "study/trials/sinusoidal-1.yaml", "look.yaml"])
def test_a_study_imports_its_modules_with_consent_alone(
    more: list[str], config: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("study/trials").mkdir(parents=True)
    Path("study/study.yaml").write_text(yaml.safe_dump(STUDY))
    look = {"folder": "look", "checkpoints": {"them": "theirs"}, "figures": ["similarity"]}
    Path("look.yaml").write_text(yaml.safe_dump(look))
    Path("study/trials/sinusoidal-1.yaml").write_text((elsewhere / "config.yaml").read_text())
    command = ["train", config] if "trials" in config else ["study", config, *more]
    assert main(command) == 2
    assert "imports: the module 'theirs.helper' would run the code in" in capfd.readouterr().err
    assert not executed()
    main([*command, "--trust-code"])
    assert executed()


def test_without_consent_the_working_directory_is_not_searched(elsewhere: Path) -> None:
    assert main(["evaluate", "theirs"]) == 2
    assert not {"", ".", os.getcwd()} & {*sys.path}
    main(["evaluate", "theirs", "--trust-code"])
    assert os.getcwd() in sys.path


def test_tags_in_yaml_make_no_objects(elsewhere: Path) -> None:
    text = (elsewhere / "config.yaml").read_text()
    for tag in ("!!python/object/apply:os.mkdir [executed]", "!!python/name:os.mkdir ''"):
        (elsewhere / "config.yaml").write_text(text + f"extra: {tag}\n")
        assert main(["evaluate", "theirs"]) == 2
        assert main(["plot", "theirs", "similarity", "--trust-code"]) == 2
    (elsewhere / "config.yaml").write_text(
        text.replace(
            "position_options: {}", "position_options: {class_path: os.mkdir, init_args: {path: executed}}"
        )
    )
    assert main(["evaluate", "theirs"]) == 2
    assert not executed()


class Evil:
    """Would make a directory if it were unpickled as pickle does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_arrays_of_objects_are_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(MEASURED).mkdir()
    Path(MEASURED, "test.json").write_text('{"metrics": [], "notes": [], "signatures": {}}')
    np.savez(Path(MEASURED, "test.npz"), lengths=np.array([Evil()], dtype=object))
    with pytest.raises(DataError, match=r"test\.npz holds no scores that can be read: "):
        read(tmp_path, "test")
    assert not executed()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code beside its weights, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=262, num_key_value_heads=2, max_position_embeddings=32, **sizes)
    LlamaForCausalLM(config).save_pretrained("model")
    train_bpe(["low lower lowest"], 262).save_pretrained("model")
    (tmp_path / "model/code.py").write_text(f"{CODE}class Theirs: ...\n")
    (tmp_path / "code.py").write_text(CODE)
    return tmp_path / "model"


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


AUTO = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "code.Theirs")
MODELS: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "a class of its own": (
        lambda model: change(model / "config.json", model_type="theirs", auto_map=AUTO),
        "custom code",
    ),
    "code for a class of Transformers": (lambda model: change(model / "config.json", auto_map=AUTO), None),
    "a tokenizer of its own": (
        lambda model: change(
            model / "tokenizer_config.json",
            tokenizer_class="Theirs",
            auto_map={"AutoTokenizer": ["code.Theirs", "code.Theirs"]},
        ),
        "custom code",
    ),
    "a class that is no model": (
        lambda model: change(model / "config.json", architectures=["Trainer"]),
        None,
    ),
    "an attention kernel": (
        lambda model: change(model / "config.json", attn_implementation="theirs/kernel"),
        "cannot be loaded|no model can be loaded",
    ),
    "pickled weights": (
        lambda model: (
            (model / "model.safetensors").unlink(),
            torch.save(Evil(), model / "pytorch_model.bin"),
        ),
        "more than tensors|cannot be loaded",
    ),
    "pickles beside": (
        lambda model: [
            torch.save(Evil(), model / name) for name in ("training_args.bin", "pytorch_model.bin")
        ],
        None,
    ),
    "a chat template": (
        lambda model: (model / "chat_template.jinja").write_text(
            "{{ cycler.__init__.__globals__.os.mkdir('executed') }}"
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("command", ["extend", "plot", "train"])
def test_a_model_runs_no_code(
    name: str, command: str, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", lambda *_: pytest.fail("rendered"))
    act, reason = MODELS[name]
    act(model)
    Path("text.txt").write_text("low lower lowest\n" * 40)
    Path("mine.yaml").write_text(
        "{task: causal_lm, run: mine, model: {path: model}, "
        "data: {train: text.txt, valid: text.txt, block: 16}, "
        "training: {max_steps: 1, save_steps: 1, eval_steps: 1, warmup_steps: 0, average_last: 1}}"
    )
    commands = {
        "extend": ["extend", "model", "64", "--to", "longer"],
        "plot": ["plot", "model", "reordering", "--text", "text.txt", "--output", "a.png"],
        "train": ["train", "mine.yaml"],
    }
    capfd.readouterr()
    code = main(commands[command])
    told = capfd.readouterr().err
    assert not executed()
    assert "Traceback" not in told
    if name == "a class that is no model" and command == "extend":  # others know the class from elsewhere
        reason = "is 'Trainer', which is no model class of Transformers"
    if reason is None and command == "plot":  # the model is loaded, and then the text is too short
        reason = "detection needs 40 such sentences"
    assert code == (0 if reason is None else 2), told
    if reason is not None:
        (line,) = told.splitlines()[-1:]
        assert line.startswith("floater: ")
        assert any(part in line for part in reason.split("|"))


@pytest.mark.parametrize("kind", ["Trainer", "AutoModel", "pipeline", "code"])
def test_a_flow_names_a_model_and_no_other_class(kind: str, model: Path) -> None:
    change(model / "config.json", model_type="theirs", auto_map=AUTO)
    Path("flow").mkdir()
    record = {"model_type": "llama", "model_class": kind, "model": "model", "plug": {}}
    Path("flow/floater.json").write_text(json.dumps(record))
    floater.save  # noqa: B018 (the function that writes such a record)
    shutil.copy(model / "model.safetensors", "flow/floater.safetensors")
    with pytest.raises(PlugError, match="no model class"):
        floater.load("flow")
    assert not executed()


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapter_runs_no_code(whole: bool, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    adapter = Path(shutil.copytree(model, "adapter")) if whole else Path("adapter")
    adapter.mkdir(exist_ok=True)
    change(model / "config.json", model_type="theirs", auto_map=AUTO)
    record = {
        "peft_type": "LORA",
        "base_model_name_or_path": "model",
        "r": 2,
        "target_modules": ["q_proj"],
        "auto_mapping": {"base_model_class": "Theirs", "parent_library": "code"},
    }
    (adapter / "adapter_config.json").write_text(json.dumps(record))
    torch.save(Evil(), adapter / "adapter_model.bin")
    for command in (["extend", "adapter", "64", "--to", "longer"], ["plot", "adapter", "reordering"]):
        assert main(command) == 2
        told = capfd.readouterr().err
        assert "Traceback" not in told
        assert not executed()
