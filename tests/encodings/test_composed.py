"""Compositions against the parts they are made of."""

import pytest
import torch
from torch import nn

from floater import PositionError, Positions, build, catalogue
from floater.encodings import AttentionContext
from floater.encodings.measure import attend
from floater.transformer import RECIPES, FloaterConfig, FloaterForCausalLM
from floater.transformer.reading import Reading, check_reading

SIZES = {"dim": 8, "heads": 2, "layers": 4, "max_length": 16}


def composed(name, **options):
    torch.manual_seed(0)
    return build(name, **SIZES, **options).double()


def attended(model, x, positions, layer=0):
    state = model.prepared(positions)
    return attend(model, state, layer, model.embed(x, state))


def test_biases_are_added_and_embeddings_chained():
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model = composed("compose", models=["alibi", {"name": "dufter_relative"}, "sinusoidal"])
    alibi, table, sinusoid = model.parts
    nn.init.normal_(table.table)
    embedded = sinusoid.embed(x, sinusoid.prepare(positions))
    plain = attended(composed("none"), embedded, positions)
    added = alibi.correlation(alibi.prepare(positions), 0) + table.correlation(table.prepare(positions), 0)
    torch.testing.assert_close(attended(model, x, positions).logits, plain.logits + added)


@pytest.mark.parametrize(
    "name", [name for name, kind in catalogue().items() if "logits" in vars(kind) and name != "compose"]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_bias_is_added_to_logits_that_another_part_computes(name, first):
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model = composed("compose", models=[name, "alibi"] if first else ["alibi", name])
    part, alibi = (model.parts[index] for index in ((0, 1) if first else (1, 0)))
    alone = attended(part, x, positions).logits
    bias = alibi.correlation(alibi.prepare(positions), 0)
    torch.testing.assert_close(attended(model, x, positions).logits, alone + bias)


def both_orders(one, other, x, positions):
    """Return the logits of a composition and of its reverse with the same parameters."""
    model, reverse = composed("compose", models=[one, other]), composed("compose", models=[other, one])
    for part, same in zip(model.parts, reversed(reverse.parts), strict=True):
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.7)
        same.load_state_dict(part.state_dict())
    return model, [attended(each, x, positions).logits for each in (model, reverse)]


@pytest.mark.parametrize(
    "name",
    [
        *("xpos", "rotary", "fope", "liere", "pope", "self_extend", "shaw", "cope", "huang3"),
        *("transformer_xl", "shortformer"),
    ],
)
def test_a_gate_beside_queries_and_keys_is_added_in_any_order(name):
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model, actual = both_orders("forgetting", name, x, positions)
    gates, alone = (attended(part, x, positions).logits for part in model.parts)
    expected = alone + gates - attended(composed("none"), x, positions).logits
    for logits in actual:
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize(
    ("name", "other"), [("rotary", "path"), ("xpos", "self_extend"), ("rotary", "tener")]
)
def test_keys_are_replaced_before_a_rotation_and_widened_after_it(name, other):
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model, actual = both_orders(name, other, x, positions)
    torch.testing.assert_close(*actual)
    for part in model.parts:
        assert not torch.allclose(actual[0], attended(part, x, positions).logits, atol=1e-3)


def test_a_part_that_replaces_keys_does_so_inside_a_composition_too():
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    inner = {"name": "compose", "models": ["tener", "none"]}
    flat, nested = (composed("compose", models=["rotary", part]) for part in ("tener", inner))
    nested.parts[1].parts[0].load_state_dict(flat.parts[1].state_dict())
    torch.testing.assert_close(*(attended(model, x, positions).logits for model in (flat, nested)))


@pytest.mark.parametrize("anew", ["path", "self_extend"])
def test_factors_of_logits_that_another_part_computes_anew_are_not_lost(anew):
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model, actual = both_orders("huang2", anew, x, positions)
    factors, part = model.parts
    expected = attended(part, x, positions).logits
    expected = factors.logits(expected, None, None, AttentionContext(factors.prepare(positions), 0))
    for logits in actual:
        torch.testing.assert_close(logits, expected)


