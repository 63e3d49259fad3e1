"""The reset of [CLS] on biases of other models."""

import pytest
import torch

from floater import Positions, build
from floater.encodings import AttentionContext

SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}


@pytest.mark.parametrize(
    "inner",
    [
        *("t5", "alibi", "dufter_relative", "dufter_absolute", "chen_relative", "chen_absolute"),
        *("synthesizer", "tupe_a"),
    ],
)
@pytest.mark.parametrize("cls", ["first", "special"])
def test_only_the_rows_and_columns_of_cls_change(inner, cls):
    torch.manual_seed(0)
    options = {"cls": "none"} if inner == "tupe_a" else {}
    model = build("untied_cls", **SIZES, model=inner, options=options, cls=cls)
    positions = Positions.from_mask(torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))
    special = torch.tensor([[False, True, False, True], [False, False, False, False]])
    positions = positions.but(special=special)
    is_cls = positions.key == 0 if cls == "first" else special
    q = torch.randn(2, 2, 4, 4)
    actual = model.bias(q, q, AttentionContext(model.prepare(positions), 1)).expand(2, 2, 4, 4)
    plain = model.inner.bias(q, q, AttentionContext(model.inner.prepare(positions), 1)).expand(2, 2, 4, 4)
    assert model.scale(4) == model.inner.scale(4)
    for b in range(2):
        for t in range(4):
            for s in range(4):
                wanted = plain[b, :, t, s]
                if is_cls[b, t]:
                    wanted = model.theta[0]
                elif is_cls[b, s]:
                    wanted = model.theta[1]
                assert torch.equal(actual[b, :, t, s], wanted)


@pytest.mark.parametrize("inner", ["t5", "alibi", "chen_absolute"])
@pytest.mark.parametrize("offset", [0, 3])
def test_terms_are_the_bias_without_its_matrix(inner, offset):
    torch.manual_seed(0)
    model = build("untied_cls", **SIZES, model=inner)
    torch.nn.init.normal_(model.theta)
    positions = Positions.arange(5 - offset, offset=offset)
    state = model.prepare(positions)
    q, k = torch.randn(2, 2, 5 - offset, 4), torch.randn(2, 2, 5, 4)
    terms = model.attention_terms(q, k, AttentionContext(state, 1))
    query, key = terms.content
    logits = terms.scale * query @ key.mT
    if terms.bias is not None:
        logits = logits + terms.bias[:, positions.delta[0] - positions.delta[0].min()]
    wanted = model.scale(4) * q @ k.mT + model.bias(q, k, AttentionContext(state, 1))
    torch.testing.assert_close(logits, wanted.expand_as(logits), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["tupe_a", "tupe_r"])
def test_a_special_token_anywhere_is_in_the_terms_of_a_product_alone(name):
    model = build(name, **SIZES, cls="special")
    special = torch.tensor([[False, True, False, True], [False, False, True, False]])
    positions = Positions.arange(4).but(special=special)
    state = model.prepare(positions)
    q = torch.randn(2, 2, 4, 4)
    terms = model.attention_terms(q, q, AttentionContext(state, 0))
    if name == "tupe_r":  # the bias of the distance has several rows to leave out
        assert terms is None
        return
    query, key = terms.content
    torch.testing.assert_close(
        query @ key.mT, model.scale(4) * q @ q.mT + model.bias(q, q, AttentionContext(state, 0))
    )


def test_cached_steps_know_which_of_their_queries_are_special():
    model = build("untied_cls", **SIZES, model="alibi", cls="special")
    special = torch.tensor([[True, False, False, True]])
    whole = model.prepare(Positions.arange(4).but(special=special))
    step = model.prepare(Positions.arange(1, offset=3).but(special=special))
    q = torch.zeros(1, 2, 4, 4)
    assert torch.equal(
        model.bias(q[:, :, 3:], q, AttentionContext(step, 0)),
        model.bias(q, q, AttentionContext(whole, 0))[:, :, 3:],
    )


def test_the_model_within_keeps_its_bound():
    assert build("untied_cls", **SIZES, model="alibi").max_positions is None
    assert build("untied_cls", **SIZES, model="chen_absolute").max_positions == 16
