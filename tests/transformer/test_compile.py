"""Whole models compiled to one graph, and exported, against the same models as they are."""

import pytest
import torch
from transformer_cases import build_model, tokens

from floater.flow import FlowEncoder
from floater.positions import Positions
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = tokens(2, 5)
SMALL = {"num_hidden_layers": 1, "decoder_layers": 1}
WHOLE = [
    *("floater", "floater_relative", "floater_relative, clock", "rotary, clock", "floater_cde"),
    *("t5", "shaw", "tupe_r", "transformer_xl", "deberta", "learned"),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def compiled(model, backend="eager"):
    return torch.compile(model, fullgraph=True, backend=backend)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def gradients(model, hidden):
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()
    return [g for g in torch.autograd.grad(loss, used, allow_unused=True) if g is not None]


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_with_a_mask_is_one_graph(name):
    model = build_model(FloaterModel, name, **SMALL).train()
    expected = model(IDS, MASK)[0]
    actual = compiled(model)(IDS, MASK)[0]
    close(actual, expected)
    for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
        close(a, b)


@pytest.mark.parametrize("name", ["kerple", "dape", "floater_cde"])
def test_a_model_with_dynamic_shapes_learns(name):
    model = build_model(FloaterModel, name, **SMALL).train()
    run = torch.compile(model, dynamic=True, backend="eager")
    for length in (5, 3):
        actual, expected = run(IDS[:, :length])[0], model(IDS[:, :length])[0]
        for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
            close(a, b)


@pytest.mark.parametrize("name", ["floater", "floater, added", "floater_relative"])
def test_a_model_without_a_mask_is_one_graph(name):
    model = build_model(FloaterModel, name, **SMALL)
    with torch.no_grad():
        close(compiled(model)(IDS)[0], model(IDS)[0])


@pytest.mark.parametrize("name", WHOLE)
def test_a_language_model_without_a_mask_is_one_graph_of_all_lengths(name):
    model = build_model(FloaterForCausalLM, name, **SMALL)
    run = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    with torch.no_grad():
        for length in (5, 3, 4):
            close(run(IDS[:, :length]).logits, model(IDS[:, :length]).logits)


@pytest.mark.parametrize(
    "mask",
    [
        [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],  # on the left
        [[1, 0, 1, 0, 1], [1, 1, 1, 1, 0]],  # between
    ],
)
def test_padding_anywhere_is_what_it_is_without_compilation(mask):
    model, mask = build_model(FloaterModel, **SMALL), torch.tensor(mask)
    with torch.no_grad():
        close(compiled(model)(IDS, mask)[0], model(IDS, mask)[0])


@pytest.mark.parametrize("cls", [FloaterForMaskedLM, FloaterForCausalLM])
def test_training_steps_through_aot_autograd(cls):
    model = build_model(cls, **SMALL).train()
    labels = IDS.masked_fill(MASK == 0, -100)
    expected = model(IDS, MASK, labels=labels)
    actual = compiled(model, "aot_eager")(IDS, MASK, labels=labels)
    close(actual.loss, expected.loss)
    for a, b in zip(gradients(model, actual.logits), gradients(model, expected.logits), strict=True):
        close(a, b)


@pytest.mark.slow
def test_an_encoder_decoder_is_one_graph():
    model = build_model(FloaterForConditionalGeneration, **SMALL)
    with torch.no_grad():
        options = {"attention_mask": MASK, "decoder_input_ids": tokens(2, 4, seed=1), "use_cache": False}
        close(compiled(model)(IDS, **options).logits, model(IDS, **options).logits)


def bake(model, length):
    for module in model.modules():
        if isinstance(module, FlowEncoder):
            module.bake(length)
    return model


@torch.no_grad()
def test_a_baked_model_is_exported_with_a_mask_for_any_batch_and_length():
    model = bake(build_model(FloaterModel), 16)
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=3, max=16)
    shape = {0: batch, 1: length}
    program = torch.export.export(
        model, (IDS, MASK), dynamic_shapes={"input_ids": shape, "attention_mask": shape}
    )
    ids, mask = tokens(3, 9, seed=2), torch.ones(3, 9, dtype=torch.long)
    mask[1, 4:] = 0
    mask[2, :3] = 0
    for inputs in ((IDS, MASK), (ids, mask)):
        close(program.module()(*inputs)[0], model(*inputs)[0])


@pytest.mark.parametrize("name", ["clock", "floater_cde", "chang", "spe_sine"])
@torch.no_grad()
def test_a_model_is_exported_with_a_mask_for_any_batch(name):
    model = build_model(FloaterForCausalLM, name, **SMALL)
    shape = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(
        model,
        (IDS, MASK),
        {"use_cache": False},
        dynamic_shapes={"input_ids": shape, "attention_mask": shape, "use_cache": None},
    )
    ids, mask = IDS.repeat(2, 1), torch.cat([MASK, MASK.flip(0)])
    actual, wanted = (each(ids, mask, use_cache=False).logits for each in (program.module(), model))
    close(actual[mask.bool()], wanted[mask.bool()])


@pytest.mark.parametrize(
    "name",
    ["seqpe", "xpos", "huang3", "floater_cde", "abacus", "shaw", "transformer_xl", "spe_conv", "spe_sine"],
)
@torch.no_grad()
def test_a_model_is_exported_with_a_mask_for_any_length(name):
    model = build_model(FloaterForCausalLM, name, **SMALL)
    shape = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=3, max=31)}
    program = torch.export.export(
        model,
        (IDS, MASK),
        {"use_cache": False},
        dynamic_shapes={"input_ids": shape, "attention_mask": shape, "use_cache": None},
    ).module()
    longer = torch.ones(2, 9, dtype=torch.long)
    longer[1, 6:] = 0
    for ids, mask in ((IDS, MASK), (tokens(2, 9, seed=1), longer), (IDS, MASK)):
        actual, wanted = (each(ids, mask, use_cache=False).logits for each in (program, model))
        close(actual[mask.bool()], wanted[mask.bool()])


@pytest.mark.parametrize("name", ["abacus", "spe_conv"])
@torch.no_grad()
def test_a_language_model_with_a_mask_is_one_graph_of_all_lengths(name):
    model = build_model(FloaterForCausalLM, name, **SMALL)
    run = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 4):
        ids, mask = IDS[:, :length], MASK[:, :length]
        actual, wanted = (each(ids, mask, use_cache=False).logits for each in (run, model))
        close(actual[mask.bool()], wanted[mask.bool()])


@torch.no_grad()
def test_positions_are_an_input_of_an_exported_program():
    model = bake(build_model(FloaterModel), 16)
    at = Positions.packed([[2, 3], [5]])
    program = torch.export.export(model, (IDS,), {"positions": at})
    other = Positions.packed([[4, 1], [5]])
    close(program.module()(IDS, positions=other)[0], model(IDS, positions=other)[0])
