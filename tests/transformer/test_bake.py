"""Baked models of our own: stored vectors in the place of flows."""

import re
from pathlib import Path

import pytest
import torch
from transformer_cases import config

import floater
from floater.encodings import PositionError
from floater.flow import FlowEncoder
from floater.transformer import FloaterForConditionalGeneration, FloaterModel

LENGTH = 8
MODELS = {
    "floater": {"position": "floater"},
    "added, a field per block": {
        "position": "floater",
        "position_options": {"injection": "add", "share": "none"},
    },
    "floater_relative": {"position": "floater_relative"},
    "tail": {"position": "floater_relative", "position_options": {"tail": True, "clip": None}},
    "floater_grid": {"position": "floater_grid"},
    "compose": {"position": ["floater_relative", "floater"]},
    "untied": {"position": "untied_cls", "position_options": {"model": "floater_relative"}},
}
EVERY = pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)


def build_model(case: dict, kind=FloaterModel):
    torch.manual_seed(0)
    model = kind(config("none", **({"position_options": {}} | case))).eval()
    for flow in (module for module in model.modules() if isinstance(module, FlowEncoder)):
        torch.nn.init.normal_(flow.start)
    return model


def ids(length: int) -> torch.Tensor:
    return torch.randint(3, 20, (2, length), generator=torch.Generator().manual_seed(1))


@EVERY
@torch.no_grad()
def test_a_baked_model_computes_what_it_did(case, tmp_path: Path):
    model = build_model(case)
    whole, short = model(ids(LENGTH))[0], model(ids(3))[0]
    model.bake(LENGTH)
    assert not any(isinstance(module, FlowEncoder) for module in model.modules())
    assert torch.equal(model(ids(LENGTH))[0], whole)
    torch.testing.assert_close(model(ids(3))[0], short, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    loaded, info = FloaterModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert loaded.config.baked == LENGTH
    for length in (LENGTH, 3):
        assert torch.equal(loaded.eval()(ids(length))[0], model(ids(length))[0])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    padded = build_model(case)(ids(4), attention_mask=mask)[0]
    torch.testing.assert_close(loaded(ids(4), attention_mask=mask)[0], padded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", [MODELS["floater"], MODELS["tail"], MODELS["floater_grid"]])
def test_positions_past_the_baked_ones_are_refused(case):
    model = build_model(case)
    floater.bake(model, LENGTH)
    with pytest.raises(PositionError, match=rf"baked for \w+ 0 to {LENGTH - 1}; {LENGTH} was requested"):
        model(ids(LENGTH + 1))


def test_a_clipped_distance_is_baked_for_any_length():
    model = build_model({"position": "floater_relative", "position_options": {"clip": 4}})
    with torch.no_grad():
        before = model(ids(20))[0]
        model.bake(LENGTH)
        torch.testing.assert_close(model(ids(20))[0], before, rtol=0, atol=1e-5)


def test_an_encoder_decoder_generates_what_it_did(tmp_path: Path):
    model = build_model({"position": "floater", "decoder_layers": 2}, FloaterForConditionalGeneration)
    settings = {"max_new_tokens": LENGTH - 1, "do_sample": False, "min_new_tokens": 4}
    before = model.generate(ids(LENGTH), **settings)
    model.bake(LENGTH)
    assert torch.equal(model.generate(ids(LENGTH), **settings), before)
    model.save_pretrained(tmp_path)
    loaded = FloaterForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded.generate(ids(LENGTH), **settings), before)
    assert loaded.encoder.position.max_positions == LENGTH


def test_what_cannot_be_baked_is_named():
    with pytest.raises(PositionError, match="'sinusoidal' has no flow to bake"):
        build_model({"position": "sinusoidal"}).bake(4)
    with pytest.raises(PositionError, match="the rotations of 'floater_cde' depend on the text"):
        build_model({"position": "floater_cde"}).bake(4)
    with pytest.raises(PositionError, match="normalise=True"):
        build_model({"position": "floater_relative", "position_options": {"normalise": True}}).bake(4)
    between = {"position": "floater", "times": {"mode": "float", "max_scale": 2.5}}
    with pytest.raises(PositionError, match="texts are read at times between whole ones"):
        build_model(between).bake(4)
    clocked = build_model({"position": ["floater", {"name": "alibi", "clock": {}}]})
    before = {name: parameter.clone() for name, parameter in clocked.state_dict().items()}
    with pytest.raises(PositionError, match="the times of a clock depend on the text"):
        clocked.bake(4)
    assert before.keys() == clocked.state_dict().keys(), "no part is baked without the others"
    model = build_model(MODELS["floater"])
    with pytest.raises(ValueError, match=re.escape("at least 1 position, got 0")):
        model.bake(0)
    model.bake(4)
    with pytest.raises(PositionError, match="baked already, for 4 positions"):
        model.bake(8)


def test_the_rest_of_a_baked_model_trains_and_is_cast():
    model = build_model(MODELS["floater"])
    shared = model.config
    model.bake(LENGTH)
    assert shared.baked is None  # another model may have this configuration
    model.train()(ids(LENGTH))[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.bfloat16().eval()(ids(LENGTH))[0].dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("position", ["floater", "floater_relative"])
def test_a_baked_model_is_compiled_in_one_piece(position):
    model = build_model({"position": position})
    model.bake(LENGTH)
    whole = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        for options in ({"input_ids": ids(LENGTH)}, {"input_ids": ids(4), "attention_mask": mask}):
            torch.testing.assert_close(whole(**options)[0], model(**options)[0], rtol=0, atol=1e-6)
