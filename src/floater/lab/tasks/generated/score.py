"""Exact match and token accuracy by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from floater.encodings import PositionError
from floater.flow import FlowError
from floater.lab.tasks.examples import Encoded, in_batches
from floater.lab.tasks.generated.data import collate
from floater.lab.tasks.measurement import Measurement, positions
from floater.lab.training.model import inference
from floater.transformer import FloaterForCausalLM, FloaterForSequenceClassification
from floater.transformer.outputs import IGNORED

Solver = FloaterForCausalLM | FloaterForSequenceClassification


def score(model: Solver, examples: Encoded, max_tokens: int = 8192) -> Measurement:
    """Compare a model's answers with the correct ones; no random number is used.

    A causal model is scored with teacher forcing. Greedy generation writes the whole correct answer if and
    only if every token is the most probable one after the correct tokens before it, so that no generation is
    needed.

    Args:
        model: model to score; its mode (training or evaluation) is restored.
        examples: encoded examples.
        max_tokens: maximum number of tokens in a batch, with padding.

    Returns:
        Exact matches, teacher-forced token accuracies of the answers, and losses. The position of a loss is
        that of its token in the answer.

    Raises:
        PositionError: if the position model does not support an example.
        FlowError: if a flow does not support the length of an example.
    """
    statistics = {name: np.zeros((len(examples), 2)) for name in ("exact", "tokens", "loss")}
    nats: list[np.ndarray] = [np.zeros(0)] * len(examples)
    with inference(model, baked=True):
        for indices, batch in in_batches(examples, collate, model.device, max_tokens):
            labels, causal = batch.pop("labels"), isinstance(model, FloaterForCausalLM)
            logits = model(**batch, **({"use_cache": False} if causal else {})).logits.float()
            logits, labels = (logits[:, :-1], labels[:, 1:]) if causal else (logits[:, None], labels[:, None])
            losses = F.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none").double()
            asked = labels != IGNORED
            right = (logits.argmax(-1) == labels) & asked
            tokens = asked.sum(1)
            sums = {"exact": (right == asked).all(1), "tokens": right.sum(1), "loss": losses.sum(1)}
            for name, counts in (("exact", torch.ones_like(tokens)), ("tokens", tokens), ("loss", tokens)):
                statistics[name][indices] = torch.stack([sums[name].double(), counts.double()], 1).cpu()
            for index, row, scored in zip(indices, losses.cpu(), asked.cpu(), strict=True):
                nats[index] = row[scored].numpy()
    lengths = np.array([example.length for example in examples.source])
    measurement = Measurement(lengths, statistics, *positions(nats))
    digits = {"loss": 4, "exact": 2, "tokens": 2}
    scores = {name: math.nan if (value := measurement.score(name)) is None else value for name in digits}
    return replace(
        measurement, scores={name: round(scores[name], decimals) for name, decimals in digits.items()}
    )


def score_bins(
    model: Solver, parts: Sequence[tuple[tuple[int, int], Encoded]], trained: tuple[int, int]
) -> Measurement:
    """Score examples, and report the scores by bins of length.

    A bin with lengths that the position model does not support is refused as a whole.

    Args:
        model: model to score.
        parts: least and greatest length, and examples, of each bin.
        trained: least and greatest length of the training.

    Returns:
        The result of `score`; the statistics of a refused bin are NaN, and a note reports it.
    """
    measurements: list[Measurement] = []
    bins: list[dict[str, Any]] = []
    notes = []
    table = [f"{'length':<8}{'examples':>8}  {'exact match %':>13}  {'tokens right %':>14}"]
    for (low, high), examples in parts:
        bins.append({"lengths": [low, high], "examples": len(examples)})
        try:
            part = score(model, examples)
            bins[-1] |= part.scores
            numbers = f"{part.scores['exact']:>13.2f}  {part.scores['tokens']:>14.2f}"
            table.append(f"{f'{low}-{high}':<8}{len(examples):>8,}  {numbers}")
        except (PositionError, FlowError) as error:
            none = np.full((len(examples), 2), np.nan)
            lengths = np.array([example.length for example in examples.source])
            part = Measurement(lengths, dict.fromkeys(("exact", "tokens", "loss"), none))
            bins[-1]["refused"] = str(error)
            notes.append(f"lengths {low} to {high} are refused: {error}")
            table.append(f"{f'{low}-{high}':<8}{'-':>8}          refused: {error}")
        measurements.append(part)
    table.append(f"trained on {trained[0]}-{trained[1]}; tokens are teacher-forced")
    return Measurement(
        lengths=np.concatenate([part.lengths for part in measurements]),
        statistics={
            name: np.concatenate([part.statistics[name] for part in measurements])
            for name in measurements[0].statistics
        },
        position_nats=positions([part.position_nats for part in measurements])[0],
        position_tokens=positions([part.position_tokens for part in measurements])[0].astype(np.int64),
        notes=notes,
        bins=bins,
        report="\n".join(table),
    )
