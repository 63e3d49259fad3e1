"""Batches of examples, by their number of tokens or of examples."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

_POOL = 50


class BatchSampler(Sampler[list[int]]):
    """Batches of example indices, distributed among processes.

    The order depends only on ``seed`` and the epoch, so all processes have the same order. Process r
    takes batches r, r + world_size, ..., and the last round is completed with the epoch's first
    batches. Each epoch has the same number of batches.

    Args:
        lengths: length in tokens of each example.
        seed: random seed of the order, at least 0.
        shuffle: True for a random order; otherwise batches are ordered from short to long.
        world_size: number of processes that share an epoch.
        rank: number of this process, from 0.

    Raises:
        ValueError: there are no examples, a length is below 1, ``seed`` is negative, or ``rank`` is not
            in [0, ``world_size``).
    """

    def __init__(
        self, lengths: Sequence[int], *, seed: int, shuffle: bool, world_size: int = 1, rank: int = 0
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        _check_lengths(self.lengths)
        if seed < 0:
            raise ValueError(f"seed is {seed}; it must be at least 0")
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank is {rank}; it must be from 0 to {world_size - 1} of {world_size} processes"
            )
        self.seed, self.shuffle = seed, shuffle
        self.world_size, self.rank = world_size, rank
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this process in an epoch."""
        return -(-self._count() // self.world_size)

    def shared_by(self, processes: int) -> int:
        """Return the number of batches that processes read in an epoch, with those that are read twice."""
        return -(-self._count() // processes) * processes

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over this process's batches of the current epoch."""
        batches = self._batches()
        for position in range(self.rank, len(self) * self.world_size, self.world_size):
            yield batches[position % len(batches)].tolist()

    def _count(self) -> int:
        """Return the number of batches of all processes in an epoch."""
        raise NotImplementedError

    def _batches(self) -> list[np.ndarray]:
        """Return the batches of all processes in the current epoch."""
        raise NotImplementedError

    def _random(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch])


class ExampleBatchSampler(BatchSampler):
    """Batches of a number of examples of about equal length.

    With ``shuffle``, each epoch samples pools of 50 batches at random, sorts each pool by length, cuts it
    into batches and shuffles all batches. The last batch may be smaller.

    Args:
        lengths: length in tokens of each example.
        batch_size: number of examples in a batch.
        **kwargs: arguments of ``BatchSampler``.

    Raises:
        ValueError: ``batch_size`` is below 1, or ``BatchSampler`` refuses its arguments.

    Example:
        >>> list(ExampleBatchSampler([3, 1, 2, 3, 1], 2, seed=0, shuffle=False))
        [[1, 4], [2, 0], [3]]
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, **kwargs: Any) -> None:
        super().__init__(lengths, **kwargs)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        self.batch_size = batch_size

    def _count(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def _batches(self) -> list[np.ndarray]:
        cuts = range(self.batch_size, len(self.lengths), self.batch_size)
        if not self.shuffle:
            return np.split(np.argsort(self.lengths, kind="stable"), cuts)
        random, pool = self._random(), _POOL * self.batch_size
        order = random.permutation(len(self.lengths))
        pools = (order[start : start + pool] for start in range(0, len(order), pool))
        sorted_ = [members[np.argsort(self.lengths[members], kind="stable")] for members in pools]
        batches = np.split(np.concatenate(sorted_), cuts)
        return [batches[index] for index in random.permutation(len(batches))]


class TokenBatchSampler(BatchSampler):
    """Batches of example indices with a maximum number of tokens, padding included.

    Examples are sorted by length, which keeps padding low, and cut greedily into batches. With
    ``shuffle``, each epoch shuffles the examples of equal length, which changes the members of the
    batches, and then shuffles the batches. The cuts depend only on the sorted lengths, so every epoch
    has the same number of batches, and training can resume at any batch.

    Source: Vaswani et al. 2017, section 5.1 (batches by approximate length and token count).

    Args:
        lengths: length in tokens of each example; of a pair, the length of its longer side.
        max_tokens: maximum number of tokens in a batch, padding included: the number of its examples
            times the length of the longest.
        **kwargs: arguments of ``BatchSampler``.

    Raises:
        ValueError: a length is above ``max_tokens``, or ``BatchSampler`` refuses its arguments.

    Example:
        >>> list(TokenBatchSampler([3, 1, 2, 3], max_tokens=6, seed=0, shuffle=False))
        [[1, 2], [0, 3]]
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, **kwargs: Any) -> None:
        super().__init__(lengths, **kwargs)
        _check_lengths(self.lengths, max_tokens)
        self.max_tokens = max_tokens
        self._cuts = _cuts(np.sort(self.lengths), max_tokens)

    def _count(self) -> int:
        return len(self._cuts) + 1

    def _batches(self) -> list[np.ndarray]:
        if not self.shuffle:
            return np.split(np.argsort(self.lengths, kind="stable"), self._cuts)
        random = self._random()
        examples = np.lexsort((random.random(len(self.lengths)), self.lengths))
        batches = np.split(examples, self._cuts)
        return [batches[index] for index in random.permutation(len(batches))]


class StreamSampler(Sampler[list[int]]):
    """Batches that contain the next row of each of several parallel streams.

    Example s * rows + r is row r of stream s, where rows is the number of rows of a stream. Batch r
    contains row r of each stream of this process, in the same order in every batch and epoch.

    Args:
        lengths: length in tokens of each example.
        streams: number of streams, at least one for each process.
        world_size: number of processes that share the streams.
        rank: number of this process, from 0.

    Raises:
        ValueError: the streams do not all have the same number of rows, or there are fewer streams than
            processes.

    Example:
        >>> list(StreamSampler([2, 2, 1, 2, 2, 1], streams=2))
        [[0, 3], [1, 4], [2, 5]]
    """

    def __init__(self, lengths: Sequence[int], streams: int, *, world_size: int = 1, rank: int = 0) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if streams < world_size or len(self.lengths) % streams:
            raise ValueError(
                f"there are {streams} streams for {world_size} processes and {len(self.lengths)} examples; "
                "they must divide the examples and be no fewer than the processes"
            )
        self.streams, self.world_size, self.rank = streams, world_size, rank
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; every epoch has the same batches."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.lengths) // self.streams

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over this process's batches."""
        for row in range(len(self)):
            yield [stream * len(self) + row for stream in range(self.rank, self.streams, self.world_size)]


def _check_lengths(lengths: np.ndarray, most: float = math.inf) -> None:
    if lengths.ndim != 1 or not len(lengths):
        raise ValueError(
            f"lengths have shape {lengths.shape}; they must be one number for each example, at least one"
        )
    for wrong, limit in ((lengths < 1, "at least 1"), (lengths > most, f"at most max_tokens = {most}")):
        if wrong.any():
            index = int(wrong.argmax())
            raise ValueError(f"example {index} has {lengths[index]} tokens; it must have {limit}")


def _cuts(lengths: np.ndarray, max_tokens: int) -> list[int]:
    """Return the start index of each batch after the first, for lengths sorted from short to long."""
    cuts = []
    start = 0
    for index, longest in enumerate(lengths.tolist()):
        if longest * (index - start + 1) > max_tokens:
            cuts.append(index)
            start = index
    return cuts
