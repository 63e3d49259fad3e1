"""Trained biases of distances, continued by a flow over the logarithm of distance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from floater.encodings.relative.alibi import slopes
from floater.encodings.relative.distances import Distances
from floater.encodings.relative.floater_relative import FloaterRelative
from floater.encodings.spec import StackSpec
from floater.flow import MLPField
from floater.flow.snapshot import Snapshot
from floater.positions.tracing import refuse_trace
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.watch import PassPositions, Watch

TRAINED = {"t5": 512, "mt5": 1024, "bloom": 2048}
"""Training lengths that are not in configurations: Raffel et al. 2020, 3.1.2; Xue et al. 2021, 3; Scao et al.
2022, table 3."""

_BUCKETS = "t5", "mt5", "switch_transformers", "umt5"
_BLOCKS = {"bloom": "h", "falcon": "h", "mpt": "blocks"}

RIDGE, STEEPEST, STEPS, NEAR, POINTS = 1e-6, 64.0, 20, 16, 160
"""Settings of the fit: ridge penalty of the readout, Lipschitz constant above which a field is penalised,
L-BFGS steps, number of near distances, which are all used, and number of log-spaced far distances."""

Bias = Callable[[Tensor], Tensor]
"""Function from distances key - query (N,) to biases (N, heads)."""

FlowBias = Callable[[range, torch.device], Tensor]
"""Function from distances key - query and a device to biases (N, heads) of a flow."""


def continued_bias(flow: FlowBias, trained: Bias, distances: range, old: int, device: torch.device) -> Tensor:
    """Return a trained bias, which a flow continues beyond the training length.

    Distances below `old` have the trained bias, bit for bit. From there the flow continues its last value:
    b(d) = trained(old - 1) + flow(d) - flow(old - 1), on each side of the query.

    Args:
        flow: biases of the flow, which is fitted to the trained bias.
        trained: trained bias.
        distances: distances key - query; a range, so that none is read from the device.
        old: training length.
        device: device of the result.

    Returns:
        The biases, (N, heads).
    """
    delta = torch.arange(distances.start, distances.stop, device=device)
    near = trained(delta.clamp(1 - old, old - 1))
    if -old < distances.start and distances.stop <= old:
        return near
    start = min(distances.start, 1 - old)  # differences, as compiled code with symbolic ends has no index
    solved = flow(range(start, max(distances.stop, old)), device).to(near.dtype)
    first, last = solved[1 - old - start], solved[old - 1 - start]
    change = solved[distances.start - start : distances.stop - start]
    change = change - torch.where(delta[:, None] > 0, last, first)
    return torch.where((delta.abs() >= old)[:, None], near + change, near)


def _at(flow: FloaterRelative, distances: range, device: torch.device) -> Tensor:
    delta = torch.arange(distances.start, distances.stop, device=device)
    return flow.bias_table(Distances(delta, None, (1, len(delta)), distances.start)).biases[:, 0]


class CachedBias:
    """The biases of a flow by distance; without gradients they are cached until the flow changes.

    Args:
        flow: function that returns the flow of one bias.
    """

    def __init__(self, flow: Callable[[], FloaterRelative]) -> None:
        self.flow = flow
        self._cache: tuple[Snapshot, range, Tensor] | None = None

    def __call__(self, distances: range, device: torch.device) -> Tensor:
        """Return the biases (N, heads) at distances."""
        flow = self.flow()
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _at(flow, distances, device)
        cache = self._cache
        if cache is not None and not cache[0].matches(flow, device):
            cache = None
        if cache is None or distances[0] not in cache[1] or distances[-1] not in cache[1]:
            every = range(min(distances.start, 1 - flow.spec.max_length), max(distances.stop, 1))
            with torch.inference_mode(False), torch.no_grad():
                cache = self._cache = Snapshot(flow, device), every, _at(flow, every, device)
        return cache[2][cache[1].index(distances[0]) :][: len(distances)]

    def __getstate__(self) -> dict[str, Any]:
        return {"flow": self.flow, "_cache": None}


def new_flow(heads: int, length: int, causal: bool) -> FloaterRelative:
    """Return a flow over log distance for one bias with a number of heads, solved up to a length."""
    spec = StackSpec(dim=heads, heads=heads, layers=1, max_length=length, causal=causal)
    return FloaterRelative(spec, clip=None)


@torch.enable_grad()
def fit(flow: FloaterRelative, trained: Bias, old: int) -> float:
    """Fit a flow to a bias at the distances of training.

    For any field and start, the best readout is the solution of a linear least-squares problem, so L-BFGS
    optimises only field and start (variable projection, Golub and Pereyra 1973). Distances are spaced
    logarithmically, like the buckets of T5.

    Args:
        flow: flow of one bias; changed in place.
        trained: trained bias.
        old: training length.

    Returns:
        The root mean squared error over all distances of training, in logits.
    """
    device = flow.readout.device
    far = torch.logspace(0, 1, POINTS, base=old - 1, dtype=torch.float64).round().long()
    near = torch.unique(torch.cat((torch.arange(min(NEAR, old)), far))).to(device)
    sides = [-near] if len(flow.flow.names) == 1 else [-near, near]
    targets = [trained(side).detach().double() for side in sides]
    times = F.pad(torch.log1p(near.double())[None], (0, 1), value=flow.span)
    search = torch.optim.LBFGS(list(flow.flow.parameters()), max_iter=STEPS, line_search_fn="strong_wolfe")

    def solved() -> tuple[list[Tensor], Tensor]:
        vectors = flow.flow(times).all()[0, :-1].double()
        readouts, errors = [], []
        for row, target in enumerate(targets):  # keys after the query begin at a distance of 1
            x, y = vectors[row:, row], target[row:]
            gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1]).to(x)
            readouts.append(torch.linalg.solve(gram, x.T @ y))
            errors.append((x @ readouts[-1] - y).square())
        return readouts, torch.cat(errors).mean()

    scale = float(torch.cat(targets).var(0).mean().clamp(min=1e-12))

    def error() -> Tensor:
        search.zero_grad()
        penalty = excess(flow.flow.field)
        loss = penalty + (solved()[1] / scale if penalty < 1 else 1)  # a trial step of L-BFGS may be wild
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(error)  # type: ignore[no-untyped-call]
    flow.zero_grad()
    with torch.no_grad():
        for row, readout in enumerate(solved()[0]):
            flow.readout[row].copy_(readout)
        every = range(1 - old, 1 if len(sides) == 1 else old)
        expected = trained(torch.arange(every.start, every.stop, device=device))
        missed = (_at(flow, every, device).double() - expected.double()).square()
    return float(missed.mean().sqrt())


def excess(field: nn.Module) -> Tensor:
    """Return how far a bound of a field's Lipschitz constant is above STEEPEST, relative and squared.

    A stiff flow costs minutes and gigabytes, and biases of a few logits need none.
    """
    assert isinstance(field, MLPField)
    inner, outer = (torch.linalg.matrix_norm(layer.weight) for layer in (field.inner, field.outer))
    return F.relu(inner * outer / STEEPEST - 1).square().sum()


class Buckets(nn.Module):
    """A T5 bias by buckets that a flow continues. It replaces the bias table and has its weights.

    Args:
        attention: attention module of T5.
        flow: function that returns the flow that is fitted to the table.
        old: training length.
    """

    def __init__(self, attention: Any, flow: Callable[[], FloaterRelative], old: int) -> None:
        from transformers.models.t5.modeling_t5 import T5Attention

        super().__init__()
        self.weight = attention.relative_attention_bias.weight
        self.flow, self.old = CachedBias(flow), old
        self.bucket: Callable[..., Tensor] = T5Attention._relative_position_bucket
        self.options = {
            "bidirectional": not attention.is_decoder,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }

    def trained(self, distances: Tensor) -> Tensor:
        """Return the biases of the table, (N, heads), at distances (N,)."""
        return F.embedding(self.bucket(distances, **self.options), self.weight)

    def forward(self, distances: Tensor) -> Tensor:
        """Return the biases (T, S, heads) at the distances (T, S) of all pairs."""
        refuse_trace(ExtendError, "a model with an extended bias", "trace the model before it is extended")
        slots = distances.shape[1]  # whatever the query, no key is further away
        every = range(1 - slots, slots)
        table = continued_bias(self.flow, self.trained, every, self.old, distances.device)
        return F.embedding(distances - every.start, table)


def _distance(relative_position: Tensor, **options: Any) -> Tensor:
    """Return the distances, which `Buckets` takes as input, in place of T5's function to buckets."""
    return relative_position


