"""Stochastic positions: exact attention with noise that is exactly white, nearly exact with drawn noise."""

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.transformer import FloaterConfig, FloaterForCausalLM

SIZES = {"dim": 4, "heads": 2, "layers": 2, "max_length": 16}
CASES = [("spe_sine", {"sines": 3}), ("spe_conv", {"kernel": 5})]
LEFT = Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]))


def model(name, seed=0, **options):
    torch.manual_seed(seed)
    built = build(name, **SIZES, **options).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter)
    return built.eval()


def softplus(value):
    return math.log1p(math.exp(value))


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def correlation(built, head, d, t, s):
    """P_d(t - s), in plain numbers."""
    if hasattr(built, "filters"):
        a, b = built.filters[:, head, d].tolist()
        return sum(a[i] * b[i + t - s] for i in range(5) if 0 <= i + t - s < 5)
    waves = zip(
        *(getattr(built, name)[head, d].tolist() for name in ("gain", "frequency", "offset")), strict=True
    )
    return sum(
        softplus(gain) ** 2 * math.cos(2 * math.pi * sigmoid(frequency) / 2 * (t - s) + offset)
        for gain, frequency, offset in waves
    ) / (2 * 3)


def expected(built, q, k, positions, layer):
    """The logits of relative attention, (batch, heads, T, T)."""
    out = torch.zeros(len(q), 2, q.shape[1], q.shape[1], dtype=torch.double)
    rows = positions.query.expand(len(q), -1).tolist()
    gate = None if built.gate is None else built.gate[layer].tolist()
    for b, head, t, s in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        for d in range(2):
            p = correlation(built, head, d, rows[b][t], rows[b][s])
            if gate is not None:
                g = sigmoid(gate[head][d])
                p = (1 - g) * p + g
            out[b, head, t, s] += q[b, t, head, d] * k[b, s, head, d] * p / math.sqrt(2)
    return out


def logits(built, q, k, positions, layer):
    q, k, _ = built.qkv(q, k, q, AttentionContext(built.prepare(positions), layer))
    return torch.einsum("bthr,bshr->bhts", q, k) * built.scale(q.shape[-1])


def white(built):
    """Noise without sampling error: no two numbers of a head share a realization of the 130 that it takes."""
    rows = torch.eye(130, dtype=torch.double) * math.sqrt(130)

    def noise(shape, like, chunk=0):
        if chunk == 0:  # of the gates
            return rows[:2].expand(shape)
        if hasattr(built, "gain"):
            return rows[2:14].view(2, 6, 130).expand(shape)
        return rows[:, 2:].view(130, 1, 2, 64).expand(-1, 2, -1, -1).reshape(shape)

    return noise


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("positions", [Positions.arange(7), LEFT])
def test_with_white_noise_it_is_relative_attention(name, options, gated, positions, monkeypatch):
    built = model(name, gated=gated, realizations=130, **options)
    monkeypatch.setattr(built, "noise", white(built))
    q, k = torch.randn(2, 2, 7, 2, 2, dtype=torch.double)
    for layer in range(2):
        actual = logits(built, q, k, positions, layer)
        torch.testing.assert_close(actual, expected(built, q, k, positions, layer))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_drawn_noise_comes_near_as_realizations_grow(name, options, training):
    q, k = torch.randn(2, 1, 4, 2, 2, dtype=torch.double)
    for realizations, tolerance in ((1_000, 1.2), (100_000, 0.12)):
        built = model(name, realizations=realizations, **options).train(training)
        actual = logits(built, q, k, Positions.arange(4), 1)
        assert (actual - expected(built, q, k, Positions.arange(4), 1)).abs().max() < tolerance


@pytest.mark.parametrize(("name", "options"), CASES)
def test_noise_is_drawn_in_training_and_stays_in_evaluation(name, options):
    built, x = model(name, **options), torch.randn(1, 7, 2, 2, dtype=torch.double)

    def filtered(positions, x=x):
        return built.qkv(x, x, x, AttentionContext(built.prepare(positions), 0))[0]

    assert torch.equal(filtered(Positions.arange(7)), filtered(Positions.arange(7)))
    long, more = Positions.arange(150), torch.cat([x, x.new_zeros(1, 143, 2, 2)], 1)
    torch.testing.assert_close(filtered(long, more)[:, :7], filtered(Positions.arange(7)))
    torch.testing.assert_close(
        filtered(Positions.arange(1, offset=6), x[:, 6:]), filtered(Positions.arange(7))[:, 6:]
    )
    built.train()
    assert not torch.equal(filtered(Positions.arange(7)), filtered(Positions.arange(7)))


def test_waves_stand_at_any_time_and_are_exact_far_away(monkeypatch):
    built = model("spe_sine", sines=3, realizations=130)
    monkeypatch.setattr(built, "noise", white(built))
    q, k = torch.randn(2, 1, 3, 2, 2, dtype=torch.double)
    times = Positions.times(torch.tensor([[0.5, 3.25, 8000.75]], dtype=torch.double))
    torch.testing.assert_close(logits(built, q, k, times, 0), expected(built, q, k, times, 0))


def test_what_is_drawn_in_evaluation_does_not_depend_on_the_default_type():
    built = build("spe_sine", **SIZES).eval()
    before = built.prepare(Positions.arange(3)).query
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(built.prepare(Positions.arange(3)).query, before)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_cast_rounds_no_frequency():
    torch.manual_seed(0)
    built, far = build("spe_sine", **SIZES).eval(), Positions(*2 * [torch.tensor([[2000]])])
    before = built.prepare(far).query
    torch.testing.assert_close(built.bfloat16().prepare(far).query, before, rtol=0.02, atol=0.02)


def test_noise_is_drawn_where_the_queries_stand(monkeypatch):
    model = build("spe_conv", **SIZES, kernel=9).eval()
    drawn, noise = [], type(model).noise
    monkeypatch.setattr(
        type(model),
        "noise",
        lambda self, shape, like, chunk=0: drawn.append(chunk) or noise(self, shape, like, chunk),
    )
    whole = model.prepare(Positions.arange(1000))
    assert len(drawn) == 1 + 16
    for start, length in ((0, 1), (62, 1), (63, 3), (700, 1), (999, 1), (500, 200)):
        drawn.clear()
        part = model.prepare(Positions.arange(length, offset=start))
        assert len(drawn) <= 3 + (length + 9) // 64
        rows = slice(start, start + length)
        for actual, wanted in zip(part[:2], whole[:2], strict=True):
            torch.testing.assert_close(actual, wanted[:, rows])


@pytest.mark.parametrize("name", ["spe_sine", "spe_conv"])
def test_noise_of_evaluation_is_fake_where_tensors_are(name):
    """Memory is estimated with such tensors."""
    with FakeTensorMode():
        config = FloaterConfig.preset("tiny", vocab_size=11, position=name)
        logits = FloaterForCausalLM(config).eval()(torch.ones(1, 8, dtype=torch.long)).logits
    assert isinstance(logits, FakeTensor)
