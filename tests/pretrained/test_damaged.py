"""Damaged and hostile directories: each gives one line, and nothing is allocated that files do not hold."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

import floater
from floater.lab.cli import main
from floater.pretrained import ExtendError, PlugError

SIZE: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                        "intermediate_size": 16, "max_position_embeddings": 16}  # fmt: skip
VALUES: list[Any] = ["text", -1, 0, float("inf"), 10**10, 10**30, [], [1], "10", {"a": 1}, [[[]]], "MISSING"]
REFUSED = (PlugError, ExtendError, floater.PositionError)


def _bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZE)).eval()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A flow, a plugged model, an extended one, and a plain one with its tokenizer."""
    root = tmp_path_factory.mktemp("sources")
    plugged = _bert()
    floater.plug(plugged)
    floater.save(plugged, root / "flow")
    plugged.save_pretrained(root / "plugged")
    extended = LlamaModel(LlamaConfig(**SIZE))
    floater.extend(extended, 64, "self_extend")
    extended.save_pretrained(root / "extended")
    _bert().save_pretrained(root / "plain")
    words = Tokenizer(models.WordLevel({chr(97 + i): i for i in range(16)}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="b").save_pretrained(root / "plain")
    return {path.name: path for path in root.iterdir()}


def _copy(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(source, to)


def _edited(source: Path, to: Path, file: str, keys: tuple[str, ...], value: Any) -> Path:
    folder = _copy(source, to)
    whole = inner = json.loads((folder / file).read_text())
    for key in keys[:-1]:
        inner = inner[key]
    if value == "MISSING":
        inner.pop(keys[-1])
    else:
        inner[keys[-1]] = value
    (folder / file).write_text(json.dumps(whole).replace("Infinity", "1e400"))
    return folder


def _read(load: Callable[[], Any]) -> None:
    """Load, or be refused by an error of the library, in one line."""
    message = ""
    try:
        load()
    except REFUSED as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [("plugged", BertModel, "floater"), ("extended", LlamaModel, "floater_extension")],
)
def test_a_configuration_that_lost_its_options_says_which(
    sources: dict[str, Path], tmp_path: Path, source: str, kind: Any, name: str
) -> None:
    """The message blamed a part that was extended apart."""
    folder = _edited(sources[source], tmp_path / "lost", "config.json", (name,), "MISSING")
    with pytest.raises(PlugError, match=f"does not say which: restore its .*'{name}'"):
        kind.from_pretrained(folder)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_wrong_values_of_a_flow(sources: dict[str, Path], tmp_path: Path, value: Any) -> None:
    names = json.loads((sources["flow"] / "floater.json").read_text())["plug"]
    for keys in (("model_type",), ("plug",), *(("plug", name) for name in names)):
        folder = _edited(sources["flow"], tmp_path / "x", "floater.json", keys, value)
        _read(lambda folder=folder: floater.load(folder, _bert()))  # type: ignore[misc]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_wrong_values_of_a_whole_model(sources: dict[str, Path], tmp_path: Path, value: Any) -> None:
    for keys in (("floater",), ("floater", "hidden"), ("floater", "baked"), ("floater", "blocks"),
                 ("architectures",), ("num_hidden_layers",), ("model_type",)):  # fmt: skip
        folder = _edited(sources["plugged"], tmp_path / "x", "config.json", keys, value)
        _read(lambda folder=folder: floater.load(folder))  # type: ignore[misc]
    for name in ("method", "old", "new", "group", "temperature"):
        keys = ("floater_extension", name)
        folder = _edited(sources["extended"], tmp_path / "x", "config.json", keys, value)
        if name == "temperature" or (name == "new" and value in (10**10, 10**30)):
            continue  # 0 and 1 are no truth values, and a longer declared length is only declared
        with pytest.raises(REFUSED):
            LlamaModel.from_pretrained(folder)


def test_a_wide_field_is_compared_before_it_is_allocated(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = _edited(sources["flow"], tmp_path / "x", "floater.json", ("plug", "hidden"), 10**10)
    model = _bert()
    with pytest.raises(PlugError, match="is not one of this model"):
        floater.load(folder, model)
    assert not hasattr(model, "floater")


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _become(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        file.unlink()
        make(file)

    return act


FILES: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "directory": _become(Path.mkdir),
    "link to itself": _become(lambda file: os.symlink(file.name, file)),
    "truncated": _truncate,
    "empty": lambda file: file.write_bytes(b""),
    "huge header": lambda file: file.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "list": lambda file: file.write_text("[1, 2]"),
    "pickle": lambda file: file.write_bytes(pickle.dumps({"a": 1})),
}


@pytest.mark.parametrize("damage", FILES)
def test_damaged_files(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    for name in ("floater.json", "floater.safetensors"):
        folder = _copy(sources["flow"], tmp_path / "x")
        FILES[damage](folder / name)
        with pytest.raises(PlugError):
            floater.load(folder, _bert())
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = _copy(sources["plain"], tmp_path / "x")
        FILES[damage](folder / name)
        assert main(["extend", str(folder), "64", "--to", str(tmp_path / "to")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "to").exists()


def test_values_that_are_not_finite(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, file in (
        ("flow", "floater.safetensors"), ("plugged", "model.safetensors"), ("plain", "model.safetensors")
    ):  # fmt: skip
        folder = _copy(sources[source], tmp_path / source)
        tensors = load_file(folder / file)
        name = min(tensors)
        tensors[name] = torch.full_like(tensors[name], torch.nan)
        save_file(tensors, folder / file, {"format": "pt"})
    with pytest.raises(PlugError, match="that are not finite"):
        floater.load(tmp_path / "flow", _bert())
    with pytest.raises(PlugError, match="that are not finite"):
        floater.load(tmp_path / "plugged")
    assert main(["extend", str(tmp_path / "plain"), "64", "--to", str(tmp_path / "to")]) == 2
    assert "has values that are not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "hidden_size", "architectures", "dtype", "pad_token_id"]
)
def test_wrong_values_for_the_command(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    for value in VALUES:
        folder = _edited(sources["plain"], tmp_path / "x", "config.json", (field,), value)
        to = tmp_path / "to"
        shutil.rmtree(to, ignore_errors=True)
        code = main(["extend", str(folder), "64", "--to", str(to)])
        errors = capsys.readouterr().err
        assert code == 0 or (code == 2 and errors.count("\n") == 1), (value, errors)


def test_files_beside_the_weights_are_kept(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Templates, poolings and processors; a length or a side in them is the new one."""
    folder = _copy(sources["plain"], tmp_path / "x")
    texts = {
        "chat_template.jinja": "{{ messages }}",
        "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}',
        "modules.json": "[]",
        "processor_config.json": '{"processor_class": "A"}',
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (folder / "trainer_state.json").write_text("{}")
    (folder / "code.py").write_text("raise SystemExit")
    assert main(["extend", str(folder), "64", "--to", str(tmp_path / "to")]) == 0
    to = tmp_path / "to"
    assert {name: (to / name).read_text() for name in texts} == texts
    sentences = json.loads((to / "sentence_bert_config.json").read_text())
    assert sentences == {"max_seq_length": 64, "do_lower_case": False}
    assert not (to / "trainer_state.json").exists()
    assert not (to / "code.py").exists()


def test_the_processor_of_images_makes_larger_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from . import zoo

    model = zoo.build("vit")
    old = model.config.image_size
    model.save_pretrained(tmp_path / "x")
    sizes = {"size": {"shortest_edge": old + old // 4}, "crop_size": {"height": old, "width": old}}
    (tmp_path / "x" / "preprocessor_config.json").write_text(json.dumps(sizes | {"resample": 3}))
    assert main(["extend", str(tmp_path / "x"), str(2 * old), "--to", str(tmp_path / "to")]) == 0
    assert json.loads((tmp_path / "to" / "preprocessor_config.json").read_text()) == {
        "size": {"shortest_edge": 2 * (old + old // 4)},
        "crop_size": {"height": 2 * old, "width": 2 * old},
        "resample": 3,
    }
