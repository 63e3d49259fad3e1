"""Position vectors against what is known of each model, and their pictures."""

import math

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    M2M100Config,
    M2M100Model,
    MarianConfig,
    MarianModel,
    OPTConfig,
    OPTModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RoFormerConfig,
    RoFormerModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import floater
from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.study.analyses import (
    all_vectors,
    draw,
    heat_map,
    panels,
    similarity,
    similarity_map,
    smoothness,
    vectors,
)
from floater.lab.study.analyses.vectors import similar_order
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration, FloaterModel

SMALL = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}


def build_model(position: str, length: int = 20, **options: object) -> FloaterModel:
    torch.manual_seed(0)
    config = FloaterConfig(
        **SMALL, vocab_size=9, position=position, position_options=options, training_length=length
    )
    return FloaterModel(config).eval()


def test_sinusoids_are_those_of_the_formula() -> None:
    """Vaswani et al. 2017, section 3.5; both halves of the frequencies are there, in any order."""
    actual = vectors(build_model("sinusoidal"), length=30)
    angles = torch.arange(30.0)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
    expected = torch.cat([angles.sin(), angles.cos()], 1)
    assert torch.allclose(actual.sort(1).values, expected.sort(1).values, atol=1e-5)


def test_a_table_is_given_as_it_is() -> None:
    model = build_model("learned")
    (table,) = (part for name, part in model.named_parameters() if "position" in name)
    assert torch.equal(vectors(model), table.detach())
    with pytest.raises(PositionError, match="ends at position 19; position 20 was requested"):
        vectors(model, length=21)


def test_flows_are_found_at_every_block_and_learned_ones_come_first() -> None:
    model = build_model("floater")
    actual = all_vectors(model, 12)
    qkv = [f"block {block} {name}" for block in (1, 2) for name in ("query", "key", "value")]
    assert list(actual) == [*qkv, "input"]
    (flow,) = (module for module in model.modules() if type(module).__name__ == "FlowEncoder")
    for block in (0, 1):
        for i, name in enumerate(("query", "key", "value")):
            assert torch.equal(actual[f"block {block + 1} {name}"][0], flow.start[block, i].detach())
    assert torch.equal(actual["input"], vectors(build_model("sinusoidal"), length=12))
    added = all_vectors(build_model("floater", injection="add"), 12)
    assert list(added) == ["input", "block 2"]


def test_an_encoder_decoder_names_its_stacks() -> None:
    config = FloaterConfig(**SMALL, decoder_layers=1, vocab_size=9, position="floater")
    sites = list(all_vectors(FloaterForConditionalGeneration(config).eval(), 5))
    assert sites[:3] == ["encoder block 1 query", "encoder block 1 key", "encoder block 1 value"]
    assert "decoder block 1 cross_query" in sites
    assert [site for site in sites if site.startswith("cross")] == [
        "cross block 1 key",
        "cross block 1 value",
    ]
    assert sites[-2:] == ["encoder input", "decoder input"]


@pytest.mark.parametrize("position", ["none", "rotary", "t5", "alibi", "shaw", "transformer_xl", "huang1"])
def test_models_that_add_no_vectors_have_none(position: str) -> None:
    model = build_model(position)
    assert all_vectors(model, 8) == {}
    with pytest.raises(DataError, match="FloaterModel adds no vectors of positions"):
        vectors(model)


def test_what_depends_on_the_token_is_no_vector_of_a_position() -> None:
    """rnn draws its vectors from positions alone; rnn_transformer reads the tokens."""
    assert "input" in all_vectors(build_model("rnn"), 8)
    assert all_vectors(build_model("rnn_transformer"), 8) == {}


def test_a_place_that_is_not_there_is_told_from_those_that_are() -> None:
    with pytest.raises(DataError, match="no vectors at 'block 2'; it has them at: input"):
        vectors(build_model("learned"), "block 2")


