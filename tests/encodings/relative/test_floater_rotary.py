"""The flow that turns against the exponential of its matrix, and against rotary positions."""

import pytest
import torch
from relative_cases import (
    HEADS,
    LAYERS,
    POSITIONS,
    SIZES,
    TIMES,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    queries_and_keys,
)

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.transformer import FloaterModel
from small_models import small_config

OPTIONS = [{}, {"basis": "learned"}, {"basis": "learned", "pairs": "half"}, {"uncovered": "cut", "rate": 4.0}]


def generator(model, layer, head):
    """A = Q B Q^T, from the parameters as the documentation has them."""
    half = WIDTH // 2
    w = 10000.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.double) / WIDTH)
    if model.uncovered == "cut":
        w = torch.where(w * model.spec.max_length < 2 * torch.pi, 0, w)
    w = w + model.rate * model.phase[layer, head] / model.spec.max_length
    b = torch.zeros(WIDTH, WIDTH, dtype=torch.double)
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if model.pairs == "interleaved" else (i, i + half)
        one = torch.zeros_like(b)
        one[second, first], one[first, second] = 1, -1
        b = b + w[i] * one
    if model.generator is None:
        return b
    skew = torch.zeros_like(b)
    entries = iter(model.generator[layer, head])
    for i in range(WIDTH):
        for j in range(i + 1, WIDTH):
            one = torch.zeros_like(b)
            one[i, j], one[j, i] = 1, -1
            skew = skew + next(entries) * one
    one = torch.eye(WIDTH, dtype=torch.double)
    q = torch.linalg.inv(one - skew) @ (one + skew)
    return q @ b @ q.mT


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("positions", [POSITIONS["counting"], POSITIONS["left padding"], TIMES])
@pytest.mark.parametrize("layer", [0, LAYERS - 1])
def test_products_are_those_of_the_matrix_exponential(options, positions, layer):
    """Values and gradients, in queries, keys and parameters."""
    model = build_encoding("floater_rotary", **options)
    q, k = queries_and_keys(positions)

    def score(a, b, t, s, head):
        return a @ torch.matrix_exp((s - t) * generator(model, layer, head)) @ b

    state = model.prepare(positions)
    turned = model.qkv(q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(state, layer))
    actual = torch.einsum("bthi,bshi->bhts", *turned[:2])
    agree(actual, by_pairs(positions, q, k, score), q, k, *model.parameters())


@pytest.mark.parametrize("options", OPTIONS)
def test_the_flow_keeps_the_norm(options):
    model = build_encoding("floater_rotary", **options)
    x = torch.randn(2, 5, HEADS, WIDTH, dtype=torch.double)
    q, k, v = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(5, offset=7000)), 1))
    for turned in (q, k):
        torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert v is x


@pytest.mark.parametrize("basis", ["fixed", "learned"])
@pytest.mark.parametrize(
    "options", [{}, {"pairs": "half", "base": 100.0}, {"uncovered": "cut"}, {"uncovered": "round"}]
)
def test_it_is_rotary_before_training(options, basis):
    model, rotary = (
        build("floater_rotary", **SIZES, **options, basis=basis),
        build("rotary", **SIZES, **options),
    )
    x = torch.randn(2, 5, HEADS, WIDTH)
    for positions in (POSITIONS["left padding"], Positions.arange(5, offset=8000)):
        actual, wanted = (
            m.qkv(x, 2 * x, x, AttentionContext(m.prepare(positions), 2)) for m in (model, rotary)
        )
        for a, b in zip(actual, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=2e-6)


def test_a_basis_is_what_another_projection_would_give():
    """The spectral theorem: with Q^T in the projections, frequencies alone give the same products."""
    model, plain = build_encoding("floater_rotary", basis="learned"), build_encoding("floater_rotary")
    with torch.no_grad():
        plain.phase.copy_(model.phase)
    x, positions = torch.randn(2, 5, HEADS, WIDTH, dtype=torch.double), Positions.arange(5)
    moved = torch.einsum("bthi,hij->bthj", x, model.basis[1])
    actual, wanted = (
        torch.einsum("bthi,bshi->bhts", *m.qkv(y, y, y, AttentionContext(m.prepare(positions), 1))[:2])
        for m, y in ((model, x), (plain, moved))
    )
    torch.testing.assert_close(actual, wanted)


def test_a_parameter_is_the_phase_gained_over_the_training_span():
    model = build_encoding("floater_rotary", rate=2.0)
    span = SIZES["max_length"]
    before = build("rotary", **SIZES).frequencies(torch.device("cpu"))[0]
    gained = (model.frequencies - before) * span
    torch.testing.assert_close(gained, 2.0 * model.phase.detach())


@pytest.mark.parametrize("basis", ["fixed", "learned"])
def test_a_cast_rounds_no_frequency(basis):
    model = FloaterModel(small_config("floater_rotary", position_options={"basis": basis}))
    with torch.no_grad():
        for parameter in model.encoder.position.parameters():
            parameter.normal_()
    before = model.encoder.position.frequencies
    cast = model.bfloat16()
    assert cast.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(cast.encoder.position.frequencies, before)
    assert bool(cast(torch.arange(5)[None]).last_hidden_state.isfinite().all())
