"""Models of Hugging Face with random weights, and ours with the same: one output.

`docs/compared.md` records the largest differences.
"""

from functools import partial

import pytest
import torch
import transformers
from torch import nn
from transformer_cases import like_bert

from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterModel,
)

VOCABULARY, DIM, INNER, HEADS, LAYERS, LENGTH = 50, 32, 48, 4, 3, 40
BERT_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,  # far from the start, where all logits are alike
}


ours = partial(like_bert, BERT_SIZES, pad_token_id=1)


def copy(ours, theirs):
    """Copy a linear map, an embedding or a norm; ours may lack nothing that theirs has."""
    ours.weight.copy_(
        theirs.weight.T if isinstance(theirs, transformers.pytorch_utils.Conv1D) else theirs.weight
    )
    assert (getattr(ours, "bias", None) is None) == (getattr(theirs, "bias", None) is None)
    if getattr(ours, "bias", None) is not None:
        ours.bias.copy_(theirs.bias)


def copy_many(ours, theirs, names):
    """Copy modules by name: ours from theirs."""
    for a, b in names.items():
        copy(ours.get_submodule(a), theirs.get_submodule(b))


def copy_fused(attention, fused, per_head):
    """Copy the maps of queries, keys and values from one that makes all three."""
    shape = (HEADS, 3, DIM // HEADS) if per_head else (3, HEADS, DIM // HEADS)
    weight = fused.weight.T if isinstance(fused, transformers.pytorch_utils.Conv1D) else fused.weight
    for part in (weight, fused.bias):
        rows = part.view(*shape, *part.shape[1:])
        rows = rows.transpose(0, 1) if per_head else rows
        for linear, inputs in zip((attention.query, attention.key, attention.value), rows, strict=True):
            (linear.bias if part.ndim == 1 else linear.weight).copy_(inputs.flatten(0, 1))


def perturb(model):
    """Draw biases and norms, too, which start at zero and one."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def ids(length=20):
    torch.manual_seed(1)
    return torch.randint(2, VOCABULARY, (2, length))


def agree(ours, theirs, **options):
    """Compare the logits of both models, with padding on the right."""
    options = options or {"input_ids": ids()}
    mask = torch.ones_like(options["input_ids"])
    mask[1, 15:] = 0
    actual = ours.eval()(**options, attention_mask=mask).logits
    wanted = theirs(**options, attention_mask=mask).logits
    assert float(wanted.std()) > 0.1
    torch.testing.assert_close(actual[0], wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1, :15], wanted[1, :15], rtol=1e-5, atol=1e-5)


BERT_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
DEBERTA_BLOCK = BERT_BLOCK | {
    f"attention.{name}": f"attention.self.{name}_proj" for name in ("query", "key", "value")
}
BERT_HEAD = {
    "transform.linear": "cls.predictions.transform.dense",
    "transform.norm": "cls.predictions.transform.LayerNorm",
}
ROBERTA_HEAD = {"transform.linear": "lm_head.dense", "transform.norm": "lm_head.layer_norm"}


def copy_body(ours, body, block=BERT_BLOCK):
    """Copy an encoder, but not what knows positions."""
    ours.model.embedding.weight.copy_(body.embeddings.word_embeddings.weight)
    copy(ours.model.encoder.embedding_norm, body.embeddings.LayerNorm)
    for a, b in zip(ours.model.encoder.blocks, body.encoder.layer, strict=True):
        copy_many(a, b, block)


def copy_bert(ours, theirs, body, head, block=BERT_BLOCK):
    """Copy all but what knows positions."""
    copy_body(ours, body, block)
    copy_many(ours, theirs, head)
    ours.lm_head.bias.copy_(
        theirs.lm_head.bias if hasattr(theirs, "lm_head") else theirs.cls.predictions.bias
    )


@torch.no_grad()
def bert():
    torch.manual_seed(0)
    theirs = perturb(transformers.BertForMaskedLM(transformers.BertConfig(**BERT_SIZES)))
    mine = FloaterForMaskedLM(ours("bert_a"))
    copy_bert(mine, theirs, theirs.bert, BERT_HEAD)
    tables = theirs.bert.embeddings  # one segment: its vector is added to every position's
    table = tables.position_embeddings.weight + tables.token_type_embeddings.weight[0]
    mine.model.encoder.position.table(0).weight.copy_(table)
    return mine, theirs


@torch.no_grad()
def test_bert():
    ours, theirs = bert()
    agree(ours, theirs)


@torch.no_grad()
def test_a_classifier_of_bert():
    torch.manual_seed(0)
    theirs = perturb(transformers.BertForSequenceClassification(transformers.BertConfig(**BERT_SIZES)))
    mine = FloaterForSequenceClassification(ours("bert_a", num_labels=2))
    copy_body(mine, theirs.bert)
    copy_many(mine, theirs, {"pooler.0": "bert.pooler.dense", "classifier": "classifier"})
    tables = theirs.bert.embeddings
    table = tables.position_embeddings.weight + tables.token_type_embeddings.weight[0]
    mine.model.encoder.position.table(0).weight.copy_(table)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, 15:] = 0
    actual, wanted = mine.eval()(ids(), mask).logits, theirs(ids(), mask).logits
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_roberta():
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        **BERT_SIZES | {"max_position_embeddings": LENGTH + 2},
        type_vocab_size=1,
        pad_token_id=1,
        layer_norm_eps=1e-5,
    )
    theirs = perturb(transformers.RobertaForMaskedLM(config))
    mine = FloaterForMaskedLM(ours("bert_a", recipe="roberta"))
    copy_bert(mine, theirs, theirs.roberta, ROBERTA_HEAD)
    tables = theirs.roberta.embeddings  # positions count from the padding's id plus one
    table = tables.position_embeddings.weight[2:] + tables.token_type_embeddings.weight[0]
    mine.model.encoder.position.table(0).weight.copy_(table)
    agree(mine, theirs)


@torch.no_grad()
def test_roformer():
    torch.manual_seed(0)
    theirs = perturb(
        transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**BERT_SIZES, type_vocab_size=1))
    )
    mine = FloaterForMaskedLM(ours("rotary", recipe="bert"))
    copy_bert(mine, theirs, theirs.roformer, BERT_HEAD)
    mine.model.embedding.weight.add_(theirs.roformer.embeddings.token_type_embeddings.weight[0])
    mine.lm_head.weight = nn.Parameter(theirs.roformer.embeddings.word_embeddings.weight.clone())
    agree(mine, theirs)


@pytest.mark.parametrize("share", [True, False])
@torch.no_grad()
def test_deberta_v2(share):
    torch.manual_seed(0)
    span, far = 8, 20
    config = transformers.DebertaV2Config(
        **BERT_SIZES,
        type_vocab_size=0,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=span,
        max_relative_positions=far,
        share_att_key=share,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        layer_norm_eps=1e-7,
        pad_token_id=1,
    )
    theirs = perturb(transformers.DebertaV2ForMaskedLM(config))
    options = {
        "span": span,
        "buckets": "log",
        "max_distance": far,
        "direction": "released",
        "norm": True,
        "absolute": False,
        "share": share,
        "bias": not share,
    }
    recipe = {"preset": "bert", "norm_eps": 1e-7}
    mine = FloaterForMaskedLM(ours("deberta", position_options=options, recipe=recipe))
    body, position = theirs.deberta, mine.model.encoder.position
    copy_bert(mine, theirs, body, BERT_HEAD, DEBERTA_BLOCK)
    position.table.weight.copy_(body.encoder.rel_embeddings.weight[: 2 * span])
    position.norm.weight.copy_(body.encoder.LayerNorm.weight)
    position.norm.bias.copy_(body.encoder.LayerNorm.bias)
    position.norm.eps = 1e-7
    if not share:
        for layer, block in enumerate(body.encoder.layer):
            position.key[layer].weight.copy_(block.attention.self.pos_key_proj.weight)
            copy(position.query[layer], block.attention.self.pos_query_proj)
    agree(mine, theirs)


T5_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


def copy_t5(ours, theirs):
    """Copy a stack of T5."""
    ours.position.table.weight.copy_(theirs.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    copy(ours.norm, theirs.final_layer_norm)
    for a, b in zip(ours.blocks, theirs.block, strict=True):
        parts = [("attention", "SelfAttention", a.attention_residual)]
        if len(b.layer) == 3:
            parts.append(("cross_attention", "EncDecAttention", a.cross_residual))
        for layer, (mine, name, residual) in zip(b.layer, parts, strict=False):
            copy_many(getattr(a, mine), getattr(layer, name), T5_ATTENTION)
            copy(residual.norm, layer.layer_norm)
        copy(a.feed_forward.inner, b.layer[-1].DenseReluDense.wi)
        copy(a.feed_forward.outer, b.layer[-1].DenseReluDense.wo)
        copy(a.feed_forward_residual.norm, b.layer[-1].layer_norm)


def t5(factor=2.0):
    torch.manual_seed(0)
    return transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=DIM,
        d_kv=DIM // HEADS,
        d_ff=INNER,
        num_heads=HEADS,
        num_layers=LAYERS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        initializer_factor=factor,
        decoder_start_token_id=1,
        pad_token_id=1,
    )


T5 = {
    "position_options": {"buckets": 8, "max_distance": 16},
    "recipe": "t5",
    "norm_first": True,
    "activation_function": "relu",
}


@torch.no_grad()
def test_t5_encoder():
    theirs = perturb(transformers.T5EncoderModel(t5()))
    mine = FloaterModel(ours("t5", **T5)).eval()
    mine.embedding.weight.copy_(theirs.shared.weight)
    copy_t5(mine.encoder, theirs.encoder)
    actual, wanted = mine(ids()).last_hidden_state, theirs(ids()).last_hidden_state
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def t5_pair(factor=2.0):
    theirs = perturb(transformers.T5ForConditionalGeneration(t5(factor)))
    mine = FloaterForConditionalGeneration(ours("t5", **T5))
    mine.embedding.weight.copy_(theirs.shared.weight)
    copy_t5(mine.encoder, theirs.encoder)
    copy_t5(mine.decoder, theirs.decoder)
    return mine, theirs


@torch.no_grad()
def test_t5_encoder_and_decoder():
    ours, theirs = t5_pair()
    agree(ours, theirs, input_ids=ids(), decoder_input_ids=ids(12))


GPT_BLOCK = {
    "attention_residual.norm": "ln_1",
    "attention.output": "attn.c_proj",
    "feed_forward_residual.norm": "ln_2",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
}
NEOX_BLOCK = {
    "attention_residual.norm": "input_layernorm",
    "attention.output": "attention.dense",
    "feed_forward_residual.norm": "post_attention_layernorm",
    "feed_forward.inner": "mlp.dense_h_to_4h",
    "feed_forward.outer": "mlp.dense_4h_to_h",
}
BLOOM_BLOCK = NEOX_BLOCK | {"attention.output": "self_attention.dense"}


@torch.no_grad()
def gpt2(**options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=DIM,
        n_inner=INNER,
        n_head=HEADS,
        n_layer=LAYERS,
        n_positions=LENGTH,
        initializer_range=0.3,
    )
    theirs = perturb(transformers.GPT2LMHeadModel(config))
    options |= {"recipe": "gpt", "norm_first": True, "activation_function": "gelu_new"}
    mine = FloaterForCausalLM(ours("learned", **options))
    mine.model.embedding.weight.copy_(theirs.transformer.wte.weight)
    mine.model.encoder.position.table(0).weight.copy_(theirs.transformer.wpe.weight)
    copy(mine.model.encoder.norm, theirs.transformer.ln_f)
    for a, b in zip(mine.model.encoder.blocks, theirs.transformer.h, strict=True):
        copy_many(a, b, GPT_BLOCK)
        copy_fused(a.attention, b.attn.c_attn, per_head=False)
    return mine, theirs


@torch.no_grad()
def test_gpt2():
    ours, theirs = gpt2()
    agree(ours, theirs)


@torch.no_grad()
def test_gpt2_with_random_offsets_in_training(monkeypatch):
    """Positions offset ... offset + n - 1 and a repeated last one at padding (Huang et al. 2025)."""
    ours, theirs = gpt2(times={"mode": "shift", "max_scale": 1.0, "each": True}, dropout=0.0)
    position, seen = ours.model.encoder.position, []
    before = position.prepare
    monkeypatch.setattr(position, "prepare", lambda at: seen.append(at.query) or before(at))
    mask = torch.ones_like(ids())
    mask[1, 15:] = 0
    actual = ours.train()(ids(), attention_mask=mask).logits
    (offset,) = (at[:, :1] for at in seen)
    last = mask.sum(1, keepdim=True) - 1
    at = torch.arange(mask.shape[1]).minimum(last) + offset
    assert torch.equal(seen[0], at)
    assert int(offset[0]) != int(offset[1])
    wanted = theirs.eval()(ids(), attention_mask=mask, position_ids=at).logits
    torch.testing.assert_close(actual[mask > 0], wanted[mask > 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_gpt_neox():
    """With sequential residuals: ours have no block whose two parts read the same input."""
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        **BERT_SIZES,
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    theirs = perturb(transformers.GPTNeoXForCausalLM(config))
    options = {"pairs": "half", "partial": 0.5}
    mine = FloaterForCausalLM(
        ours("rotary", position_options=options, recipe="gpt", norm_first=True, tie_word_embeddings=False)
    )
    mine.model.embedding.weight.copy_(theirs.gpt_neox.embed_in.weight)
    mine.lm_head.weight.copy_(theirs.get_output_embeddings().weight)
    copy(mine.model.encoder.norm, theirs.gpt_neox.final_layer_norm)
    for a, b in zip(mine.model.encoder.blocks, theirs.gpt_neox.layers, strict=True):
        copy_many(a, b, NEOX_BLOCK)
        copy_fused(a.attention, b.attention.query_key_value, per_head=True)
    agree(mine, theirs)


@torch.no_grad()
def test_bloom():
    torch.manual_seed(0)
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=DIM, n_head=HEADS, n_layer=LAYERS, initializer_range=0.3
    )
    theirs = perturb(transformers.BloomForCausalLM(config))
    recipe = {"preset": "gpt", "embedding_norm": True}
    mine = FloaterForCausalLM(
        ours(
            "alibi", recipe=recipe, norm_first=True, activation_function="gelu_new", intermediate_size=4 * DIM
        )
    )
    body = theirs.transformer
    mine.model.embedding.weight.copy_(body.word_embeddings.weight)
    copy(mine.model.encoder.embedding_norm, body.word_embeddings_layernorm)
    copy(mine.model.encoder.norm, body.ln_f)
    for a, b in zip(mine.model.encoder.blocks, body.h, strict=True):
        copy_many(a, b, BLOOM_BLOCK)
        copy_fused(a.attention, b.self_attention.query_key_value, per_head=True)
    agree(mine, theirs)


@pytest.mark.parametrize("pair", [bert, gpt2, t5_pair])
def test_trained_on_the_same_batches_they_have_the_same_losses(pair):
    # no rounding that training would amplify; T5 normalises in single precision, so it starts smaller
    ours, theirs = (model.double() for model in (t5_pair(1.0) if pair is t5_pair else pair()))
    for name, parameter in theirs.named_parameters():  # ours is a part of the positions
        parameter.requires_grad_("token_type" not in name)
    steps = [
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for model in (ours, theirs)
    ]
    losses = []
    for step in range(15):
        torch.manual_seed(step)
        x = 2 + (torch.randint(40, (4, 1)) + torch.arange(20)) % 8  # words that follow one another
        options = {"input_ids": x, "labels": x.roll(1, 1) if pair is t5_pair else x}
        row = []
        for model, optimizer in zip((ours, theirs), steps, strict=True):
            optimizer.zero_grad()
            loss = model.eval()(**options).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            row.append(float(loss.detach()))
        losses.append(row)
    mine, wanted = zip(*losses, strict=True)
    assert wanted[-1] < 0.9 * wanted[0]
    assert mine == pytest.approx(wanted, rel=1e-4)
