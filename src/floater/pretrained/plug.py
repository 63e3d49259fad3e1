"""FLOATER inside a pretrained model: plug, unplug, bake."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from floater.encodings.checks import chosen_blocks, one_of
from floater.flow.choices import is_count
from floater.pretrained.body import Body, Injection
from floater.pretrained.clocks import Clocks, active, add_clocks, clock_options
from floater.pretrained.families import NAMES, PlugError
from floater.pretrained.find import BodySpec, Projection, find_bodies, plain_parts
from floater.pretrained.flows import Flows, Trajectory, complete_options
from floater.pretrained.forward import Forward, observe, observers, unobserve
from floater.pretrained.product import put_into, take_out
from floater.transformer.base import FloaterPreTrainedModel

GUARD = "floater: this model has a FLOATER flow; import floater before the model is loaded"
"""Entry of a plugged model's `fusion_config`; see `floater.pretrained.loading`."""

UNSAVED = "a plugged or extended model that is in no folder yet: save_pretrained it, then name that folder"
"""The `name_or_path` of a changed model. PEFT writes it into adapters as their base, and the directory that
the model was loaded from contains the unchanged one."""


_LENGTH = 512
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}


@dataclass
class PlugState:
    """The changes that `plug` made to a model, for `unplug`.

    Args:
        options: arguments of `plug` by name, as plain values.
        injections: each projection with its injection and the handle of its hook.
        turns: handles of the hooks of clocks.
        forwards: functions of the bodies' forward passes, with the observer of each.
        frozen: parameters that were trainable before.
        origin: `name_or_path` of the model before it was plugged.
    """

    options: dict[str, Any]
    injections: list[tuple[nn.Module, Injection, RemovableHandle]] = field(default_factory=list)
    turns: list[RemovableHandle] = field(default_factory=list)
    forwards: list[tuple[Forward, Body]] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)
    origin: str | None = None


@dataclass(frozen=True)
class Report:
    """Summary of a plugged model: fields, projections and parameters.

    Args:
        fields: width of each field and names of the projections that share it, by name of the field.
        parameters: number of parameters of fields and starting vectors, or of clocks.
        clocks: number of blocks with a clock.
        plain: parts that are Hugging Face models of no known family, and stay as they are.

    Example:
        >>> print(Report({"64": (64, ("query", "key", "query", "key"))}, 12_700))
        a field of width 64 for 2 query, 2 key; 12,700 parameters
    """

    fields: Mapping[str, tuple[int, tuple[str, ...]]]
    parameters: int
    clocks: int = 0
    plain: tuple[str, ...] = ()

    def __str__(self) -> str:
        plain = f"; unchanged: {', '.join(self.plain)}" if self.plain else ""
        return f"{self._changed()}; {self.parameters:,} parameters{plain}"

    def _changed(self) -> str:
        if self.clocks:
            return f"a clock in each of {self.clocks} blocks"
        counts = [(width, Counter(names)) for width, names in self.fields.values()]
        fields = (
            f"a field of width {width} for {', '.join(f'{n} {name}' for name, n in names.items())}"
            for width, names in counts
        )
        return "; ".join(fields)