def hugging_face(kind: str) -> tuple[PreTrainedModel, str, int]:
    """A model of another library, where its table is, and the row of position 0, as documented there."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "max_position_embeddings": 24}
    bart = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    if kind == "bert":
        return BertModel(BertConfig(**SMALL, **sizes)), "embeddings.position_embeddings", 0
    if kind == "roberta":
        masked = RobertaForMaskedLM(RobertaConfig(**SMALL, **sizes, pad_token_id=1))
        return masked, "roberta.embeddings.position_embeddings", 2
    if kind == "gpt2":
        return GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=11, n_positions=24)), "wpe", 0
    if kind == "opt":
        config = OPTConfig(
            hidden_size=16,
            ffn_dim=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            word_embed_proj_dim=16,
            **sizes,
        )
        return OPTModel(config), "decoder.embed_positions", 2
    if kind == "bart":
        return BartModel(BartConfig(**bart, **heads, **sizes)), "encoder.embed_positions", 2
    return (
        MarianModel(MarianConfig(**bart, **heads, **sizes, pad_token_id=10, decoder_start_token_id=10)),
        "encoder.embed_positions",
        0,
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "opt", "bart", "marian"])
def test_tables_of_hugging_face_begin_at_position_0(kind: str) -> None:
    model, site, first = hugging_face(kind)
    table = model.eval().get_submodule(site)
    assert isinstance(table, nn.Embedding)
    actual = all_vectors(model)
    assert torch.equal(actual[site], table.weight[first:].detach())
    assert vectors(model, length=5).shape == (5, 16)
    assert (list(actual) == [site]) == (not model.config.is_encoder_decoder)


def test_vectors_that_a_module_computes_are_those_that_it_gives() -> None:
    """M2M100 and NLLB have no table; position 0 comes after the padding token's number."""
    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = M2M100Model(M2M100Config(d_model=16, vocab_size=11, max_position_embeddings=24, **sizes, **heads))
    actual = all_vectors(model, 9)
    assert list(actual) == ["encoder.embed_positions", "decoder.embed_positions"]
    angles = torch.arange(2.0, 11.0)[:, None] * torch.exp(-torch.arange(8) * math.log(10000) / 7)
    expected = torch.cat([angles.sin(), angles.cos()], 1)
    for rows in actual.values():
        assert torch.allclose(rows, expected, atol=1e-5)
    assert len(vectors(model)) == 24


@pytest.mark.parametrize("heads", [1, 2])
def test_angles_of_rotations_are_no_vectors(heads: int) -> None:
    sizes = SMALL | {"num_attention_heads": heads}
    model = RoFormerModel(RoFormerConfig(**sizes, vocab_size=11, max_position_embeddings=24))
    with pytest.raises(DataError, match="adds no vectors"):
        vectors(model)


def test_of_a_long_table_the_first_512_are_shown_unless_more_are_asked_for() -> None:
    model = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=11, n_positions=600))
    assert len(vectors(model)) == 512
    assert len(vectors(model, length=590)) == 590
    assert len(vectors(model, length=700)) == 600


@pytest.mark.parametrize("baked", [False, True])
def test_the_flow_of_a_plugged_model_comes_before_the_table_of_its_host(baked: bool) -> None:
    torch.manual_seed(0)
    model = RobertaForMaskedLM(RobertaConfig(**SMALL, vocab_size=11, max_position_embeddings=24)).eval()
    floater.plug(model, start="small")
    flows = model.floater.encoders["tokens"]["16"]
    expected = flows(torch.arange(6)[None]).at(1, "key")[0].detach()
    if baked:
        floater.bake(model, 7)
    actual = all_vectors(model)
    assert list(actual) == [
        *(f"block {block} {name}" for block in (1, 2) for name in ("query", "key", "value")),
        "roberta.embeddings.position_embeddings",
    ]
    assert torch.allclose(actual["block 2 key"][:6], expected, atol=1e-5)
    assert len(actual["block 2 key"]) == (7 if baked else 24)


def test_a_plugged_model_without_a_table_shows_its_flow() -> None:
    torch.manual_seed(0)
    config = T5Config(d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2, vocab_size=11)
    model = T5ForConditionalGeneration(config).eval()
    floater.plug(model, start="small")
    sites = list(all_vectors(model, 5))
    assert (sites[0], len(sites)) == ("encoder block 1 query", 9)
    image = ViTModel(ViTConfig(**SMALL, image_size=8, patch_size=4)).eval()
    floater.plug(image, start="small")
    assert list(all_vectors(image, 5))[:2] == ["block 1 query", "block 1 key"]


def test_a_flow_that_was_not_trained_yet_is_no_vector() -> None:
    """It begins at zero everywhere."""
    model = BertModel(BertConfig(**SMALL, vocab_size=11, max_position_embeddings=24)).eval()
    floater.plug(model)
    assert list(all_vectors(model, 5)) == ["embeddings.position_embeddings"]


