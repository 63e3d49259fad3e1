"""The flows of a plugged model: fields and starting vectors, or baked vectors."""

# mypy: disable-error-code="no-untyped-call"
# (state_dict hooks are untyped)

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from floater.encodings.absolute.floater import learned_field
from floater.encodings.checks import is_number, one_of
from floater.encodings.errors import PositionError
from floater.encodings.registry import options
from floater.encodings.relative.waves import UNCOVERED, covered
from floater.encodings.sharded import gather_weights
from floater.errors import nearest
from floater.flow import FlowEncoder, FlowVectors, init_small_, init_zero_
from floater.flow.checks import check_length, is_count
from floater.flow.solve import check_options as solve_options
from floater.flow.vectors import as_slice
from floater.positions.tracing import require
from floater.pretrained.families import PlugError


class Trajectory(NamedTuple):
    """Key of one trajectory of a flow: a starting vector and the field that drives it.

    Args:
        site: name of the tokens to whose projections it belongs.
        field: name of the field that drives it.
        block: index of the block.
        name: "query", "key", "value", or "cross_query" for the queries of cross-attention.
    """

    site: str
    field: str
    block: int
    name: str


class SiteEncoder(FlowEncoder):
    """A `FlowEncoder` whose field belongs to another module, which shares it among several sites."""

    def __init__(self, field: nn.Module, dim: int, **kwargs: Any) -> None:
        super().__init__(field, dim, **kwargs)
        del self._modules["field"]
        self.__dict__["field"] = field

    def forward(self, positions: Tensor, *, below: int | None = None) -> FlowVectors:
        """Return the vectors, from the cache unless gradients are needed; see `FlowEncoder.forward`."""
        learns = torch.is_grad_enabled() and any(p.requires_grad for p in self._all_parameters())
        if learns or torch.compiler.is_compiling():
            return super().forward(positions, below=below)
        return self.stored(positions)

    def _all_parameters(self) -> Iterator[nn.Parameter]:
        yield from super()._all_parameters()
        yield from self.field.parameters()


