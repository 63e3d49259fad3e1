"""Attention and the hooks of a position model against plain loops over queries and keys."""

import itertools
import math

import pytest
import torch
from torch import nn
from transformer_cases import config

from floater import Positions
from floater.encodings import AttentionContext, PositionModel, StackSpec
from floater.encodings.attention import project
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast

DIM, HEADS, LENGTH, BATCH = 8, 2, 5, 3


class Hooked(PositionModel):
    """A parameter of its own, so that gradients through each hook can be compared; the state is delta."""

    def __init__(self):
        super().__init__(StackSpec(dim=DIM, heads=HEADS, layers=2, max_length=16))
        self.w = nn.Parameter(torch.randn(HEADS, DIM))

    def prepare(self, positions):
        return positions.delta


class Inputs(Hooked):
    """Keys and queries see more than values (as in Shortformer)."""

    def inputs(self, context):
        x = context.x
        return x + self.w[0], x + (context.layer + 1) * self.w[1], x


class Projected(Hooked):
    """A bias for each projection, growing along the sequence (as in FLOATER)."""

    def projection_bias(self, name, context):
        if name == "value" and context.layer == 1:
            return None
        return (context.layer + 1) * self.w[len(name) % HEADS] * context.state[:, :, :1]


class ProjectedEach(Projected):
    """The same, other in each sample."""

    def projection_bias(self, name, context):
        bias = super().projection_bias(name, context)
        return None if bias is None else bias * torch.arange(BATCH)[:, None, None]


class QKV(Hooked):
    def qkv(self, q, k, v, context):
        w = self.w.view(HEADS, HEADS, -1)
        return q + w[0], k * (1 + w[1]), v - (context.layer + 1) * w[0]


class Scale(Hooked):
    def scale(self, head_dim):
        return 1 / math.sqrt(3 * head_dim)


class Bias(Hooked):
    """Linear in the distance, a slope per head (as in ALiBi)."""

    def bias(self, q, k, context):
        return (context.layer + 1) * self.w[:, 0, None, None] * context.state[:, None]


class ContentBias(Hooked):
    """Depends on queries (as in Transformer-XL)."""

    def bias(self, q, k, context):
        return (q * self.w.view(HEADS, HEADS, -1)[0][:, None]).sum(-1, keepdim=True) * context.state[:, None]


class Mask(Hooked):
    """Neighbours at most one away; the first query sees nothing in the second block."""

    def mask(self, context):
        near = context.state.abs() <= 1
        return (
            near[:, None]
            if context.layer == 0
            else near[:, None] & (torch.arange(near.shape[1]) > 0)[:, None]
        )


class MaskAndBias(Mask, Bias):
    pass


class Logits(Hooked):
    def logits(self, logits, q, k, context):
        return logits * torch.exp(-self.w[:, 1, None, None].abs() * context.state[:, None].abs())


