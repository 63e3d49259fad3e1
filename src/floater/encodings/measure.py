"""Measured properties of position models, from their hooks: the columns of the survey's table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from floater.encodings.attention import AttentionCall, project_qkv
from floater.encodings.card import Injection
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import catalogue
from floater.encodings.spec import StackSpec
from floater.positions import Positions
from floater.structures import trees

Beyond = Literal["refused", "alike", "untrained", "continued"]
APE = ("embed", "block", "inputs")
MAM = ("projection_bias", "qkv", "scale", "bias", "logits", "weights", "mask", "value_bias")
_SPEC = StackSpec(dim=16, heads=2, layers=3, max_length=48)
_LENGTH = _SPEC.max_length  # three times as far is past T5's last bucket, which starts at 128


@dataclass(frozen=True)
class Measured:
    """Properties of a position model with its default options, measured from its code.

    Args:
        injection: kind of the hooks that it overrides: "APE" those of embeddings, "MAM" those of attention.
        learnable: whether it has parameters that learn.
        recurring: whether it acts in every block.
        unbound: whether it supports four times max_length and distinguishes positions (relative models:
            distances) past max_length.
        beyond: what it does at four times max_length: "refused", an error; "alike", positions (relative
            models: distances) past max_length are not distinguished; "untrained", they are by parameters that
            texts of max_length do not reach, such as rows of a table; "continued", they are by a formula or
            by parameters that such texts train. This says what is defined, not how good it is there.
        relative: whether attention is the same when every position shifts by the same amount.
        kernel: see `kernel`.
    """

    injection: Injection
    learnable: bool
    recurring: bool
    unbound: bool
    beyond: Beyond
    relative: bool
    kernel: str


class Attended(NamedTuple):
    """A block's attention: its input, q, k, v, logits, and the mixture of the values."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    logits: Tensor
    out: Tensor


def positions_for(model: type[PositionModel] | PositionModel, length: int, start: int = 0) -> Positions:
    """Return positions start, start + 1, ... with the other fields that the model reads.

    A tree or a graph is a chain: its nodes are the positions.

    Args:
        model: the position model.
        length: number of tokens.
        start: the first position.

    Returns:
        Positions (1, length) of queries and keys.

    Example:
        >>> positions_for(catalogue()["tree"], 2, start=1).structure.token_valid.tolist()
        [[True, True]]
    """
    at = torch.arange(start, start + length)[None]
    chain = None
    if hasattr(model, "needs"):
        end = max(start + length, _LENGTH)
        chain = trees([list(range(-1, end - 1))], words=[at[0]])
    return Positions(
        at,
        at,
        target_length=torch.tensor([5 * _LENGTH]),
        language=torch.zeros_like(at),
        reordered=at,
        token=torch.zeros_like(at),
        structure=chain,
    )


