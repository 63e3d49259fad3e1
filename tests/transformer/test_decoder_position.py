"""An encoder-decoder whose decoder has another position encoding than its encoder."""

import json

import pytest
import torch
from transformer_cases import build_model, config, tokens
from transformers import AutoModelForSeq2SeqLM

from floater import PositionError, Positions
from floater.transformer import (
    FloaterConfig,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForSequenceClassification,
    encoder_decoder,
)

TREE = Positions.tree([[1, -1, 1, 2, 2], [-1, 0, 0, 1]])
PAIRS = {
    "spr_absolute-sinusoidal": TREE,
    "tree-t5": TREE,
    "structural-rotary": TREE,
    "graph_gru-floater": TREE,
    "graformer-alibi": TREE,
    "floater_tree-shaw": TREE,
    "floater-rotary": None,
    "rotary-floater": None,
    "alibi-none": None,
    "none-floater_relative": None,
}


def options(encoder):
    return {"position_options": {"binary": True}} if encoder == "tree" else {}


def paired(pair, **changes):
    encoder, decoder = pair.split("-")
    return build_model(
        FloaterForConditionalGeneration,
        encoder,
        decoder_position=decoder,
        **options(encoder) | changes,
    )


@torch.no_grad()
@pytest.mark.parametrize("pair", PAIRS)
def test_each_stack_computes_what_it_does_in_a_model_of_its_own_encoding(pair):
    model, ids, target = paired(pair), tokens(2, 5), tokens(2, 4, seed=1)
    encoder, decoder = pair.split("-")
    reads = build_model(FloaterForConditionalGeneration, encoder, **options(encoder))
    writes = build_model(FloaterForConditionalGeneration, decoder)
    reads.embedding.load_state_dict(model.embedding.state_dict())
    reads.encoder.load_state_dict(model.encoder.state_dict())
    writes.embedding.load_state_dict(model.embedding.state_dict())
    writes.decoder.load_state_dict(model.decoder.state_dict())
    encoded = reads.encode(ids, positions=PAIRS[pair])
    # the decoder's model has no tree, but its source has the same padding
    mask = None if PAIRS[pair] is None else PAIRS[pair].key_valid.long()
    expected = writes(attention_mask=mask, encoder_outputs=encoded, decoder_input_ids=target).logits
    assert torch.equal(model(ids, decoder_input_ids=target, positions=PAIRS[pair]).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("pair", PAIRS)
def test_it_is_saved_loaded_and_writes_with_and_without_a_cache(pair, tmp_path):
    model, ids = paired(pair), tokens(2, 5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    encoder, decoder = pair.split("-")
    assert (loaded.config.position, loaded.config.decoder_position) == (encoder, decoder)
    assert (
        loaded.config.decoder_position_options
        == FloaterConfig(position=decoder, is_encoder_decoder=True).to_diff_dict()["position_options"]
    )
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "num_beams": 2, "do_sample": False}
    written = model.generate(ids, positions=PAIRS[pair], **settings)
    assert torch.equal(loaded.generate(ids, positions=PAIRS[pair], **settings), written)
    assert torch.equal(model.generate(ids, positions=PAIRS[pair], use_cache=False, **settings), written)


@torch.no_grad()
def test_a_model_saved_before_there_was_a_decoder_position_loads(tmp_path):
    model, ids = build_model(FloaterForConditionalGeneration, "rotary"), tokens(2, 5)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    for name in ("decoder_position", "decoder_position_options"):
        stored.pop(name, None)
    path.write_text(json.dumps(stored))
    loaded = FloaterForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.decoder_position is None
    target = {"decoder_input_ids": tokens(2, 4, seed=1)}
    assert torch.equal(loaded(ids, **target).logits, model(ids, **target).logits)


@torch.no_grad()
def test_lists_are_compositions_and_cross_attention_is_the_decoders():
    both = ["floater_relative", {"name": "sinusoidal", "injection": "cross"}]
    model = build_model(FloaterForConditionalGeneration, "structural", decoder_position=both)
    assert model.config.decoder_position == "compose"
    ids, target = tokens(1, 4), tokens(1, 3, seed=1)
    source = [Positions.graph([[(0, 1), (1, 2), (1, 3)]]), Positions.graph([[(0, 1), (1, 2), (2, 3)]])]
    outs = [model(ids, decoder_input_ids=target, positions=positions) for positions in source]
    assert not torch.allclose(outs[0].encoder_last_hidden_state, outs[1].encoder_last_hidden_state, atol=1e-3)
    later = Positions(torch.arange(5, 9)[None], torch.arange(5, 9)[None], structure=source[0].structure)
    shifted = model(ids, decoder_input_ids=target, positions=later)
    assert torch.equal(shifted.encoder_last_hidden_state, outs[0].encoder_last_hidden_state)
    assert not torch.allclose(shifted.logits, outs[0].logits, atol=1e-3)  # keys at the source's positions


@torch.no_grad()
def test_the_decoders_kind_decides_on_the_model():
    ids = tokens(2, 5)
    length_aware = build_model(FloaterForConditionalGeneration, "spr_absolute", decoder_position="ldpe")
    assert length_aware.length is not None
    scores = [
        length_aware(ids, decoder_input_ids=tokens(2, 3), positions=TREE, target_length=torch.tensor([size]))
        for size in (3, 9)
    ]
    assert not torch.allclose(scores[0].logits, scores[1].logits, atol=1e-3)
    at_once = encoder_decoder(config("spr_absolute", decoder_position="pnat")).eval()
    assert not at_once.autoregressive
    assert at_once.generate(ids, positions=TREE, target_length=torch.tensor([4, 6])).shape == (2, 8)
    with pytest.raises(PositionError, match="'pnat' needs a decoder that is non-autoregressive"):
        build_model(FloaterForConditionalGeneration, "none", decoder_position="pnat")


def test_the_stacks_share_no_position_parameters_and_all_are_trained():
    model = paired("graph_gru-floater").train()
    model(tokens(2, 5), positions=TREE, labels=tokens(2, 4, seed=1)).loss.backward()
    for stack in (model.encoder, model.decoder):
        for name, parameter in stack.position.named_parameters():
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        ("rotary", {"decoder_position": "tree"}, "'tree', which acts in encoders only"),
        ("rotary", {"decoder_position": ["tree", "none"]}, r"'tree \+ none', which acts in encoders only"),
        ("ldpe", {"decoder_position": "none"}, "'ldpe', which acts in the decoder, and that has"),
        (
            "sinusoidal",
            {"position_options": {"injection": "cross"}, "decoder_position": "alibi"},
            "'sinusoidal', which acts in the decoder, and that has decoder_position 'alibi'",
        ),
        ("none", {"decoder_position": "alibbi"}, "unknown position model 'alibbi'; did you mean 'alibi'"),
        (
            "none",
            {"decoder_position": "t5", "decoder_position_options": {"bucket": 4}},
            "'bucket'.*'buckets'",
        ),
        ("none", {"decoder_position_options": {"buckets": 4}}, "are given, but no decoder_position"),
        (
            "none",
            {"decoder_position": ["alibi"], "decoder_position_options": {"x": 4}},
            "give options in its entries, not in decoder_position_options",
        ),
        ("sinusoidal", {"decoder_position": "alibi", "times": {"mode": "shift"}}, "'alibi' reads no times"),
        (
            "alibi",
            {"decoder_position": "rotary", "reading": {"group": [4, 2]}},
            "'rotary' has no bias of them",
        ),
    ],
)
def test_pairs_in_which_a_setting_would_do_nothing_are_refused(position, changes, message):
    with pytest.raises((PositionError, ValueError), match=message):
        build_model(FloaterForConditionalGeneration, position, **changes)


def test_the_recipe_is_that_of_either_encoding():
    assert config("none", decoder_position="bert_a").resolved_recipe.head == "transform"
    assert config("bert_a", decoder_position="none").resolved_recipe.head == "transform"
    assert config("none", decoder_position="alibi").resolved_recipe.head == "linear"


def test_a_reading_of_one_pass_serves_both_stacks():
    model, ids = (
        build_model(FloaterForConditionalGeneration, "alibi", decoder_position="rotary"),
        tokens(2, 5),
    )
    target = {"decoder_input_ids": tokens(2, 3)}
    with pytest.raises(PositionError, match="'rotary' has no bias of them"):
        model(ids, reading={"group": [4, 2]}, **target)
    model(ids, reading={"temperature": True}, **target)


@pytest.mark.parametrize("cls", [FloaterForCausalLM, FloaterForSequenceClassification])
def test_only_encoder_decoders_have_a_decoder_of_their_own(cls):
    with pytest.raises(PositionError, match="only an encoder-decoder has a decoder"):
        build_model(cls, "none", decoder_position="alibi")
