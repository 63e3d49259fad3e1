"""The flow as curves, in models of one stack and of several, plugged or not."""

import math
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

import floater
from floater.errors import DataError
from floater.lab.study.analyses import Options, Subject, curves, draw, flow_curves, panels, probe_bars
from floater.lab.study.analyses.probe import Fit, Probe
from floater.positions import Positions
from floater.pretrained.flows import SiteEncoder
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration, FloaterModel
from floater.transformer.documents import DocumentsConfig, FloaterForDocuments

SMALL = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 24,
}


def build_model(position: str, kind: Any = FloaterModel, **more: Any) -> Any:
    torch.manual_seed(0)
    config = FloaterConfig(**SMALL | {"vocab_size": 50, "training_length": 10} | more, position=position)
    return kind(config).eval()


def plugged(model: PreTrainedModel, **options: Any) -> Any:
    """With flows that differ from block to block."""
    torch.manual_seed(0)
    floater.plug(model, start="small", **options)
    return model.eval()


def test_the_flow_passes_through_the_vectors_of_the_tokens() -> None:
    model = build_model("floater")
    actual = curves(model, 20, points=41)
    state = model.encoder.position.prepare(Positions.arange(21))
    for name in ("query", "key", "value"):
        curve = actual[f"block 2 {name}"]
        assert curve.positions[::2].tolist() == list(range(21))
        tokens = state.vectors[1].at(1, name)[0].detach()
        assert torch.allclose(curve.values[::2], tokens, atol=1e-4)
    with pytest.raises(DataError, match="has no flow"):
        curves(build_model("rotary"))


def test_the_trained_range_is_marked_where_more_is_shown() -> None:
    _, (left, right) = panels(2)
    positions, values = torch.linspace(0, 20, 41), torch.randn(41, 3)
    flow_curves(left, positions, values, trained=10)
    flow_curves(right, positions, values, trained=50)
    assert "trained range" in [text.get_text() for text in left.get_legend().get_texts()]
    assert len(right.patches) == 0
    probe_bars(right, Probe({"input": Fit(1.0, 0.0)}, 4, 6, 2, "text"))


def test_a_plugged_encoder_decoder_has_a_curve_for_each_starting_vector() -> None:
    model = plugged(BartModel(BartConfig(**BART, vocab_size=20)))
    actual = curves(model, 4, points=3)
    sites = {"encoder": "query key value", "decoder": "query key value cross_query", "cross": "key value"}
    assert set(actual) == {
        f"{site} block {block} {name}"
        for site, names in sites.items()
        for block in (1, 2)
        for name in names.split()
    }
    for site, names in sites.items():
        (flow,) = model.floater.encoders[site].values()
        for i, name in enumerate(flow.names):
            assert name in names
            assert torch.equal(actual[f"{site} block 2 {name}"].values[0], flow.start[1, i].detach())


def test_grouped_keys_are_named_as_other_keys_are() -> None:
    """Their flow is narrower than that of the queries; which of the two it is tells the name already."""
    config = LlamaConfig(**SMALL, num_key_value_heads=1, vocab_size=20, max_position_embeddings=24)
    actual = curves(plugged(LlamaModel(config)), 4, points=3)
    widths = {site: curve.values.shape[1] for site, curve in actual.items()}
    assert widths == {
        f"block {block} {name}": width
        for block in (1, 2)
        for name, width in (("query", 16), ("key", 8), ("value", 8))
    }


def test_two_flows_at_one_place_are_refused() -> None:
    model = plugged(BartModel(BartConfig(**BART, vocab_size=20)))
    encoder_flow = model.floater.encoders["encoder"]
    encoder_flow["copy"] = SiteEncoder(encoder_flow["16"].field, 16, blocks=[0], names=["query"])
    with pytest.raises(DataError, match="two vectors at 'encoder block 1 query'"):
        curves(model, 4, points=3)


def test_each_flow_has_its_own_scale_of_time() -> None:
    options = {"time_scale": "learned", "share": "none"}
    model = build_model(
        "floater", FloaterForConditionalGeneration, decoder_layers=2, position_options=options
    )
    scales = {model.encoder: (2.0, 3.0), model.decoder: (4.0, 5.0)}
    for stack, both in scales.items():
        for flow, scale in zip(stack.position.flows, both, strict=True):
            torch.nn.init.constant_(flow.log_time_scale, math.log(scale))
    actual = curves(model, 4, points=3)
    sites = [f"{stack} block {block} key" for stack in ("encoder", "decoder") for block in (1, 2)]
    assert [actual[site].unit for site in sites] == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert "(time 0 to 5)" in draw(model, "flow", Options("decoder block 2 key", 10)).text


def test_each_level_of_documents_has_its_own_training_length() -> None:
    torch.manual_seed(0)
    sizes = {**SMALL, "vocab_size": 30, "num_labels": 2, "position": "floater", "word_position": "floater"}
    model = FloaterForDocuments(DocumentsConfig(**sizes, training_length=20, word_length=64)).eval()
    actual = curves(model, points=3)
    assert actual["words block 1 query"].positions[-1] == 128
    assert actual["encoder block 1 query"].positions[-1] == 40
    assert "trained to 64" in draw(model, "flow", Options("words block 1 query")).text
    drawn = draw(model, "flow", Options("encoder block 1 query"))
    assert "trained to 20" in drawn.text
    # numbers that stand side by side are of the same positions
    assert not any(name.startswith("words") for name in drawn.numbers)


def test_a_training_length_that_nobody_knows_is_not_told() -> None:
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2)
    of = Subject("mine", plugged(T5EncoderModel(config)))
    assert of.trained is None
    assert "trained" not in draw(of, "flow", Options(length=4)).text
