"""Products with a vector per distance, skewed and gathered, against loops."""

from dataclasses import replace

import pytest
import torch
from relative_cases import HEADS, POSITIONS, WHOLE, WIDTH, build_encoding, logits, queries_and_keys

from floater import PositionError, Positions
from floater.encodings import AttentionContext
from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.relative.deberta import log_distance
from floater.encodings.relative.distances import Distances, consecutive, pairs, spacing


def rows(distances, *lead):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(*lead, len(distances.values), WIDTH, generator=generator, dtype=torch.double)


@WHOLE
def test_the_skewed_view_is_for_what_counts_up(positions):
    assert (Distances.of(positions, "x").index is None) == (
        len(positions.query) == 1 and positions is not POSITIONS["packed"]
    )


@WHOLE
@pytest.mark.parametrize("lead", [(), (HEADS,)])
def test_products_by_distance(positions, lead):
    distances = Distances.of(positions, "x")
    r = rows(distances, *lead)
    q, k = queries_and_keys(positions)
    low = int(distances.values[0])
    for b in range(2):
        delta = positions.delta[b % len(positions.delta)].tolist()
        for h in range(HEADS):
            table = r[h] if lead else r
            for t, row in enumerate(delta):
                for s, far in enumerate(row):
                    vector = table[far - low]
                    actual = distances.queries(q, r)[b, h, t, s], distances.keys(k, r)[b, h, t, s]
                    torch.testing.assert_close(actual, (q[b, h, t] @ vector, k[b, h, s] @ vector))
            if b == h == 0:
                plane = distances.plane(table.T)[b % len(positions.delta)]
                wanted = torch.stack([torch.stack([table[far - low] for far in row]) for row in delta])
                assert torch.equal(plane, wanted.movedim(-1, 0))


@pytest.mark.parametrize("lead", [(), (HEADS,)])
def test_products_at_positions_of_which_each_pair_has_its_distance(lead):
    at = torch.tensor([0, 7, 90, 2000, 5000, 9999])
    distances = Distances.of(Positions(at[None], at[None]), "x")
    r = rows(distances, *lead).requires_grad_()
    assert len(distances.values) == 31
    q, k = (torch.randn(9, HEADS, 6, WIDTH, dtype=torch.double, requires_grad=True) for _ in range(2))
    index = torch.searchsorted(distances.values, at[None] - at[:, None])
    vectors = r[..., index, :].expand(HEADS, -1, -1, -1)
    for actual, wanted in [
        (distances.queries(q, r), (q[:, :, :, None] * vectors).sum(-1)),
        (distances.keys(k, r), (k[:, :, None] * vectors).sum(-1)),
    ]:
        torch.testing.assert_close(actual, wanted)
        cotangent = torch.randn_like(wanted)
        gradients = [
            torch.autograd.grad(x, (r, q, k), cotangent, retain_graph=True, materialize_grads=True)
            for x in (actual, wanted)
        ]
        torch.testing.assert_close(*gradients)


@WHOLE
def test_weighted_sums_by_distance(positions):
    distances = Distances.of(positions, "x")
    r = rows(distances)
    shape = 2, HEADS, positions.query.shape[1], positions.key.shape[1]
    weights = torch.rand(shape, dtype=torch.double)
    vectors = r[positions.delta.expand(2, -1, -1) - distances.values[0]]
    torch.testing.assert_close(
        distances.weighted(weights, r), (weights[..., None] * vectors[:, None]).sum(-2)
    )


@WHOLE
def test_pairs_are_entries_of_the_table(positions):
    table = torch.randn(3, 8, 8)
    actual = pairs(table, positions)
    for b, (query, key) in enumerate(
        zip(positions.query.tolist(), positions.key.expand(len(positions.query), -1).tolist(), strict=True)
    ):
        assert torch.equal(actual[b], torch.stack([table[:, t][:, key] for t in query], 1))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3)])
def test_no_queries_at_all(shape):
    distances = Distances.of(Positions.arange(shape[0], offset=shape[1]), "x")
    r = rows(distances)
    q, k = torch.zeros(2, HEADS, 0, WIDTH).double(), torch.zeros(2, HEADS, sum(shape), WIDTH).double()
    empty = (2, HEADS, 0, sum(shape))
    assert distances.queries(q, r).shape == distances.keys(k, r).shape == empty
    assert distances.weighted(torch.zeros(empty).double(), r).shape == q.shape
    assert distances.plane(r.T).shape == (1, WIDTH, 0, sum(shape))


