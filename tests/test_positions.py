"""Builders of positions against plain loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from floater import Positions


def by_counting(mask):
    """Each token's index among the tokens of its row, one at a time; None for padding."""
    rows = []
    for row in mask:
        seen = 0
        rows.append([])
        for token in row:
            rows[-1].append(seen if token else None)
            seen += bool(token)
    return rows


masks = st.integers(1, 7).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 1), min_size=length, max_size=length), min_size=1, max_size=4
    )
)


@settings(deadline=None)
@given(masks, st.data())
def test_from_mask_counts_the_tokens_of_each_row(mask, data):
    length = len(mask[0])
    queries = data.draw(st.one_of(st.none(), st.integers(0, length)))
    positions = Positions.from_mask(torch.tensor(mask), queries=queries)
    wanted = by_counting(mask)
    key = positions.key.expand(len(mask), -1).tolist()
    for row, expected in zip(key, wanted, strict=True):
        assert all(b is None or a == b for a, b in zip(row, expected, strict=True))
    longest = max(sum(row) for row in mask)
    assert all(0 <= slot < max(longest, 1) for row in key for slot in row)  # padding too: tables end there
    first = length - (length if queries is None else queries)
    assert torch.equal(positions.query, positions.key[:, first:])
    if positions.key_valid is None:
        assert all(all(row) for row in mask)
    else:
        assert positions.key_valid.tolist() == [[bool(x) for x in row] for row in mask]


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_padding_on_the_right_shares_one_row_and_on_the_left_does_not_move_tokens(lengths):
    longest = max(lengths)
    right = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths])
    assert Positions.from_mask(right).key.tolist() == [list(range(longest))]
    left = Positions.from_mask(right.flip(1))
    for row, n in zip(left.key.expand(len(lengths), -1).tolist(), lengths, strict=True):
        assert row[longest - n :] == list(range(n))


def test_columns_of_padding_alone_stay_within_the_longest_row():
    positions = Positions.from_mask(torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]))
    assert positions.query.tolist() == [[0, 1, 2, 2, 2, 2]]


@pytest.mark.parametrize("mask", [[[1, 1, 0]], [[1.0, 1.0, 0.0]], [[True, True, False]]])
def test_masks_of_any_dtype(mask):
    assert Positions.from_mask(torch.tensor(mask)).key_valid.tolist() == [[True, True, False]]


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 6))
def test_delta_is_key_minus_query(length, offset):
    delta = Positions.arange(length, offset=offset).delta
    assert delta.tolist() == [[[s - (offset + t) for s in range(offset + length)] for t in range(length)]]


def test_cached_steps_are_the_rows_of_the_whole():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    whole = Positions.from_mask(mask)
    step = Positions.from_mask(mask, queries=1)
    assert torch.equal(step.delta, whole.delta[:, -1:])


def test_times_keep_their_values():
    times = torch.tensor([[0.0, 0.5, 7.25]], dtype=torch.float64)
    positions = Positions.times(times, torch.tensor([[1, 1, 0]]))
    assert torch.equal(positions.query, times)
    assert torch.equal(positions.key, times)
    assert positions.key_valid.tolist() == [[True, True, False]]


def test_special_tokens_are_known_where_they_are_given():
    positions = Positions.arange(3)
    assert positions.special is None
    marked = positions.but(special=torch.tensor([[True, False, False], [True, False, True]]))
    assert marked.special.tolist() == [[True, False, False], [True, False, True]]
    assert marked.query is positions.query


def test_fields_cannot_be_set():
    positions = Positions.arange(3)
    with pytest.raises(AttributeError, match=r"the key of positions cannot be set: but\(key=...\) returns"):
        positions.key = torch.zeros(1, 3)
    assert positions.key.tolist() == [[0, 1, 2]]


def beside(**options):
    """Positions of two samples of three tokens, and what else is known of them."""
    return Positions(torch.zeros(2, 3), torch.zeros(2, 3), **options)


