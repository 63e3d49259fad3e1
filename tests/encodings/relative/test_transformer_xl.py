"""Transformer-XL's four terms against a loop and against XLNet."""

import math

import pytest
import torch
from relative_cases import (
    DIM,
    EVERYWHERE,
    HEADS,
    POSITIONS,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)
from torch.nn import functional as F

from floater import PositionError, Positions
from floater.encodings import AttentionContext


def wave(distance):
    """R of a distance, as wide as the model."""
    angles = [distance * 10000 ** (-2 * i / DIM) for i in range(DIM // 2)]
    return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)], dtype=torch.double)


@EVERYWHERE
@pytest.mark.parametrize("untie", [False, True])
@pytest.mark.parametrize("layer", [0, 2])
def test_logits_are_the_four_terms(positions, untie, layer):
    model = build_encoding("transformer_xl", untie=untie)
    q, k = queries_and_keys(positions)
    weight = model.project[layer].weight
    u, v = (x[layer if untie else 0] for x in (model.u, model.v))

    def score(q, k, t, s, head):
        r = weight[head * WIDTH : (head + 1) * WIDTH] @ wave(t - s)
        return ((q + u[head]) @ k + (q + v[head]) @ r) / math.sqrt(WIDTH)

    actual = logits(model, positions, q, k, layer)
    agree(actual, by_pairs(positions, q, k, score), q, k, weight, model.u, model.v)


def test_real_and_whole_positions_agree():
    model = build_encoding("transformer_xl")
    q, k = queries_and_keys(POSITIONS["counting"])
    actual = logits(model, Positions.times(torch.arange(5.0, dtype=torch.double)[None]), q, k)
    torch.testing.assert_close(actual, logits(model, POSITIONS["counting"], q, k))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_xlnet_of_transformers_gives_the_same(dropout):
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    length = 6
    config = xlnet.XLNetConfig(d_model=DIM, n_head=HEADS, n_layer=1, d_inner=8, dropout=0.0, vocab_size=5)
    theirs = xlnet.XLNetRelativeAttention(config).double().eval()
    model = build_encoding("transformer_xl", dropout=dropout)
    split = [2 * i for i in range(DIM // 2)] + [2 * i + 1 for i in range(DIM // 2)]  # sines, then cosines
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
        theirs.r.copy_(model.project[0].weight.T[split].view(DIM, HEADS, WIDTH))
        theirs.r_w_bias.copy_(model.u[0])
        theirs.r_r_bias.copy_(model.v[0])
    h = torch.randn(length, 2, DIM, dtype=torch.double)
    # XLNet's model drops R out before its blocks; its first row is of a distance that no pair has
    torch.manual_seed(0)
    kept = F.dropout(torch.ones(2 * length, DIM, dtype=torch.double), dropout).roll(1, 0)[:, split]
    r = torch.stack([wave(n)[split] for n in range(length, -length, -1)]) * kept
    r = r[:, None].expand(-1, 2, -1)
    q, k = (torch.einsum("tbd,dhw->bhtw", h, w) for w in (theirs.q, theirs.k))
    outputs = theirs(h, None, None, None, r, None, output_attentions=True)
    (weights,) = (x for x in outputs if x is not None and x.shape == (length, length, 2, HEADS))
    torch.manual_seed(0)
    actual = logits(model, Positions.arange(length), q, k).softmax(-1)
    torch.testing.assert_close(actual, weights.permute(2, 3, 0, 1))


def test_dropout_acts_in_training_at_whole_distances_alone():
    model, plain = (build_encoding("transformer_xl", dropout=p) for p in (0.5, 0.0))
    plain.load_state_dict(model.state_dict())
    q, k = queries_and_keys(POSITIONS["counting"])
    with pytest.raises(PositionError, match=r"dropout is 0\.5, .* positions are real"):
        model.prepare(Positions.times(torch.rand(1, 5)))
    state = model.prepare(POSITIONS["counting"])
    first, again = (model.bias(q, k, AttentionContext(state, 1)) for _ in range(2))
    torch.testing.assert_close(first, again)  # tiles and checkpoints read it again
    assert not torch.allclose(
        first, plain.bias(q, k, AttentionContext(plain.prepare(POSITIONS["counting"]), 1))
    )
    for positions in (POSITIONS["counting"], Positions.times(torch.rand(1, 5))):
        torch.testing.assert_close(*(logits(each.eval(), positions, q, k) for each in (model, plain)))


def test_groups_larger_than_any_distance_clamp_distances():
    """`clamp_len` of the released code: rows past it are those of the distance itself."""
    model, (q, k) = build_encoding("transformer_xl"), queries_and_keys(POSITIONS["cached"])
    actual = logits(model, POSITIONS["cached"].but(group=(3, 10**6)), q, k)
    query, key = POSITIONS["cached"].query[0], POSITIONS["cached"].key[0]
    for i, t in enumerate(query.tolist()):
        near = Positions(torch.tensor([[t]]), key.clamp(min=t - 3)[None])
        torch.testing.assert_close(actual[:, :, i : i + 1], logits(model, near, q[:, :, i : i + 1], k))
