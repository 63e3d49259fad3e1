"""A clock that the text drives: its cases, its warm start, its precision, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from floater.encodings import AttentionContext, PositionError, build
from floater.encodings.attention import AttentionCall, project_qkv
from floater.encodings.composed.clock import Clock
from floater.encodings.measure import attention_context, respond
from floater.encodings.relative.knots import interpolate, knots
from floater.encodings.timed import time_differences
from floater.flow import SecondDerivativeError
from floater.positions import Positions
from floater.testing import check_refusal
from floater.transformer import FloaterConfig, FloaterForCausalLM, kernels
from floater.transformer.kernels import Plain, Sdpa, Tiled, TiledClock, kernel_for

DIM, HEADS, LENGTH = 16, 2, 7
BIASES = ("alibi", "kerple", "fire", "dynamic_bias", "floater_relative")
ROTATIONS = ("rotary", "floater_rotary")
EXACT = ("alibi", "kerple", "fire", *ROTATIONS)


def make(model: object, **options: object) -> Clock:
    clock = build("clock", dim=DIM, heads=HEADS, layers=2, max_length=16, model=model, **options)
    assert isinstance(clock, Clock)
    return clock.eval()


def logits(model: nn.Module, positions: Positions, x: Tensor, layer: int = 1) -> Tensor:
    """Return the logits of one block's attention, with fixed projections."""
    context = attention_context(model, model.prepare(positions), layer, x)
    q, k, v = project_qkv(model, context)
    return AttentionCall(model, context, q, k, v).logits()


@pytest.mark.parametrize("per", ["head", "block"])
@pytest.mark.parametrize("name", BIASES + ROTATIONS)
def test_zero_weights_are_the_plain_encoding_bit_for_bit(name, per):
    torch.manual_seed(0)
    plain = build(name, dim=DIM, heads=HEADS, layers=2, max_length=16).eval()
    clock = make(name, per=per)
    clock.inner.load_state_dict(plain.state_dict())
    mask = torch.tensor([[1] * LENGTH, [0, 0, 1, 1, 1, 1, 1]])
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, LENGTH, DIM, dtype=dtype)
        here, there = (logits(m.to(dtype), Positions.from_mask(mask), x) for m in (clock, plain))
        tokens = mask.bool()[:, None, None].expand_as(here)
        # the products of its network depend on how many distances they are computed for
        tolerance = 1e-6 if name == "dynamic_bias" else 0.0
        assert_close(here[tokens], there[tokens], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [*BIASES, *ROTATIONS, {"name": "floater_relative", "clip": 1.7}], ids=str)
def test_a_constant_rate_is_the_plain_encoding_at_stretched_times(name):
    """For an encoding of real times, which has its own way to read them."""
    torch.manual_seed(0)
    clock, stretch = make(name, rate="signed").double(), 0.37
    nn.init.constant_(clock.bias_of_rate, stretch - 1)
    x, times = torch.randn(2, LENGTH, DIM).double(), stretch * torch.arange(LENGTH).double()[None]
    here = logits(clock, Positions.arange(LENGTH), x)
    there = logits(clock.inner, Positions.times(times), x)
    # the others read tables
    assert_close(here, there, rtol=0, atol=1e-9 if name in EXACT else 1e-5)


