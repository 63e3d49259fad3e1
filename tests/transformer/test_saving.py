"""Saving, loading, the Auto classes, and weights that a checkpoint does not have."""

import copy

import pytest
import torch
from transformer_cases import POSITIONS, build_model, config, tokens
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from floater.encodings import PositionModel
from floater.flow import MLPField
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
    FloaterModel,
)

AUTO = {
    FloaterModel: AutoModel,
    FloaterForMaskedLM: AutoModelForMaskedLM,
    FloaterForSequenceClassification: AutoModelForSequenceClassification,
    FloaterForTokenClassification: AutoModelForTokenClassification,
    FloaterForCausalLM: AutoModelForCausalLM,
    FloaterForConditionalGeneration: AutoModelForSeq2SeqLM,
}


def size(parameter):
    return float(parameter.detach().square().mean().sqrt())


def outputs(model):
    inputs = {"input_ids": tokens(2, 6)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 4, seed=1)
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("cls", AUTO)
@pytest.mark.parametrize("case", POSITIONS)
def test_a_saved_model_comes_back(cls, case, tmp_path):
    model = build_model(cls, case)
    model.save_pretrained(tmp_path)
    for loaded in (cls.from_pretrained(tmp_path), AUTO[cls].from_pretrained(tmp_path)):
        assert type(loaded) is cls
        assert not loaded.training
        assert torch.equal(outputs(loaded), outputs(model))
        assert loaded.state_dict().keys() == model.state_dict().keys()
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.position == model.config.position
    for name, value in model.config.position_options.items():
        saved = again.position_options[name]  # with the defaults of an encoding in an encoding
        assert saved.items() >= value.items() if isinstance(value, dict) else saved == value


@pytest.mark.parametrize("cls", [FloaterForMaskedLM, FloaterForCausalLM, FloaterForConditionalGeneration])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_one_matrix_before_and_after(cls, tied, tmp_path):
    model = build_model(cls, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    for m in (model, cls.from_pretrained(tmp_path)):
        same = m.get_input_embeddings().weight is m.get_output_embeddings().weight
        assert same == tied
    assert torch.equal(outputs(cls.from_pretrained(tmp_path)), outputs(model))


def test_an_encoder_can_be_taken_out_of_an_encoder_decoder(tmp_path):
    model = build_model(FloaterForConditionalGeneration)
    model.save_pretrained(tmp_path)
    encoder = FloaterModel.from_pretrained(tmp_path)
    ids = tokens(2, 6)
    with torch.no_grad():
        assert torch.equal(encoder(ids)[0], model.encode(ids)[0])


@pytest.mark.parametrize(
    "case", [case for case in POSITIONS if case.startswith(("learned", "rnn", "floater"))]
)
def test_position_parameters_that_a_checkpoint_lacks_are_drawn_and_the_others_kept(case, tmp_path):
    plain = build_model(FloaterForConditionalGeneration, "none")
    plain.save_pretrained(tmp_path)
    torch.manual_seed(5)
    loaded, info = FloaterForConditionalGeneration.from_pretrained(
        tmp_path, config=config(case), output_loading_info=True
    )
    new = {
        name for name, _ in loaded.named_parameters() if ".position." in name or ".cross_position." in name
    }
    assert info["missing_keys"] == new
    assert not info["unexpected_keys"]
    weights = plain.state_dict()
    for name, value in loaded.state_dict().items():
        if name not in new:
            assert torch.equal(value, weights[name]), name
    drawn = {name: p.detach().clone() for name, p in loaded.named_parameters() if name in new}
    for module in loaded.modules():  # as large as reset_parameters draws them, not as a Linear's are
        if isinstance(module, PositionModel):
            module.reset_parameters()
    for name, parameter in loaded.named_parameters():
        if name in new and parameter.numel() > 1:
            assert size(drawn[name]) == pytest.approx(size(parameter), rel=0.5), name


@pytest.mark.parametrize("start", ["small", "zero"])
def test_a_new_model_starts_as_its_position_model_says(start):
    for cls in AUTO:
        model = cls(config("floater", hidden_size=64, position_options={"start": start}))
        for field in (m for m in model.modules() if isinstance(m, MLPField)):
            if start == "zero":
                assert not field.outer.weight.any()
            else:  # 1 / (span sqrt(hidden)), span = 32 x 0.1
                std = float(field.outer.weight[:, :-1].detach().std())
                assert std == pytest.approx(64**-0.5 / 3.2, rel=0.1)


def test_a_warm_start_from_sinusoids_changes_nothing(tmp_path):
    plain = build_model(FloaterForConditionalGeneration, "sinusoidal")
    plain.save_pretrained(tmp_path)
    flow = FloaterForConditionalGeneration.from_pretrained(
        tmp_path, position="floater", position_options={"start": "zero"}
    )
    assert torch.equal(outputs(flow), outputs(plain))


def test_position_parameters_that_a_checkpoint_has_in_part_are_kept(tmp_path):
    model = build_model(FloaterForConditionalGeneration)
    state = {name: p for name, p in model.state_dict().items() if not name.endswith("field.outer.weight")}
    model.save_pretrained(tmp_path, state_dict=state)
    loaded, info = FloaterForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert len(info["missing_keys"]) == 3
    for name, value in loaded.state_dict().items():
        kept = torch.equal(value, model.state_dict()[name])
        assert kept == (name not in info["missing_keys"]), name


def test_making_a_model_leaves_the_configuration_as_it_was():
    settings = config()
    before = copy.deepcopy(settings.to_dict())
    FloaterForCausalLM(settings)
    FloaterForConditionalGeneration(settings)
    assert settings.to_dict() == before
    FloaterForMaskedLM(settings)  # still attends to both sides


def test_a_vocabulary_can_grow():
    for cls in (FloaterForMaskedLM, FloaterForCausalLM, FloaterForConditionalGeneration):
        model = build_model(cls)
        before = outputs(model)
        model.resize_token_embeddings(41)
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
        torch.testing.assert_close(outputs(model)[..., :37], before)
        assert outputs(model).shape[-1] == 41


def test_weights_can_be_loaded_in_half_precision(tmp_path):
    model = build_model(FloaterForConditionalGeneration)
    model.save_pretrained(tmp_path)
    half = FloaterForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    # eight bits through five blocks
    torch.testing.assert_close(outputs(half).float(), outputs(model), rtol=0.1, atol=0.15)
