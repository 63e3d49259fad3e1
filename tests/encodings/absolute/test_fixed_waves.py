"""Shortformer, Universal Transformer, mvPE and complex embeddings against their equations."""

import cmath
import math

import pytest
import torch
from torch import nn

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext
from floater.transformer import FloaterConfig, FloaterModel
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast

SIZES = {"dim": 6, "heads": 2, "layers": 3, "max_length": 16}
LEFT = Positions.from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))


def wave(t, k=1.0):
    """Equation 21 of the survey for one position, component by component; equation 25 with k."""
    return [
        math.sin(10000 ** (-j / 6) * k * t) if j % 2 == 0 else math.cos(10000 ** (-(j - 1) / 6) * k * t)
        for j in range(6)
    ]


def waves(positions, k=1.0):
    return torch.tensor([[wave(t, k) for t in row] for row in positions.query.tolist()], dtype=torch.double)


@pytest.mark.parametrize("positions", [Positions.arange(4), LEFT])
def test_shortformer_is_attention_of_infused_queries_and_keys(positions):
    torch.manual_seed(0)
    attention = Attention(FloaterConfig(hidden_size=6, num_attention_heads=2), 1).double()
    other = nn.MultiheadAttention(6, 2, batch_first=True).double()
    with torch.no_grad():
        parts = attention.query, attention.key, attention.value
        other.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        other.out_proj.load_state_dict(attention.output.state_dict())
    x = torch.randn(2, 4, 6, dtype=torch.double)
    infused = x + waves(positions)
    expected, _ = other(infused, infused, x)
    model = build("shortformer", **SIZES)
    positions = Positions(positions.query.double(), positions.key.double())
    actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(positions))))
    torch.testing.assert_close(actual, expected)
    assert model.embed(x, model.prepare(positions)) is x


@pytest.mark.parametrize("positions", [Positions.arange(4), Positions.arange(2, offset=5), LEFT])
def test_universal_adds_position_and_layer_to_every_block(positions):
    model = build("universal", **SIZES)
    state, x = model.prepare(positions), torch.zeros(len(positions.query), positions.query.shape[1], 6)
    for layer in range(3):
        actual = model.embed(x, state) if layer == 0 else model.block(x, state, layer)
        expected = waves(positions) + torch.tensor(wave(layer + 1))
        torch.testing.assert_close(actual, expected.float())


@pytest.mark.parametrize("k", [1024.0, 1500.5])
def test_mvpe_is_exact_where_single_precision_is_not(k):
    model = build("mvpe", **SIZES, k=k)
    positions = Positions(torch.tensor([[0, 1, 7, 5000, 8001]]), torch.tensor([[0]]))
    torch.testing.assert_close(model.prepare(positions), waves(positions, k).float())
    times = Positions.times(torch.tensor([[0.25, 4999.75]], dtype=torch.double))
    torch.testing.assert_close(model.prepare(times), waves(times, k), rtol=0, atol=1e-8)


def test_complex_embeddings_are_equation_8():
    torch.manual_seed(0)
    model = build("complex", **SIZES).double()
    nn.init.normal_(model.frequency)
    x = torch.randn(2, 4, 6, dtype=torch.double)
    actual = model.embed(x, model.prepare(LEFT))
    for b in range(2):
        for n, t in enumerate(LEFT.query[b].tolist()):
            for i, w in enumerate(model.frequency.tolist()):
                r, theta = cmath.polar(complex(*x[b, n, 2 * i : 2 * i + 2].tolist()))
                g = r * cmath.exp(1j * (w * t + theta))
                assert actual[b, n, 2 * i : 2 * i + 2].tolist() == pytest.approx([g.real, g.imag])


@pytest.mark.parametrize("periods", ["word", "both"])
def test_words_may_have_frequencies_of_their_own(periods):
    torch.manual_seed(0)
    model = build("complex", **SIZES, vocabulary=5, periods=periods).double()
    assert model.frequency.shape == (5, 3 if periods == "both" else 1)
    nn.init.normal_(model.frequency)
    x, words = torch.randn(2, 4, 6, dtype=torch.double), torch.tensor([[0, 4, 1, 1], [2, 3, 0, 4]])
    actual = model.embed(x, model.prepare(Positions(LEFT.query, LEFT.key, token=words)))
    for b in range(2):
        for n, t in enumerate(LEFT.query[b].tolist()):
            for i in range(3):
                w = model.frequency[words[b, n], i if periods == "both" else 0].item()
                g = complex(*x[b, n, 2 * i : 2 * i + 2].tolist()) * cmath.exp(1j * w * t)
                assert actual[b, n, 2 * i : 2 * i + 2].tolist() == pytest.approx([g.real, g.imag])


