"""Decoding with a cache gives what decoding without one gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floater

from . import zoo

_STEPS = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


def prompt(name: str) -> dict[str, torch.Tensor]:
    """Rows of unequal lengths; padded on the left where they are to be continued."""
    arguments = zoo.inputs(name)
    arguments.pop("decoder_input_ids", None)
    if name in zoo.DECODERS:
        mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4, [0] * 5 + [1] * 2])
        arguments = {"input_ids": zoo.text().masked_fill(mask == 0, zoo.PADDING), "attention_mask": mask}
    return arguments


@pytest.mark.parametrize("name", zoo.DECODERS + zoo.SEQ2SEQ)
def test_cache_changes_nothing(name: str) -> None:
    model: Any = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    options = prompt(name)
    for baked in (False, True):
        if baked:
            floater.bake(model, 16)
        expected = model.generate(**options, **_STEPS, use_cache=False)
        assert torch.equal(model.generate(**options, **_STEPS), expected)
        static = model.generate(**options, **_STEPS, cache_implementation="static", disable_compile=True)
        assert torch.equal(static, expected)
    beams = {**_STEPS, "num_beams": 2}
    expected = model.generate(**options, **beams, use_cache=False)
    assert torch.equal(model.generate(**options, **beams), expected)


@pytest.mark.parametrize("name", zoo.DECODERS)
def test_logits_step_by_step(name: str) -> None:
    """Without position_ids, from the mask alone: padding on the left, one and several tokens a step."""
    model: Any = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    inputs = prompt(name)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        # the model's own position ids too, where it has them: index among the unpadded, as generate does
        extra = {} if name == "bert-decoder" else {"position_ids": positions}
        whole = model(input_ids=ids, attention_mask=mask, **extra).logits
        cache, steps = None, []
        for begin, end in ((0, 3), (3, 4), (4, 7)):
            out = model(
                input_ids=ids[:, begin:end],
                attention_mask=mask[:, :end],
                past_key_values=cache,
                use_cache=True,
                **{key: value[:, begin:end] for key, value in extra.items()},
            )
            cache = out.past_key_values
            steps.append(out.logits)
    valid = mask.bool()
    # float32, products of other shapes
    torch.testing.assert_close(torch.cat(steps, 1)[valid], whole[valid], atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "mistral"])
def test_padding_on_the_left_changes_nothing(name: str) -> None:
    model: Any = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    short = zoo.text(1, 4)
    ids = torch.cat((torch.full((1, 3), zoo.PADDING), short), 1)
    mask = (torch.arange(7) >= 3).long()[None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = zoo.output(model, input_ids=ids, attention_mask=mask, position_ids=positions)
    alone = zoo.output(model, input_ids=short, position_ids=positions[:, 3:])
    torch.testing.assert_close(padded[:, 3:], alone, atol=5e-6, rtol=1e-5)
