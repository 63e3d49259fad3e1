"""Tiled attention against its formula, and encodings that use it against their own hooks."""

import dataclasses

import pytest
import torch

from floater import FloaterConfig, Positions, build, catalogue
from floater.encodings import AttentionContext
from floater.encodings.terms import AttentionTerms
from floater.flow import SecondDerivativeError
from floater.transformer import kernels, tiled
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.tiled import tiled_attention
from floater.transformer.uncast import Uncast

BATCH, HEADS, WIDTH = 2, 4, 3
SIZES = {"dim": 32, "heads": HEADS, "layers": 2, "max_length": 32}
FUSED = sorted(
    name
    for name, kind in catalogue().items()
    if not hasattr(kind, "needs")  # trees have distances of their own
    and build(name, **SIZES).has_terms
)
TERMS = [
    (),
    ("bias",),
    ("content", "bias"),
    ("distance_queries", "queries"),
    ("queries", "keys"),
    ("bias", "queries", "values"),
    ("content", "distance_queries", "bias", "queries", "keys", "values"),
]
CASES = [
    (which, before)
    for which in TERMS
    for before in ((None, 2, -20, 20) if {"queries", "values"} & set(which) else (None,))
]


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def drawn(which, length, slots, before):
    """Terms by their names, and their tensors."""
    entries = length + slots if before is None else 5
    by_name = {
        "content": (normal(BATCH, HEADS, length, 5), normal(BATCH, HEADS, slots, 5)),
        "distance_queries": normal(BATCH, HEADS, length, WIDTH),
        "bias": normal(HEADS, length + slots),
        "queries": normal(HEADS, entries, WIDTH),
        "keys": normal(length + slots, 5 if "content" in which else WIDTH),
        "values": normal(entries, WIDTH),
    }
    options = {name: by_name[name] for name in which}
    tensors = [x for value in options.values() for x in (value if isinstance(value, tuple) else (value,))]
    return AttentionTerms(**options, first_entry=before), tensors


def plain(q, k, v, terms, scale, mask, causal):
    """The formula, with a vector for each pair."""
    length, slots = q.shape[2], k.shape[2]
    entry = torch.arange(slots) - torch.arange(length)[:, None] + length - 1

    def vectors(table):
        ours = (
            entry if terms.first_entry is None else (entry - terms.first_entry).clamp(0, table.shape[-2] - 1)
        )
        return table.expand(HEADS, *table.shape[-2:])[:, ours]

    distance_queries = q if terms.distance_queries is None else terms.distance_queries
    q, k = (q, k) if terms.content is None else terms.content
    logits = q @ k.mT
    if terms.queries is not None:
        logits = logits + torch.einsum("bhtd,htsd->bhts", distance_queries, vectors(terms.queries))
    if terms.keys is not None:
        keys = dataclasses.replace(terms, first_entry=None).keys
        logits = logits + torch.einsum("bhsd,tsd->bhts", k, keys[entry])
    logits = logits * scale
    if terms.bias is not None:
        logits = logits + terms.bias[:, entry]
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    if causal:
        future = torch.ones(length, slots, dtype=torch.bool).triu(slots - length + 1)
        logits = logits.masked_fill(future, -torch.inf)
    weights = logits.softmax(-1).nan_to_num(0.0)
    out = weights @ v
    return (
        out if terms.values is None else out + torch.einsum("bhts,htsd->bhtd", weights, vectors(terms.values))
    )


