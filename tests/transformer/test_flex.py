"""FlexAttention against the formula and the SDPA route, in PyTorch's unfused form on a CPU."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as theirs

from floater import FloaterConfig, Positions, build
from floater.transformer import FloaterModel, flex, kernels
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.flex import flex_applies, flex_attention, flex_learns
from floater.transformer.uncast import Uncast

BATCH, HEADS, LENGTH, DIM = 2, 2, 9, 32
SIZES = {"dim": DIM, "heads": HEADS, "layers": 1, "max_length": 16}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Let a CPU be asked, with gradients: its own kernel has none, the unfused form that runs here has."""
    monkeypatch.setattr(flex, "DEVICES", ("cpu",))
    monkeypatch.setattr(theirs, "_validate_device", lambda *tensors: None)


@pytest.fixture
def calls(monkeypatch):
    """The number of calls of FlexAttention."""
    created = []

    def counted(*args, **kwargs):
        created.append(kwargs)
        return flex_attention(*args, **kwargs)

    monkeypatch.setattr(kernels, "flex_attention", counted)
    return created


@pytest.mark.parametrize(
    ("causal", "masked", "heads"),
    [(False, None, 1), (False, "pairs", HEADS), (True, "keys", HEADS), (True, "heads", None)],
)
def test_values_and_gradients_are_those_of_the_formula(causal, masked, heads):
    torch.manual_seed(0)
    slots = LENGTH + 4
    sizes = {"keys": (1, 1), "pairs": (1, LENGTH), "heads": (HEADS, LENGTH)}.get(masked)
    mask = None if sizes is None else torch.rand(BATCH, *sizes, slots) > 0.4
    if masked in ("pairs", "heads"):
        mask[1, 0, 3] = False  # a query without a key
    q, k, v = (torch.randn(BATCH, HEADS, size, 16, requires_grad=True) for size in (LENGTH, slots, slots))
    bias = None if heads is None else torch.randn(heads, LENGTH + slots, requires_grad=True)
    logits = 0.3 * q @ k.mT
    if bias is not None:
        distance = torch.arange(slots) - torch.arange(LENGTH)[:, None]
        logits = logits + bias[:, distance + LENGTH - 1]
    seen = torch.ones(LENGTH, slots, dtype=torch.bool)
    if causal:
        seen = seen.tril(slots - LENGTH)
    if mask is not None:
        seen = seen & mask
    weights = logits.masked_fill(~seen, -1e9).softmax(-1) * seen
    wanted, inputs = weights @ v, [q, k, v] if bias is None else [q, k, v, bias]
    out = flex_attention(q, k, v, 0.3, bias=bias, mask=mask, causal=causal)
    torch.testing.assert_close(out, wanted)
    above = torch.randn_like(out)
    pairs = (torch.autograd.grad(x, inputs, above) for x in (out, wanted))
    for ours, formula in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, formula, atol=1e-5, rtol=1e-4)


def block(name, kind, causal, valid, **options):
    """Return the output and all gradients of a block."""
    torch.manual_seed(1)
    config = FloaterConfig(hidden_size=DIM, num_attention_heads=HEADS, attn_implementation=kind)
    attention = Attention(config, 0, causal=causal)
    model = build(name, causal=causal, **SIZES, **options)
    x = torch.randn(BATCH, LENGTH, DIM, requires_grad=True)
    out, _ = attention(x, SharedInputs(model, Uncast(model.prepare(Positions.arange(LENGTH))), valid))
    parameters = [x, *attention.parameters(), *model.parameters()]
    return out, *torch.autograd.grad(out.sin().sum(), parameters, materialize_grads=True, allow_unused=True)


@pytest.mark.parametrize(
    ("name", "causal", "padded"),
    [
        ("alibi", True, "documents"),
        ("t5", False, None),
        ("t5", True, "padding"),
        ("disan", True, "padding"),
        ("window", False, None),
        ("window", True, "documents"),
        ("rotary", True, "padding"),
        ("rotary", True, None),
    ],
)
def test_a_block_is_that_of_sdpa(calls, name, causal, padded):
    valid = {
        None: None,
        "padding": torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]]),
        "documents": (torch.arange(LENGTH)[:, None] < 4) == (torch.arange(LENGTH) < 4),
    }[padded]
    if padded == "documents":
        valid = valid.expand(BATCH, -1, -1)
    results = [block(name, kind, causal, valid) for kind in ("sdpa", "flex_attention")]
    assert len(calls) == (name != "rotary" or padded is not None)
    for sdpa, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, sdpa, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["shaw", "tupe_r", "forgetting", "none"])
def test_what_it_does_not_serve_is_left_to_other_kernels(calls, name):
    results = [block(name, kind, True, None) for kind in ("sdpa", "flex_attention")]
    assert not calls
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_dropout_of_weights_and_temperatures_are_left_to_other_kernels(calls):
    for changes in ({"attention_dropout": 0.5}, {"attention_temperature": "log"}):
        config = FloaterConfig.preset(
            "tiny", vocab_size=9, position="alibi", attn_implementation="flex_attention", **changes
        )
        FloaterModel(config).train()(torch.tensor([[3, 4, 5]]))
    assert not calls
    FloaterModel(config.preset("tiny", vocab_size=9, position="alibi", attn_implementation="flex_attention"))(
        torch.tensor([[3, 4, 5]])
    )
    assert len(calls) == 2  # one in each block


def test_where_it_applies(monkeypatch):
    x, bias = torch.zeros(1, 1, 8, 16), torch.zeros(1, 16, requires_grad=True)
    assert flex_applies(x, x)
    assert not flex_applies(x.double(), x.double())
    assert not flex_applies(x[..., :8], x)
    assert not flex_applies(x[:, :, :1], x)
    monkeypatch.setattr(flex, "DEVICES", ("cuda",))
    assert not flex_applies(x, x)
    assert flex_learns(bias)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not flex_learns(bias)
    assert flex_learns(bias.detach())
    with torch.no_grad():
        assert flex_learns(bias)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("bias",), ("bias", "mask"), ("mask",)])
def test_inductor_computes_what_the_unfused_form_does(monkeypatch, kinds):
    """PyTorch compiles the forward pass for a CPU; it has no gradient there."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, BATCH, HEADS, 40, 16)
    values = {"bias": torch.randn(HEADS, 80), "mask": torch.rand(BATCH, 1, 1, 40) > 0.3}
    arguments = {kind: values[kind] for kind in kinds}
    unfused = flex_attention(q, k, v, 0.3, causal=True, **arguments)
    fused = torch.compile(theirs.flex_attention, fullgraph=True)
    before = counters["inductor"].copy()
    monkeypatch.setattr(theirs, "flex_attention", fused)
    torch.testing.assert_close(flex_attention(q, k, v, 0.3, causal=True, **arguments), unfused)
    assert counters["inductor"] != before