def test_what_some_models_need_beside_the_positions():
    assert Positions.arange(3).target_length is None
    length, language, order = torch.tensor([5, 7]), torch.tensor([[0, 0, 1]]), torch.tensor([[2, 0, 1]])
    positions = beside(target_length=length, language=language, reordered=order)
    assert positions.target_length is length
    assert positions.language is language
    assert positions.reordered is order
    assert beside(target_length=torch.tensor([5])).target_length.tolist() == [5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions(torch.zeros(3), torch.zeros(1, 3)), r"query is \(3,\); it must be \(batch or 1"),
        (lambda: Positions(torch.zeros(1, 3), torch.zeros(1, 3, 1)), r"key is \(1, 3, 1\)"),
        (lambda: Positions(torch.zeros(2, 3), torch.zeros(3, 3)), "the batch sizes differ"),
        (
            lambda: Positions(torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1, 2, dtype=torch.bool)),
            "key_valid covers 2 keys; there are 3",
        ),
        (
            lambda: Positions(torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1, 3)),
            "key_valid is torch.float32; it must be bool",
        ),
        (
            lambda: Positions(
                torch.zeros(1, 3), torch.zeros(1, 3), special=torch.ones(1, 2, dtype=torch.bool)
            ),
            "special covers 2 keys; there are 3",
        ),
        (
            lambda: Positions(torch.zeros(1, 3), torch.zeros(1, 3), special=torch.ones(1, 3)),
            "special is torch.float32; it must be bool",
        ),
        (
            lambda: Positions(
                torch.zeros(2, 3), torch.zeros(2, 3), special=torch.ones(3, 3, dtype=torch.bool)
            ),
            "the batch sizes differ",
        ),
        (
            lambda: beside(target_length=torch.ones(1, 1)),
            r"target_length is \(1, 1\); it must be \(batch or 1,\)",
        ),
        (lambda: beside(target_length=torch.tensor([4, 0])), r"target_length is \[4, 0\]; .* at least 1"),
        (lambda: beside(target_length=torch.tensor([2, 2, 2])), "the batch sizes differ"),
        (lambda: beside(language=torch.zeros(2, 2).long()), "language covers 2 queries; there are 3"),
        (lambda: beside(language=torch.zeros(2, 3)), "language is torch.float32; it must be integers"),
        (lambda: beside(reordered=torch.zeros(2, 4)), "reordered covers 4 queries; there are 3"),
        (lambda: Positions.from_mask(torch.ones(3)), r"the mask is \(3,\)"),
        (
            lambda: Positions.from_mask(torch.ones(1, 3), queries=4),
            "there are 4 queries; the mask has 3 columns",
        ),
        (lambda: Positions.arange(-1), "length -1 and offset 0 must not be negative"),
        (lambda: Positions.times(torch.tensor([[0.0, torch.nan]])), "NaN or an infinity"),
        (lambda: Positions.times(torch.zeros(1, 3), torch.ones(1, 2)), "key_valid covers 2 keys"),
    ],
)
def test_what_does_not_fit_together_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


STAMP = 1_325_476_708.0  # unix seconds, January 2012
TIMES = torch.tensor([[0.0, 0.5, 0.5, 9.25], [2.0, 3.0, 8.0, 8.5]], dtype=torch.float64)


def test_events_count_from_the_first_of_each_row_in_gaps():
    actual = Positions.events(TIMES + STAMP, time_per_position=0.25)
    assert actual.query.tolist() == [[0, 2, 2, 37], [0, 4, 24, 26]]
    assert actual.key is actual.query
    assert actual.query.dtype == torch.float64
    whole = Positions.events((4 * TIMES).long() + 4 * int(STAMP))
    assert torch.equal(whole.query, actual.query)


@given(st.integers(0, 2**40), st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_events_a_microsecond_apart_stand_apart(first, steps):
    stamps = first % 2**32 + torch.tensor([0, *steps], dtype=torch.float64).cumsum(0) * 1e-6 * 2
    assert bool((Positions.events(stamps[None], time_per_position=4.7e5).query.diff() > 0).all())


def test_padding_stands_where_the_last_event_before_it_does():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]])
    junk = TIMES.masked_fill(mask == 0, torch.nan)
    actual = Positions.events(junk, mask)
    assert actual.query.tolist() == [[0, 0.5, 0.5, 0.5], [0, 0, 0, 0.5]]
    assert torch.equal(actual.key_valid, mask.bool())
    assert Positions.events(torch.zeros(2, 0, dtype=torch.float64)).query.shape == (2, 0)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (TIMES.float(), "times are torch.float32, which rounds them; give float64 or integers"),
        (
            TIMES.flip(1)[1:],
            r"row 0: time 1 \(8\) is earlier than one before it; times of a row",
        ),
        (TIMES / 0.0, "row 0: time 0 is nan; every time must be finite"),
        (TIMES[0], r"times are \(4,\), the mask \(4,\); they must be \(batch, length\)"),
        ([[1, 2]], "times are a list; they must be a tensor of integers or float64"),
        (TIMES > 0, r"times are torch\.bool; they must be a tensor of integers or float64"),
        (torch.tensor([[-(2**62), 2**62]]), "row 0: time 1 is too far from the first one"),
        (torch.tensor([[2**63 - 1, -(2**63)]]), "row 0: time 1 is too far from the first one"),
        (torch.tensor([[-1e308, 1e308]], dtype=torch.float64), "row 0: time 1 is too far"),
    ],
)
def test_events_that_cannot_stand_anywhere(times, message):
    with pytest.raises(ValueError, match=message):
        Positions.events(times)