def plug(
    model: nn.Module,
    *,
    blocks: str | list[int] = "all",
    projections: Sequence[str] | Mapping[str, str] = NAMES,
    start: str = "zero",
    freeze_model: bool = False,
    max_length: int = _LENGTH,
    clock: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Add learned continuous position biases to the queries, keys and values of a Hugging Face model.

    Liu et al. 2020, section 3.3: in every chosen block, b(t) is added to the output of every chosen
    projection for the token at position t, where db/dt = h(t, b). All projections of the same width share
    one field h, and each of them has its own starting vector. With start="zero" b = 0, and the model's
    outputs do not change, bit for bit. Fields and starting vectors are the module `model.floater`. They are
    part of the model's parameters and checkpoints, and the options are part of its configuration.

    The position of a token is its index among the unpadded tokens of its text, including those in a cache,
    or its entry in the caller's `position_ids` minus the model's first position. For images it is the index
    of the patch with [CLS] at 0, for speech that of the frame after the convolutions.

    With `clock` a rotary model gets no vectors, but a clock in each chosen block: it rotates queries and keys
    at the times that `floater.encodings.composed.clock.Clock` describes.

    Args:
        model: a model of `transformers` of a known family (`floater.pretrained.FAMILIES`), or one that
            contains such models; changed in place.
        blocks: "all", "input" (the first) or a list of block indices, in each encoder and decoder.
        projections: some of "query", "key" and "value"; or, for a model of another family, a mapping from
            these to the names of the projections in its attention modules, with the same name for parts of
            one projection.
        start: "zero", or "small", by which b(0) and the weights of h are small random numbers.
        freeze_model: True to train the flow only.
        max_length: number of tokens over which the vectors of start="small" are of order one.
        clock: options of clocks in place of a flow, {} for the defaults: `rate` is "softplus", "sigmoid",
            "signed" or "angle", `per` is "block". `projections` and `options` are then not to be given.
        options: options of the position model `floater`: delta, time_scale, share, refresh_every, solver,
            step, gradient, activation, hidden, field, uncovered.

    Returns:
        A summary of the fields with their widths.

    Raises:
        PlugError: if the model is plugged already, or there is nothing to plug; the message then names the
            modules that were searched for.
        PositionError: if an option or its value is not valid.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        ...                              intermediate_size=16, vocab_size=8)).eval()
        >>> before = model(torch.tensor([[1, 2, 3]])).last_hidden_state
        >>> print(plug(model))
        a field of width 16 for 2 query, 2 key, 2 value; 672 parameters
        >>> torch.equal(before, model(torch.tensor([[1, 2, 3]])).last_hidden_state)
        True
    """
    outer, model = model, inner(model)
    _check_plain(model)
    if hasattr(model, "floater"):
        raise PlugError(f"{type(model).__name__} has a part named 'floater' that is not from this library")
    table = dict(projections) if isinstance(projections, Mapping) else None
    names = tuple(projections) if isinstance(projections, Iterable) else ()
    if isinstance(projections, str) or not names or any(name not in NAMES for name in names):
        raise PlugError(f"projections is {projections!r}; it must be a list of some of {', '.join(NAMES)}")
    if not is_count(max_length):
        raise PlugError(f"max_length is {max_length!r}; it must be a whole number of at least 1 token")
    if not isinstance(freeze_model, bool):
        raise PlugError(f"freeze_model is {freeze_model!r}; it must be True or False")
    if clock is not None:
        if options or table is not None or names != NAMES or max_length != _LENGTH:
            raise PlugError("a clock is not a flow: it takes only blocks, start and freeze_model")
        report = _plug_clocks(model, clock, blocks, start, freeze_model)
        warn_of_adapters(outer, "floater", "plug")
        return report
    completed = complete_options({"start": start, **options})
    specs = find_bodies(model, table)
    chosen = chosen_blocks(blocks, max(spec.depth for spec in specs))
    bodies: list[Body] = []
    injections: list[tuple[nn.Module, Injection]] = []
    widths: dict[Trajectory, int] = {}
    for spec, site in zip(specs, _sites(specs), strict=True):
        cross = "cross" if len(specs) < 3 else f"{site}_cross"
        body = Body(model, spec.path, spec.family, site, cross)
        for projection in spec.projections:
            uses = _uses(projection, body, names, chosen, shared=completed["share"] == "blocks")
            if not any(any(use) for use in uses):
                continue
            for use in uses:
                sizes = zip(use, projection.widths, strict=True)
                widths |= {trajectory: width for trajectory, width in sizes if trajectory is not None}
            injection = Injection(body, projection.path, uses, projection.widths, projection.head)
            body.injections.append(injection)
            injections.append((projection.module, injection))
        bodies.append(body)
    if not injections:
        raise PlugError(f"nothing to plug in blocks {list(chosen)} with projections {list(names)}")

    field_widths = {trajectory.field: width for trajectory, width in widths.items()}
    state = PlugState(
        {"blocks": blocks, "projections": table or list(names), "max_length": max_length, **completed}
    )
    flows = Flows(list(widths), field_widths, max_length=max_length, options=completed)
    _attach(model, flows, state, freeze_model)
    for body in bodies:
        # observers instead of wrapped modules keep names in the state_dict and targets of PEFT the same
        state.forwards.append((observe(model.get_submodule(body.path), body), body))
    state.injections = [(module, i, module.register_forward_hook(i)) for module, i in injections]
    _finish(model, state)
    warn_of_adapters(outer, "floater", "plug")
    fields = {
        field: (width, tuple(trajectory.name for trajectory in widths if trajectory.field == field))
        for field, width in field_widths.items()
    }
    count = sum(parameter.numel() for parameter in flows.parameters())
    return Report(fields, count, plain=plain_parts(model, specs))


def _check_plain(model: nn.Module) -> None:
    """Refuse a model that has a flow already, in itself, in a part, or in a model that contains it."""
    name = type(model).__name__
    if plugged(model) is not None:
        raise PlugError(f"this {name} is plugged already; unplug it first")
    if (
        part := next((path for path, part in model.named_modules() if plugged(part) is not None), None)
    ) is not None:
        raise PlugError(f"'{part}' of this {name} is plugged already; unplug it first")
    if (whole := plugged_around(model)) is not None:
        raise PlugError(f"this {name} runs with the flow of a {type(whole).__name__}; unplug that first")


def _plug_clocks(
    model: nn.Module,
    clock: Mapping[str, Any],
    blocks: str | list[int],
    start: str,
    freeze_model: bool,
) -> Report:
    one_of("start", start, ("zero", "small"))
    chosen, specs = clock_options(clock), find_bodies(model, None)
    state = PlugState({"blocks": blocks, "clock": chosen, "start": start})
    which = chosen_blocks(blocks, max(spec.depth for spec in specs))
    clocks, state.turns = add_clocks(model, specs, which, chosen, start)
    _attach(model, clocks, state, freeze_model)
    _finish(model, state)
    count = sum(parameter.numel() for parameter in clocks.parameters())
    return Report({}, count, len(state.turns), plain_parts(model, specs))


def _attach(model: nn.Module, part: nn.Module, state: PlugState, freeze_model: bool) -> None:
    """Make a flow or clocks the part `floater` of a model."""
    part.train(model.training)
    if not any(parameter.is_meta for parameter in part.parameters()):
        part.to(device_of(model))
    if freeze_model:
        state.frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        model.requires_grad_(False)
    keep_weights(part)
    model.floater = part
    model.__dict__["_floater_plug"] = state


def _finish(model: nn.Module, state: PlugState) -> None:
    """Record what was plugged, once the hooks are there."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # a graph that was compiled without the hooks would run without them
    record(model, {**state.options, "baked": None})
    state.origin = rename(model, UNSAVED)
    allow_to_run(model)


