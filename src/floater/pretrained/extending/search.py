"""LongRoPE's search of a divisor for each rotary frequency, by the loss of a validation text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.encodings.relative.rescaling import rescaled
from floater.encodings.relative.waves import frequencies
from floater.flow.checks import is_count
from floater.pretrained.extending import native, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.host import inner

MUTATION, WIDEST = 0.3, 1.25
"""Share of the divisors that a mutation changes, and the largest divisor in ratios of the lengths."""


@dataclass(frozen=True)
class FactorSearch:
    """Result of `search_factors`.

    Args:
        factors: the divisors with the least loss, one for each frequency.
        loss: their loss, in nats per token.
        starts: losses of the scalings that began the search, by name, with LongRoPE's temperature.
        evaluations: number of sets of divisors whose loss was computed.
    """

    factors: list[float]
    loss: float
    starts: dict[str, float]
    evaluations: int


@torch.no_grad()
def search_factors(
    model: nn.Module, ids: Tensor, length: int, *, population: int = 16, iterations: int = 10, seed: int = 0
) -> FactorSearch:
    """Search the factors of "longrope" by the loss of a text.

    The evolutionary search of LongRoPE (Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2
    Million Tokens", section 3) for factors that do not decrease from the fastest frequency to the slowest.
    It begins with those of linear scaling, NTK and YaRN and their mutations. In each iteration the better
    half of the population has as many children: mutations, and crossings of two. A mutation samples a factor
    anew between its neighbours. All positions are scaled; the paper's search also spares the first tokens
    of a text, which Transformers cannot express.

    Pass the result to `extend(model, length, "longrope", long_factor=search.factors)`. Search and evaluate on
    different texts: the minimum of many losses is biased downwards.

    Args:
        model: a causal language model whose rotary positions are not scaled; unchanged afterwards.
        ids: tokens of the validation text, (rows, T), T above the model's length and at most `length`.
        length: number of tokens to support.
        population: number of sets of factors, at least 4.
        iterations: number of generations; each computes the loss of half of the population.
        seed: seed of mutations and crossings.

    Returns:
        The best factors and the losses.

    Raises:
        ExtendError: if the model has no unscaled rotary positions, or the text does not suit the lengths.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=32, num_hidden_layers=1,
        ...     num_attention_heads=2, intermediate_size=16, max_position_embeddings=32, pad_token_id=0))
        >>> result = search_factors(model, torch.arange(64)[None] % 32, 64, population=4, iterations=1)
        >>> len(result.factors), result.loss <= min(result.starts.values())
        (8, True)
    """
    whole: Any = inner(model)
    bodies = rotary.rotary_bodies(whole)
    if len(bodies) != 1:
        raise ExtendError(
            f"{type(whole).__name__} has {len(bodies)} rotary parts; factors are searched for one"
        )
    body = bodies[0]
    rotary.check(body)
    config: Any = body.config
    if (kind := native.scaling(config)) is not None:
        raise ExtendError(
            f"the rotary positions are scaled by {kind!r} already; search the factors of the original"
        )
    old = int(config.max_position_embeddings)
    for name, value, least in (("population", population, 4), ("iterations", iterations, 0)):
        if not (is_count(value) or value == 0) or value < least:
            raise ExtendError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    if not old < ids.shape[1] <= length:
        raise ExtendError(
            f"the text has {ids.shape[1]} tokens; it must be longer than the model's {old}, and at most "
            f"{length}"
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):
        starts = _starts(config, old, length)
    losses: dict[tuple[float, ...], float] = {}

    def best(candidates: list[Tensor]) -> list[Tensor]:
        for each in candidates:
            if tuple(each.tolist()) not in losses:
                losses[tuple(each.tolist())] = _loss(whole, body, each, old, length, ids)
        return sorted(candidates, key=lambda each: losses[tuple(each.tolist())])

    widest, parents = WIDEST * length / old, list(starts.values())
    while len(parents) < population:
        parents.append(_mutated(parents[len(parents) % len(starts)], widest, generator))
    parents = best(parents)
    for _ in range(iterations):
        parents = parents[: population // 2]
        children = []
        for index in range(population // 2):
            chosen = torch.randint(len(parents), (2,), generator=generator, device="cpu").tolist()
            first, second = (parents[index] for index in chosen)
            either = torch.rand(len(first), generator=generator, device="cpu") < 0.5
            crossed = torch.where(either, first, second)
            children.append(crossed.cummax(0).values if index % 2 else _mutated(first, widest, generator))
        parents = best([*parents, *children])
    factors = parents[0].tolist()
    return FactorSearch(
        factors,
        losses[tuple(factors)],
        {name: losses[tuple(each.tolist())] for name, each in starts.items()},
        len(losses),
    )


def _starts(config: Any, old: int, length: int) -> dict[str, Tensor]:
    """Return the divisors of the scalings that begin the search."""
    rope = native.parameters(config)
    width, base, factor = rotary.rotated(config, rope), float(rope["rope_theta"]), length / old
    plain = frequencies(width, base)
    scaled = {
        "linear": plain / factor,
        "ntk": frequencies(width, rotary.stretched_base(base, factor, width, "ntk")),
        "yarn": rescaled(width, base, old, {"rope_type": "yarn", "factor": factor})[0],
    }
    return {name: (plain / each).cummax(0).values for name, each in scaled.items()}


def _mutated(factors: Tensor, widest: float, generator: torch.Generator) -> Tensor:
    """Return factors, some of them sampled again between their neighbours."""
    result = factors.clone()
    for index in range(len(result)):
        if float(torch.rand((), generator=generator, device="cpu")) < MUTATION:
            low = float(result[index - 1]) if index else 1.0
            high = float(result[index + 1]) if index + 1 < len(result) else widest
            result[index] = low + (high - low) * float(
                torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
            )
    return result


def _loss(model: Any, body: PreTrainedModel, factors: Tensor, old: int, length: int, ids: Tensor) -> float:
    """Return the loss of a text with a divisor for each frequency, in nats per token."""
    with _divided(body, factors, math.sqrt(1 + math.log(length / old) / math.log(old))):
        loss = float(model(input_ids=ids, labels=ids, use_cache=False).loss)
    return loss if math.isfinite(loss) else math.inf


@contextmanager
def _divided(body: PreTrainedModel, factors: Tensor, temperature: float) -> Iterator[None]:
    """Divide the frequencies of a body, and multiply its sines and cosines by LongRoPE's factor."""
    kind = native.layer_kind(body.config)
    scaling = "attention_scaling" if kind is None else f"{kind}_attention_scaling"
    before: list[tuple[nn.Module, str, Any]] = []
    try:
        for name in rotary.frequencies(body):
            holder, _, attribute = name.rpartition(".")
            part = body.get_submodule(holder)
            value = body.get_buffer(name)
            before += [(part, attribute, value), (part, scaling, getattr(part, scaling))]
            setattr(part, attribute, (value.double() / factors.to(value.device)).to(value))
            setattr(part, scaling, temperature)
        yield
    finally:
        for part, attribute, value in reversed(before):
            setattr(part, attribute, value)