def test_a_gap_is_a_positive_time():
    with pytest.raises(ValueError, match=r"time_per_position is 0\.0; it must be a positive time"):
        Positions.events(TIMES, time_per_position=0.0)


def test_integer_stamps_of_nanoseconds_are_not_rounded():
    first = 1_700_000_000_000_000_001
    times = torch.tensor([[first, first + 100, first + 200]])
    assert Positions.events(times, time_per_position=100.0).query.tolist() == [[0.0, 1.0, 2.0]]


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_any_width_are_subtracted_without_wrapping_around(dtype):
    largest = min(torch.iinfo(dtype).max, 2**63 - 1)
    least = max(torch.iinfo(dtype).min, largest - 2**62)
    times = torch.tensor([[least, largest]]).to(dtype)
    at = Positions.events(times)
    assert at.query.tolist() == [[0.0, float(largest - least)]]
    with pytest.raises(ValueError, match=rf"row 0: time 1 \({least}\) is earlier"):
        Positions.events(torch.tensor([[largest, least]]).to(dtype))
    small = torch.tensor([[0, 2, 4, 7]])
    narrow = Positions(query=small.to(dtype), key=small.to(dtype))
    assert torch.equal(narrow.delta, Positions(query=small, key=small).delta)
    assert torch.equal(narrow.but(query=small.to(dtype)).delta, narrow.delta)


def test_everything_goes_to_a_device_wherever_the_queries_are():
    mixed = Positions.arange(3, device="meta").but(language=torch.zeros(1, 3, dtype=torch.long))
    assert mixed.to("meta").language.device.type == "meta"


def test_a_bound_of_positions_is_known_of_counted_ones_and_forgotten_by_others():
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    counted = [Positions.arange(2, offset=1), Positions.from_mask(mask), Positions.packed([[1, 2], [3]])]
    for positions in counted:
        assert positions.below == 3
        assert positions.to("meta").below == positions.repeat(2).below == 3
        assert positions.but(token=torch.zeros(1, positions.query.shape[1], dtype=torch.long)).below == 3
        assert positions.but(key=positions.key + 5).below is None
        assert positions.but(key=positions.key + 5).below is None
    assert Positions.times(torch.tensor([[0.0, 1.0]])).below is None


def test_positions_are_a_tree_of_their_tensors():
    positions = Positions.tree([[1, -1, 1], [-1, 0]]).but(group=(2, 3))
    leaves, structure = pytree.tree_flatten(positions)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten([leaf.clone() for leaf in leaves], structure)
    assert torch.equal(again.delta, positions.delta)
    assert torch.equal(again.structure.depth, positions.structure.depth)
    assert (again.group, again.below) == (positions.group, positions.below)
    saved = pytree.treespec_dumps(structure)
    assert pytree.treespec_loads(saved) == structure


def test_a_mask_under_vmap_is_refused():
    with pytest.raises(ValueError, match=r"torch\.func\.vmap is over the attention mask"):
        torch.func.vmap(lambda mask: Positions.from_mask(mask[None]).query)(torch.ones(2, 3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_no_positions(value):
    """An encoding would compute NaN from them, or clip an infinity to its last distance."""
    at, whole = torch.tensor([[0.0, value, 2.0]]), Positions.arange(3)
    mask = torch.tensor([[1, 0, 1]])
    for name, build in (
        ("query", lambda: Positions(at, whole.key)),
        ("key", lambda: Positions(whole.query, at, mask.bool())),
        ("query", lambda: Positions.times(at, mask)),
        ("query", lambda: whole.but(query=at)),
        ("key_time", lambda: whole.but(query_time=at.nan_to_num(), key_time=at)),
        ("coordinates", lambda: whole.but(coordinates=at[..., None])),
    ):
        with pytest.raises(ValueError, match=f"^the positions' {name} holds a NaN or an infinity$"):
            build()


def test_numbers_without_values_are_not_read():
    at = torch.rand(4, 1, 3, device="meta")
    assert Positions(at[0], at[0]).query.is_meta
    sums = torch.func.vmap(lambda at: Positions(at, at).delta.sum())(torch.rand(4, 1, 3))
    assert sums.shape == (4,)
