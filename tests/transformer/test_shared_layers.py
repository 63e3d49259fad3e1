"""One block that serves all layers, and configurations that were saved with halting, which is gone."""

import json

import pytest
import torch
from transformer_cases import build_model, config, tokens
from transformers import DynamicCache

from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForTokenClassification,
)

SHARED = {"share_layers": True, "num_hidden_layers": 5, "decoder_layers": 4}
HEADS = (FloaterForCausalLM, FloaterForMaskedLM, FloaterForTokenClassification)


@pytest.mark.parametrize("cls", [*HEADS, FloaterForConditionalGeneration])
def test_one_block_serves_all_layers(cls):
    shared, separate = (
        build_model(cls, "universal", **SHARED),
        build_model(cls, "universal", **(SHARED | {"share_layers": False})),
    )
    first = {k: v for k, v in shared.state_dict().items() if ".blocks.0." in k}
    assert not any(".blocks.1." in key for key in shared.state_dict())
    copied = separate.state_dict()
    for key in copied:
        if ".blocks." in key:
            head, tail = key.split(".blocks.")
            copied[key] = first[f"{head}.blocks.0.{tail.split('.', 1)[1]}"]
        else:
            copied[key] = shared.state_dict()[key]
    separate.load_state_dict(copied)
    ids = tokens(2, 6)
    options = {"decoder_input_ids": tokens(2, 5, seed=1)} if cls is FloaterForConditionalGeneration else {}
    torch.testing.assert_close(shared(ids, **options).logits, separate(ids, **options).logits)


@torch.no_grad()
def test_decoding_with_a_cache_is_the_whole():
    model, ids = build_model(FloaterForCausalLM, "universal", seed=1, **SHARED), tokens(2, 9)
    whole, cache, parts = model(ids, use_cache=False).logits, DynamicCache(), []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        parts.append(model(ids[:, start:stop], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=2e-5)
    assert len(cache.layers) == 5


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_generates_the_same_with_and_without_a_cache(beams):
    model = build_model(FloaterForConditionalGeneration, "universal", seed=1, **SHARED)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": beams}
    assert torch.equal(
        model.generate(tokens(2, 6), **options), model.generate(tokens(2, 6), use_cache=False, **options)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"halting": 0.9}, "halting is 0.9; adaptive halting is no longer supported, only null is valid"),
        (
            {"attention": "sparse"},
            "attention is 'sparse'; it must be one of 'softmax', 'linear'",
        ),
        (
            {"attention": "linear", "attention_dropout": 0.1},
            "attention_dropout is 0.1; linear attention has no weights to drop",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config("universal", **changes)


def test_models_that_were_saved_with_the_keys_of_halting_load(tmp_path):
    model = build_model(FloaterForCausalLM, "universal", **SHARED)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"halting": None, "ponder_cost": 0.01}))
    again = FloaterForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model(tokens(1, 5)).logits, again(tokens(1, 5)).logits)
    assert not hasattr(again.config, "ponder_cost")
