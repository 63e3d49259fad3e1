"""Biases that content has no part in: Dufter, Chen, ALiBi, Gaussian attention, Synthesizer."""

import statistics

import pytest
import torch
from relative_cases import (
    EVERYWHERE,
    HEADS,
    LENGTH,
    SIZES,
    WHOLE,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)

from floater import FloaterConfig, PositionError, Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.alibi import slopes
from floater.transformer import FloaterModel
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast
from small_models import small_config


@WHOLE
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dufter_relative", {}),
        ("chen_relative", {}),
        ("chen_relative", {"share_heads": True}),
        ("chen_relative", {"share_layers": True}),
    ],
)
def test_a_scalar_per_distance(name, options, positions):
    model = build_encoding(name, **options)
    q, k = queries_and_keys(positions)

    def score(q, k, t, s, head):
        layer, head = 0 if "share_layers" in options else 2, 0 if "share_heads" in options else head
        return q @ k / 2 + model.table[layer, head, s - t + LENGTH - 1]

    agree(logits(model, positions, q, k, 2), by_pairs(positions, q, k, score), model.table)


@WHOLE
@pytest.mark.parametrize(("share_heads", "share_layers", "rank"), [(False, False, None), (True, True, 3)])
def test_a_product_of_vectors_per_position(share_heads, share_layers, rank, positions):
    model = build_encoding("chen_absolute", share_heads=share_heads, share_layers=share_layers, rank=rank)
    q, k = queries_and_keys(positions)

    def score(q, k, t, s, head):
        layer, head = 0 if share_layers else 2, 0 if share_heads else head
        return q @ k / 2 + model.query[layer, head, t] @ model.key[layer, head, s]

    agree(logits(model, positions, q, k, 2), by_pairs(positions, q, k, score), model.query, model.key)


@EVERYWHERE
def test_alibi_falls_with_the_distance(positions):
    q, k = queries_and_keys(positions)
    wanted = by_pairs(positions, q, k, lambda q, k, t, s, head: q @ k / 2 - [2**-4, 2**-8][head] * abs(s - t))
    torch.testing.assert_close(logits(build_encoding("alibi"), positions, q, k), wanted)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16])
def test_slopes_are_those_of_bloom_in_transformers(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(slopes(heads).float(), theirs)


@EVERYWHERE
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gaussian_weights_are_a_density_that_is_not_normalised(positions, implementation):
    offsets, std = [-1.0, 2.0], 1.5
    model = build_encoding("gaussian", offsets=offsets, std=std)
    q, k = queries_and_keys(positions)

    def density(q, k, t, s, head):
        normal = statistics.NormalDist(t + offsets[head], std)
        return torch.tensor(normal.pdf(s), dtype=q.dtype)

    wanted = by_pairs(positions, q, k, density)
    actual = model.weights(logits(model, positions, q, k), AttentionContext(model.prepare(positions), 0))
    torch.testing.assert_close(actual, wanted)
    if positions.query.shape == positions.key.shape:
        config = FloaterConfig(hidden_size=8, num_attention_heads=HEADS, attn_implementation=implementation)
        attention = Attention(config, 0).double()
        x = torch.randn(2, positions.query.shape[1], 8, dtype=torch.double)
        actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(positions))))
        v = torch.stack(attention.value(x).split(4, -1), 1)
        torch.testing.assert_close(actual, attention.output((wanted @ v).transpose(1, 2).flatten(-2)))


def test_gaussian_heads_look_to_both_sides_unless_the_stack_is_causal():
    assert build("gaussian", **SIZES).offsets == [-1.0, 1.0]
    assert build("gaussian", **SIZES, causal=True).offsets == [-1.0, 0.0]


@WHOLE
def test_the_synthesizer_reads_positions_alone(positions):
    model = build_encoding("synthesizer")
    q, k = queries_and_keys(positions)
    wanted = by_pairs(positions, q, k, lambda q, k, t, s, head: model.table[1, head, t, s])
    agree(logits(model, positions, q, k, 1), wanted, model.table)


def test_tables_start_as_in_the_released_code():
    sizes = {"dim": 16, "heads": 8, "layers": 1, "max_length": 512}
    stds = {
        "synthesizer": 0.0027406,  # of v1.get_variable("R", [512, 8, 512]) in TensorFlow 2.21
        "dufter_absolute": 512**-0.5,  # Keras: 2 / (fan_in + fan_out) of a 512 x 512 matrix
        "dufter_relative": float(  # Keras: 1,024 numbers, whose fans are the root of that, are a spectrum
            torch.fft.ifft(torch.randn(1000, 1024) * 1024**-0.25).real.std()
        ),
    }
    for name, std in stds.items():
        torch.manual_seed(0)
        assert float(build(name, **sizes).table.detach().std()) == pytest.approx(std, rel=0.02)


def test_an_untrained_synthesizer_keeps_its_matrices():
    model = build("synthesizer", **SIZES, learned=False)
    assert not any(p.requires_grad for p in model.parameters())
    assert "table" in model.state_dict()


@pytest.mark.parametrize(("name", "options"), [("synthesizer", {"learned": False}), ("frozen", {})])
def test_what_is_not_trained_is_not_trained_after_loading(name, options, tmp_path):
    FloaterModel(small_config(name, position_options=options)).save_pretrained(tmp_path)
    loaded = FloaterModel.from_pretrained(tmp_path).train()
    assert not any(p.requires_grad for p in loaded.encoder.position.parameters())
    assert all(p.requires_grad for p in loaded.embedding.parameters())


@pytest.mark.parametrize("name", ["chen_absolute", "chen_relative"])
@pytest.mark.parametrize("share", [{}, {"share_heads": True}, {"share_layers": True}])
def test_pairs_of_segments_have_a_scalar(name, share):
    plain, model = build_encoding(name, **share), build_encoding(name, segments=3, **share)
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if "segments" not in key})
    segment = torch.tensor([[0, 0, 2, 1, 1], [1, 2, 2, 2, 0]])
    for where in (Positions.arange(5), Positions.arange(2, offset=3)):
        q, k = queries_and_keys(where)
        actual = model.bias(q, k, AttentionContext(model.prepare(where.but(segment=segment)), 2))
        base = plain.bias(q, k, AttentionContext(plain.prepare(where), 2))
        table = model.segments.table[0 if "share_layers" in share else 2]
        start = 5 - where.query.shape[1]
        for b in range(2):
            for t in range(start, 5):
                for s in range(5):
                    more = table[:, segment[b, t], segment[b, s]].expand(HEADS)
                    wanted = base[0, :, t - start, s].expand(HEADS) + more
                    torch.testing.assert_close(actual[b, :, t - start, s].expand(HEADS), wanted)
    with pytest.raises(PositionError, match=f"no segment in the positions; '{name}' has segments=3"):
        model.prepare(Positions.arange(5))
    with pytest.raises(PositionError, match="segments are 0 to 2; got 0 to 3"):
        model.prepare(Positions.arange(2).but(segment=torch.tensor([[0, 3]])))
    with pytest.raises(PositionError, match="segments is -1"):
        build_encoding(name, segments=-1)