def test_one_position_tells_nothing() -> None:
    for position in ("learned", "floater", "t5"):
        with pytest.raises(DataError, match="length is 1; there must be at least 2 positions"):
            vectors(build_model(position), length=1)


def test_hugging_face_models_without_a_table_have_no_vectors() -> None:
    model = T5EncoderModel(T5Config(d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2, vocab_size=11))
    with pytest.raises(DataError, match="adds no vectors"):
        vectors(model.eval())


def test_similarity_is_the_cosine() -> None:
    data = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.cosine_similarity(data[:, None], data[None], dim=-1)
    assert torch.allclose(similarity(data), expected, atol=1e-6)
    # sums of cosines of differences of positions: nothing but the distance counts
    waves = similarity(vectors(build_model("sinusoidal"), length=40))
    for gap in (1, 5, 20):
        assert torch.allclose(waves.diagonal(gap), waves[0, gap].expand(40 - gap), atol=1e-5)
    data[3] = 0
    assert similarity(data).isnan().sum() == 13


def test_a_circle_is_smooth_and_drawn_vectors_are_not() -> None:
    angles = torch.arange(200) * 2 * math.pi / 200
    circle = 3 * torch.stack([angles.cos(), angles.sin()], 1)
    actual = smoothness(circle)
    assert torch.allclose(actual.norm, torch.tensor(3.0))
    chord = 2 * 3 * math.sin(math.pi / 200)
    assert torch.allclose(actual.step, torch.tensor(chord), rtol=1e-4)
    drawn = smoothness(torch.randn(500, 256, generator=torch.Generator().manual_seed(0)))
    # independent directions: the mean square step is twice the mean square norm, within 1 %
    assert drawn.roughness == pytest.approx(1, abs=0.01)
    assert actual.roughness < 0.05


def test_pictures_show_the_numbers_the_right_way_round() -> None:
    _, (left, right) = panels(2)
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    heat_map(left, data, title="a")
    (image,) = left.images
    assert torch.allclose(torch.as_tensor(image.get_array().filled()), data.T)
    low, high = image.get_clim()
    assert low == -high
    similarity_map(right, similarity(data), title="b")
    assert right.images[0].get_clim() == (-1, 1)
    assert (left.get_xlabel(), left.get_ylabel()) == ("position", "dimension")
    lightness = image.cmap(range(256))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (lightness[1:] >= lightness[:-1]).all()  # it can be read in grey
    heat_map(left, torch.zeros(3, 3), title="nothing")  # no limits from zeros alone


@pytest.mark.parametrize("count", [2, 11, 12, 16, 64])
def test_positions_of_a_similarity_are_whole(count: int) -> None:
    _, (axes,) = panels(1, width=5.6, height=4.8)
    similarity_map(axes, similarity(torch.eye(count)))
    for ticks in (axes.get_xticks(), axes.get_yticks()):
        assert [tick for tick in ticks if tick != round(tick)] == []


def test_permuted_dimensions_are_next_to_similar_ones() -> None:
    """Liu et al. 2020, Figure 3b to 3d: curves that differ in their level alone are sorted by it."""
    curve, levels = torch.linspace(0, 3, 20).sin(), torch.arange(12.0)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    order = similar_order(curve[:, None] + levels[shuffled])
    assert shuffled[order].tolist() in (list(range(12)), list(range(12))[::-1])


def test_the_permuted_figure_shows_all_dimensions_and_says_that_they_are_permuted() -> None:
    torch.manual_seed(0)
    model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="learned", training_length=12))
    plain, permuted = (draw(model, kind) for kind in ("vectors", "permuted_vectors"))
    order = permuted.numbers["order"]
    assert order.sort().values.tolist() == list(range(len(order)))
    assert torch.equal(permuted.numbers["vectors"], plain.numbers["vectors"])
    (image,) = permuted.figure.axes[0].images
    assert torch.equal(torch.as_tensor(image.get_array().filled()), plain.numbers["vectors"][:, order].T)
    assert "dimensions permuted" in permuted.text
    assert "permuted" not in plain.text


def test_dimensions_of_sinusoids_are_not_permuted() -> None:
    """Liu et al. 2020, Figure 3a."""
    model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="sinusoidal"))
    plain, permuted = (draw(model, kind) for kind in ("vectors", "permuted_vectors"))
    images = [plot.figure.axes[0].images[0].get_array() for plot in (plain, permuted)]
    assert (images[0] == images[1]).all()
    assert "in their order" in permuted.text
