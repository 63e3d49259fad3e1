"""DiSAN's and the window's masks against their definitions."""

import pytest
import torch
from relative_cases import EVERYWHERE, HEADS, SIZES

from floater import FloaterConfig, Positions, build
from floater.encodings import AttentionContext
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast

MAY = {
    "forward": lambda t, s, head: s < t,
    "backward": lambda t, s, head: s > t,
    "diagonal": lambda t, s, head: s != t,
    "both": lambda t, s, head: s < t if head == 0 else s > t,
}


def allowed(model, positions, may):
    mask = model.mask(AttentionContext(model.prepare(positions), 1))
    mask = mask.expand(len(mask), HEADS, *mask.shape[2:])
    for b, rows in enumerate(mask.tolist()):
        query, key = (x[b % len(x)].tolist() for x in (positions.query, positions.key))
        for head, plane in enumerate(rows):
            assert plane == [[may(t, s, head) for s in key] for t in query]


@EVERYWHERE
@pytest.mark.parametrize("direction", MAY)
def test_disan_looks_one_way_and_never_at_itself(direction, positions):
    allowed(build("disan", **SIZES, direction=direction), positions, MAY[direction])


@EVERYWHERE
@pytest.mark.parametrize("size", [0, 1, 3])
def test_the_window_ends_on_both_sides(size, positions):
    allowed(build("window", **SIZES, size=size), positions, lambda t, s, head: abs(s - t) <= size)


def test_attention_is_that_of_longformer_in_transformers():
    modeling = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    torch.manual_seed(0)
    config = modeling.LongformerConfig(hidden_size=32, num_attention_heads=4, attention_window=[8])
    theirs = modeling.LongformerSelfAttention(config, 0).eval()
    model = build("window", dim=32, heads=4, layers=1, max_length=64, size=4)  # to each side
    attention = Attention(FloaterConfig(hidden_size=32, num_attention_heads=4), 0).eval()
    for name in ("query", "key", "value"):
        getattr(attention, name).load_state_dict(getattr(theirs, name).state_dict())
    attention.output = torch.nn.Identity()
    x, valid = torch.randn(2, 24, 32), torch.ones(2, 24, dtype=torch.bool)
    valid[1, 19:] = False
    wanted = theirs(x, -10000.0 * ~valid, ~valid, torch.zeros_like(valid), False)[0]
    actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(Positions.arange(24))), valid))
    torch.testing.assert_close(actual[valid], wanted[valid], rtol=0, atol=1e-6)


def test_the_windows_default_is_an_eighth():
    assert build("window", **SIZES).size == 2
    assert build("window", **(SIZES | {"max_length": 3})).size == 1


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_first_token_forward_sees_nothing_and_gets_zeros(implementation):
    torch.manual_seed(0)
    config = FloaterConfig(hidden_size=8, num_attention_heads=HEADS, attn_implementation=implementation)
    attention, model = Attention(config, 0), build("disan", **SIZES, direction="forward")
    x = torch.randn(2, 4, 8)
    out, _ = attention(x, SharedInputs(model, Uncast(model.prepare(Positions.arange(4)))))
    assert torch.equal(out[:, 0], attention.output.bias.expand(2, -1))
    torch.testing.assert_close(out[:, 1], attention.output(attention.value(x[:, 0])))