def attention_context(model: PositionModel, state: Any, layer: int, x: Tensor) -> AttentionContext[Any]:
    """Return the context of a block's attention, with the same projections for every model and block.

    Queries and keys share theirs, so that a word has a positive logit with itself.

    Args:
        model: the position model.
        state: its state.
        layer: index of the block.
        x: (batch, T, dim), the input of attention.
    """
    dim = model.spec.dim
    generator = torch.Generator().manual_seed(0)
    shared, value = torch.randn(2, dim, dim, generator=generator, dtype=torch.float64) * dim**-0.5
    maps = {"query": shared, "key": shared, "value": value}

    def projection(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda y: y @ weight.to(y.dtype)

    return AttentionContext(state, layer, x, {name: projection(weight) for name, weight in maps.items()})


def attend(model: PositionModel, state: Any, layer: int, x: Tensor) -> Attended:
    """Run the hooks of one block's attention, with the projections of `attention_context`.

    Args:
        model: the position model.
        state: its state.
        layer: index of the block.
        x: (batch, T, dim), the block's input.
    """
    context = attention_context(model, state, layer, model.block(x, state, layer))
    q, k, v = project_qkv(model, context)
    call = AttentionCall(model, context, q, k, v)
    logits = call.logits()
    out, _ = call.attend(logits)
    return Attended(context.x, q, k, v, logits, out)


def respond(model: PositionModel, positions: Positions, x: Tensor) -> list[Attended]:
    """Return the tensors of every block's attention when embeddings x (batch, T, dim) enter each block."""
    state = model.prepare(positions)
    x = model.embed(x, state)
    return [attend(model, state, layer, x) for layer in range(model.spec.layers)]


def measure(name: str) -> Measured:
    """Measure a position model of the catalogue with its default options.

    Example:
        >>> measure("sinusoidal")
        Measured(injection='APE', learnable=False, recurring=False, unbound=True, \
beyond='continued', relative=False, kernel='SDPA')
    """
    return _measured(catalogue()[name])  # type: ignore[arg-type]  # a class has a hash


@functools.cache
@torch.no_grad()
def _measured(kind: type[PositionModel]) -> Measured:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(_SPEC).double().eval()
        learnable = any(parameter.requires_grad for parameter in model.parameters())
        for parameter in model.parameters():
            if not bool(parameter.any()):  # parameters that start at zero would have no effect
                nn.init.normal_(parameter, std=0.1)
        x = torch.randn(1, 20, _SPEC.dim, dtype=torch.float64)
    continues = beyond(model)
    return Measured(
        injection(model),
        learnable,
        _recurring(model, x),
        continues in ("untrained", "continued"),
        continues,
        _relative(model, x),
        kernel(model),
    )


def injection(model: PositionModel) -> Injection:
    """Return the kind of injection of a model, by the hooks it overrides.

    Example:
        >>> injection(catalogue()["deberta"](_SPEC))
        'both'
    """
    kinds: dict[tuple[bool, bool], Injection] = {
        (False, False): "-",
        (True, False): "APE",
        (False, True): "MAM",
        (True, True): "both",
    }
    return kinds[model.overrides(*APE), model.overrides(*MAM)]


def kernel(model: PositionModel) -> str:
    """Return the attention kernel that the hooks of a model allow.

    "SDPA" is PyTorch's `scaled_dot_product_attention`, "SDPA, bias" the same with an added mask or bias,
    "flex" that FlexAttention can compute it, "own" attention in plain PyTorch, because the model changes more
    than the bias.

    Example:
        >>> [kernel(catalogue()[name](_SPEC)) for name in ("rotary", "alibi", "deberta", "shaw")]
        ['SDPA', 'SDPA, bias; flex', 'SDPA, bias', 'own']
    """
    if model.overrides("logits", "weights", "value_bias"):
        return "own"
    if not model.overrides("bias", "mask"):
        return "SDPA"
    return "SDPA, bias; flex" if _flexible(model) else "SDPA, bias"


def _flexible(model: PositionModel) -> bool:
    """Return whether a model adds at most a bias of the distance, where positions count up."""
    if not model.overrides("bias"):
        return True
    if not model.has_terms:
        return False
    q = next(model.parameters(), torch.empty(0)).new_zeros(
        1, model.spec.heads, 4, model.spec.dim // model.spec.heads
    )
    terms = model.attention_terms(q, q, AttentionContext(model.prepare(positions_for(model, 4)), 0))
    return terms is not None and terms.bias_alone


def _recurring(model: PositionModel, x: Tensor) -> bool:
    state, identity = model.prepare(positions_for(model, x.shape[1])), PositionModel(model.spec)

    def acts(layer: int) -> bool:
        changed = attend(model, state, layer, x), attend(identity, None, layer, x)
        return not all(torch.equal(a, b) for a, b in zip(*changed, strict=True))

    first = acts(0) or not torch.equal(model.embed(x, state), x)
    return first and all(acts(layer) for layer in range(1, model.spec.layers))


@torch.no_grad()
def beyond(model: PositionModel) -> Beyond:
    """Return what a model does at four times its training length; see `Measured`.

    Example:
        >>> [beyond(catalogue()[name](_SPEC).double()) for name in ("learned", "shaw", "alibi")]
        ['refused', 'alike', 'continued']
        >>> beyond(catalogue()["t5"](_SPEC, max_distance=1024).double())  # buckets past 48 tokens
        'untrained'
    """
    x = torch.randn(model.spec.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    words = x.expand(1, 4 * _LENGTH, -1)
    try:
        with torch.enable_grad():
            blocks = respond(model, positions_for(model, 4 * _LENGTH), words)
    except PositionError:
        return "refused"
    one, two = 3 * _LENGTH, 7 * _LENGTH // 2  # from position 1, since 0 may be [CLS]

    def apart(attended: Attended) -> bool:
        q, k, v, logits = attended[1:5]
        rows = (*((y[..., one, :], y[..., two, :]) for y in (q, k, v)),)
        far = (logits[..., 1, one], logits[..., 1, two]), (logits[..., one, 1], logits[..., two, 1])
        return any(not torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in (*rows, *far))

    if not any(map(apart, blocks)):
        return "alike"
    with torch.enable_grad():
        short = respond(model, positions_for(model, _LENGTH), words[:, :_LENGTH])
        reached = zip(_reached(model, blocks), _reached(model, short), strict=True)
    return "untrained" if any(bool((far & ~near).any()) for far, near in reached) else "continued"


def _reached(model: PositionModel, blocks: list[Attended]) -> list[Tensor]:
    """Return which entries of each parameter the logits of attention and what enters them depend on."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    outputs = [y for block in blocks for y in (block.x, block.q, block.k, block.v, block.logits)]
    visible = [y.masked_fill(~y.isfinite(), 0.0) for y in outputs]
    total = torch.stack([(y * torch.linspace(1, 2, y.shape[-1])).sum() for y in visible]).sum()
    if not weights or not total.requires_grad:
        return []
    grads = torch.autograd.grad(total, weights, allow_unused=True)
    return [
        torch.zeros_like(weight, dtype=torch.bool) if grad is None else grad != 0
        for weight, grad in zip(weights, grads, strict=True)
    ]


def _relative(model: PositionModel, x: Tensor) -> bool:
    x = torch.cat([x, x], 1)[:, : _LENGTH - 9]  # past any window of distances
    far = 9 if hasattr(model, "needs") or model.max_positions is not None else 601
    here, there = (respond(model, positions_for(model, x.shape[1], start), x) for start in (0, far))
    return all(torch.allclose(a.logits, b.logits, atol=1e-5) for a, b in zip(here, there, strict=True))


def count(name: str, spec: StackSpec) -> dict[str, int]:
    """Return the size of each parameter of a position model, without allocating it.

    Raises:
        PositionError: if the model refuses the sizes.

    Example:
        >>> sum(count("learned", StackSpec(dim=512, heads=8, layers=6, max_length=512)).values())
        262144
    """
    with torch.device("meta"):
        model = catalogue()[name](spec)
    return {key: parameter.numel() for key, parameter in model.named_parameters()}
