"""Huang's four methods against loops over the survey's equations 18 to 20."""

import pytest
import torch
from relative_cases import LENGTH, SIZES, WHOLE, agree, build_encoding, by_pairs, logits, queries_and_keys

from floater import FloaterConfig, Positions, build
from floater.transformer import FloaterModel

METHODS = {
    "huang1": lambda r, q, k, d, head: q @ k * r[head, abs(d)],
    "huang2": lambda r, q, k, d, head: q @ k * r[head, d + LENGTH - 1],
    "huang3": lambda r, q, k, d, head: sum(
        a * b * c for a, b, c in zip(q, k, r[d + LENGTH - 1], strict=True)
    ),
    "huang4": lambda r, q, k, d, head: (
        (q + r[d + LENGTH - 1]) @ (k + r[d + LENGTH - 1]) - r[d + LENGTH - 1] @ r[d + LENGTH - 1]
    ),
}


@WHOLE
@pytest.mark.parametrize("name", METHODS)
def test_logits_are_the_loop(name, positions):
    model = build_encoding(name)
    q, k = queries_and_keys(positions)
    wanted = by_pairs(
        positions, q, k, lambda q, k, t, s, head: METHODS[name](model.table[1], q, k, s - t, head) / 2
    )
    agree(logits(model, positions, q, k, 1), wanted, q, k, model.table)


def test_many_queries_are_taken_in_parts():
    model = build_encoding("huang3")
    positions = Positions.arange(13)
    q, k = queries_and_keys(positions)
    wanted = by_pairs(
        positions, q, k, lambda q, k, t, s, head: METHODS["huang3"](model.table[0], q, k, s - t, head) / 2
    )
    agree(logits(model, positions, q, k), wanted, q, k, model.table)


@pytest.mark.parametrize("name", ["huang1", "huang2", "huang3"])
def test_what_multiplies_starts_near_one(name):
    torch.manual_seed(0)
    model = build(name, **SIZES)
    assert 0.8 < float(model.table.detach().min()) < float(model.table.detach().max()) < 1.2


def test_vectors_start_as_the_weights_of_bert_in_bert():
    torch.manual_seed(0)
    config = FloaterConfig(position="huang4", hidden_size=64, num_attention_heads=4, recipe="bert")
    table = FloaterModel(config).encoder.position.table
    assert float(table.detach().std()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("name", METHODS)
def test_positions_do_not_end_at_the_table(name):
    model = build(name, **SIZES)
    assert model.max_positions == LENGTH
    far = Positions(torch.tensor([[1000, 1001]]), torch.tensor([[1000, 1001]]))
    q = torch.ones(1, 2, 2, 4)
    assert torch.equal(logits(model, far, q, q), logits(model, Positions.arange(2), q, q))
