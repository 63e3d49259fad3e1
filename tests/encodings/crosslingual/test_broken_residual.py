"""The broken residual connection, held against an encoder that is written out."""

import pytest
import torch
from torch.nn import functional as F

from floater import FloaterConfig, build
from floater.flow import sinusoid
from floater.transformer import FloaterForConditionalGeneration, FloaterModel

SIZES = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "decoder_layers": 3,
    "dropout": 0.0,
}


def norm(layer, x):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return x * layer.weight + layer.bias


def attention(layer, x):
    q, k, v = (F.linear(x, part.weight, part.bias) for part in (layer.query, layer.key, layer.value))
    out = torch.empty_like(x)
    for head in (slice(0, 4), slice(4, 8)):
        for t in range(len(x)):
            weights = torch.stack([q[t, head] @ k[s, head] / 2 for s in range(len(x))]).softmax(0)
            out[t, head] = sum(w * v[s, head] for s, w in enumerate(weights))
    return F.linear(out, layer.output.weight, layer.output.bias)


def feed_forward(layer, x):
    inner = F.linear(x, layer.inner.weight, layer.inner.bias).relu()
    return F.linear(inner, layer.outer.weight, layer.outer.bias)


def encode(model, ids, broken, norm_first):
    x = model.embedding.weight[ids] * 8**0.5 + sinusoid(torch.arange(len(ids)), 8)
    for layer, block in enumerate(model.encoder.blocks):
        first, second = block.attention_residual.norm, block.feed_forward_residual.norm
        if norm_first:
            mixed = attention(block.attention, norm(first, x))
            x = mixed if layer == broken else x + mixed
            x = x + feed_forward(block.feed_forward, norm(second, x))
        else:
            mixed = attention(block.attention, x)
            x = norm(first, mixed if layer == broken else x + mixed)
            x = norm(second, x + feed_forward(block.feed_forward, x))
    return norm(model.encoder.norm, x) if norm_first else x


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("options", "broken"), [({}, 1), ({"layer": 0}, 0), ({"layer": 3}, 3)])
@torch.no_grad()
def test_the_encoder_is_the_one_written_out(options, broken, norm_first):
    torch.manual_seed(0)
    config = FloaterConfig(
        **SIZES, position="broken_residual", position_options=options, norm_first=norm_first
    )
    model, ids = FloaterModel(config).double().eval(), torch.tensor([5, 3, 8, 3, 9])
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn(parameter.shape)  # neither biases nor norms at their start
    actual = model(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(actual, encode(model, ids, broken, norm_first), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(actual, encode(model, ids, None, norm_first), atol=1e-2)


@torch.no_grad()
def test_the_decoder_keeps_its_residual_connections():
    models = []
    for name in ("broken_residual", "sinusoidal"):
        torch.manual_seed(0)
        models.append(FloaterForConditionalGeneration(FloaterConfig(**SIZES, position=name)).eval())
    broken, plain = models
    broken.load_state_dict(plain.state_dict())
    ids = torch.tensor([[5, 3, 8]])
    encoded = plain.encode(ids)
    a, b = (model(encoder_outputs=encoded, decoder_input_ids=ids).logits for model in models)
    assert torch.equal(a, b)
    assert not torch.allclose(broken.encode(ids)[0], encoded[0], atol=1e-2)


@pytest.mark.parametrize(("layers", "middle"), [(1, 0), (2, 0), (5, 2), (6, 2), (8, 3)])
def test_the_middle_block_is_that_of_the_authors_program(layers, middle):
    """Block 3 of 5, as its script for PMIndia says (counted from 1); of an even number, half of it."""
    model = build("broken_residual", dim=4, heads=1, layers=layers, max_length=8)
    assert [model.residual(layer) for layer in range(layers)] == [layer != middle for layer in range(layers)]
