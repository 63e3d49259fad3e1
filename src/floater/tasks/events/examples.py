"""From sequences of events to batches: pieces, masked values, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from floater.errors import DataError
from floater.tasks.corpora.events import EventSequence
from floater.tasks.examples import Encoded, padded
from floater.transformer.events import EventsConfig
from floater.transformer.outputs import IGNORED


def pieces(sequences: Sequence[EventSequence], config: EventsConfig, *, size: int, origin: str) -> Encoded:
    """Cut sequences into pieces, each of which is read alone; their lengths are in events.

    A piece of the goal "next" begins with the last event of the one before, so that every event but a
    sequence's first is predicted once.

    Args:
        sequences: of events.
        config: its `goal` and `types`.
        size: the most predicted events in a piece.
        origin: where the sequences come from, for messages.

    Returns:
        The pieces with their `types` as numbers; `source` are the pieces themselves.

    Raises:
        DataError: if no event is left to predict, or a sequence has a type that the training set has not.

    Example:
        >>> none = np.zeros((5, 0))
        >>> sequence = EventSequence("a", np.arange(5.0), tuple("xyxyx"), none, none.astype(bool))
        >>> pieces([sequence], EventsConfig(types=["x", "y"]), size=3, origin="here").lengths
        [4, 2]
    """
    overlap = int(config.goal == "next")
    parts = [
        sequence.part(begin, begin + size + overlap)
        for sequence in sequences
        for begin in range(0, len(sequence) - overlap, size)
        if len(sequence) - begin > 1  # nothing can be predicted from a single event
    ]
    if not parts:
        raise DataError(f"{origin} holds no event to predict in {len(sequences)} sequences")
    number = {name: i for i, name in enumerate(config.types or ())}
    for sequence in sequences:
        if unknown := set(sequence.types) - number.keys():
            raise DataError(
                f"{origin}, sequence '{sequence.id}': type '{min(unknown)}' is in no training sequence"
            )
    rows = [
        {"index": index, "piece": part, "types": [number[name] for name in part.types]}
        for index, part in enumerate(parts)
    ]
    return Encoded(rows, [len(part) for part in parts], parts)


def next_batch(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Make a padded batch: `types`, `times`, `mask`, and `labels`, the types that are predicted.

    Example:
        >>> none = np.zeros((3, 0))
        >>> sequence = EventSequence("a", np.arange(3.0), tuple("xyy"), none, none.astype(bool))
        >>> examples = pieces([sequence], EventsConfig(types=["x", "y"]), size=9, origin="here")
        >>> next_batch(examples.rows)["labels"]
        tensor([[-100,    1,    1]])
    """
    types = padded(row["types"] for row in examples)
    times = padded(row["piece"].times for row in examples)
    mask = padded([True] * len(row["types"]) for row in examples)
    labels = types.masked_fill(~mask, IGNORED)
    labels[:, 0] = IGNORED
    return {"types": types, "times": times, "mask": mask, "labels": labels}


def values_batch(
    examples: Sequence[dict[str, Any]], *, goal: str, mask_ratio: float, seed: Sequence[int]
) -> dict[str, Tensor]:
    """Make a padded batch: `values`, `times`, `mask`, what is `shown` and what is `asked`.

    Args:
        examples: of `pieces`.
        goal: "interpolate" hides any events of a piece, "forecast" the last ones.
        mask_ratio: share of the events that are hidden, at least one and not all.
        seed: of the choice, with a piece's index.

    Returns:
        The batch; its `labels` are 0 where a value is asked, else -100: they count what a loss is of.
    """
    rows: dict[str, list[Any]] = {name: [] for name in ("values", "times", "mask", "shown", "asked")}
    for row in examples:
        piece, count = row["piece"], len(row["piece"])
        many = min(max(1, round(mask_ratio * count)), max(count - 1, 1))
        order = np.random.default_rng([*seed, row["index"]]).permutation(count)
        chosen = np.zeros(count, dtype=bool)
        chosen[order[:many] if goal == "interpolate" else slice(count - many, None)] = True
        rows["values"].append(piece.values)
        rows["times"].append(piece.times)
        rows["mask"].append([True] * count)
        rows["shown"].append(piece.observed & ~chosen[:, None])
        rows["asked"].append(piece.observed & chosen[:, None])
    batch = {name: padded(parts) for name, parts in rows.items()}
    labels = torch.where(batch["asked"], 0, IGNORED)
    return batch | {"labels": labels}
