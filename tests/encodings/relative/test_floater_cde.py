"""The driven flow against exponentials of its matrices, rotary positions, clocks and permutations."""

import itertools

import pytest
import torch
from relative_cases import DIM, EVERYWHERE, HEADS, POSITIONS, SIZES, TIMES, WIDTH, agree, build_encoding
from torch._dynamo.testing import CompileCounter

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.quaternions import _cumulative, cumulative, exponential

LAYER = 1
ASKED = Positions(
    *2 * (torch.tensor([[1.0, 0.5, 3.25, 7.0, 9.0], [0.0, 1.5, 2.0, 9.75, 9.5]], dtype=torch.float64),),
    torch.tensor([[False, True, False, True, False], [True, True, True, False, True]]),
)
"""Events of which some are no keys, the first, one between and the last among them."""
WITH_ASKED = pytest.mark.parametrize(
    "positions", [*POSITIONS.values(), TIMES, ASKED], ids=[*POSITIONS, "times", "asked"]
)


def skew(model, x, tokens, head):
    """A (4 x 4) of each token: p -> a p - p b for the quaternions a and b, with the frequencies of rotary."""
    entries = x @ model.weight[LAYER].mT
    if model.convolution is not None:
        mixed = []
        for slot in range(len(x)):
            before = [slot, *reversed([token for token in tokens if token < slot])]
            mixed.append(
                sum(tap * entries[s] for tap, s in zip(model.convolution[LAYER], before, strict=False))
            )
        entries = torch.stack(mixed)
    entries = entries + model.bias_of_matrix[LAYER]
    a, b = entries.view(len(x), HEADS, 3, 2)[:, head].unbind(-1)
    first, second = model.base**0.0, model.base**-0.5  # of the WIDTH = 4 components of a head
    if model.positions:
        plain = torch.tensor([1.0, 0.0, 0.0], dtype=x.dtype)
        a, b = a + (first + second) / 2 * plain, b + (second - first) / 2 * plain
    zero = torch.zeros_like(a[:, 0])
    (i, j, k), (u, v, w) = a.unbind(1), b.unbind(1)
    left = torch.stack([zero, -i, -j, -k, i, zero, -k, j, j, k, zero, -i, k, -j, i, zero], 1)
    right = torch.stack([zero, -u, -v, -w, u, zero, w, -v, v, -w, zero, u, w, v, -u, zero], 1)
    return (left - right).view(-1, 4, 4)


def products(model, positions, q, k, x):
    """Return the products of queries and keys, of q and k (batch, S, heads, width)."""
    context = AttentionContext(model.prepare(positions), LAYER, x)
    q, k, _ = model.qkv(q, k, k, context)
    q, k = model.rotated(q.transpose(1, 2)[:, :, -positions.query.shape[1] :], k.transpose(1, 2), context)
    return q @ k.mT


@WITH_ASKED
@pytest.mark.parametrize("options", [{}, {"positions": False}, {"kernel": 3}])
def test_products_are_those_of_matrix_exponentials(positions, options):
    """Values and gradients, in queries, keys, inputs and parameters."""
    model = build_encoding("floater_cde", **options)
    slots, length = positions.key.shape[1], positions.query.shape[1]
    q, k = (torch.randn(2, slots, HEADS, WIDTH, dtype=torch.double).requires_grad_() for _ in range(2))
    x = torch.randn(2, slots, DIM, dtype=torch.double).requires_grad_()
    valid = torch.ones(2, slots) if positions.key_valid is None else positions.key_valid.expand(2, -1)
    wanted = torch.zeros(2, HEADS, length, slots, dtype=torch.double)
    at = positions.key.expand(2, -1).double()
    for row, head in itertools.product(range(2), range(HEADS)):
        tokens = valid[row].nonzero().flatten().tolist()
        turns, key_turns, matrices, before = [], [], skew(model, x[row], tokens, head), None
        turn = torch.eye(4, dtype=torch.double)
        for slot in range(slots):
            since = at[row, slot] - at[row, tokens[0] if before is None else before]
            turns.append(turn @ torch.matrix_exp(since * matrices[slot]))
            if valid[row, slot]:
                turn, before = turns[slot], slot
            key_turns.append(turn)
        for t, s in itertools.product(range(length), range(slots)):
            query = slots - length + t
            product = q[row, query, head] @ turns[query].mT @ key_turns[s] @ k[row, s, head]
            wanted = wanted.index_put(tuple(map(torch.tensor, (row, head, t, s))), product)
    actual = products(model, positions, q, k, x)
    agree(actual, wanted, q, k, x, *model.parameters())


def to_keys(positions):
    """Return the mask (2, 1, 1, S) of the keys that are tokens."""
    valid = torch.ones(2, positions.key.shape[1]).bool()
    return (valid if positions.key_valid is None else positions.key_valid.expand(2, -1))[:, None, None]


@WITH_ASKED
def test_it_is_rotary_before_training(positions):
    model, rotary = (build(name, **SIZES).double() for name in ("floater_cde", "rotary"))
    slots, length = positions.key.shape[1], positions.query.shape[1]
    q, k, x = (torch.randn(2, slots, HEADS, WIDTH, dtype=torch.double) for _ in range(3))
    turns = rotary.turns_at(positions.key[:, :, None, None], rotary.prepare_times(positions), 0)
    turned_q, turned_k = (rotary.rotate(y, turns).transpose(1, 2) for y in (q, k))
    actual, wanted = products(model, positions, q, k, x.flatten(2)), turned_q[:, :, -length:] @ turned_k.mT
    pairs = to_keys(positions).expand_as(actual)
    torch.testing.assert_close(actual[pairs], wanted[pairs])


