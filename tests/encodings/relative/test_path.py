"""PaTH against products of Householder matrices, one after another."""

import pytest
import torch
from relative_cases import DIM, HEADS, POSITIONS, SIZES, WIDTH
from torch.nn import functional as F

from floater.encodings import AttentionContext
from small_models import randomised


def build_encoding(**options):
    return randomised("path", **SIZES, rank=3, **options)


def transforms(model, x, tokens, layer):
    """H_l (heads, S, width, width) of each slot, the identity where it is no token of the text."""
    raw = F.linear(F.linear(x, model.down[layer]), model.up[layer])
    beta = 2 * F.linear(x, model.gate[layer], model.gate_bias[layer]).sigmoid()
    actual = torch.eye(WIDTH, dtype=x.dtype).repeat(HEADS, len(x), 1, 1)
    for index, slot in enumerate(tokens):
        before = tokens[max(index - 2, 0) : index + 1][::-1]
        mixed = sum(tap * raw[s] for tap, s in zip(model.convolution[layer], before, strict=False))
        w = F.silu(mixed).view(HEADS, WIDTH)
        w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        actual[:, slot] -= beta[slot, :, None, None] * w[:, :, None] * w[:, None, :]
    return actual


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [2, 64])
@torch.no_grad()
def test_logits_are_products_of_householder_matrices(name, causal, block, monkeypatch):
    monkeypatch.setattr("floater.encodings.relative.path._BLOCK", block)
    positions, layer = POSITIONS[name], 1
    model, slots = build_encoding(causal=causal), positions.key.shape[1]
    length = positions.query.shape[1]
    x = torch.randn(2, slots, DIM, dtype=torch.double)
    q, k = torch.randn(2, 2, slots, HEADS, WIDTH, dtype=torch.double).unbind()
    context = AttentionContext(model.prepare(positions), layer, x)
    qs, ks, _ = model.qkv(q, k, k, context)
    qs, ks = qs.transpose(1, 2)[:, :, slots - length :], ks.transpose(1, 2)
    actual = model.logits(qs @ ks.mT * model.scale(qs.shape[-1]), qs, ks, context)
    valid = torch.ones(2, slots) if positions.key_valid is None else positions.key_valid.expand(2, -1)
    for b in range(2):
        matrices = transforms(model, x[b], valid[b].nonzero().flatten().tolist(), layer)
        for t in range(slots - length, slots):
            for s in range(t + 1 if causal else slots):
                product = torch.eye(WIDTH, dtype=torch.double).repeat(HEADS, 1, 1)
                for slot in range(min(s, t) + 1, max(s, t) + 1):
                    product = matrices[:, slot] @ product if s < t else product @ matrices[:, slot]
                wanted = torch.einsum("hi,hij,hj->h", q[b, t], product, k[b, s]) / WIDTH**0.5
                torch.testing.assert_close(actual[b, :, t - slots + length, s], wanted)


@torch.no_grad()
def test_a_step_of_decoding_solves_for_its_query_alone_in_systems_of_one_size(monkeypatch):
    """Time grows with the keys, not with their square."""
    solved, solve = [], torch.linalg.solve_triangular
    monkeypatch.setattr(
        torch.linalg,
        "solve_triangular",
        lambda a, b, **k: solved.append((a.shape[-1], b.shape[-2])) or solve(a, b, **k),
    )
    model, keys = build_encoding(), 130
    q, k, w = (torch.randn(n, WIDTH) for n in (1, keys, keys))
    model.changes(q, k, w, torch.ones(keys))
    assert sorted(solved) == sorted([(64, 1), (64, 1), (2, 1)] * 2)
