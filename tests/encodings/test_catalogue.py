"""The catalogue: names, options, and what is refused."""

import inspect
import math

import pytest
import torch

from floater import PositionError, Positions, build, catalogue
from floater.encodings import AttentionContext, PositionModel, StackSpec, options, register
from floater.encodings.checks import chosen_blocks
from floater.encodings.measure import positions_for

SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}
HOOKS = (
    "embed",
    "block",
    "inputs",
    "projection_bias",
    "qkv",
    "bias",
    "logits",
    "mask",
    "value_bias",
)
READ_THE_INPUT = {"cable", "forgetting", "grape_ap", "graph_gru"}
"""Encodings whose `bias` reads what `qkv` computed from the input of attention, or contents."""


def test_the_models_of_the_paper_are_there():
    assert set(catalogue()) >= {"none", "sinusoidal", "learned", "rnn", "floater"}


@pytest.mark.parametrize("name", catalogue())
def test_every_model_can_be_built_from_its_own_defaults_and_names_its_source(name):
    model = build(name, **SIZES, **options(name))
    assert type(model) is catalogue()[name]
    assert model.card.paper
    assert set(model.sites) <= {"self", "decoder", "cross"}


@pytest.mark.parametrize("name", sorted(set(catalogue()) - READ_THE_INPUT))
def test_the_card_says_why_a_bias_of_positions_alone_needs_its_matrix(name):
    model = build(name, **SIZES)
    if not model.overrides("bias") or model.overrides("logits", "weights", "value_bias"):
        assert not model.card.pair_matrix
        return
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # some start at zero
    state = model.prepare(positions_for(model, 8))
    pairs = [torch.randn(2, 1, 2, 8, 4).unbind() for _ in range(2)]
    one, other = (model.bias(q, k, AttentionContext(state, 0)) for q, k in pairs)
    has_matrix = not model.has_terms or model.attention_terms(*pairs[0], AttentionContext(state, 0)) is None
    needs = has_matrix and one is not None and torch.equal(one, other)
    # one with an option, the other past its threshold
    assert bool(model.card.pair_matrix) == (needs or name in ("bipe", "fire"))


@pytest.mark.parametrize("name", catalogue())
def test_no_option_has_the_name_of_a_size(name):
    assert not set(options(name)) & set(inspect.signature(build).parameters)


@pytest.mark.parametrize("name", catalogue())
def test_outside_its_sites_a_model_is_the_identity(name):
    for site in {"self", "decoder", "cross"} - {*catalogue()[name].sites}:
        model = build(name, **SIZES, site=site)
        assert type(model) is PositionModel
        assert not list(model.parameters())


def test_the_interface_defaults_to_the_identity():
    model = PositionModel(StackSpec(**SIZES))
    state = model.prepare(Positions.arange(3))
    x, q, k, v = torch.randn(4, 2, 3, 8).unbind()
    assert model.embed(x, state) is x
    assert model.block(x, state, 0) is x
    assert model.inputs(AttentionContext(state, 0, x)) == (x, x, x)
    assert model.qkv(q, k, v, AttentionContext(state, 0)) == (q, k, v)
    assert model.projection_bias("query", AttentionContext(state, 0)) is None
    assert model.bias(q, k, AttentionContext(state, 0)) is None
    assert model.logits(q, q, k, AttentionContext(state, 0)) is q
    assert model.mask(AttentionContext(state, 0)) is None
    assert model.value_bias(q, AttentionContext(state, 0)) is None
    assert model.scale(16) == 0.25
    assert not model.overrides(*HOOKS, "scale", "prepare")


@pytest.mark.parametrize(
    ("name", "hooks"),
    [
        ("none", set()),
        ("sinusoidal", {"embed", "block"}),
        ("learned", {"embed", "block"}),
        ("rnn", {"embed", "block"}),
        ("floater", {"embed", "block", "projection_bias"}),
    ],
)
def test_a_model_overrides_what_its_paper_changes(name, hooks):
    model = build(name, **SIZES)
    assert {hook for hook in HOOKS if model.overrides(hook)} == hooks


WRONG = [object(), 1j, math.nan, b"text", {1}, ["text"], [[1]], [None], {"a": 1}, torch.ones(2)]


@pytest.mark.parametrize("name", catalogue())
def test_every_option_refuses_values_of_the_wrong_type_in_one_line(name):
    for option in options(name):
        for value in WRONG:
            with pytest.raises(PositionError, match=rf"{option}|'a'|'text'|encoding") as refused:
                build(name, **SIZES, vocabulary=10, **{option: value})
            assert len(str(refused.value).splitlines()) == 1 + str(value).count("\n")


@pytest.mark.parametrize(
    ("name", "changes"), [("rnn", {}), ("learned", {}), ("floater", {"injection": "add"})]
)
def test_vectors_that_are_no_sinusoids_may_have_an_odd_dim(name, changes):
    model = build(name, **(SIZES | {"dim": 9, "heads": 3}), **changes)
    x = model.embed(torch.zeros(1, 4, 9), model.prepare(Positions.arange(4)))
    assert bool(x.any())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "dim 8 is not a multiple of heads 3"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"max_length": 0}, "max_length is 0"),
        ({"site": "encoder"}, "site is 'encoder'; it must be one of 'self', 'decoder', 'cross'"),
    ],
)
def test_stacks_that_cannot_be(change, message):
    with pytest.raises(PositionError, match=message):
        StackSpec(**(SIZES | change))


def test_the_catalogue_takes_nothing_of_which_it_cannot_tell():
    with pytest.raises(PositionError, match="Bare has no card, the description of 'bare'"):

        @register("bare")
        class Bare(PositionModel):
            pass

    assert "bare" not in catalogue()


def test_blocks_are_sorted_and_distinct():
    assert chosen_blocks([2, 0, 2], 3) == (0, 2)
