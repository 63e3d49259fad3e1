"""Sinusoids in the queries and keys of cross-attention alone."""

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import build_model, config, tokens

from floater import PositionError, Positions
from floater.flow import sinusoid
from floater.transformer import FloaterForCausalLM, FloaterForConditionalGeneration
from floater.transformer.attention import SharedInputs, Source
from floater.transformer.uncast import Uncast

CROSS = {"position": "sinusoidal", "position_options": {"injection": "cross"}}
RELATIVE = {"position": ["floater_relative", {"name": "sinusoidal", "injection": "cross"}]}


@torch.no_grad()
def test_queries_and_keys_are_joined_by_maps_of_sinusoids():
    model = build_model(FloaterForConditionalGeneration, **CROSS).double()
    decoder, x, source = model.decoder, torch.randn(2, 3, 16).double(), torch.randn(2, 5, 16).double()
    attention = decoder.blocks[1].cross_attention
    here, there = Positions.arange(3), Positions.arange(5)
    states = decoder.position.prepare(here), Uncast(decoder.cross_position.prepare(there))
    encoded = Source(source, decoder.cross_position, states[1], None)
    actual, _ = attention(x, encoded, SharedInputs(decoder.position, Uncast(states[0])))
    q = attention.query(x) + sinusoid(here.query, 16).double() @ decoder.position.maps[1]
    k = attention.key(source) + sinusoid(there.query, 16).double() @ decoder.cross_position.maps[1]
    heads = [y.view(2, -1, 2, 8).transpose(1, 2) for y in (q, k, attention.value(source))]
    expected = attention.output(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
    torch.testing.assert_close(actual, expected)


@torch.no_grad()
def test_the_encoder_reads_no_order_and_the_decoder_does():
    model = build_model(FloaterForConditionalGeneration, **CROSS).double()
    source, target = tokens(1, 6), tokens(1, 4)
    turned = source.flip(1)
    encoded = [model.encode(ids).last_hidden_state for ids in (source, turned)]
    torch.testing.assert_close(encoded[0], encoded[1].flip(1))
    logits = [model(ids, decoder_input_ids=target).logits for ids in (source, turned)]
    assert float((logits[0] - logits[1]).abs().max()) > 1e-3


def test_cached_generation_is_that_without_a_cache():
    model = build_model(FloaterForConditionalGeneration, **RELATIVE)
    ids = tokens(2, 7)
    actual = [model.generate(ids, max_new_tokens=9, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*actual)


@pytest.mark.parametrize("options", [CROSS, RELATIVE])
def test_it_needs_cross_attention(options):
    with pytest.raises(PositionError, match="acts in cross-attention, which only an encoder-decoder has"):
        FloaterForCausalLM(config(**options))
    with pytest.raises(PositionError, match="injection='cross' adds to none"):
        build_model(
            FloaterForConditionalGeneration,
            "sinusoidal",
            position_options={"injection": "cross", "blocks": "all"},
        )