def _uses(
    projection: Projection, body: Body, names: Sequence[str], blocks: Sequence[int], *, shared: bool
) -> list[tuple[Trajectory | None, ...]]:
    """Return the trajectories for each call of a projection, by parts of its output; see `Injection`.

    Args:
        projection: the projection.
        body: body that contains it.
        names: parts that are plugged.
        blocks: blocks that are plugged.
        shared: True if all blocks share a field.
    """
    uses = []
    for block in projection.blocks:
        use: list[Trajectory | None] = []
        for part, width in zip(projection.parts, projection.widths, strict=True):
            if part not in names or block not in blocks:
                use.append(None)
                continue
            reads_source = projection.cross and part != "query"
            field = str(width) if shared else f"{width}_{body.site}_{block}"
            name = "cross_query" if projection.cross and part == "query" else part
            use.append(Trajectory(body.cross if reads_source else body.site, field, block, name))
        uses.append(tuple(use))
    return uses


def unplug(model: nn.Module) -> None:
    """Remove the flow or the clocks from a model, trained or not, and restore its configuration.

    Args:
        model: a plugged model, baked or not; changed in place.

    Raises:
        PlugError: if it is not plugged.
    """
    model = inner(model)
    state = plug_state(model)
    for module, injection, handle in state.injections:
        handle.remove()
        take_out(module)
        injection.body.release()
    for handle in state.turns:
        handle.remove()
    for forward, body in state.forwards:
        forward.remove(body)
    for parameter in state.frozen:
        parameter.requires_grad_(True)
    del model.floater, model.__dict__["_floater_plug"]
    if state.origin is not None:
        rename(model, state.origin)
    record(model, None)


def bake(model: nn.Module, length: int) -> None:
    """Store the position vectors of a model and remove its fields, for inference without solving.

    Liu et al. 2020, section 4.4. The vectors are added in the matrix product of their projection. They are
    saved with the model and are not trained. Bake last: later changes of a projection's bias through `.data`,
    as by a merge of adapters, have no effect.

    Args:
        model: a plugged model, or a model of `floater.transformer`, whose `bake` is called; changed in place.
        length: number of positions, at least 1.

    Raises:
        PlugError: if the model is not plugged, or baked already.
        PositionError: see `FloaterPreTrainedModel.bake`.
        ValueError: if length is less than 1.
    """
    model = inner(model)
    if isinstance(model, FloaterPreTrainedModel):
        model.bake(length)
        return
    state = plug_state(model)
    flows = flows_of(model)
    if flows.length is not None:
        raise PlugError(f"this model is baked already, for {flows.length} positions")
    flows.bake(length)
    for module, injection, handle in state.injections:
        if put_into(module, injection):
            handle.remove()
    record(model, {**state.options, "baked": length})


def plugged(model: nn.Module) -> PlugState | None:
    """Return the record of `plug` for a model; None if it is not plugged.

    Raises:
        PlugError: if it is not a module, but for example the name of a checkpoint.
    """
    if not isinstance(model, nn.Module):
        raise PlugError(f"the model is a {type(model).__name__}; it must be a model of transformers")
    state: PlugState | None = model.__dict__.get("_floater_plug")
    return state


