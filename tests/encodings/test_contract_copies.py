"""The contract of position models for copies, saved models and compiled code."""

import copy
import pickle
import re

import pytest
import torch
from contract_cases import EVERY, LENGTH, MASK, config, embeddings, stack, stir, where

from floater import build, catalogue
from floater.encodings.card import CONTRACT
from floater.transformer import FloaterModel

HOOKS = ("projection_bias", "inputs", "qkv", "scale", "query_gain", "residual")
HOOKS += ("bias", "logits", "weights", "mask", "value_bias", "attention_terms")


@EVERY
@torch.no_grad()
def test_copies_and_saved_models_are_the_same(name, given, tmp_path):
    torch.manual_seed(0)
    model = FloaterModel(config(name, given)).eval()
    stir(model.encoder.position)
    model.save_pretrained(tmp_path)
    other = FloaterModel(config(name, given)).eval()
    assert other.load_state_dict(model.state_dict())
    x, positions = embeddings(*MASK.shape).float(), where(name, MASK)
    whole = model.encoder(x, positions)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        other,
        FloaterModel.from_pretrained(tmp_path),
    )
    for made in copies:
        assert made.config.position_options == made.config.position_options | given
        torch.testing.assert_close(made.eval().encoder(x, positions), whole, rtol=0, atol=0)


@EVERY
def test_reset_parameters_draws_every_parameter_anew(name, given):
    model = build(name, dim=16, heads=2, layers=2, max_length=LENGTH, vocabulary=11, **given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.reset_parameters()
    for key, parameter in model.named_parameters():
        assert not bool((parameter == 7.0).any()), key


@pytest.mark.parametrize("name", catalogue())
@torch.no_grad()
def test_hooks_compile_to_one_graph(name):
    """All but `prepare`, which may look at the positions to choose a way or to refuse them."""
    encoder, x, positions = stack(name, {}), embeddings(*MASK.shape), where(name, MASK)
    position, attention = encoder.position, encoder.blocks[1].attention
    within = position.overrides(*HOOKS)  # else the attention is that of all others
    state = position.prepare(positions)

    def run(x):
        x = position.block(position.embed(x, state), state, 1)
        return attention(x, position, state, positions.key_valid, None)[0] if within else x

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    if "compile" in encoder.position.card.exceptions:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), run(x))


def test_exceptions_are_reasons():
    for name, row in catalogue().items():
        for key, why in row.card.exceptions.items():
            assert key in CONTRACT, name
            assert re.fullmatch(r"[^.]{10,}", why), (name, key)
