from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.lab.training import ExampleBatchSampler, TokenBatchSampler

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=60)
BUDGET = st.integers(12, 40)
SEED = st.integers(0, 2**32)
FAST = settings(max_examples=60)


def epoch(sampler: TokenBatchSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


@FAST
@given(LENGTHS, BUDGET, SEED, st.integers(0, 5), st.booleans())
def test_every_example_once_and_no_batch_too_large(
    lengths: list[int], budget: int, seed: int, number: int, shuffle: bool
) -> None:
    sampler = TokenBatchSampler(lengths, budget, seed=seed, shuffle=shuffle)
    batches = epoch(sampler, number)
    assert sorted(chain(*batches)) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= budget for batch in batches)
    assert len(sampler) == len(batches)


@FAST
@given(LENGTHS, BUDGET, SEED)
def test_no_two_neighbours_would_fit_in_one_batch(lengths: list[int], budget: int, seed: int) -> None:
    batches = list(TokenBatchSampler(lengths, budget, seed=seed, shuffle=False))
    for first, second in pairwise(batches):
        assert (len(first) + 1) * lengths[second[0]] > budget


@FAST
@given(LENGTHS, BUDGET, SEED, st.integers(0, 5))
def test_the_order_is_a_function_of_seed_and_epoch(
    lengths: list[int], budget: int, seed: int, number: int
) -> None:
    fresh = TokenBatchSampler(lengths, budget, seed=seed, shuffle=True)
    used = TokenBatchSampler(lengths, budget, seed=seed, shuffle=True)
    epoch(used, number + 1)
    assert epoch(fresh, number) == epoch(used, number) == list(used)


@FAST
@given(LENGTHS, BUDGET, SEED, st.integers(1, 5), st.integers(0, 3))
def test_processes_share_the_batches_of_one(
    lengths: list[int], budget: int, seed: int, world_size: int, number: int
) -> None:
    alone = epoch(TokenBatchSampler(lengths, budget, seed=seed, shuffle=True), number)
    ranks = [
        TokenBatchSampler(lengths, budget, seed=seed, shuffle=True, world_size=world_size, rank=rank)
        for rank in range(world_size)
    ]
    shares = [epoch(sampler, number) for sampler in ranks]
    assert {len(share) for share in shares} == {len(sampler) for sampler in ranks}
    together = list(chain(*zip(*shares, strict=True)))
    assert together[: len(alone)] == alone
    extra = together[len(alone) :]
    assert len(extra) < world_size
    assert all(batch in alone for batch in extra)
    if len(alone) >= world_size:
        assert extra == alone[: len(extra)]


def test_epochs_and_seeds_differ_in_batches_and_their_order() -> None:
    lengths = [3] * 30 + [4] * 30

    def batches(seed: int, number: int) -> list[list[int]]:
        return epoch(TokenBatchSampler(lengths, 24, seed=seed, shuffle=True), number)

    for other in (batches(0, 1), batches(1, 0)):
        assert Counter(map(frozenset, other)) != Counter(map(frozenset, batches(0, 0)))
        assert [len(batch) for batch in other] != [len(batch) for batch in batches(0, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, 11, 12]}, "example 1 has 11 tokens; it must have at most max_tokens = 10"),
        ({"lengths": [3, 0]}, "example 1 has 0 tokens; it must have at least 1"),
        ({"lengths": []}, "at least one"),
        ({"lengths": [[1, 2]]}, "one number for each example"),
        ({"seed": -1}, "seed is -1"),
        ({"rank": 2, "world_size": 2}, "rank is 2; it must be from 0 to 1"),
    ],
)
def test_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenBatchSampler(**{"lengths": [3], "max_tokens": 10, "seed": 0, "shuffle": True} | arguments)  # type: ignore[arg-type]


@FAST
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=400),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_batches_of_examples_hold_each_once_and_resume_from_the_epoch_alone(
    lengths: list[int], size: int, world: int, epoch: int
) -> None:
    def batches(rank: int) -> list[list[int]]:
        sampler = ExampleBatchSampler(lengths, size, seed=1, shuffle=True, world_size=world, rank=rank)
        sampler.set_epoch(epoch)
        assert len(sampler) == len(list(sampler))
        return list(sampler)

    shares = [batches(rank) for rank in range(world)]
    rounds = [batch for one in zip(*shares, strict=True) for batch in one]
    whole = rounds[: -(-len(lengths) // size)]
    assert sorted(index for batch in whole for index in batch) == list(range(len(lengths)))
    assert sorted(map(len, whole))[1:] == [size] * (len(whole) - 1)
    assert all(batch == whole[i % len(whole)] for i, batch in enumerate(rounds))
    assert batches(0) == shares[0]


def test_batches_of_examples_have_about_equal_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, size=2000)
    sampler = ExampleBatchSampler(lengths.tolist(), 16, seed=0, shuffle=True)
    spread = [np.ptp(lengths[batch]) for batch in sampler]
    assert np.mean(spread) < 10, "of 99 without pools"
    firsts = [next(iter(sampler))]
    sampler.set_epoch(1)
    assert next(iter(sampler)) not in firsts
    with pytest.raises(ValueError, match="batch_size is 0"):
        ExampleBatchSampler([1], 0, seed=0, shuffle=False)