@EVERYWHERE
@torch.no_grad()
def test_in_the_planes_of_pairs_it_is_a_clock_of_angles(positions):
    """Its rotations commute then: the sum and the difference of two angles turn the pairs of a block."""
    model = build_encoding("floater_cde")
    clock = build("clock", **SIZES, model="rotary", per="pair", rate="angle").double()
    for driven, angles in ((model.weight, clock.weight), (model.bias_of_matrix, clock.bias_of_rate)):
        entries = driven.view(*driven.shape[:1], HEADS, 3, 2, *driven.shape[2:])
        entries[:, :, 1:] = 0
        a, b = entries[:, :, 0].unbind(2)
        angles.copy_(torch.stack([a - b, a + b], 2).flatten(1, 2))
    slots, length = positions.key.shape[1], positions.query.shape[1]
    q, k = (torch.randn(2, slots, HEADS, WIDTH, dtype=torch.double) for _ in range(2))
    x = torch.randn(2, slots, DIM, dtype=torch.double)
    context = AttentionContext(clock.prepare(positions), LAYER, x)
    timed_q, timed_k, _ = clock.qkv(q, k, k, context)
    timed_q, timed_k = clock.rotated(
        timed_q.transpose(1, 2)[:, :, -length:], timed_k.transpose(1, 2), context
    )
    actual, wanted = products(model, positions, q, k, x), timed_q @ timed_k.mT
    pairs = to_keys(positions).expand_as(actual)
    torch.testing.assert_close(actual[pairs], wanted[pairs])


@torch.no_grad()
def test_it_follows_permutations_for_any_length():
    """The permutations of three things as reflections in two lines 60 degrees apart, over 500 tokens."""
    model = build("floater_cde", dim=4, heads=1, layers=2, max_length=16, positions=False)
    angles = torch.tensor([0.0, torch.pi / 3])
    lines = torch.stack([angles.cos(), angles.sin()])
    # half a turn of i, j and k about a line in the plane of i and j: p -> a p a^-1, a = exp(pi / 2 line)
    model.weight[LAYER].view(3, 2, 4)[:2, :, :2] = torch.pi / 2 * lines[:, None]
    x = torch.eye(4)[torch.randint(2, (500,), generator=torch.Generator().manual_seed(0))]
    i_and_j = torch.eye(4)[1:3]
    q, k = i_and_j.repeat_interleave(2, 0), i_and_j.repeat(2, 1)
    q, k = (part[:, None, None].expand(4, 500, 1, 4) for part in (q, k))
    actual = products(model, Positions.arange(500), q, k, x.expand(4, -1, -1))[:, 0, -1, 0].view(2, 2)
    cos, sin = (2 * angles).cos(), (2 * angles).sin()
    reflections = torch.stack([cos, sin, sin, -cos], 1).view(2, 2, 2)
    wanted = torch.eye(2)
    for token in x[1:].argmax(1).tolist():
        wanted = reflections[token] @ wanted
    torch.testing.assert_close(actual, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [0, 1, 13])
def test_cumulative_products_and_their_gradients(length):
    """Those of a function with closed-form gradients, and those of its steps."""
    vectors = torch.randn(3, length, 2, dtype=torch.double, requires_grad=True)
    actual, wanted = (torch.stack(products(exponential(vectors))) for products in (cumulative, _cumulative))
    agree(actual, wanted, vectors)


def test_second_and_forward_derivatives():
    vectors = torch.randn(3, 5, 1, dtype=torch.double, requires_grad=True)

    def loss(vectors, products=cumulative):
        return torch.stack(products(exponential(vectors))).pow(3).sum()

    assert torch.autograd.gradgradcheck(loss, vectors)
    direction = torch.randn_like(vectors)
    with torch.autograd.forward_ad.dual_level():
        dual = loss(torch.autograd.forward_ad.make_dual(vectors.detach(), direction))
        slope = torch.autograd.forward_ad.unpack_dual(dual).tangent
    (gradient,) = torch.autograd.grad(loss(vectors, _cumulative), vectors)
    torch.testing.assert_close(slope, (gradient * direction).sum())


@pytest.mark.parametrize(("gap", "length"), [(1.0, 4096), (1e7, 20)])
@torch.no_grad()
def test_times_are_exact_in_single_precision(gap, length):
    """Before training it is rotary, whose angles are computed in double precision, at any distance."""
    times = Positions.times((gap * torch.arange(float(length), dtype=torch.float64))[None])
    model, rotary = (
        build(name, dim=64, heads=1, layers=1, max_length=16) for name in ("floater_cde", "rotary")
    )
    q, k = torch.randn(2, 1, length, 1, 64)
    context = AttentionContext(model.prepare(times), 0, torch.randn(1, length, 64))
    carried = model.qkv(q, k, k, context)[1].transpose(1, 2)
    actual = torch.cat(model.rotated(q.transpose(1, 2), carried, context))
    wanted = rotary.double().rotate(torch.cat([q, k]).double(), rotary.prepare(times)).transpose(1, 2)
    torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=3e-6)


def test_lengths_share_a_compiled_program():
    """As traced steps, one program for each power of two would exceed the limit of the compiler."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(
        lambda vectors: torch.stack(cumulative(exponential(vectors))),
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    for length in (3, 5, 9, 17, 33, 65, 129, 257, 513, 1025):
        vectors = torch.randn(3, length, 2, dtype=torch.double, requires_grad=True)
        agree(compiled(vectors), torch.stack(_cumulative(exponential(vectors))), vectors)
    assert counter.frame_count <= 2