def test_a_single_part_is_that_encoding():
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    for name in ("rotary", "shaw", "transformer_xl", "huang4", "disan"):
        one, two = composed("compose", models=[name]), composed(name)
        two.load_state_dict({key.removeprefix("parts.0."): value for key, value in one.state_dict().items()})
        for layer in range(4):
            for a, b in zip(
                attended(one, x, positions, layer), attended(two, x, positions, layer), strict=True
            ):
                assert torch.equal(a, b)


def test_queries_start_as_small_as_the_scale_of_a_part_needs():
    t5 = composed("t5")
    for model in (composed("compose", models=["t5", "sinusoidal"]), composed("mix", other="t5")):
        assert model.scale(4) == t5.scale(4) == 1.0
        assert model.query_gain(4) == t5.query_gain(4) == 0.5
    assert composed("compose", models=["alibi", "sinusoidal"]).query_gain(4) == 1.0


def test_distances_are_read_only_if_a_part_reads_them():
    for models, reads in (
        (["cope", "sinusoidal"], False),
        (["floater_tree"], False),
        (["cope", "alibi"], True),
    ):
        model = composed("compose", models=models)
        assert model.reads_distances == reads
        assert model.derives_positions != reads


def nested(*models):
    return composed("compose", models=[{"name": "mix", "model": {"name": "compose", "models": list(models)}}])


def test_facts_of_nested_parts_are_those_of_the_whole():
    assert not nested("cope").reads_distances
    assert nested("alibi").reads_distances
    assert nested("floater_tree").needs == "tree"
    assert not nested("floater_tree", "sinusoidal").caches
    assert nested({"name": "cape", "normalize": False}).caches
    assert nested("learned").max_positions == 16
    assert nested("rotary", "bipe").card.exceptions.keys() >= {"cache", "shift"}
    with pytest.raises(PositionError, match=r"reading\.group changes distances, but 'compose' has no bias"):
        check_reading(
            Reading(group=(2, 2)),
            nested("cope"),
            FloaterConfig(position=[{"name": "compose", "models": ["cope"]}]),
        )
    config = FloaterConfig(position=["alibi", {"name": "compose", "models": ["bert_a"]}])
    assert config.resolved_recipe == RECIPES["bert"]


def test_an_encoding_that_changes_a_bias_has_the_facts_of_that_bias():
    for name in ("dape", "untied_cls"):
        tree = composed(name, model="floater_tree")
        assert tree.needs == "tree"
        assert not tree.caches
        assert not tree.reads_distances
    assert composed("dape", model="dufter_absolute").reads_times


def test_a_saved_model_names_every_option_of_the_parts_of_a_mixture():
    config = FloaterConfig(
        position="mix", position_options={"model": {"name": "compose", "models": ["shaw"]}}
    )
    written = config.to_diff_dict()["position_options"]
    assert written["model"]["models"] == [{"name": "shaw", "clip": 16, "values": True, "vectors": "learned"}]
    assert written["other"] == {"name": "none"}


def test_a_term_of_content_beside_a_rotation_is_that_without_it():
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    for name in ("transformer_xl", "chang", "huang3", "huang4", "path", "cope"):
        model = composed("compose", models=["rotary", name])
        for parameter in model.parts[1].parameters():
            nn.init.normal_(parameter, std=0.7)
        rotary, alone = (attended(part, x, positions).logits for part in model.parts)
        term = alone - attended(composed("none"), x, positions).logits
        torch.testing.assert_close(attended(model, x, positions).logits, rotary + term)


@pytest.mark.parametrize("models", [["rotary", "shaw"], ["rotary", "transformer_xl"], ["xpos", "deberta"]])
def test_tiles_of_a_rotation_beside_content_compute_what_the_plain_path_does(models):
    torch.manual_seed(0)
    config = FloaterConfig.preset("tiny", vocab_size=11, training_length=300, position=models)
    model = FloaterForCausalLM(config).double().eval()
    ids = torch.randint(11, (1, 260))  # tiles from 256 queries on
    with torch.no_grad():
        tiled = model(ids).logits
        model.set_attn_implementation("eager")
        torch.testing.assert_close(tiled, model(ids).logits)


def test_a_part_that_does_not_act_at_a_site_does_not_prevent_a_cache_there():
    models = ["floater_tree", "sinusoidal"]
    assert not composed("compose", models=models).caches
    decoder = composed("compose", site="decoder", models=models)
    assert decoder.caches
    assert decoder.card.point == "absolute"


