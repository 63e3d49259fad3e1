"""Logits of position alone against the papers of the encodings."""

import math
from typing import Any

import pytest
import torch

from floater.encodings import AttentionContext
from floater.errors import DataError
from floater.lab.study.analyses import head_map, head_maps, panels, positional_logits, vectors
from floater.positions import Positions
from floater.transformer import (
    FloaterConfig,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterModel,
)

T = 7


def build_model(position: str, kind: Any = FloaterModel, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = FloaterConfig(**sizes | {"vocab_size": 9, "training_length": 12} | more, position=position)
    return kind(config).eval()


@pytest.mark.parametrize("position", ["tupe_a", "tupe_r", "t5", "alibi", "dufter_relative", "chen_absolute"])
def test_a_content_free_bias_is_shown_as_it_is(position: str) -> None:
    model = build_model(position)
    row = model.encoder.position
    state = row.prepare(Positions.arange(T))
    actual = positional_logits(model, T)
    for site, logits in actual.items():
        expected = row.correlation(state, int(site.removeprefix("block ")) - 1)[0]
        assert torch.allclose(logits, expected.expand_as(logits), atol=1e-6)


def test_a_bias_that_all_blocks_share_is_shown_once() -> None:
    assert list(positional_logits(build_model("tupe_a"), T)) == ["block 1"]
    assert list(positional_logits(build_model("dufter_relative"), T)) == ["block 1", "block 2"]


@pytest.mark.parametrize("norm_first", [False, True])
def test_vectors_at_the_input_meet_through_the_projections_of_the_first_block(norm_first: bool) -> None:
    model = build_model("learned", norm_first=norm_first)
    attention = model.encoder.blocks[0].attention
    for linear in (attention.query, attention.key):
        torch.nn.init.normal_(linear.bias)
    (site, logits), *more = positional_logits(model, T).items()
    assert (site, more) == ("block 1", [])
    p = vectors(model, length=T)
    if norm_first:
        p = model.encoder.blocks[0].attention_residual.norm(p)
    q, k = ((p @ linear.weight.T + linear.bias).view(T, 2, 8) for linear in (attention.query, attention.key))
    assert torch.allclose(logits, torch.einsum("thd,shd->hts", q, k) / 8**0.5, atol=1e-5)


@pytest.mark.parametrize("kind", [FloaterModel, FloaterForCausalLM])
def test_constants_of_heads_are_no_positions(kind: Any) -> None:
    """Biases of projections give each head a number of its own, the same for every key."""
    model = build_model("none", kind)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    with pytest.raises(DataError, match="no part of its attention that positions give"):
        positional_logits(model, T)


def test_a_mask_is_a_part_that_positions_give() -> None:
    (logits,) = positional_logits(build_model("window", position_options={"size": 1}), T).values()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    assert torch.equal(logits.isnan()[0], distances.abs() > 1)


def test_half_precision_is_close_to_single() -> None:
    (single,) = positional_logits(build_model("learned"), T).values()
    (half,) = positional_logits(build_model("learned").bfloat16(), T).values()
    assert torch.allclose(single, half, atol=0.05 * float(single.abs().max()))


def test_linear_attention_has_no_logits() -> None:
    with pytest.raises(DataError, match="linear attention"):
        positional_logits(build_model("learned", attention="linear"), T)


def test_flows_meet_in_every_block() -> None:
    model = build_model("floater")
    row = model.encoder.position
    state = row.prepare(Positions.arange(T))
    logits = positional_logits(model, T)["block 2"]
    q, k = (
        row.projection_bias(name, AttentionContext(state, 1))[0].view(T, 2, 8) for name in ("query", "key")
    )
    assert torch.allclose(logits, torch.einsum("thd,shd->hts", q, k) / 8**0.5, atol=1e-6)


def test_a_causal_model_has_nothing_of_what_comes_later() -> None:
    logits = positional_logits(build_model("alibi", FloaterForCausalLM), T)["block 1"]
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert torch.equal(logits.isnan(), later.expand(2, T, T))
    slopes = logits[:, 1, 1] - logits[:, 1, 0]
    assert torch.allclose(logits[:, T - 1, 0], -(T - 1) * slopes)


def test_an_encoder_decoder_has_both_stacks() -> None:
    actual = positional_logits(build_model("t5", FloaterForConditionalGeneration, decoder_layers=1), T)
    assert list(actual) == ["encoder block 1", "decoder block 1"]


@pytest.mark.parametrize("position", ["none", "rotary", "shaw", "huang1"])
def test_positions_that_act_through_words_alone_have_none(position: str) -> None:
    with pytest.raises(DataError, match="has no part of its attention that positions give without words"):
        positional_logits(build_model(position), T)


@pytest.mark.parametrize("position", ["tupe_r", "floater"])
def test_one_position_cannot_tell(position: str) -> None:
    with pytest.raises(DataError, match="length is 1; there must be at least 2 positions"):
        positional_logits(build_model(position), 1)


@pytest.mark.parametrize("temperature", ["log", "learned"])
def test_logits_have_the_temperature_that_the_model_gives_them(temperature: str) -> None:
    """A causal query that sees n keys has max(1, log n / log L) or s_h log n times the logits without it."""
    model = build_model("alibi", FloaterForCausalLM, attention_temperature=temperature, training_length=3)
    plain = positional_logits(build_model("alibi", FloaterForCausalLM, training_length=3), T)["block 1"]
    logs = torch.arange(1, T + 1).log()[:, None]
    factor = (logs / math.log(3)).clamp(min=1)
    if temperature == "learned":
        scales = model.model.encoder.blocks[0].attention.temperature
        torch.nn.init.normal_(scales)
        factor = scales.detach()[:, None, None] * logs
    logits = positional_logits(model, T)["block 1"]
    torch.testing.assert_close(logits, plain * factor, equal_nan=True)


def test_logits_have_the_temperature_of_the_models_reading() -> None:
    plain = positional_logits(build_model("alibi", FloaterForCausalLM, training_length=3), T)["block 1"]
    model = build_model("alibi", FloaterForCausalLM, training_length=3, reading={"temperature": True})
    factor = (torch.arange(1, T + 1).log() / math.log(3)).clamp(min=1)[:, None]
    torch.testing.assert_close(positional_logits(model, T)["block 1"], plain * factor, equal_nan=True)


@pytest.mark.parametrize(("heads", "lowest"), [(3, [1, 2]), (8, [5, 6, 7]), (4, [2, 3])])
def test_the_lowest_head_of_each_column_names_its_keys(heads: int, lowest: list[int]) -> None:
    figure, axes = panels(heads)
    head_maps(figure, axes, torch.eye(3).expand(heads, 3, 3))
    assert [i for i, at in enumerate(axes) if at.get_xlabel() == "key"] == lowest
    ticks = [any(tick.label1.get_visible() for tick in at.xaxis.get_major_ticks()) for at in axes]
    assert [i for i, shown in enumerate(ticks) if shown] == lowest


def test_heads_share_their_colours() -> None:
    figure, axes = panels(3)
    logits = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 1] = torch.nan
    head_maps(figure, axes, logits)
    limit = float(logits.nan_to_num().abs().max())
    assert {at.images[0].get_clim() for at in axes} == {(-limit, limit)}
    assert [at.get_title() for at in axes] == ["head 1", "head 2", "head 3"]
    assert axes[0].images[0].get_array().mask.sum() == 1
    head_map(axes[1], logits[1])
