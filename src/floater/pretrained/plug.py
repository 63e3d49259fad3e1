"""FLOATER inside a pretrained model: plug, unplug, bake."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from floater.encodings.checks import chosen_blocks, one_of
from floater.flow.autograd import outside_inference_mode
from floater.flow.checks import is_count
from floater.pretrained.body import SOURCE, Body, Injection
from floater.pretrained.clocks import add_clocks, clock_options
from floater.pretrained.families import NAMES, PlugError, table_of
from floater.pretrained.find import BodySpec, Projection, find_bodies, plain_parts
from floater.pretrained.flows import Flows, Trajectory, complete_options
from floater.pretrained.forward import observe
from floater.pretrained.host import (
    UNSAVED,
    allow_to_run,
    check_not_code,
    device_of,
    inner,
    keep_weights,
    rename,
    warn_of_adapters,
)
from floater.pretrained.plugged import (
    PlugState,
    flows_of,
    plug_state,
    plugged,
    plugged_around,
    record,
    unhook,
)
from floater.pretrained.product import put_into, take_out
from floater.pretrained.report import Report
from floater.pretrained.rotations import find_rotations
from floater.transformer.base import FloaterPreTrainedModel

_LENGTH = 512


def plug(
    model: nn.Module,
    *,
    blocks: str | list[int] = "all",
    projections: Sequence[str] | Mapping[str, str] | Sequence[Sequence[str]] = NAMES,
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
    part of the model's parameters and checkpoints, and the options are part of its configuration. Layers of
    linear attention stay as they are, and so does cross-attention to anything but `encoder_hidden_states`,
    as Mllama's to images.

    The position of a token is its index among the unpadded tokens of its text, including those in a cache,
    or its entry in the caller's `position_ids` minus the model's first position. For images it is the index
    of the patch with [CLS] at 0, for speech that of the frame after the convolutions.

    With `clock` a rotary model gets no vectors, but a clock in each chosen block: it rotates queries and keys
    at the times that `floater.encodings.composed.clock.Clock` describes.

    Args:
        model: a model of `transformers` of a listed family (`floater.pretrained.FAMILIES`), one that reads
            text and has projections q_proj, k_proj and v_proj (or query, key and value; q, k and v; q_lin,
            k_lin and v_lin), or one that contains such models; changed in place.
        blocks: "all", "input" (the first) or a list of block indices, in each encoder and decoder.
        projections: some of "query", "key" and "value"; or, for another model, a mapping (or
            the pairs of one) from these to the names of the projections in its attention modules, with the
            same name for parts of one projection, in the order of its output.
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
    table = table_of(projections)
    listed: Any = projections if table is None else table
    names = tuple(listed) if isinstance(listed, Iterable) else ()
    if isinstance(projections, str) or not names or any(name not in NAMES for name in names):
        raise PlugError(f"projections is {projections!r}; it must be a list of some of {', '.join(NAMES)}")
    if not is_count(max_length):
        raise PlugError(f"max_length is {max_length!r}; it must be a whole number of at least 1 token")
    if not isinstance(freeze_model, bool):
        raise PlugError(f"freeze_model is {freeze_model!r}; it must be True or False")
    if clock is None:
        options["start"] = start
        report = _plug_flow(model, table, names, blocks, max_length, freeze_model, options)
    elif options or table is not None or names != NAMES or max_length != _LENGTH:
        raise PlugError("a clock is not a flow: it takes only blocks, start and freeze_model")
    else:
        report = _plug_clocks(model, clock, blocks, start, freeze_model)
    warn_of_adapters(outer, "floater", "plug")
    return report


def _check_plain(model: nn.Module) -> None:
    """Refuse a model that has a flow already, in itself, in a part, or in a model that contains it."""
    name = type(model).__name__
    if plugged(model) is not None:
        raise PlugError(f"this {name} is plugged already; unplug it first")
    check_not_code(model, PlugError, "plugged")
    if isinstance(model, nn.Sequential):
        inside = [path for path, part in model.named_modules() if isinstance(part, PreTrainedModel)]
        raise PlugError(
            f"{name} runs its parts in turn, which a flow cannot be; plug a Hugging Face model in it"
            + (f": '{inside[0]}'" if inside else "")
        )
    if (
        part := next((path for path, part in model.named_modules() if plugged(part) is not None), None)
    ) is not None:
        raise PlugError(f"'{part}' of this {name} is plugged already; unplug it first")
    if (whole := plugged_around(model)) is not None:
        raise PlugError(f"this {name} runs with the flow of a {type(whole).__name__}; unplug that first")


@outside_inference_mode
def _plug_flow(
    model: nn.Module,
    table: dict[str, str] | None,
    names: tuple[str, ...],
    blocks: str | list[int],
    max_length: int,
    freeze_model: bool,
    options: Mapping[str, Any],
) -> Report:
    completed = complete_options(options)
    specs = find_bodies(model, table)
    chosen = chosen_blocks(blocks, max(spec.depth for spec in specs))
    bodies: list[Body] = []
    injections: list[tuple[nn.Module, Injection]] = []
    widths: dict[Trajectory, int] = {}
    for spec, site in zip(specs, _sites(specs), strict=True):
        cross = "cross" if len(specs) < 3 else f"{site}_cross"
        body = Body(model, spec.path, spec.family, site, cross)
        for projection in spec.projections:
            if projection.cross and SOURCE not in body.names:
                continue  # Mllama's reads images, whose tokens the body is not given
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
        {
            "blocks": blocks,
            # in JSON a mapping's keys are sorted, and the order of the parts of a projection would be lost
            "projections": [*map(list, table.items())] if table else list(names),
            "max_length": max_length,
            **completed,
        },
        injections,
    )
    flows = Flows(list(widths), field_widths, max_length=max_length, options=completed)
    _attach(model, flows, state, freeze_model)
    for body in bodies:
        # observers instead of wrapped modules keep names in the state_dict and targets of PEFT the same
        state.forwards.append((observe(model.get_submodule(body.path), body), body))
    for module, injection in injections:
        module.register_forward_hook(injection)
    _finish(model, state)
    fields = {
        field: (width, tuple(trajectory.name for trajectory in widths if trajectory.field == field))
        for field, width in field_widths.items()
    }
    count = sum(parameter.numel() for parameter in flows.parameters())
    return Report(fields, count, plain=plain_parts(model, [spec.path for spec in specs]))


@outside_inference_mode
def _plug_clocks(
    model: nn.Module,
    clock: Mapping[str, Any],
    blocks: str | list[int],
    start: str,
    freeze_model: bool,
) -> Report:
    one_of("start", start, ("zero", "small"))
    chosen = clock_options(clock)
    body, depth, rotations = find_rotations(model)
    state = PlugState({"blocks": blocks, "clock": chosen, "start": start})
    clocks, state.turns = add_clocks(model, rotations, depth, chosen_blocks(blocks, depth), chosen, start)
    _attach(model, clocks, state, freeze_model)
    _finish(model, state)
    count = sum(parameter.numel() for parameter in clocks.parameters())
    return Report({}, count, len(state.turns), plain_parts(model, [body]))


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
    # blocks may have been removed, or replaced by copies
    originals = [*(module for module, _ in state.injections), *state.turns.values()]
    for module in (*model.modules(), *originals):
        take_out(module)
        unhook(module)
    for forward, body in state.forwards:
        body.release()
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
    for module, injection in state.injections:
        if put_into(module, injection):
            unhook(module)
    record(model, {**state.options, "baked": length})


def _sites(specs: Sequence[BodySpec]) -> list[str]:
    """Return names of the bodies that do not depend on the head of the model."""
    if len(specs) == 1:
        return ["tokens"]
    if len(specs) == 2:
        cross = [any(projection.cross for projection in spec.projections) for spec in specs]
        if sum(cross) == 1:
            return ["decoder" if reads else "encoder" for reads in cross]
    return [spec.path.replace(".", "_") or "model" for spec in specs]