@pytest.mark.parametrize(
    "model",
    [
        "sinusoidal",
        {"name": "sinusoidal", "blocks": "all"},
        "floater",
        {"name": "floater", "injection": "add"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rate", [1.0, 0.37, 1.5])
def test_vectors_at_a_constant_rate_are_those_of_stretched_times(model, rate):
    torch.manual_seed(0)
    clock = make(model).double()
    nn.init.constant_(clock.bias_of_rate, math.log(rate / (2 - rate)))
    x, times = torch.randn(2, LENGTH, DIM).double(), rate * torch.arange(LENGTH).double()[None]
    here = respond(clock, Positions.arange(LENGTH), x)
    if model == "floater":  # its sinusoids at the input stay
        sines = [clock.inner.prepare(p).sinusoid for p in (Positions.arange(LENGTH), Positions.times(times))]
        x = x + sines[0] - sines[1]
    there = respond(clock.inner, Positions.times(times), x)
    for one, other in zip(here, there, strict=True):
        assert_close(one.logits, other.logits, rtol=0, atol=2e-5)
        assert_close(one.out, other.out, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["kerple", "floater_relative", "rotary"])
def test_equal_clocks_of_all_heads_are_the_clock_of_the_block(name):
    torch.manual_seed(0)
    one, each = make(name, per="block", std=0.3), make(name)
    each.inner.load_state_dict(one.inner.state_dict())
    with torch.no_grad():
        each.weight.copy_(one.weight.expand_as(each.weight))
    x = torch.randn(2, LENGTH, DIM)
    assert_close(*(logits(clock, Positions.arange(LENGTH), x) for clock in (one, each)))


def test_the_forgetting_transformer_is_a_linear_bias_at_softplus_rates():
    """-log sigmoid(f) is ln 2 times the rate of -f / ln 2; a kernel of power 1 has that slope."""
    torch.manual_seed(0)
    gates = build("forgetting", dim=DIM, heads=HEADS, layers=2, max_length=16, start=1.0).double()
    clock = make({"name": "kerple", "kind": "power"}).double()
    with torch.no_grad():
        clock.inner.r1.fill_(math.log(2))
        clock.inner.r2.fill_(1.0)
        clock.weight.copy_(-gates.weight / math.log(2))
        clock.bias_of_rate.copy_(-gates.gate_bias / math.log(2))
    mask = torch.tensor([[1] * LENGTH, [0, 0, 1, 1, 0, 1, 1]])
    x, positions = torch.randn(2, LENGTH, DIM).double(), Positions.from_mask(mask)
    for layer in range(2):
        here, there = (logits(model, positions, x, layer)[:, :, mask[1].bool()] for model in (clock, gates))
        assert_close(here[..., mask[1].bool()], there[..., mask[1].bool()])


def test_contextual_positions_are_times_where_all_queries_are_equal():
    """CoPE's gates depend on query and key; of equal queries, on the key alone. It counts the key's, too."""
    torch.manual_seed(0)
    query, x = torch.randn(HEADS, DIM // HEADS).double(), torch.randn(1, LENGTH, DIM).double()
    key_weight = torch.randn(HEADS, DIM // HEADS, DIM).double()
    k = torch.einsum("hde,bte->bhtd", key_weight, x)
    cope = build("cope", dim=DIM, heads=HEADS, layers=2, max_length=16)
    positions = Positions.arange(LENGTH)
    expected = cope.contextual_positions(query[None, :, None].expand_as(k), k, cope.prepare(positions))
    clock = make("alibi", rate="sigmoid").double()
    with torch.no_grad():
        gates = torch.einsum("hd,hde->he", query, key_weight) * (DIM // HEADS) ** -0.5
        clock.weight.copy_(gates)
    context = AttentionContext(clock.prepare(positions), 0, x)
    _, k, _ = clock.qkv(*[k.transpose(1, 2)] * 3, context)
    times = clock.times(k.transpose(1, 2), context)[..., 0]
    before = 2 * torch.einsum("he,bte->bht", gates, x).sigmoid()  # the rates of the keys
    since = times[..., None] - times[..., None, :] + before[..., None, :]
    assert_close((since / 2).tril(), expected.tril())


def waves(*shape: int) -> Tensor:
    """Return the same numbers for the same shape."""
    return torch.sin(torch.arange(1, math.prod(shape) + 1) * 0.7).view(shape)


def rotated_logits(clock: Clock, x: Tensor) -> Tensor:
    """Return the products of rotated queries and keys, which are cosines, for inputs x (1, T, DIM)."""
    shape, index = (1, LENGTH, HEADS, DIM // HEADS), torch.arange(1.0, LENGTH * DIM + 1)
    q, k = (torch.cos(index * frequency).view(shape) for frequency in (0.3, 0.45))
    context = AttentionContext(clock.prepare(Positions.arange(LENGTH)), 0, x)
    q, k, _ = clock.qkv(q, k, k, context)
    q, k = clock.rotated(q.transpose(1, 2), k.transpose(1, 2), context)
    return q @ k.mT


@torch.no_grad()
def test_selective_rope_is_a_clock_of_each_pair_without_positions():
    """The last query's logits are those of the released module (timurcarstensen/selective-rope, d12e825).

    Weights: phi_proj of rank 3 and phi_conv1d of kernel 4 as `waves` of their shapes, theta 500,000. It
    divides the part of each head of its input by its norm.
    """
    pairs = DIM // HEADS // 2
    rotation = {"name": "rotary", "pairs": "half", "base": 500000.0}
    clock = make(rotation, per="pair", rate="signed", kernel=4, positions=False)
    weight = waves(HEADS * pairs, 3) @ waves(3, DIM)
    clock.weight[0] = weight
    clock.convolution[0] = waves(HEADS * pairs, 4).flip(-1).T
    x = F.normalize(waves(1, LENGTH, HEADS, DIM // HEADS), dim=-1).flatten(-2)
    expected = torch.tensor(
        [
            [-2.5719, -0.5899, 0.4284, 3.0552, 2.8962, 0.3754, -2.8453],
            [0.5312, 2.3236, 3.6041, 1.1977, -2.2393, -1.8604, -2.9945],
        ]
    )
    assert_close(rotated_logits(clock, x)[0, :, -1], expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_repo_is_a_clock_without_a_sum_and_without_positions():
    """The last query's logits are those of the released layer (SakanaAI/repo, 1508a73).

    `Olmo2Attention` with dynamic_pe_mode "swigluex_multihead"; gate_map, content_map and final_map are
    `waves` of their shapes, the second upside down, the third times 3, and base 10,000.
    """
    clock = make(
        {"name": "rotary", "pairs": "half"}, rate="signed", sum=False, positions=False, hidden=DIM // 8
    )
    clock.gate[0], clock.content[0] = waves(DIM // 8, DIM), waves(DIM // 8, DIM).flip(0)
    clock.weight[0] = 3 * waves(HEADS, DIM // 8)
    expected = torch.tensor(
        [
            [-0.5847, 0.0985, 0.9427, 2.0688, 1.3059, -0.5027, -2.8453],
            [0.3882, 1.3406, 2.8479, 0.4269, -0.1193, -0.4654, -2.9945],
        ]
    )
    assert_close(rotated_logits(clock, waves(1, LENGTH, DIM))[0, :, -1], expected, rtol=0, atol=1e-4)


def test_an_angle_of_pi_for_each_one_counts_parity():
    clock = make("rotary", per="pair", rate="angle", positions=False).double()
    with torch.no_grad():
        clock.weight[:, :, 0] = math.pi
    bits = torch.tensor([0, 1, 1, 0, 1, 0, 1])
    x = F.pad(bits[None, :, None].double(), (0, DIM - 1))
    context = AttentionContext(clock.prepare(Positions.arange(LENGTH)), 0, x)
    q = torch.ones(1, LENGTH, HEADS, DIM // HEADS).double()
    rotated, k, _ = clock.qkv(q, q, q, context)
    rotated, k = clock.rotated(rotated.transpose(1, 2), k.transpose(1, 2), context)
    ones = bits.cumsum(0)
    sign = 1 - 2 * ((ones[:, None] - ones) % 2).double()
    assert_close(rotated @ k.mT, (DIM // HEADS * sign).expand(1, HEADS, -1, -1))


@pytest.mark.parametrize("name", ["alibi", "rotary"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_clock_in_each_direction_reads_a_text_and_its_mirror_image_alike(name, packed):
    """With equal weights in both halves, the time between two tokens is that of the other half there."""
    torch.manual_seed(0)
    clock, text = make(name, both=True).double(), torch.randn(3, LENGTH, DIM).double()
    with torch.no_grad():
        for each in (clock.weight, clock.bias_of_rate):
            each.copy_(torch.randn_like(each[:, :1]).expand_as(each))
    valid = torch.tensor([[1] * LENGTH, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 0]]).bool()
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 3) if packed else torch.zeros(3, LENGTH).long()

    def gaps(x, valid, document):
        at = valid.cumsum(1) - 1
        positions = Positions(at, at, key_valid=valid, document=document if packed else None)
        context, y = AttentionContext(clock.prepare(positions), 1, x), x.view(3, LENGTH, HEADS, -1)
        times = clock.times(clock.qkv(y, y, y, context)[1].transpose(1, 2), context)[..., 0]
        return times[..., None, :] - times[..., None]

    here = gaps(text, valid, document)
    mirrored = gaps(*(each.flip(1) for each in (text, valid, document))).flip(1, 2, 3)
    pairs = valid[:, None] & valid[..., None] & (document[:, None] == document[..., None])
    for head in range(HEADS):
        assert_close(here[:, head][pairs], -mirrored[:, head][pairs])
    assert not torch.allclose(here[:, 0][pairs], here[:, 1][pairs])


@pytest.mark.parametrize("rate", ["softplus", "sigmoid", "signed", "angle"])
def test_zero_weights_learn(rate):
    clock = make("rotary", rate=rate)
    logits(clock, Positions.arange(LENGTH), torch.randn(1, LENGTH, DIM)).square().sum().backward()
    assert clock.weight.grad[1].any(1).all()
    assert clock.bias_of_rate.grad[1].all()


def test_rates_scale_the_time_between_events():
    """A clock at half the rate reads half of the time that passes, whatever the steps."""
    clock = make("alibi", rate="signed").double()
    nn.init.constant_(clock.bias_of_rate, -0.5)
    at = torch.tensor([[0.0, 0.5, 3.25, 3.25, 10.0, 11.0, 20.0]]).double()
    x = torch.randn(1, LENGTH, DIM).double()
    here, there = logits(clock, Positions.times(at), x), logits(clock.inner, Positions.times(at / 2), x)
    assert_close(here, there)


def test_bfloat16_keeps_the_times_of_long_texts():
    torch.manual_seed(0)
    clock, length = make("alibi", std=0.5), 20_000
    x = torch.randn(1, length, DIM).bfloat16()
    context = AttentionContext(clock.prepare(Positions.arange(length)), 0, x)
    k = torch.zeros(1, length, HEADS, DIM // HEADS)
    single, half = (clock.qkv(y, y, y, context)[1].transpose(1, 2) for y in (k, k.bfloat16()))
    assert half.dtype == torch.bfloat16
    # one number alone would err by several tokens
    assert_close(clock.times(half, context), clock.times(single, context), rtol=0, atol=0.05)


def test_bfloat16_keeps_a_constant_rate():
    clock, length = make("kerple", kernel=2, hidden=3), 1001
    nn.init.constant_(clock.bias_of_rate, 0.3)
    clock.inner.r1.sum().add(clock.bias_of_rate.sum()).backward()
    half = clock.bfloat16()
    assert {parameter.dtype for parameter in half.inner.parameters()} == {torch.bfloat16}
    assert (half.inner.r1.grad.dtype, half.bias_of_rate.grad.dtype) == (torch.bfloat16, torch.float32)
    x = torch.zeros(1, length, DIM).bfloat16()
    context = AttentionContext(half.prepare(Positions.arange(length)), 0, x)
    k = half.qkv(*[x.view(1, length, HEADS, -1)] * 3, context)[1].transpose(1, 2)
    expected = torch.arange(length).double() * math.log2(1 + 2**0.3)
    assert_close(half.times(k, context)[0, 0, :, 0].detach(), expected, rtol=0, atol=1e-3)


def test_casts_leave_pruned_and_parametrized_rates():
    pruned, parametrized = make("alibi"), make("alibi")
    prune.random_unstructured(pruned, "weight", 0.5)
    parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    assert pruned.bfloat16().weight_orig.dtype == torch.float32
    assert parametrized.bfloat16().parametrizations.weight.original.dtype == torch.float32


@pytest.mark.parametrize("at", [1_325_476_708, 2**40])
@pytest.mark.parametrize("name", BIASES)
def test_far_whole_positions_have_the_distances_of_the_plain_encoding(name, at):
    """Also in a batch with a text that begins at 0, and with padding there, before the tokens and after."""
    torch.manual_seed(0)
    plain = build(name, dim=DIM, heads=HEADS, layers=2, max_length=16).eval()
    clock = make(name)
    clock.inner.load_state_dict(plain.state_dict())
    rows = torch.tensor([[0, 1, 4, 82], [0, at, at + 1, at + 4], [at, at + 1, at + 4, 0]])
    valid = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 0]]).bool()
    positions, x = Positions(rows, rows, valid), torch.randn(3, 4, DIM)
    here, there = (logits(model, positions, x) for model in (clock, plain))
    pairs = (valid[:, None, :, None] & valid[:, None, None]).expand_as(here)
    assert_close(here[pairs], there[pairs], rtol=1e-5, atol=1e-5)


def test_differences_of_times_have_gradients():
    at = (2.0**31 + torch.arange(5.0).double() / 3).requires_grad_()
    delta, weights = time_differences(at[2:], at, torch.bfloat16), torch.arange(15.0).view(3, 5).square()
    assert delta.dtype == torch.float32
    assert_close(delta.double(), at[None] - at[2:, None], rtol=1e-6, atol=1e-6)
    (delta * weights).sum().backward()
    expected = weights.sum(0)
    expected[2:] -= weights.sum(1)
    assert_close(at.grad, expected.double())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "t5"}, "model is 't5'; a clock drives one of: .*alibi.*rotary"),
        ({"model": "self_extend"}, "model is 'self_extend'"),
        ({"model": "floater_tree"}, "model is 'floater_tree'"),
        ({"model": "clock"}, "model is 'clock'"),
        ({"model": "alibi", "rate": "angle"}, "rate='angle' is for encodings that rotate"),
        ({"model": "alibi", "per": "pair"}, "per='pair' is for encodings that rotate"),
        ({"model": "sinusoidal", "per": "head"}, "'sinusoidal' adds vectors.*per must be 'block'"),
        ({"model": "floater", "rate": "softplus"}, "'floater' adds vectors.*rate 'sigmoid'"),
        ({"model": "learned"}, "model is 'learned'"),
        ({"per": "layer"}, "per is 'layer'; it must be one of 'head'"),
        ({"rate": "exp"}, "rate is 'exp'; it must be one of"),
        ({"std": -1.0}, "std is -1.0"),
        ({"kernel": 0}, "kernel is 0"),
        ({"model": "alibi", "both": True, "per": "block"}, "both=True is for heads of an even number"),
        ({"both": True, "kernel": 2}, "both=True .* without a kernel"),
        ({"model": {"name": "rotary", "bases": 1.0}}, "unknown option 'bases'"),
    ],
)
def test_it_refuses(options, message):
    check_refusal("clock", options, message)


def test_a_flow_without_a_clip_is_refused():
    model = {"name": "floater_relative", "clip": None}
    check_refusal("clock", {"model": model}, "needs a clip", Positions.arange(3))


def test_a_table_of_knots_has_the_values_between_them():
    at = knots(500.0)
    table = torch.stack([at.log1p().sin(), at.log1p().cos()])[:, None]
    delta = torch.linspace(-499.0, 499.0, 4001).double().view(1, 1, 1, -1)
    u = delta.abs().log1p()
    assert_close(interpolate(table, delta), torch.where(delta > 0, u.cos(), u.sin()), rtol=0, atol=1.2e-6)
    whole = torch.arange(-400.0, 1.0).view(1, 1, 1, -1).double()
    assert torch.equal(interpolate(table, whole)[0, 0, 0], whole[0, 0, 0].abs().log1p().sin())


def test_the_gradient_of_a_table_of_knots_is_its_slope():
    table = knots(20.0).square()[None, None]
    delta = torch.tensor([[[[-2.5, 7.3]]]]).double().requires_grad_()
    interpolate(table, delta).sum().backward()
    assert_close(delta.grad, 2 * delta.detach(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("sides", [1, 2])
def test_the_gradients_of_a_table_of_knots_with_one_time_for_all_heads(sides):
    random = torch.Generator().manual_seed(0)
    table = torch.randn(sides, 3, len(knots(9.0)), generator=random, dtype=torch.float64).cumsum(-1)
    delta = 12 * torch.randn(2, 1, 4, 5, generator=random, dtype=torch.float64)  # some beyond the last knot
    inputs = table.requires_grad_(), delta.requires_grad_()
    torch.autograd.gradcheck(interpolate, inputs, eps=1e-7, atol=1e-5)


def test_a_table_of_knots_has_no_second_derivative():
    table = knots(20.0).square()[None, None].requires_grad_()
    delta = torch.tensor([[[[-2.5, 7.3]]]]).double().requires_grad_()
    loss = interpolate(table, delta).sum() + table.pow(2).sum() + delta.pow(2).sum()
    for one, other in ((table, delta), (delta, table)):
        (gradient,) = torch.autograd.grad(loss, one, create_graph=True)
        with pytest.raises(SecondDerivativeError):
            torch.autograd.grad(gradient.sum(), other, retain_graph=True)


def test_beside_other_encodings_it_acts_as_alone():
    """A clock that drives a bias beside a plain rotation, in either order; and one beside products."""
    torch.manual_seed(0)
    options = {"dim": DIM, "heads": HEADS, "layers": 2, "max_length": 16}
    x, positions = torch.randn(2, LENGTH, DIM), Positions.arange(LENGTH)
    clock = {"name": "alibi", "clock": {"std": 0.5}}
    both = build("compose", models=["rotary", clock], **options)
    alone = both.parts[1]
    plain, added = (build(name, **options) for name in ("rotary", "none"))
    bias = logits(alone, positions, x) - logits(added, positions, x)
    assert_close(logits(both, positions, x), logits(plain, positions, x) + bias)
    # shaw reads keys, so that both rotations act on the dot products alone
    turned = build("compose", models=["shaw", {"name": "rotary", "clock": {"std": 0.5}}], **options)
    shaw, rotary = turned.parts
    expected = logits(shaw, positions, x) + logits(rotary, positions, x) - logits(added, positions, x)
    assert_close(logits(turned, positions, x), expected)


@torch.no_grad()
def test_tiles_of_another_encoding_read_queries_that_are_not_rotated():
    torch.manual_seed(0)
    parts = ["shaw", {"name": "rotary", "clock": {"std": 0.5}}]
    model = build("compose", models=parts, dim=DIM, heads=HEADS, layers=1, max_length=300).double()
    context = attention_context(
        model, model.prepare(Positions.arange(300)), 0, torch.randn(1, 300, DIM).double()
    )
    call = AttentionCall(model, context, *project_qkv(model, context))
    tiled = Tiled()
    assert tiled.supports(call)
    assert_close(tiled.attend(call)[0], Plain().attend(call)[0])


def biased_call(
    clock: Clock, length: int, queries: int, **options: object
) -> tuple[AttentionCall, list[Tensor]]:
    """Return a call of the last queries of two texts, one of them padded, and the leaves of its gradients."""
    torch.manual_seed(0)
    x = torch.randn(2, length, DIM, dtype=clock.weight.dtype).to(clock.inner.dtype).requires_grad_()
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, :3] = False
    context = attention_context(clock, clock.prepare(Positions.from_mask(real.long())), 1, x)
    q, k, v = project_qkv(clock, context)
    call = AttentionCall(clock, context, q[:, :, -queries:], k, v, real[:, None, None], **options)
    return call, [x, *clock.parameters()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("causal", "queries"), [(False, 13), (True, 13), (True, 7)])
@pytest.mark.parametrize("per", ["head", "block"])
@pytest.mark.parametrize("name", BIASES)
def test_tiles_of_a_bias_are_the_formula_with_its_gradients(monkeypatch, name, per, causal, queries, dtype):
    """With fewer queries than keys, as with a cache, too; and with a temperature of the keys seen."""
    for constant, value in (("TILED_FROM", 1), ("CLOCK_TILE", 60), ("CLOCK_ROWS", 3)):
        monkeypatch.setattr(kernels, constant, value)
    torch.manual_seed(0)
    clock = make({"name": name, "clip": 8} if name == "floater_relative" else name, per=per, std=0.5).to(
        dtype
    )
    call, leaves = biased_call(clock, 13, queries, causal=causal, temperature=lambda logs: 1 + logs)
    tiled = kernel_for(call, "sdpa")
    assert isinstance(tiled, TiledClock)
    plain = Sdpa() if dtype == torch.bfloat16 else Plain()
    outs = [
        kernel.attend(call)[0][call.key_mask.expand(-1, HEADS, -1, -1)[:, :, 0, -queries:]]
        for kernel in (tiled, plain)
    ]
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    assert_close(*outs, rtol=tolerance, atol=tolerance)
    gradients = [
        torch.autograd.grad(out.square().sum(), leaves, retain_graph=True, allow_unused=True) for out in outs
    ]
    for actual, wanted in zip(*gradients, strict=True):
        assert (actual is None) == (wanted is None)
        if actual is not None:
            scale = wanted.abs().max().clamp(min=1)  # some are zero but for rounding
            assert bool((actual - wanted).abs().max() <= tolerance * scale)
    rates = 1 + [name for name, _ in clock.named_parameters()].index("weight")
    assert bool(gradients[0][rates][1].any())


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        out = function(*arguments, **options or {})
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor):
                stored = each.untyped_storage().nbytes() // each.element_size()
                self.numbers = max(self.numbers, stored)
        return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BIASES)
def test_tiles_of_a_bias_make_no_matrix_of_all_pairs(monkeypatch, name, causal):
    monkeypatch.setattr(kernels, "CLOCK_TILE", 2**14)
    length = 320
    largest = {}
    for kernel in (TiledClock(), Sdpa()):
        call, leaves = biased_call(make(name, std=0.02), length, length, causal=causal)
        assert isinstance(kernel_for(call, "sdpa"), TiledClock)
        with Largest() as mode:
            torch.autograd.grad(kernel.attend(call)[0].sum(), leaves, allow_unused=True)
        largest[type(kernel)] = mode.numbers
    pairs = 2 * HEADS * length**2
    assert largest[Sdpa] >= pairs
    assert largest[TiledClock] < pairs / 4


def test_tiles_of_a_bias_refuse_second_derivatives(monkeypatch):
    monkeypatch.setattr(kernels, "CLOCK_TILE", 100)
    call, leaves = biased_call(make("alibi", std=0.5), LENGTH, LENGTH, causal=True)
    loss = TiledClock().attend(call)[0].square().sum()
    gradients = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    with pytest.raises(SecondDerivativeError, match="set_attn_implementation"):
        sum(gradient.sum() for gradient in gradients if gradient is not None).backward()


def test_tiles_of_a_bias_drop_the_same_weights_in_the_backward_pass(monkeypatch):
    """Outputs are linear in the values."""
    monkeypatch.setattr(kernels, "CLOCK_TILE", 100)
    call, _ = biased_call(make("alibi", std=0.5), LENGTH, LENGTH, causal=True, dropout=0.5)
    call.v = call.v.detach().requires_grad_()
    out = TiledClock().attend(call)[0]
    assert not torch.equal(out, TiledClock().attend(call)[0])
    above = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, call.v, above)
    assert_close((gradient * call.v).sum(), (out * above).sum())


@torch.no_grad()
def test_linear_attention_reads_rotated_queries_and_keys():
    plain, clock = (
        FloaterForCausalLM(
            FloaterConfig.preset("tiny", vocab_size=11, position=position, attention="linear")
        ).eval()
        for position in ("rotary", {"name": "rotary", "clock": {}})
    )
    clock.load_state_dict(plain.state_dict(), strict=False)
    ids = torch.arange(3, 11).view(1, 8)
    assert_close(clock(ids).logits, plain(ids).logits)


def test_grouped_far_distances_are_not_read():
    assert not make("alibi").reads_distances
    assert make("alibi").supports_segment_memory


def test_documents_of_real_times_begin_anew():
    clock = make("alibi", std=0.5)
    x = torch.randn(1, 5, DIM)
    packed = Positions.packed([[3, 2]])
    whole = logits(clock, packed, x)
    alone = logits(clock, Positions.arange(2), x[:, 3:])
    assert_close(whole[..., 3:, 3:], alone)
    times = packed.but(query=packed.query + 0.5, key=packed.key + 0.5)
    assert_close(logits(clock, times, x)[..., 3:, 3:], alone)


def test_powers_below_one_have_gradients_at_distance_zero():
    torch.manual_seed(0)
    model = make({"name": "kerple", "kind": "power"}).double()
    with torch.no_grad():
        model.inner.r2.fill_(0.5)
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    logits(model, Positions.arange(LENGTH), x).square().sum().backward()
    tensors = [x, model.weight, model.bias_of_rate, *model.inner.parameters()]
    assert all(tensor.grad is None or bool(tensor.grad.isfinite().all()) for tensor in tensors)
    assert bool(model.weight.grad.any())


@pytest.mark.parametrize("name", ["rotary", "alibi", "sinusoidal"])
@pytest.mark.parametrize("scaling", ["t5", "deberta"])
def test_a_clock_leaves_the_scale_to_another_part(name, scaling):
    """As the encoding that it drives does."""
    sizes = {"dim": DIM, "heads": HEADS, "layers": 2, "max_length": 16}
    plain, driven = (
        build("compose", **sizes, models=[part, scaling]) for part in (name, {"name": "clock", "model": name})
    )
    assert driven.scale(8) == plain.scale(8)
    assert driven.query_gain(8) == plain.query_gain(8)


@torch.no_grad()
def test_a_clock_does_not_sum_over_a_part_of_a_text(monkeypatch):
    monkeypatch.setattr(kernels, "in_context_parallel", lambda: True)
    ids = torch.tensor([[3, 4, 5]])
    for driven in (False, True):
        position = {"name": "rotary"} | ({"clock": {}} if driven else {})
        config = FloaterConfig.preset("tiny", vocab_size=9, position=position, dropout=0.0)
        model = FloaterForCausalLM(config).eval()
        if driven:
            with pytest.raises(PositionError, match="context_parallel shows Clock a part of each text"):
                model(ids)
        else:
            model(ids)