class ContinuedAlibi:
    """The bias of ALiBi, -slope |distance|, continued by a flow in texts longer than in training.

    Args:
        watch: watch of the body, with the positions of its tokens.
        name: name of MPT's bias, or of the mask of BLOOM and Falcon, among the arguments of a block.
        slopes: slopes of the heads, (heads,).
        flow: function that returns the flow that is fitted to the bias.
        old: training length.
    """

    def __init__(
        self, watch: Watch, name: str, slopes: list[float], flow: Callable[[], FloaterRelative], old: int
    ) -> None:
        self.watch, self.name, self.slopes, self.flow, self.old = watch, name, slopes, CachedBias(flow), old

    def trained(self, distances: Tensor) -> Tensor:
        """Return the biases of ALiBi, (N, heads), at distances (N,)."""
        return -distances.abs()[:, None] * torch.tensor(self.slopes, device=distances.device)

    def __call__(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Replace the bias argument of a block in a long text; a forward pre-hook."""
        positions = self.watch.pass_with(kwargs[self.name])
        if positions.length <= self.old:
            return None
        bias = positions.shared.get(self.name)
        if bias is None:
            bias = self._bias(positions, kwargs[self.name], kwargs["attention_mask"])
            if not torch.is_grad_enabled():  # a checkpoint that runs again must repeat the computation
                positions.shared[self.name] = bias
        return args, {**kwargs, self.name: bias}

    def _bias(self, positions: PassPositions, argument: Tensor, mask: Tensor) -> Tensor:
        """Return the replacement of an argument of a block: the bias of MPT, or the mask of BLOOM and Falcon.

        BLOOM copies its bias for each text and adds it before the mask, and Falcon's mask contains it, so the
        difference is added to the mask.
        """
        masked = self.name == "attention_mask"
        every = range(
            1 - positions.length, positions.query.shape[1] if positions.counted else positions.length
        )
        table = continued_bias(self.flow, self.trained, every, self.old, argument.device)
        if masked:
            table = table - self.trained(torch.arange(every.start, every.stop, device=argument.device))
        table = table.to(argument.dtype).T.contiguous()
        if positions.counted:  # query t, counted from 0, and key s use entry s - t + T - 1
            bias = table.unfold(1, positions.length, 1).flip(1)[None]
        else:
            delta = positions.key[:, None, :] - positions.query[:, :, None]
            bias = table[:, delta - every.start].transpose(0, 1)  # (batch or 1, heads, T, S)
        if (size := mask.shape[-1]) > bias.shape[-1]:  # with a static cache
            bias = F.pad(bias, (0, size - bias.shape[-1]))
        if not masked:
            return bias[0]
        return bias + (argument[:1] if positions.alike else argument)


def biased_parts(model: nn.Module) -> list[Any]:
    """Return the parts of a model that add biases of distances.

    They are T5's attention modules with a table, and the bodies of BLOOM, MPT and Falcon with ALiBi.
    """
    biased: list[Any] = []
    for part in model.modules():
        kind = getattr(getattr(part, "config", None), "model_type", None)
        if kind in _BUCKETS and isinstance(getattr(part, "relative_attention_bias", None), nn.Module):
            biased.append(part)
        blocks = getattr(part, _BLOCKS.get(str(kind), ""), None)
        if isinstance(part, PreTrainedModel) and isinstance(blocks, nn.ModuleList):
            biased += [part] if kind != "falcon" or part.config.alibi else []  # others rotate
    return biased


def attach_flow(part: Any, flow: Callable[[], FloaterRelative], old: int) -> Bias:
    """Make a flow continue the bias of a part.

    Args:
        part: one of `biased_parts`; changed in place.
        flow: function that returns the flow of the bias.
        old: training length.

    Returns:
        The trained bias.
    """
    if hasattr(part, "relative_attention_bias"):
        buckets = Buckets(part, flow, old)
        part.relative_attention_bias = buckets
        part._relative_position_bucket = _distance
        return buckets.trained
    kind = part.config.model_type
    watch = Watch(part, "flow", biases="slots" if kind == "mpt" else "tokens")
    name = "position_bias" if kind == "mpt" else "attention_mask"
    linear = ContinuedAlibi(watch, name, _slopes(part.config), flow, old)
    for block in getattr(part, _BLOCKS[kind]):
        block.register_forward_pre_hook(linear, with_kwargs=True)
    return linear.trained


def _slopes(config: Any) -> list[float]:
    if config.model_type == "bloom":
        return slopes(config.n_head).tolist()
    if config.model_type == "falcon":  # it divides its bias as its logits
        heads = config.num_attention_heads
        return [slope / math.sqrt(config.hidden_size // heads) for slope in slopes(heads).tolist()]
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    two = build_mpt_alibi_tensor(config.n_heads, 2)  # slopes times -1 and 0
    return [float(slope) for slope in -two[:, 0, 0]]


def heads_and_causality(part: Any) -> tuple[int, bool]:
    """Return the number of heads of a part, and whether it is causal."""
    if hasattr(part, "relative_attention_bias"):
        return int(part.n_heads), bool(part.is_decoder)
    return int(part.config.num_attention_heads), True


def training_length(part: Any, trained: int | None) -> int | None:
    """Return the training length of a part in tokens; None if it is not known.

    Args:
        part: one of `biased_parts`.
        trained: training length by the caller, if known.
    """
    falcon = part.config.model_type == "falcon"
    names = ["max_position_embeddings"] if falcon else ["max_seq_len", "seq_length", "n_positions"]
    declared = next((length for name in names if (length := getattr(part.config, name, None))), None)
    return trained or declared or TRAINED.get(part.config.model_type)