def test_far_positions_count_up_as_near_ones_do():
    assert consecutive(Positions(torch.tensor([[7, 8]]), torch.tensor([[5, 6, 7, 8]])))
    assert not consecutive(Positions(torch.tensor([[7, 9]]), torch.tensor([[5, 6, 7, 8]])))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: whole_numbers(Positions.times(torch.tensor([[0.5]])), "x"),
            "'x' counts tokens; real positions",
        ),
        (
            lambda: whole_numbers(Positions.arange(5), "x", 4),
            "'x' ends at position 3; position 4 was",
        ),
        (
            lambda: whole_numbers(Positions(torch.tensor([[-1]]), torch.tensor([[0]])), "x", 4),
            "position -1",
        ),
        (lambda: Distances.of(Positions.arange(5), "x", 4), "'x' ends at a distance of 3; 4 was requested"),
        (lambda: Distances.of(Positions.times(torch.tensor([[0.5]])), "x"), "'x' counts tokens"),
    ],
)
def test_what_a_table_does_not_hold_is_refused(act, message):
    with pytest.raises(PositionError, match=message):
        act()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shaw", {}),
        ("t5", {}),
        ("deberta", {"absolute": False}),
        ("deberta", {"absolute": False, "buckets": "log"}),
        ("transformer_xl", {}),
    ],
)
def test_stamps_in_seconds_need_no_memory_for_each_second(name, options):
    model = build_encoding(name, **options)
    near, far = (torch.tensor([[0, 3, last]]) for last in (1000, 40_000_000))
    (q, k), actual = queries_and_keys(Positions(near, near)), []
    for at in (near, far):
        positions = Positions.times(at)
        assert len(Distances.of(positions, name).values) <= 9
        actual.append(logits(model, positions, q, k))
    assert torch.equal(actual[0], actual[1]) == (name != "transformer_xl")  # both are far, to tables


@pytest.mark.parametrize("span", [4, 5, 9, 16])
@pytest.mark.parametrize(("buckets", "ends"), [("clip", (None,)), ("log", (None, 12, 40))])
def test_deberta_reaches_as_far_as_its_table(span, buckets, ends):
    for end in ends:
        model = build_encoding("deberta", span=span, buckets=buckets, max_distance=end, absolute=False)
        (q, k), actual = queries_and_keys(Positions.arange(2)), []
        for at in (model.reach, model.reach + 1, 3 * model.reach):
            positions = Positions.times(torch.tensor([[0, at]]))
            every = Distances(torch.arange(-at, at + 1), positions.delta + at, (2, 2))
            state = model.prepare(positions)
            values = (
                every.values if buckets == "clip" else log_distance(every.values, span, model.max_distance)
            )
            table = model.norm(model.table.weight)[None]
            ahead, back = ((x + span).clamp(0, 2 * span - 1) for x in (-values, values))
            rows = {"key": (table, ahead), "query": (table, back)}
            wanted = model.bias(q, k, AttentionContext(replace(state, distances=every, rows=rows), 0))
            actual.append(model.bias(q, k, AttentionContext(state, 0)))
            torch.testing.assert_close(actual[-1], wanted)
        assert torch.equal(actual[0], actual[1])
        assert torch.equal(actual[0], actual[2])


def test_rows_that_stand_far_apart_have_the_distances_of_one():
    rows = torch.tensor([[0, 1, 2, 3], [100, 101, 102, 104]])
    actual = Distances.of(Positions(rows, rows), "x", limit=16)
    assert (int(actual.values[0]), int(actual.values[-1])) == (-4, 4)
    with pytest.raises(PositionError, match="'x' ends at a distance of 3; 4 was requested"):
        Distances.of(Positions(rows, rows), "x", limit=4)


@pytest.mark.parametrize("name", ["alibi", "gaussian", "floater_relative"])
@pytest.mark.parametrize("step", [0.37, 2.5])
def test_evenly_spaced_times_are_read_by_distance_as_by_pair(name, step):
    """A batch with an uneven sample computes each pair; one with even times alone each distance."""
    model = build_encoding(name, **({"clip": None} if name == "floater_relative" else {}))
    even = torch.arange(7, dtype=torch.double) * step + 11.3
    uneven = even + torch.linspace(0, 1, 7, dtype=torch.double) ** 2
    once, each = Positions.times(even[None]), Positions.times(torch.stack([even, uneven]))
    assert spacing(once) == pytest.approx(step)
    assert spacing(each) is None
    q, k = queries_and_keys(each)
    actual, wanted = logits(model, once, q, k)[0], logits(model, each, q, k)[0]
    torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-6)


def test_what_is_spaced_unevenly_or_differs_between_queries_and_keys_has_no_spacing():
    even = torch.arange(4, dtype=torch.double)[None]
    assert spacing(Positions(even, even * 2)) is None
    assert spacing(Positions.times(-even)) is None
    assert spacing(Positions.times(even + torch.tensor([[0, 0, 1e-6, 0]]))) is None
    assert spacing(Positions.arange(4)) is None


@pytest.mark.parametrize(
    ("length", "slots"), [(1, 9), (7, 5), (32, 32), (33, 129), (100, 64), (0, 4), (4, 0)]
)
def test_the_gradient_of_a_plane_is_that_of_its_entries(length, slots):
    row = torch.randn(3, length + slots, dtype=torch.double, requires_grad=True)
    distances = Distances(torch.arange(1 - length, slots + 1), None, (length, slots))
    plane = distances.plane(row)
    index = torch.arange(slots) - torch.arange(length)[:, None] + length - 1
    assert torch.equal(plane[0], row[:, index])
    cotangent = torch.randn_like(plane)
    actual, wanted = (torch.autograd.grad(x, row, cotangent)[0] for x in (plane, row[:, index][None]))
    torch.testing.assert_close(actual, wanted)
