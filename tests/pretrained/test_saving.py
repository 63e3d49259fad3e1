"""Flows in files of their own, and whole models in those of Hugging Face."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

import floater
from floater.pretrained import PlugError
from floater.transformer.alignment import align

from . import zoo


def trained(name: str, **options: Any) -> Any:
    model = zoo.build(name)
    floater.plug(model, **options)
    zoo.noisy(model)
    return model


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "albert", "t5", "whisper", "vit", "bert2bert"])
@pytest.mark.parametrize("baked", [False, True])
def test_whole_models_come_back(tmp_path: Path, name: str, baked: bool) -> None:
    model = trained(name, delta=0.2, share="none" if name == "bert" else "blocks")
    if baked:
        floater.bake(model, 16)
    model.save_pretrained(tmp_path)
    again: Any = floater.load(tmp_path, attn_implementation="eager").eval()
    assert type(again) is type(model)
    options = zoo.inputs(name)
    assert torch.equal(zoo.output(again, **options), zoo.output(model, **options))
    assert again.config.floater == model.config.floater
    floater.unplug(again)
    floater.unplug(model)
    assert again.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("baked", [False, True])
def test_a_flow_moves_to_a_model_with_another_head(tmp_path: Path, baked: bool) -> None:
    model = trained("bert", projections=["query", "key"], blocks=[1])
    if baked:
        floater.bake(model, 16)
    floater.save(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md", "floater.json", "floater.safetensors",
    ]  # fmt: skip
    other = BertForMaskedLM(model.config.__class__(**{**model.config.to_dict(), "floater": None})).eval()
    other.set_attn_implementation("eager")
    other.bert.load_state_dict(model.bert.state_dict(), strict=False)
    floater.load(tmp_path, other)
    options = zoo.inputs("bert")
    with torch.no_grad():
        assert torch.equal(other.bert(**options)[0], model.bert(**options)[0])
    floater.load(tmp_path, other)  # into a model that is plugged the same way


def test_a_whole_model_beside_its_flow_comes_back_whole(tmp_path: Path) -> None:
    zoo.build("bert").save_pretrained(tmp_path / "base")
    model: Any = align(BertForSequenceClassification.from_pretrained(tmp_path / "base")).eval()
    floater.plug(model)
    zoo.noisy(model)
    with torch.no_grad():
        model.classifier.weight.add_(1.0)  # fine-tuned
    model.save_pretrained(tmp_path / "both")
    floater.save(model, tmp_path / "both")
    options = zoo.inputs("bert")
    again = floater.load(tmp_path / "both").eval()
    assert torch.equal(zoo.output(again, **options), zoo.output(model, **options))


def test_a_model_that_shares_its_configuration_is_not_plugged(tmp_path: Path) -> None:
    model = zoo.build("bert")
    other = type(model)(model.config)
    floater.plug(model)
    assert model.config.floater is not None
    assert model.bert.config is model.config
    assert getattr(other.config, "floater", None) is None
    other.save_pretrained(tmp_path)
    with pytest.raises(PlugError):
        floater.load(tmp_path)


def test_a_refused_flow_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = trained("bert")
    floater.bake(model, 8)
    floater.save(model, tmp_path)
    deeper: Any = BertForSequenceClassification(
        model.config.__class__(**{**model.config.to_dict(), "floater": None, "num_hidden_layers": 3})
    ).eval()
    floater.plug(deeper)
    zoo.noisy(deeper)
    options = zoo.inputs("bert")
    before = zoo.output(deeper, **options)
    with pytest.raises(PlugError, match="another depth or width"):
        floater.load(tmp_path, deeper)
    assert torch.equal(zoo.output(deeper, **options), before)
    assert deeper.floater.length is None


def test_a_flow_finds_the_model_it_was_trained_in(tmp_path: Path) -> None:
    zoo.build("bert").save_pretrained(tmp_path / "base")
    model = align(BertForSequenceClassification.from_pretrained(tmp_path / "base")).eval()
    floater.plug(model)
    zoo.noisy(model)
    floater.save(model, tmp_path / "flow")
    options = zoo.inputs("bert")
    again: Any = floater.load(tmp_path / "flow").eval()
    assert torch.equal(zoo.output(again, **options), zoo.output(model, **options))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    floater.save(trained("bert"), tmp_path / "flow")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    for change in ({"num_hidden_layers": 3}, {"hidden_size": 8}):
        model = BertForMaskedLM(BertConfig(**{**sizes, **change}, vocab_size=40))
        with pytest.raises(PlugError, match="another depth or width"):
            floater.load(tmp_path / "flow", model)
        assert not hasattr(model, "floater")
        assert "floater" not in model.config.to_dict()
    with pytest.raises(PlugError, match="one of a 'bert' model; this one is a 'roberta'"):
        floater.load(tmp_path / "flow", zoo.build("roberta"))
    other = zoo.build("bert")
    floater.plug(other, projections=["query"])
    with pytest.raises(PlugError, match="plugged differently"):
        floater.load(tmp_path / "flow", other)
    with pytest.raises(PlugError, match="does not name a model"):
        floater.load(tmp_path / "flow")
    with pytest.raises(PlugError, match="holds no flow"):
        floater.load(tmp_path / "nothing")
    zoo.build("bert").save_pretrained(tmp_path / "plain")
    with pytest.raises(PlugError, match="holds no flow"):
        floater.load(tmp_path / "plain")
    with pytest.raises(PlugError, match="is not plugged"):
        floater.save(zoo.build("bert"), tmp_path / "none")


@pytest.mark.parametrize(
    ("saved", "options"),
    [
        ({}, {"delta": 0.3}),
        ({}, {"activation": "relu"}),
        ({}, {"time_scale": 2.0}),
        ({"projections": ["query", "key"]}, {"projections": ["key", "value"]}),
        ({"blocks": [0]}, {"blocks": [1]}),
    ],
)
def test_a_flow_does_not_fit_one_plugged_otherwise(
    tmp_path: Path, saved: dict[str, Any], options: dict[str, Any]
) -> None:
    """Though all tensors have the same shapes."""
    floater.save(trained("bert", **saved), tmp_path)
    with pytest.raises(PlugError, match=f"plugged differently from this model: {next(iter(options))} is"):
        floater.load(tmp_path, trained("bert", **options))


SEPARATE = {"query": "query", "key": "key", "value": "value"}
FUSED = dict.fromkeys(SEPARATE, "c_attn")


@pytest.mark.parametrize("order", [("query", "key", "value"), ("value", "key", "query")], ids=str)
@pytest.mark.parametrize(("name", "table"), [("bert", SEPARATE), ("gpt2", FUSED)], ids=["bert", "gpt2"])
def test_a_table_keeps_its_flows_apart(
    tmp_path: Path, name: str, table: dict[str, str], order: tuple[str, ...]
) -> None:
    """JSON sorts the keys of a mapping; the flows of queries and keys were exchanged."""
    model = trained(name, projections={each: table[each] for each in order}).eval()
    inputs = zoo.inputs(name, padded=False)
    wanted = zoo.output(model, **inputs)
    model.save_pretrained(tmp_path / "whole")
    again = type(model).from_pretrained(tmp_path / "whole").eval()
    torch.testing.assert_close(zoo.output(again, **inputs), wanted, rtol=1e-4, atol=1e-5)
    floater.save(model, tmp_path / "flow")
    other = zoo.build(name)
    floater.plug(other, projections=table)
    if order == ("value", "key", "query") and name == "gpt2":  # parts of one output in another order
        with pytest.raises(PlugError, match="plugged differently"):
            floater.load(tmp_path / "flow", other)
    else:
        loaded = floater.load(tmp_path / "flow", other).eval()
        torch.testing.assert_close(zoo.output(loaded, **inputs), wanted, rtol=1e-4, atol=1e-5)


def test_a_flow_goes_on_with_another_schedule(tmp_path: Path) -> None:
    model = trained("bert", projections=["query", "key"])
    floater.save(model, tmp_path)
    extra = trained("bert", projections=["key", "query"], start="small", refresh_every=2, max_length=64)
    floater.load(tmp_path, extra)
    options = zoo.inputs("bert")
    assert torch.equal(zoo.output(extra.eval(), **options), zoo.output(model.eval(), **options))


@pytest.mark.parametrize("name", ["floater.json", "floater.safetensors"])
@pytest.mark.parametrize("content", [None, "", "{}"])
def test_broken_files_are_refused(tmp_path: Path, name: str, content: str | None) -> None:
    floater.save(trained("bert"), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(PlugError, match=r"cannot be read|is not one that|holds no flow"):
        floater.load(tmp_path, zoo.build("bert"))


def test_the_configuration_says_how(tmp_path: Path) -> None:
    model = trained("llama", delta=0.05, blocks=[0])
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["floater"]
    assert (said["delta"], said["blocks"], said["baked"]) == (0.05, [0], None)


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    trained("llama", delta=numpy.float32(0.25), time_scale=numpy.int64(2)).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["floater"]
    assert (said["delta"], said["time_scale"]) == (0.25, 2.0)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_decides_who_reads_a_flow(tmp_path: Path, umask: int) -> None:
    model, before = trained("bert"), os.umask(umask)
    try:
        floater.save(model, tmp_path / "flow")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "flow").iterdir()} == {0o666 & ~umask}