@pytest.mark.parametrize("masked", [None, (BATCH, 1, 1), (1, HEADS, 5)], ids=["all", "padding", "pairs"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize(("which", "before"), CASES)
def test_values_and_gradients_are_those_of_the_formula(monkeypatch, which, causal, masked, before):
    torch.manual_seed(0)
    length, slots = 5, 7
    q, k, v = (normal(BATCH, n, HEADS, WIDTH).transpose(1, 2) for n in (length, slots, slots))
    terms, tensors = drawn(which, length, slots, before)
    mask = None if masked is None else torch.rand(*masked, slots) > 0.4
    if mask is not None:
        mask[0, 0, 0] = False  # queries that may attend to nothing
    inputs = q, k, v, *tensors
    wanted = plain(q, k, v, terms, 0.3, mask, causal)
    above = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, inputs, above, materialize_grads=True, allow_unused=True)
    for tile, block in ((1, 3), (20, 2), (2**18, 64)):  # a row, some rows, all samples
        monkeypatch.setattr(tiled, "_TILE", tile)
        monkeypatch.setattr(tiled, "_BLOCK", block)
        out = tiled_attention(q, k, v, terms, 0.3, mask=mask, causal=causal)
        torch.testing.assert_close(out, wanted)
        actual = torch.autograd.grad(out, inputs, above, materialize_grads=True, allow_unused=True)
        for ours, theirs in zip(actual, gradients, strict=True):
            torch.testing.assert_close(ours, theirs)
        with torch.no_grad():
            torch.testing.assert_close(tiled_attention(q, k, v, terms, 0.3, mask=mask, causal=causal), wanted)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("name", FUSED)
def test_terms_say_what_the_hooks_say(monkeypatch, name, causal, padded):
    """Outputs and gradients of a block are those of the eager path, which asks the hooks."""
    length = 11
    for limit in ("TILED_FROM", "BIAS_TILED_FROM"):
        monkeypatch.setattr(kernels, limit, length)
    more = {"position": name, "hidden_size": 32, "num_attention_heads": HEADS, "training_length": 32}
    torch.manual_seed(0)
    x = torch.randn(BATCH, length, 32)
    valid = torch.ones(BATCH, length, dtype=torch.bool)
    valid[1, 8:] = False
    results = []
    for kind in ("eager", "sdpa"):
        torch.manual_seed(1)
        config = FloaterConfig(vocab_size=5, num_hidden_layers=2, attn_implementation=kind, **more)
        attention, model = Attention(config, 1), build(name, causal=causal, **SIZES)
        attention.causal = causal
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        ours = x.clone().requires_grad_()
        state = model.prepare(Positions.arange(length))
        heads = ours.view(BATCH, length, HEADS, 8).transpose(1, 2)
        assert model.attention_terms(heads, heads, AttentionContext(state, 1)) is not None
        out, weights = attention(ours, SharedInputs(model, Uncast(state), valid if padded else None))
        assert (weights is None) == (kind == "sdpa")
        parameters = [ours, *attention.parameters(), *model.parameters()]
        loss = out.sin().sum()
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
        results.append((out, *gradients))
    atol = 2e-5 if name == "seqpe" else 2e-6  # gradients pass through a Transformer of its own
    for eager, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, eager, atol=atol, rtol=1e-4)


def test_a_second_derivative_is_refused():
    q, k, v = (normal(BATCH, n, HEADS, WIDTH).transpose(1, 2) for n in (5, 7, 7))
    terms, _ = drawn(("bias",), 5, 7, None)
    loss = tiled_attention(q, k, v, terms, 0.3).sum() + q.pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(SecondDerivativeError, match=r"set_attn_implementation\('eager'\)"):
        torch.autograd.grad(gradient.sum(), q)


def test_a_subclass_that_changes_a_hook_is_asked_for_it():
    class Twice(catalogue()["t5"]):
        def correlation(self, state, layer):
            return 2 * super().correlation(state, layer)

    class Plain(catalogue()["t5"]):
        """Changes nothing."""

    assert FUSED
    assert [kind.__name__ for kind in (Twice, Plain) if build_from(kind).has_terms] == ["Plain"]


def build_from(kind):
    return kind(build("none", **SIZES).spec)


def test_no_matrix_is_kept():
    """Nothing that is saved for the backward pass has a number for each pair."""
    q = torch.randn(1, HEADS, 64, WIDTH, requires_grad=True)
    terms = AttentionTerms(bias=torch.randn(HEADS, 128, requires_grad=True))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        tiled_attention(q, q, q, terms, 0.3)
    assert saved
    assert max(x.numel() for x in saved) < 64 * 64