def complete_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the `floater` position model that apply to `plug`, completed by defaults.

    Raises:
        PositionError: if an option is unknown, or its value is not valid.

    Example:
        >>> complete_options({"delta": 0.2})["delta"]
        0.2
    """
    values = {**options("floater"), "start": "zero"}
    del values["blocks"], values["injection"]
    if unknown := sorted(chosen.keys() - values):
        raise PositionError(f"unknown option '{unknown[0]}' of plug; {nearest(unknown[0], values)}")
    values |= chosen
    one_of("start", values["start"], ("zero", "small"))
    one_of("share", values["share"], ("blocks", "none"))
    one_of("uncovered", values["uncovered"], UNCOVERED)
    if values["uncovered"] != "keep" and values["field"] != "bounded":
        raise PositionError(
            f"uncovered={values['uncovered']!r} changes the clocks of field='bounded', not "
            f"{values['field']!r}"
        )
    for name, other in (("delta", ()), ("time_scale", ("learned",)), ("step", (None,))):
        value = values[name]
        if not (is_number(value) and 0 < value < math.inf) and value not in other:
            valid = " or ".join(["a positive number", *map(repr, other)])
            raise PositionError(f"{name} is {value!r}; it must be {valid}")
        if is_number(value):  # JSON does not take the numbers of numpy
            values[name] = value if isinstance(value, int) else float(value)
    for name in ("hidden", "refresh_every"):
        value = values[name]
        if not is_count(value) and not (name == "hidden" and value is None):
            raise PositionError(f"{name} is {value!r}; it must be a whole number of at least 1")
    try:
        field = learned_field(values["field"], 1, 1, values["activation"])
        method, step, gradient = (values[name] for name in ("solver", "step", "gradient"))
        solve_options(field, method=method, rtol=1.0, atol=1.0, step=step, gradient=gradient)
    except ValueError as error:
        raise PositionError(str(error)) from error
    return values


class Flows(nn.Module):
    """Fields and starting vectors of a plugged model; the module `floater` of the model.

    All projections of one width share a field, and each of them has its own starting vector
    (Liu et al. 2020, equations 10, 12 and 13). `bake` replaces fields and starting vectors by vectors.

    Args:
        trajectories: keys of all trajectories.
        widths: widths of the fields, by name.
        max_length: number of tokens over which initial vectors are of order one.
        options: options of `floater.plug`, as `complete_options` returns them.

    Example:
        >>> trajectories = [Trajectory("self", "4", 0, name) for name in ("query", "key")]
        >>> flows = Flows(trajectories, {"4": 4}, max_length=16, options=complete_options({"start": "small"}))
        >>> flows("self", torch.arange(3)[None])["4"].at(0, "key").shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        widths: Mapping[str, int],
        *,
        max_length: int,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        learned = isinstance(options["time_scale"], str)
        scale = 1.0 if learned else options["time_scale"]
        self.fields = nn.ModuleDict()
        for name, width in widths.items():
            step = options["delta"] * scale
            clocks = partial(covered, span=max_length, uncovered=options["uncovered"], step=step)
            field = learned_field(options["field"], width, options["hidden"], options["activation"], clocks)
            init_small_(field, max_length * options["delta"] * scale)
            self.fields[name] = field if options["start"] == "small" else init_zero_(field)
        self.encoders = nn.ModuleDict()
        self.layout: dict[str, dict[str, tuple[list[int], list[str]]]] = {}
        for key in trajectories:
            blocks, names = self.layout.setdefault(key.site, {}).setdefault(key.field, ([], []))
            if key.block not in blocks:
                blocks.append(key.block)
            if key.name not in names:
                names.append(key.name)
        for site, fields in self.layout.items():
            sites = self.encoders[site] = nn.ModuleDict()
            for name, (blocks, names) in fields.items():
                encoder = sites[name] = SiteEncoder(
                    self.fields[name],
                    widths[name],
                    blocks=blocks,
                    names=names,
                    delta=options["delta"],
                    time_scale=scale,
                    learn_time_scale=learned,
                    method=options["solver"],
                    step=options["step"],
                    gradient=options["gradient"],
                    refresh_every=options["refresh_every"],
                )
                if options["start"] == "zero":
                    nn.init.zeros_(encoder.start)
        self.length: int | None = None
        self.register_state_dict_pre_hook(refresh)

    def forward(self, site: str, positions: Tensor, below: int | None = None) -> dict[str, FlowVectors]:
        """Return the vectors of a site's projections, solved with gradients if these are needed.

        Args:
            site: name of the site.
            positions: positions of its tokens, (batch or 1, T) integers from 0.
            below: upper bound, above all positions; None if none is known without reading the positions.

        Returns:
            The vectors by name of the field.

        Raises:
            PlugError: if the vectors are baked and a position is beyond the last of them.
            FlowError: if a solve fails.
        """
        if self.length is not None:
            return self._baked(site, positions, below)
        gather_weights(self)
        encoders: Any = self.encoders[site]
        return {name: encoder(positions, below=below) for name, encoder in encoders.items()}

    def _baked(self, site: str, positions: Tensor, below: int | None) -> dict[str, FlowVectors]:
        assert self.length is not None
        compiled = torch.compiler.is_compiling()
        if below is None or below > self.length:
            require(
                positions < self.length,
                f"the flow is baked for the positions 0 to {self.length - 1}; {{}} was asked for: bake a "
                "longer one from the flow that was saved",
                positions.max,
                PlugError,
            )
        index = positions if compiled else as_slice(positions)
        vectors = {}
        for name, (blocks, names) in self.layout[site].items():
            table = self.get_buffer(f"vectors.{site}.{name}")
            keys = {(block, n): i for i, (block, n) in enumerate((b, n) for b in blocks for n in names)}
            vectors[name] = FlowVectors(table.unbind(0), index, keys, table.dtype)
        return vectors

    def baked_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the vectors that `bake` would store, by their names in the state dict."""
        return {
            f"vectors.{site}.{name}": (len(blocks) * len(names), length, self.encoders[site][name].dim)  # type: ignore[index]
            for site, fields in self.layout.items()
            for name, (blocks, names) in fields.items()
        }

    @torch.no_grad()
    def bake(self, length: int) -> None:
        """Store the vectors of positions 0, ..., length - 1 and drop fields and starting vectors.

        Args:
            length: number of positions, at least 1.

        Raises:
            ValueError: if length is less than 1.
            FlowError: if a solve fails.
        """
        check_length(length)
        tables, shapes = nn.ModuleDict(), self.baked_shapes(length)
        for site, encoders in self.encoders.items():
            table = tables[site] = nn.Module()
            for name, encoder in encoders.items():  # type: ignore[operator]
                if encoder.start.is_meta:  # its values are loaded later
                    table.register_buffer(name, encoder.start.new_empty(shapes[f"vectors.{site}.{name}"]))
                    continue
                positions = torch.arange(length, device=encoder.start.device)[None]
                # not from the cache, which may have more positions, or vectors of an earlier step
                solved = FlowEncoder.forward(encoder.eval(), positions).rows
                rows = torch.stack([row.to(encoder.start.dtype) for row in solved])
                table.register_buffer(name, rows)
        self.length, self.vectors = length, tables
        self.fields, self.encoders = nn.ModuleDict(), nn.ModuleDict()


def refresh(flows: nn.Module, *_: Any) -> None:
    """Reset the solvers of flows when they are saved.

    Training that continues after a save then solves with new plans, as training that resumes from it does.

    Args:
        flows: a module that contains `FlowEncoder`s.
        *_: other arguments of a state dict hook, not used.
    """
    for module in flows.modules():
        if isinstance(module, FlowEncoder):
            module.refresh()