@pytest.mark.parametrize("part", ["chen_absolute", "shaw", "transformer_xl"])
def test_terms_serve_only_where_the_whole_has_the_scale_of_the_part(part):
    q, k = torch.randn(2, 1, 2, 6, 4, dtype=torch.double)
    for model, serves in (
        (composed("compose", models=[part, "sinusoidal"]), True),
        (composed("mix", model=part, other="t5"), False),
        (composed("mix", model="alibi", other="t5"), True),  # a bias alone has no scale
    ):
        state = model.prepare(Positions.arange(6))
        assert (model.attention_terms(q, k, AttentionContext(state, 0)) is not None) == serves


def test_a_long_text_has_the_scale_of_a_short_one():
    options = {"model": "chen_absolute", "other": "t5"}
    config = FloaterConfig.preset(
        "tiny", vocab_size=11, training_length=300, position="mix", position_options=options
    )
    torch.manual_seed(0)
    model = FloaterForCausalLM(config).eval()
    ids = torch.randint(11, (1, 300))  # tiles from 256 queries on
    with torch.no_grad():
        long, short = model(input_ids=ids).logits, model(input_ids=ids[:, :200]).logits
    torch.testing.assert_close(long[:, :200], short, rtol=1e-4, atol=1e-4)


def test_masks_are_intersected():
    model = composed("compose", models=[{"name": "window", "size": 3}, "disan"])
    positions = Positions.arange(6)
    masks = [part.mask(AttentionContext(part.prepare(positions), 0)) for part in model.parts]
    assert all(mask is not None for mask in masks)
    assert torch.equal(model.mask(AttentionContext(model.prepare(positions), 0)), masks[0] & masks[1])


def test_each_part_is_prepared_at_what_it_reads():
    at = torch.tensor([[0.0, 2.5, 5.0]])
    plain = Positions.arange(3)
    timed = Positions(plain.query, plain.key, query_time=at, key_time=at)
    model = composed("compose", models=["alibi", "sinusoidal"])
    distances, sinusoid = model.prepared(timed).models
    assert torch.equal(distances.matrix, model.parts[0].prepare(plain).matrix)
    assert torch.equal(sinusoid, model.parts[1].prepare(Positions.times(at)))


def test_every_fourth_block_has_the_other_encoding():
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    model = composed("mix")
    for layer in range(4):
        other = composed("none" if layer == 3 else "rotary")
        assert torch.equal(
            attended(model, x, positions, layer).logits, attended(other, x, positions, layer).logits
        )


def test_a_list_of_a_configuration_is_a_composition(tmp_path):
    config = FloaterConfig.preset("tiny", vocab_size=11, position=["alibi", {"name": "sinusoidal"}])
    assert config.position == "compose"
    assert config.position_options == {"models": ["alibi", {"name": "sinusoidal"}]}
    model = FloaterForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    again = FloaterForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    with pytest.raises(ValueError, match="position is a list; give options in its entries"):
        FloaterConfig(position=["alibi"], position_options={"a": 1})


def test_a_bound_of_a_part_bounds_the_whole():
    assert composed("compose", models=["alibi", "learned"]).max_positions == 16
    assert composed("compose", models=["alibi", "rotary"]).max_positions is None


@pytest.mark.parametrize(
    ("models", "commute"),
    [
        (["rotary", "xpos"], True),
        (["rotary", {"name": "rotary", "partial": 0.5}], True),
        (["rotary", {"name": "floater_rotary", "pairs": "half"}], False),
        ([{"name": "rotary", "pairs": "half"}, {"name": "rotary", "pairs": "half", "partial": 0.5}], False),
        (["liere", "rotary"], False),
    ],
    ids=str,
)
def test_rotations_are_relative_together_in_the_same_planes_only(models, commute):
    model = composed("compose", models=models)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    x, positions = torch.randn(2, 5, 8, dtype=torch.double), Positions.arange(5)
    shifted = positions.but(query=positions.query + 7, key=positions.key + 7)
    here, there = (attended(model, x, at).logits for at in (positions, shifted))
    assert torch.allclose(here, there, atol=1e-5) == commute
    assert ("shift" not in model.card.exceptions) == commute