def test_frequencies_of_words_need_their_ids():
    with pytest.raises(PositionError, match="periods='word' needs the number of words"):
        build("complex", **SIZES, periods="word")
    model = build("complex", **SIZES, vocabulary=5, periods="both")
    with pytest.raises(PositionError, match="no token ids in the positions; periods='both' belong to words"):
        model.prepare(Positions.arange(3))
    with pytest.raises(PositionError, match="words are 0 to 4; got 0 to 5"):
        model.prepare(Positions(*[torch.tensor([[0, 1]])] * 2, token=torch.tensor([[0, 5]])))
    with pytest.raises(PositionError, match="periods is 'none'"):
        build("complex", **SIZES, periods="none")


def test_models_tell_their_words():
    torch.manual_seed(0)
    options = {"position": "complex", "position_options": {"periods": "word"}}
    sizes = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 5}
    model = FloaterModel(FloaterConfig(**sizes, **options, intermediate_size=8, dropout=0.0)).eval()
    ids = torch.tensor([[3, 1, 3]])
    actual = model(ids).last_hidden_state
    x = model.embedding(ids) * math.sqrt(6)
    wanted = model.encoder(x, Positions(*[torch.arange(3)[None]] * 2, token=ids))
    assert torch.equal(actual, wanted)
    with pytest.raises(PositionError, match="no token ids"):
        model(inputs_embeds=model.embedding(ids))


def test_complex_attention_takes_moduli_of_complex_products():
    model = build("complex_attention", **(SIZES | {"dim": 8}))
    q, k = torch.randn(2, 2, 2, 5, 4, dtype=torch.double).requires_grad_().unbind()
    actual = model.logits(q @ k.mT * model.scale(4), q, k, AttentionContext(None, 0))
    for b in range(2):
        for h in range(2):
            for t in range(5):
                for s in range(5):
                    pair = (torch.view_as_complex(y.view(2, 2)) for y in (q[b, h, t], k[b, h, s]))
                    one, other = pair
                    wanted = (one * other.conj()).sum().abs() / 2**0.5  # of 2 components
                    torch.testing.assert_close(actual[b, h, t, s], wanted)
    # the same turning of both leaves it, as positions far from the start do
    turned = [
        torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (2, 2))) * 1j).flatten(-2) for y in (q, k)
    ]
    again = model.logits(turned[0] @ turned[1].mT * model.scale(4), *turned, AttentionContext(None, 0))
    torch.testing.assert_close(again, actual)
    nothing = torch.zeros(1, 2, 3, 4, dtype=torch.double, requires_grad=True)
    model.logits(nothing @ nothing.mT, nothing, nothing, AttentionContext(None, 0)).sum().backward()
    assert bool(nothing.grad.isfinite().all())
    with pytest.raises(PositionError, match="head_dim is 3; complex attention needs an even one"):
        build("complex_attention", **SIZES)


def test_complex_frequencies_start_at_those_of_sinusoids():
    model = build("complex", **SIZES)
    x = torch.tensor([0.0, 1.0]).repeat(3).expand(1, 1, 6)  # i, whose turning by a gives -sin a, cos a
    actual = model.embed(x, model.prepare(Positions(torch.tensor([[8000]]), torch.tensor([[8000]]))))
    expected = torch.tensor(wave(8000)).view(3, 2) * torch.tensor([-1, 1])
    torch.testing.assert_close(actual.view(3, 2), expected, rtol=0, atol=1e-3)  # frequencies are float32


def test_a_modulus_that_half_precision_holds_is_computed_in_it():
    model = build("complex_attention", dim=2, heads=1, layers=1, max_length=16)
    q = torch.tensor([[[[20.0, 0.0]]]]).half()
    actual = model.logits(q @ q.mT * model.scale(2), q, q, AttentionContext(None, 0))
    torch.testing.assert_close(actual.item(), 400.0, rtol=1e-3, atol=0)
