"""Parts that were plugged apart from the whole: their flows are in the files of the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, BertConfig, EncoderDecoderConfig, EncoderDecoderModel

import floater
from floater.pretrained import PlugError

from . import zoo
from .extended import llava

INPUTS = {"input_ids": torch.arange(1, 21)[None]}


def plugged_part(how: str) -> Any:
    """A model of images and texts whose model of texts has a flow or a clock away from its start."""
    model = llava().eval()
    part = model.model.language_model
    floater.plug(part, **({"clock": {}} if how == "clock" else {}))
    zoo.noisy(part)
    if how == "baked":
        floater.bake(part, 32)
    return model


@pytest.mark.parametrize("how", ["plugged", "baked", "clock"])
@pytest.mark.parametrize("auto", [False, True])
def test_the_flow_of_a_part_comes_back(tmp_path: Path, how: str, auto: bool) -> None:
    model = plugged_part(how)
    model.save_pretrained(tmp_path)
    assert getattr(model.config.text_config, "floater", None) is None
    again = (AutoModelForImageTextToText if auto else type(model)).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(zoo.output(again, **INPUTS), zoo.output(model, **INPUTS))
    again.save_pretrained(tmp_path / "again")
    third = type(model).from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(zoo.output(third, **INPUTS), zoo.output(model, **INPUTS))


def test_a_part_that_lost_its_flow_is_saved_without_it(tmp_path: Path) -> None:
    model = plugged_part("plugged")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    floater.unplug(again.model.language_model)
    again.save_pretrained(tmp_path / "plain")
    alone = type(model).from_pretrained.__func__.__wrapped__
    third = alone(type(model), tmp_path / "plain").eval()
    torch.testing.assert_close(zoo.output(third, **INPUTS), zoo.output(again, **INPUTS))


@pytest.mark.parametrize(("how", "error"), [("plugged", "no place for"), ("log_n", "which.*extended apart")])
def test_a_part_that_the_files_do_not_describe_is_refused(tmp_path: Path, how: str, error: str) -> None:
    model = llava() if how == "log_n" else plugged_part(how)
    if how == "log_n":
        floater.extend(model.model.language_model, 128, "log_n")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("floater", "floater_extension"):
        config["text_config"].pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlugError, match=error):
        type(model).from_pretrained(tmp_path)


def encoder_decoder() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder, decoder = BertConfig(vocab_size=50, **sizes), BertConfig(vocab_size=50, **sizes)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return EncoderDecoderModel(config).eval()


def test_one_of_two_parts_of_a_class_comes_back(tmp_path: Path) -> None:
    model = encoder_decoder()
    floater.plug(model.encoder)
    zoo.noisy(model.encoder)
    model.save_pretrained(tmp_path)
    again = EncoderDecoderModel.from_pretrained(tmp_path).eval()
    inputs = {**INPUTS, "decoder_input_ids": INPUTS["input_ids"]}
    torch.testing.assert_close(zoo.output(again, **inputs), zoo.output(model, **inputs))


def test_parts_that_cannot_be_told_apart_are_not_saved(tmp_path: Path) -> None:
    model = encoder_decoder()
    floater.plug(model.encoder)
    floater.plug(model.decoder)
    with pytest.raises(PlugError, match="a part of this EncoderDecoderModel was plugged or extended apart"):
        model.save_pretrained(tmp_path)


def test_a_plain_model_is_saved_as_it_is(tmp_path: Path) -> None:
    model = llava()
    before = dict(vars(model.config))
    model.save_pretrained(tmp_path)
    assert "fusion_config" not in json.loads((tmp_path / "config.json").read_text())
    assert all(getattr(model.config, name) is before[name] for name in ("text_config", "vision_config"))
