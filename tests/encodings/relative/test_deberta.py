"""DeBERTa against a loop over its equations and against transformers."""

import itertools
import math

import pytest
import torch
from relative_cases import (
    DIM,
    HEADS,
    LAYERS,
    LENGTH,
    POSITIONS,
    SIZES,
    WHOLE,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)
from torch import nn
from torch.nn import functional as F

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.deberta import log_distance

KINDS = {"c2p": "content_to_position", "p2c": "position_to_content"}


class Multiply(nn.Module):
    def __init__(self, factors):
        super().__init__()
        self.factors = factors

    def forward(self, x):
        return x * self.factors


@WHOLE
@pytest.mark.parametrize(
    ("terms", "direction"),
    [
        ("content_to_position", "paper"),
        *itertools.product(["both", "position_to_content"], ["paper", "released"]),
    ],
)
@pytest.mark.parametrize("span", [2, LENGTH])
def test_logits_are_equation_4(positions, terms, direction, span):
    model = build_encoding("deberta", terms=terms, direction=direction, span=span)
    q, k = queries_and_keys(positions)
    table = model.table.weight

    def delta(i, j):
        if i - j <= -span:
            return 0
        return 2 * span - 1 if i - j >= span else i - j + span

    def part(linear, row, head):
        return linear.weight[head * WIDTH : (head + 1) * WIDTH] @ table[row]

    def score(q, k, t, s, head):
        total = q @ k
        if terms != "position_to_content":
            total = total + q @ part(model.key[1], delta(t, s), head)
        if terms != "content_to_position":
            row = delta(s, t) if direction == "paper" else delta(t, s)
            total = total + k @ part(model.query[1], row, head)
        return total / math.sqrt((3 if terms == "both" else 2) * WIDTH)

    actual = logits(model, positions, q, k, 1)
    agree(actual, by_pairs(positions, q, k, score), q, k, table)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("terms", ["both", "content_to_position", "position_to_content"])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("buckets", ["clip", "log"])
def test_deberta_v2_of_transformers_gives_the_same(buckets, share, terms, dropout):
    v2 = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    length, span, far = 24, 8, 20
    config = v2.DebertaV2Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        relative_attention=True,
        pos_att_type=[kind for kind, term in KINDS.items() if terms in ("both", term)],
        position_buckets=span if buckets == "log" else -1,
        max_relative_positions=far if buckets == "log" else span,
        share_att_key=share,
    )
    theirs = v2.DisentangledSelfAttention(config).double().eval()
    model = build_encoding(
        "deberta",
        span=span,
        buckets=buckets,
        max_distance=far if buckets == "log" else None,
        direction="paper" if terms == "content_to_position" else "released",
        norm=True,
        absolute=False,
        share=share,
        terms=terms,
        dropout=dropout,
    )
    for ours, name in ((model.key, "pos_key_proj"), (model.query, "pos_query_proj")):
        if ours:
            torch.nn.init.zeros_(getattr(theirs, name).bias)
            getattr(theirs, name).weight.data.copy_(ours[1].weight)
    assert bool(model.key or model.query) != share
    x = torch.randn(2, length, DIM, dtype=torch.double)
    q, k = (
        linear(x).view(2, length, HEADS, WIDTH).transpose(1, 2)
        for linear in (theirs.query_proj, theirs.key_proj)
    )
    table = torch.nn.functional.layer_norm(model.table.weight, (DIM,), model.norm.weight, model.norm.bias)
    torch.manual_seed(0)  # in their training mode `pos_dropout` drops the table; here with our random numbers
    kept = F.dropout(torch.ones(LAYERS, 2 * span, DIM, dtype=torch.double), dropout)[1]
    theirs.pos_dropout = Multiply(kept)
    _, wanted = theirs(x, torch.ones(2, 1, length, length), output_attentions=True, rel_embeddings=table)
    projections = {"query": theirs.query_proj, "key": theirs.key_proj}
    torch.manual_seed(0)
    context = AttentionContext(model.prepare(Positions.arange(length)), 1, projections=projections)
    actual = q @ k.transpose(-1, -2) * model.scale(WIDTH) + model.bias(q, k, context)
    actual = actual.softmax(-1)
    # transformers divides by square roots in single precision
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


def test_dropout_differs_between_blocks_and_acts_in_training_alone():
    model, plain = (build_encoding("deberta", dropout=p) for p in (0.5, 0.0))
    plain.load_state_dict(model.state_dict())
    q = k = torch.randn(1, HEADS, 5, WIDTH, dtype=torch.double)
    state = model.prepare(POSITIONS["counting"])
    for name in ("key", "query"):
        getattr(model, name)[1].load_state_dict(getattr(model, name)[0].state_dict())
    biases = [model.bias(q, k, AttentionContext(state, layer)) for layer in (0, 0, 1)]
    torch.testing.assert_close(biases[0], biases[1])  # tiles and checkpoints read it again
    assert not torch.allclose(biases[0], biases[2])
    read = [logits(each.eval(), POSITIONS["counting"], q, k) for each in (model, plain)]
    torch.testing.assert_close(*read)


@pytest.mark.parametrize(("span", "far"), [(256, 512), (8, 20), (32, 500)])
def test_logarithmic_distances_are_those_of_transformers(span, far):
    v2 = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distance = torch.arange(-far + 1, far)
    wanted = v2.make_log_bucket_position(distance, span, far)
    assert torch.equal(log_distance(distance, span, far), wanted.long())


def test_the_absolute_decoder_is_read_by_the_last_blocks_queries_alone():
    model = build_encoding("deberta")
    state = model.prepare(POSITIONS["left padding"])
    x = torch.randn(2, 5, DIM, dtype=torch.double)
    for layer in range(LAYERS):
        q, k, v = model.inputs(AttentionContext(state, layer, x))
        added = model.absolute.weight[POSITIONS["left padding"].query] if layer == LAYERS - 1 else 0
        torch.testing.assert_close(q, x + added)
        assert k is x
        assert v is x
    assert build("deberta", **SIZES, absolute=False).max_positions is None
