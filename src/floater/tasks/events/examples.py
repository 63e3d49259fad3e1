"""From sequences of events to batches: pieces, masked values, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from floater.errors import DataError
from floater.tasks.corpora.events import EventSequence
from floater.transformer.events import EventsConfig
from floater.transformer.outputs import IGNORED


class Pieces(Dataset[dict[str, Any]]):
    """Sequences cut into pieces, each of which is read alone; `lengths` are their events.

    A piece of the goal "next" begins with the last event of the one before, so that every event but a
    sequence's first is predicted once.

    Args:
        sequences: of events.
        config: its `goal` and `types`.
        size: the most predicted events in a piece.
        origin: where the sequences come from, for messages.

    Raises:
        DataError: if no event is left to predict, or a sequence has a type that the training set has not.

    Example:
        >>> none = np.zeros((5, 0))
        >>> sequence = EventSequence("a", np.arange(5.0), tuple("xyxyx"), none, none.astype(bool))
        >>> Pieces([sequence], EventsConfig(types=["x", "y"]), size=3, origin="here").lengths
        [4, 2]
    """

    def __init__(
        self, sequences: Sequence[EventSequence], config: EventsConfig, *, size: int, origin: str
    ) -> None:
        overlap = int(config.goal == "next")
        self.pieces = [
            sequence.part(begin, begin + size + overlap)
            for sequence in sequences
            for begin in range(0, len(sequence) - overlap, size)
            if len(sequence) - begin > 1  # a single event tells nothing of itself
        ]
        if not self.pieces:
            raise DataError(f"{origin} holds no event to predict in {len(sequences)} sequences")
        self.lengths = [len(piece) for piece in self.pieces]
        self._number = {name: i for i, name in enumerate(config.types or ())}
        for sequence in sequences:
            if unknown := set(sequence.types) - self._number.keys():
                raise DataError(
                    f"{origin}, sequence '{sequence.id}': type '{min(unknown)}' is in no training sequence"
                )

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, Any]:
        piece = self.pieces[index]
        return {"index": index, "piece": piece, "types": [self._number[name] for name in piece.types]}


def next_batch(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch padded on the right: `types`, `times`, `mask`, and `labels`, the types that are predicted.

    Example:
        >>> none = np.zeros((3, 0))
        >>> sequence = EventSequence("a", np.arange(3.0), tuple("xyy"), none, none.astype(bool))
        >>> pieces = Pieces([sequence], EventsConfig(types=["x", "y"]), size=9, origin="here")
        >>> next_batch([pieces[0]])["labels"]
        tensor([[-100,    1,    1]])
    """
    types = _padded([torch.tensor(row["types"]) for row in examples])
    times = _padded([torch.from_numpy(row["piece"].times) for row in examples])
    mask = _padded([torch.ones(len(row["types"]), dtype=torch.bool) for row in examples])
    labels = types.masked_fill(~mask, IGNORED)
    labels[:, 0] = IGNORED
    return {"types": types, "times": times, "mask": mask, "labels": labels}


def values_batch(
    examples: Sequence[dict[str, Any]], *, goal: str, mask_ratio: float, seed: Sequence[int]
) -> dict[str, Tensor]:
    """A batch padded on the right: `values`, `times`, `mask`, what is `shown` and what is `asked`.

    Args:
        examples: of `Pieces`.
        goal: "interpolate" hides any events of a piece, "forecast" the last ones.
        mask_ratio: share of the events that are hidden, at least one and not all.
        seed: of the choice, with a piece's index.

    Returns:
        The batch; its `labels` are 0 where a value is asked, else -100: they count what a loss is of.
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in ("values", "times", "mask", "shown", "asked")}
    for row in examples:
        piece, count = row["piece"], len(row["piece"])
        many = min(max(1, round(mask_ratio * count)), max(count - 1, 1))
        order = np.random.default_rng([*seed, row["index"]]).permutation(count)
        chosen = np.zeros(count, dtype=bool)
        chosen[order[:many] if goal == "interpolate" else slice(count - many, None)] = True
        rows["values"].append(torch.from_numpy(piece.values))
        rows["times"].append(torch.from_numpy(piece.times))
        rows["mask"].append(torch.ones(count, dtype=torch.bool))
        rows["shown"].append(torch.from_numpy(piece.observed & ~chosen[:, None]))
        rows["asked"].append(torch.from_numpy(piece.observed & chosen[:, None]))
    batch = {name: _padded(parts) for name, parts in rows.items()}
    labels = torch.where(batch["asked"], 0, IGNORED)
    return batch | {"labels": labels}


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)