class Values(Hooked):
    """A vector per distance (as in Shaw et al.)."""

    def value_bias(self, weights, context):
        vectors = context.state[..., None] * self.w.flatten()[: DIM // HEADS]
        return torch.einsum("bhts,xtsd->bhtd", weights, vectors.expand(1, -1, -1, -1))


class Everything(Inputs, Projected, QKV, Scale, MaskAndBias, Logits, Values):
    pass


MODELS = (
    PositionModel,
    Inputs,
    Projected,
    ProjectedEach,
    QKV,
    Scale,
    Bias,
    ContentBias,
    Mask,
    MaskAndBias,
    Logits,
    Values,
    Everything,
)


def make(cls, layer, causal=False, implementation="sdpa"):
    torch.manual_seed(1)
    position = (
        cls() if issubclass(cls, Hooked) else cls(StackSpec(dim=DIM, heads=HEADS, layers=2, max_length=16))
    )
    settings = config(hidden_size=DIM, num_attention_heads=HEADS, attn_implementation=implementation)
    return position.double(), Attention(settings, layer, causal=causal).double()


def may_attend(allowed, key_valid, causal, b, h, t):
    """The keys that one query of one head may attend to."""
    return [
        s
        for s in range(LENGTH)
        if (key_valid is None or key_valid[b, s])
        and (not causal or s <= t)
        and (allowed is None or allowed.expand(BATCH, HEADS, LENGTH, LENGTH)[b, h, t, s])
    ]


def reference(attention, position, x, state, key_valid, causal):
    """In the order of the design: scale x q.k + bias, logits, mask, softmax, weights @ v + values."""
    layer, head_dim, shape = attention.layer, DIM // HEADS, (BATCH, HEADS, LENGTH, LENGTH)
    projections = zip(
        ("query", "key", "value"), position.inputs(AttentionContext(state, layer, x)), strict=True
    )
    q, k, v = (
        (getattr(attention, name)(y) + (0 if bias is None else bias)).view(BATCH, LENGTH, HEADS, head_dim)
        for name, y in projections
        for bias in (position.projection_bias(name, AttentionContext(state, layer)),)
    )
    q, k, v = (y.transpose(1, 2) for y in position.qkv(q, k, v, AttentionContext(state, layer)))
    dots = [(q[..., t, :] * k[..., s, :]).sum(-1) for t in range(LENGTH) for s in range(LENGTH)]
    logits = torch.stack(dots, -1).view(shape) * position.scale(head_dim)
    if (bias := position.bias(q, k, AttentionContext(state, layer))) is not None:
        logits = logits + bias
    logits = position.logits(logits, q, k, AttentionContext(state, layer))
    allowed, rows = position.mask(AttentionContext(state, layer)), []
    for b, h, t in itertools.product(range(BATCH), range(HEADS), range(LENGTH)):
        weights = torch.zeros(LENGTH, dtype=x.dtype)
        if keys := may_attend(allowed, key_valid, causal, b, h, t):
            powers = torch.exp(logits[b, h, t, keys] - logits[b, h, t, keys].max())
            weights = weights.index_put((torch.tensor(keys),), powers / powers.sum())
        rows.append(weights)
    weights = torch.stack(rows).view(shape)
    out = weights @ v
    if (more := position.value_bias(weights, AttentionContext(state, layer))) is not None:
        out = out + more
    return attention.output(out.transpose(1, 2).reshape(BATCH, LENGTH, DIM))


MASKS = {
    "no padding": None,
    "padding": torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool(),
}


@pytest.mark.parametrize("key_valid", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("cls", MODELS)
def test_every_hook_acts_where_it_should(cls, implementation, causal, key_valid):
    for layer in (0, 1):
        position, attention = make(cls, layer, causal, implementation)
        x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.double, requires_grad=True)
        state = position.prepare(Positions.arange(LENGTH))
        state = None if state is None else state.double()
        out, weights = attention(x, SharedInputs(position, Uncast(state), key_valid))
        expected = reference(attention, position, x, state, key_valid, causal)
        torch.testing.assert_close(out, expected)
        plain = implementation == "eager" or position.overrides("logits", "value_bias")
        assert (weights is not None) == plain
        inputs = [x, *position.parameters(), *attention.parameters()]
        pull = torch.randn(out.shape, dtype=torch.double)
        actual, wanted = (
            torch.autograd.grad((y * pull).sum(), inputs, allow_unused=True) for y in (out, expected)
        )
        for a, b in zip(actual, wanted, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("cls", [PositionModel, Bias, Mask, MaskAndBias, Logits])
def test_a_query_that_may_attend_to_nothing_gets_zeros(cls, implementation, dtype):
    position, attention = make(cls, 0, implementation=implementation)
    position, attention = position.to(dtype), attention.to(dtype)
    state = position.prepare(Positions.arange(LENGTH))
    key_valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    key_valid[1] = False
    x = torch.randn(BATCH, LENGTH, DIM, dtype=dtype, requires_grad=True)
    out, _ = attention(x, SharedInputs(position, Uncast(state), key_valid))
    assert torch.equal(out[1], attention.output.bias.expand(LENGTH, -1))
    out.float().square().sum().backward()
    gradients = [x.grad, *(p.grad for p in attention.parameters()), *(p.grad for p in position.parameters())]
    assert all(bool(g.isfinite().all()) for g in gradients if g is not None)


def test_a_bias_that_forbids_everything_gives_zeros_too():
    class Forbids(Hooked):
        def bias(self, q, k, context):
            return torch.where(context.state == 0, -torch.inf, 0.0)[:, None]

    for implementation in ("sdpa", "eager"):
        position, attention = make(Forbids, 0, implementation=implementation)
        key_valid = torch.eye(LENGTH).bool()[:BATCH]  # each row keeps the one key that one query may not see
        x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.double)
        out, _ = attention(
            x, SharedInputs(position, Uncast(position.prepare(Positions.arange(LENGTH))), key_valid)
        )
        for row in range(BATCH):
            assert torch.equal(out[row, row], attention.output.bias)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_dropout_drops_weights_in_training_only(implementation):
    position, attention = make(PositionModel, 0, implementation=implementation)
    attention.config.attention_dropout, shared = 1.0, SharedInputs(position, Uncast(None))
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.double)
    kept, dropped = (attention.train(mode)(x, shared)[0] for mode in (False, True))
    nothing = attention.output.bias.expand_as(kept)
    assert not torch.allclose(kept, nothing)
    assert torch.equal(dropped, nothing)


def test_a_projection_that_is_more_than_its_weights_is_called():
    torch.manual_seed(0)
    linear, x, bias = nn.Linear(4, 6), torch.randn(2, 3, 4), torch.randn(1, 3, 6)
    linear.register_forward_hook(lambda module, arguments, output: 2 * output)
    torch.testing.assert_close(project(linear, x, bias), linear(x) + bias)


@pytest.mark.parametrize("texts", [1, 4])
def test_the_backward_pass_of_a_bias_copies_no_gradient(texts):
    linear, x, bias = nn.Linear(4, 6), torch.randn(4, 3, 4), torch.randn(texts, 3, 6, requires_grad=True)
    todo, seen = [project(linear, x, bias).grad_fn], set()
    while todo:
        node = todo.pop()
        seen.add(node.name())
        todo.extend(following for following, _ in node.next_functions if following is not None)
    assert "AddmmBackward0" in seen
    assert "CopySlices" not in seen  # of what is added to in place of a view


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_shared_bias_meets_any_batch(batch, length, trained):
    linear, x = nn.Linear(4, 6).requires_grad_(trained), torch.randn(batch, length, 4)
    bias = torch.randn(1, length, 6, requires_grad=trained)
    torch.testing.assert_close(project(linear, x, bias), linear(x) + bias)
