"""Logits where every token is the same word, of a model and not of its encoding alone."""

import pytest
import torch

from floater import catalogue
from floater.errors import DataError
from floater.lab.study.analyses import draw, kinds, same_word_logits
from floater.transformer import (
    FloaterConfig,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterModel,
)

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
SIZES |= {"decoder_layers": 2, "vocab_size": 40, "training_length": 16}
STRUCTURES = sorted(name for name, kind in catalogue().items() if hasattr(kind, "needs"))
FIELDS = [*STRUCTURES, "language_specific", "xl", "xl_heads", "ldpe", "lrpe", "noisy_length"]
"""Encodings that read more than the number of a token."""


def config(position: str, **changes: object) -> FloaterConfig:
    torch.manual_seed(0)
    return FloaterConfig(**SIZES, position=position, **changes)


def test_a_bias_of_distance_is_what_is_left_of_equal_words() -> None:
    actual = same_word_logits(FloaterModel(config("alibi")), 9)
    at = torch.arange(9.0)
    slopes = torch.tensor([2.0**-4, 2.0**-8])
    bias = -slopes[:, None, None] * (at[:, None] - at).abs()
    assert list(actual) == ["block 1", "block 2"]
    for logits in actual.values():
        torch.testing.assert_close(logits, bias - bias.mean(-1, keepdim=True), atol=1e-5, rtol=1e-4)


def test_without_positions_nothing_is_left_and_masked_keys_are_unknown() -> None:
    (logits, _) = same_word_logits(FloaterForCausalLM(config("none")), 5).values()
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.equal(logits.isnan(), later.expand(2, 5, 5))
    assert float(logits.nan_to_num().abs().max()) < 1e-5


def test_a_rotation_of_equal_words_depends_on_the_distance() -> None:
    """Up to the mean of each query, which distances to all keys determine."""
    logits = same_word_logits(FloaterModel(config("rotary")), 8)["block 1"]
    steps = logits.diff(dim=-1)  # the mean cancels
    for offset in range(-6, 7):
        diagonal = steps.diagonal(offset, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal), atol=1e-5, rtol=1e-3)
    assert float(steps.abs().max()) > 1e-3


@pytest.mark.parametrize("position", FIELDS)
def test_encodings_of_other_fields_are_drawn(position: str) -> None:
    model = FloaterForCausalLM(config(position))
    before = torch.get_rng_state()
    (first, _) = same_word_logits(model, 8, words=1).values()
    assert bool((first.isfinite() | first.isnan()).all())
    assert torch.equal(torch.get_rng_state(), before)
    assert model.config._attn_implementation != "eager"
    assert "same_word" in kinds(model)


def test_a_target_length_shows_in_the_decoder() -> None:
    model = FloaterForConditionalGeneration(config("ldpe", is_encoder_decoder=True))
    actual = same_word_logits(model, 6)
    stacks = [(stack, f"block {i}") for stack in ("encoder", "decoder", "cross") for i in (1, 2)]
    assert list(actual) == [" ".join(each) for each in stacks]
    assert float(actual["decoder block 1"].nan_to_num().abs().max()) > 1e-3
    plot = draw(model, "same_word")
    assert "2 heads x 16 positions at encoder block 1" in plot.text


def test_linear_attention_has_none() -> None:
    with pytest.raises(DataError, match="FloaterModel has linear attention: it has no logits"):
        same_word_logits(FloaterModel(config("rotary", attention="linear")))
