"""Initial query weights, by the scale that a position model's authors gave its logits."""

import pytest
import torch
from transformers import T5Config, T5Model

from floater.transformer import FloaterForConditionalGeneration, FloaterModel
from small_models import small_config

DIM, HEADS = 64, 4
HEAD = DIM // HEADS


def config(name, **options):
    sizes = {"hidden_size": DIM, "intermediate_size": DIM, "num_attention_heads": HEADS, "decoder_layers": 2}
    return small_config(name, position_options=options, recipe="transformer", **sizes)


def size(weight):
    return float(weight.detach().std())


def test_those_of_t5_are_as_large_as_in_transformers():
    theirs = T5Model(T5Config(vocab_size=11, d_model=DIM, d_kv=HEAD, num_heads=HEADS, num_layers=2, d_ff=DIM))
    model = FloaterForConditionalGeneration(config("t5", start="transformers"))
    for ours, their in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        for block, layer in zip(ours.blocks, their.block, strict=True):
            for a, b in zip(("query", "key", "value", "output"), "qkvo", strict=True):
                weight = getattr(block.attention, a).weight
                wanted = getattr(layer.layer[0].SelfAttention, b).weight
                assert size(weight) == pytest.approx(size(wanted), rel=0.1), a
        table = their.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        assert size(ours.position.table.weight) == pytest.approx(size(table), rel=0.3)


@pytest.mark.parametrize(
    ("name", "options", "gain"),
    [
        ("t5", {}, HEAD**-0.5),
        ("untied_cls", {}, HEAD**-0.5),
        ("t5", {"scaled": True}, 1.0),
        ("untied_cls", {"options": {"scaled": True}}, 1.0),
        # these scale in their own way from the start that any Transformer has
        *[(name, {}, 1.0) for name in ("bert_r", "tupe_a", "tupe_r", "deberta", "tener", "none")],
    ],
)
def test_only_what_the_authors_compensate_is(name, options, gain):
    torch.manual_seed(0)
    encoder = FloaterModel(config(name, **options)).encoder
    for block in encoder.blocks:
        attention = block.attention
        assert size(attention.query.weight) == pytest.approx(gain * DIM**-0.5, rel=0.05)
        assert size(attention.key.weight) == pytest.approx(DIM**-0.5, rel=0.05)


@pytest.mark.parametrize("name", ["t5", "untied_cls"])
def test_initial_logits_are_of_order_one(name):
    model = FloaterModel(config(name)).encoder
    x = torch.randn(1, 200, DIM)
    attention = model.blocks[0].attention
    q, k = (linear(x).view(200, HEADS, HEAD) for linear in (attention.query, attention.key))
    logits = torch.einsum("thd,shd->hts", q, k) * model.position.scale(HEAD)
    assert size(logits) == pytest.approx(1.0, rel=0.2)


def test_cross_attention_starts_as_the_plain_transformers():
    for block in FloaterForConditionalGeneration(config("t5")).decoder.blocks:
        assert size(block.cross_attention.query.weight) == pytest.approx(DIM**-0.5, rel=0.05)


def test_a_checkpoints_weights_stay_as_they_are(tmp_path):
    torch.manual_seed(0)
    model = FloaterModel(config("none"))
    model.save_pretrained(tmp_path)
    # the table is missing, so the stack has something left to initialise
    loaded = FloaterModel.from_pretrained(tmp_path, config=config("t5"))
    loaded.init_weights()
    for ours, saved in zip(loaded.encoder.blocks, model.encoder.blocks, strict=True):
        assert torch.equal(ours.attention.query.weight, saved.attention.query.weight)
    weights = [block.attention.query.weight.detach().clone() for block in loaded.encoder.blocks]
    loaded.save_pretrained(tmp_path / "again")
    again = FloaterModel.from_pretrained(tmp_path / "again")
    again.init_weights()
    for block, weight in zip(again.encoder.blocks, weights, strict=True):
        assert torch.equal(block.attention.query.weight, weight)
