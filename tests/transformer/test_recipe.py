"""Initialisation by recipe: the scale of Hugging Face's weights, and recipes that are refused."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from transformer_cases import like_bert, registered

from floater.encodings import AttentionContext, PositionError, catalogue
from floater.encodings.attention import project
from floater.transformer import (
    RECIPES,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)

DIM, HEADS, LAYERS, INNER, VOCABULARY, LENGTH = 96, 4, 3, 160, 120, 50
BERT_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": LENGTH,
}
BLOCK = {
    "attention.query.weight": ("attention.self.query.weight", "layer.0.SelfAttention.q.weight"),
    "attention.key.weight": ("attention.self.key.weight", "layer.0.SelfAttention.k.weight"),
    "attention.value.weight": ("attention.self.value.weight", "layer.0.SelfAttention.v.weight"),
    "attention.output.weight": ("attention.output.dense.weight", "layer.0.SelfAttention.o.weight"),
    "feed_forward.inner.weight": ("intermediate.dense.weight", "layer.1.DenseReluDense.wi.weight"),
    "feed_forward.outer.weight": ("output.dense.weight", "layer.1.DenseReluDense.wo.weight"),
}


ours = partial(like_bert, BERT_SIZES)


def as_large(ours, theirs, pairs):
    """Compare the root mean squares of weights, by name."""
    for a, b in pairs:
        actual, wanted = (
            float(model.get_parameter(name).detach().square().mean().sqrt())
            for model, name in ((ours, a), (theirs, b))
        )
        assert actual == pytest.approx(wanted, rel=0.07), a


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_bert_starts_as_bert():
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**BERT_SIZES))
    mine = FloaterForMaskedLM(ours("bert_a"))
    names = [
        ("model.embedding.weight", "bert.embeddings.word_embeddings.weight"),
        ("model.encoder.position.tables.0.weight", "bert.embeddings.position_embeddings.weight"),
        ("transform.linear.weight", "cls.predictions.transform.dense.weight"),
        ("model.encoder.embedding_norm.weight", "bert.embeddings.LayerNorm.weight"),
    ]
    for layer in range(LAYERS):
        start = f"model.encoder.blocks.{layer}.", f"bert.encoder.layer.{layer}."
        names += [(start[0] + a, start[1] + b) for a, (b, _) in BLOCK.items()]
    as_large(mine, theirs, names)
    counts = [sum(p.numel() for p in model.parameters()) for model in (mine, theirs)]
    assert counts[1] - counts[0] == 2 * DIM  # two segments


def test_t5_starts_as_t5():
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=DIM,
            d_kv=DIM // HEADS,
            d_ff=INNER,
            num_heads=HEADS,
            num_layers=LAYERS,
        )
    )
    mine = FloaterForConditionalGeneration(ours("t5", recipe="t5", norm_first=True))
    names = [("embedding.weight", "shared.weight")]
    for layer in range(LAYERS):
        for stack in ("encoder", "decoder"):
            start = f"{stack}.blocks.{layer}.", f"{stack}.block.{layer}."
            block = {
                a: b.replace("layer.1", "layer.2") if stack == "decoder" else b for a, (_, b) in BLOCK.items()
            }
            names += [(start[0] + a, start[1] + b) for a, b in block.items()]
        for a, b in zip(("query", "key", "value", "output"), "qkvo", strict=True):
            names.append(
                (start[0] + f"cross_attention.{a}.weight", start[1] + f"layer.1.EncDecAttention.{b}.weight")
            )
    as_large(mine, theirs, names)
    assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_gpt_starts_as_gpt2():
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=DIM, n_inner=INNER, n_head=HEADS, n_layer=LAYERS, n_positions=LENGTH
        )
    )
    mine = FloaterForCausalLM(ours("learned", recipe="gpt", norm_first=True))
    names = [
        ("model.embedding.weight", "transformer.wte.weight"),
        ("model.encoder.position.tables.0.weight", "transformer.wpe.weight"),
    ]
    for layer in range(LAYERS):
        start = f"model.encoder.blocks.{layer}.", f"transformer.h.{layer}."
        for a, b in (
            ("attention.query.weight", "attn.c_attn.weight"),
            ("attention.output.weight", "attn.c_proj.weight"),
            ("feed_forward.inner.weight", "mlp.c_fc.weight"),
            ("feed_forward.outer.weight", "mlp.c_proj.weight"),
        ):
            names.append((start[0] + a, start[1] + b))
    as_large(mine, theirs, names)
    assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("position", ["bert_a", "bert_r", "bert_ad", "tupe_a", "tupe_r"])
def test_berts_family_has_berts_recipe_and_a_configuration_overrides_it(position):
    assert ours(position).resolved_recipe == RECIPES["bert"]
    assert ours(position, recipe="transformer").resolved_recipe == RECIPES["transformer"]
    assert ours(position, recipe={"norm_eps": 1e-3}).resolved_recipe.norm_eps == 1e-3
    assert ours(position, recipe={"norm_eps": 1e-3}).resolved_recipe.embedding_norm


@pytest.mark.parametrize(
    ("position", "recipe"),
    [
        (["alibi", "bert_a"], "bert"),
        ([{"name": "mix", "model": "tupe_a", "other": "none"}, "alibi"], "bert"),
        (["alibi", "learned"], "transformer"),
        ("t5", "transformer"),
        ("untied_cls", "transformer"),
    ],
)
def test_parts_bring_their_recipe(position, recipe):
    assert ours(position).resolved_recipe == RECIPES[recipe]


def test_parts_with_different_recipes_are_refused_unless_the_configuration_has_one():
    class Gpt(catalogue()["alibi"]):
        card = replace(catalogue()["alibi"].card, recipe="gpt")

    with registered("gpt_alibi", Gpt):
        with pytest.raises(
            PositionError, match="'bert_a' asks for the recipe 'bert' and 'gpt_alibi' for 'gpt'"
        ):
            _ = ours(["bert_a", "gpt_alibi"]).resolved_recipe
        assert ours(["bert_a", "gpt_alibi"], recipe="gpt").resolved_recipe == RECIPES["gpt"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("brt", "unknown recipe 'brt'; nearest: 'bert'; valid: transformer, bert, roberta, t5, gpt"),
        ({"preset": "gpt3"}, "unknown recipe 'gpt3'; nearest: 'gpt'"),
        ({"embedding_nrm": True}, "a recipe has no 'embedding_nrm'; nearest: 'embedding_norm'"),
        ({"norm": "batch"}, "recipe.norm is 'batch'; it must be one of 'layer', 'rms'"),
        ({"norm_eps": 0}, "recipe.norm_eps is 0; it must be a positive number"),
        ({"initializer_range": True}, "recipe.initializer_range is True; it must be a positive number"),
        ({"bias": 2}, "recipe.bias is 2; it must be one of True, False"),
    ],
)
def test_what_is_refused(recipe, message):
    with pytest.raises(ValueError, match=message):
        ours("none", recipe=recipe)


def test_a_recipe_is_saved_with_the_model(tmp_path):
    recipe = {"preset": "t5", "scale_embedding": True}
    model = FloaterModel(ours("floater", recipe=recipe)).eval()
    model.save_pretrained(tmp_path)
    again = FloaterModel.from_pretrained(tmp_path)
    assert again.recipe == model.recipe != RECIPES["t5"]
    ids = torch.randint(3, VOCABULARY, (2, 9))
    assert torch.equal(again(ids)[0], model(ids)[0])


@torch.no_grad()
def test_a_map_without_a_bias_still_takes_the_positions():
    model = FloaterModel(ours("floater", recipe={"bias": False}, position_options={"start": "small"})).eval()
    attention, position = model.encoder.blocks[0].attention, model.encoder.position
    ids = torch.randint(3, VOCABULARY, (2, 9))
    kept = {}
    attention.register_forward_pre_hook(lambda _, inputs: kept.update(x=inputs[0], shared=inputs[1]))
    model(ids)
    bias = position.projection_bias("query", AttentionContext(kept["shared"].state.value, 0))
    actual = project(attention.query, kept["x"], bias)
    torch.testing.assert_close(actual, kept["x"] @ attention.query.weight.T + bias, rtol=1e-5, atol=1e-5)
