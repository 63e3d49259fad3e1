"""SeqPE: the digits of a position, and products of what a small Transformer makes of them."""

import pytest
import torch
from torch import nn

from floater import PositionError, Positions, build

SIZES = {"dim": 16, "heads": 2, "layers": 2, "max_length": 8}


def test_digits_stand_highest_first_with_zeros_in_front():
    model = build("seqpe", **SIZES, digits=3)
    assert model.digit_values(torch.tensor([0, 7, 42, 905])).tolist() == [
        [0] * 3,
        [0, 0, 7],
        [0, 4, 2],
        [9, 0, 5],
    ]


def test_its_encoder_is_a_causal_pre_norm_transformer_read_at_its_last_token():
    model = build("seqpe", **SIZES, digits=3, depth=1).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    layer = nn.TransformerEncoderLayer(
        16,
        2,
        64,
        activation=nn.GELU(approximate="tanh"),
        norm_first=True,
        batch_first=True,
        dtype=torch.float64,
    ).eval()
    block, attention = model.blocks[0], layer.self_attn
    attention.in_proj_weight.data, attention.in_proj_bias.data = block.qkv.weight.data, block.qkv.bias.data
    pairs = (block.output, attention.out_proj), (block.inner, layer.linear1), (block.outer, layer.linear2)
    for ours, to in (*pairs, (block.attention_norm, layer.norm1), (block.feed_forward_norm, layer.norm2)):
        to.load_state_dict(ours.state_dict())
    digits = model.value.weight[torch.tensor([[0, 4, 2]])] + model.place.weight
    x = layer(
        torch.cat([digits, model.last[None, None]], 1), nn.Transformer.generate_square_subsequent_mask(4)
    )
    wanted = model.out(model.norm(x[:, -1]))
    torch.testing.assert_close(model.vectors(torch.tensor([42])), wanted)


def test_its_bias_is_the_scaled_product_of_projected_vectors():
    model = build("seqpe", **SIZES).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    at = Positions(torch.tensor([[3, 4]]), torch.tensor([[99_999, 3, 4]]))
    p = model.projections(model.vectors(torch.tensor([3, 4, 99_999])))
    for head in range(2):
        query, key = (p[:, start + 8 * head : start + 8 * (head + 1)] for start in (0, 16))
        wanted = (query @ key.T * 8**-0.5)[:2][:, [2, 0, 1]]
        torch.testing.assert_close(model.correlation(model.prepare(at), 0)[0, head], wanted)


def test_a_position_of_more_digits_is_an_error():
    model = build("seqpe", **SIZES, digits=1)
    model.prepare(Positions.arange(10))
    with pytest.raises(PositionError, match="ends at position 9; position 10 was requested"):
        model.prepare(Positions.arange(11))