def plug_state(model: nn.Module) -> PlugState:
    """Return the record of `plug` for a model.

    Raises:
        PlugError: if the model is not plugged.

    Example:
        >>> plug_state(nn.Identity())
        Traceback (most recent call last):
        floater.pretrained.families.PlugError: this Identity is not plugged; plug it first
    """
    state = plugged(model)
    if state is None:
        raise PlugError(f"this {type(model).__name__} is not plugged; plug it first")
    return state


def inner(model: nn.Module) -> nn.Module:
    """Return the Hugging Face model inside a compiled or a PEFT model.

    Raises:
        PlugError: if it is wrapped for training on several devices, where new weights would not take part.
    """
    if (wrapper := type(model).__name__) in _WRAPPERS:
        raise PlugError(f"the model is a {wrapper}; change the model first, and wrap it then")
    model = getattr(model, "_orig_mod", model)
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def warn_of_adapters(model: nn.Module, part: str, how: str) -> None:
    """Warn that files of the adapters that a PEFT model has already will lack a new part with weights."""
    if hasattr(getattr(model, "_orig_mod", model), "get_base_model"):
        warnings.warn(
            f"the files of this model's adapters will lack the weights of '{part}': save them with the whole "
            f"model, or {how} before get_peft_model, with modules_to_save=[{part!r}]",
            stacklevel=3,
        )


def plugged_around(model: nn.Module) -> nn.Module | None:
    """Return the plugged model that has the flow of a model's body and is not in the model; None if none."""
    parts = list(model.modules())
    bodies = (body for part in parts for body in observers(part) if isinstance(body, Body))
    return next((body.root for body in bodies if not any(body.root is part for part in parts)), None)


def flows_of(model: nn.Module) -> Flows:
    """Return the flows of a plugged model.

    Raises:
        PlugError: if it has clocks.
    """
    part = trained_part(model)
    if isinstance(part, Clocks):
        raise PlugError(
            f"this {type(model).__name__} has a clock, whose times depend on the text: there is no vector of "
            "a position to bake or to show"
        )
    return part


def trained_part(model: nn.Module) -> Flows | Clocks:
    """Return the flows or the clocks of a plugged model."""
    trained: Flows | Clocks = active(model.floater)
    return trained


def _sites(specs: Sequence[BodySpec]) -> list[str]:
    """Return names of the bodies that do not depend on the head of the model."""
    if len(specs) == 1:
        return ["tokens"]
    if len(specs) == 2:
        cross = [any(projection.cross for projection in spec.projections) for spec in specs]
        if sum(cross) == 1:
            return ["decoder" if reads else "encoder" for reads in cross]
    return [spec.path.replace(".", "_") or "model" for spec in specs]


def device_of(model: nn.Module) -> Any:
    """Return the device of the first parameter that is there, not offloaded; None if there is none."""
    return next((p.device for p in model.parameters() if p.device.type != "meta"), None)


class Refusal:
    """An observer that refuses the forward passes of a model that lacks the flow of its configuration."""

    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a forward pass."""
        raise PlugError(
            f"this {type(model).__name__} was made without the flow that its configuration has: make it by "
            "from_config of its Auto class, or load it by from_pretrained"
        )

    def leave(self, output: Any) -> None:
        """Do nothing."""


def allow_to_run(model: nn.Module) -> None:
    """Let a model and its parts run: remove each `Refusal`."""
    for part in model.modules():
        for observer in observers(part):
            if isinstance(observer, Refusal):
                unobserve(part, observer)


def keep_weights(added: nn.Module) -> None:
    """Mark a part added to a model as initialised, or the model's `init_weights` would overwrite it."""
    for module in added.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]


def rename(model: Any, name: str) -> str | None:
    """Set the `name_or_path` of a model and of the base of its adapters; return the one before, if any."""
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        adapter.base_model_name_or_path = name
    before: str | None = model.__dict__.get("name_or_path")
    if before is not None:
        model.name_or_path = name
    return before


def record(model: nn.Module, options: dict[str, Any] | None) -> None:
    """Record the options of `plug` in a copy of the model's configuration, as models may share the original.

    Args:
        model: model that gets the copy of its configuration.
        options: arguments of `plug` by name, and `baked`; None if the model is not plugged.
    """
    config = getattr(model, "config", None)
    if config is None:
        return
    copied = copy.copy(config)
    for module in model.modules():
        if module.__dict__.get("config") is config:
            module.config = copied
    fusions = dict(getattr(copied, "fusion_config", None) or {})
    fusions.pop(GUARD, None)
    for name in ("floater", "fusion_config"):
        copied.__dict__.pop(name, None)
    if options is not None:
        copied.floater = options
        fusions[GUARD] = True
    if fusions:
        copied.fusion_config = fusions
