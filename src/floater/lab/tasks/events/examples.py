"""Batches of sequences of events: pieces, masked values, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from floater.errors import DataError
from floater.lab.tasks.corpora.events import EventSequence
from floater.lab.tasks.examples import Encoded, padded
from floater.transformer.events import EventsConfig
from floater.transformer.outputs import IGNORED


def pieces(sequences: Sequence[EventSequence], config: EventsConfig, *, size: int, origin: str) -> Encoded:
    """Cut sequences into pieces, which are separate examples; their lengths are in events.

    With the goal "next", a piece begins with the last event of the piece before, so that every event but the
    first of a sequence is predicted once.

    Args:
        sequences: sequences of events.
        config: configuration of the model, with `goal` and `types`.
        size: maximum number of predicted events in a piece.
        origin: source of the sequences, for messages.

    Returns:
        The encoded pieces, with `types` as numbers; `source` contains the pieces.

    Raises:
        DataError: if no event is left to predict, a sequence has a type that is not in the training set, or
            the positions of its times are beyond float32.

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
        if len(sequence) - begin > 1  # a single event leaves nothing to predict
    ]
    if not parts:
        raise DataError(f"{origin} holds no event to predict in {len(sequences)} sequences")
    step = config.unit * config.time_per_position
    for part in parts if config.position_source == "time" else ():
        with np.errstate(over="ignore"):
            span = np.ptp(part.times) / step
        if span > np.finfo(np.float32).max:
            raise DataError(
                f"{origin}, sequence '{part.id}': {span:.6g} positions of {step:.6g} each, infinite in "
                "float32; raise data.time_per_position, or data.unit"
            )
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
    """Make a padded batch of `types`, `times`, `mask`, and `labels`, the types that are predicted.

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
    """Make a padded batch of `values`, `times`, `mask`, and masks of `shown` and `asked` values.

    Args:
        examples: encoded pieces, as returned by `pieces`.
        goal: "interpolate" to hide random events of a piece, "forecast" to hide its last ones.
        mask_ratio: share of hidden events; at least one event is hidden, and not all.
        seed: seed of the choice, together with the index of a piece.

    Returns:
        The batch. Its `labels` are 0 where a value is asked, else -100; they count the terms of the loss.
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
