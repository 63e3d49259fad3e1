"""The catalogue: position models by name, their options, and their construction."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from floater.annotations import Mismatch, as_scalar, convert, members_of
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.spec import Site, StackSpec
from floater.errors import nearest

_CATALOGUE: dict[str, type[PositionModel]] = {}
_Model = TypeVar("_Model", bound=type[PositionModel])


def register(name: str) -> Callable[[_Model], _Model]:
    """Register a position model in the catalogue under a name; a class decorator.

    Args:
        name: name of the model for `build` and `FloaterConfig.position`; it replaces a model of this name.

    Raises:
        PositionError: if the class has no card.

    Example:
        >>> none = catalogue()["none"]
        >>> register("none")(none) is none
        True
    """

    def enter(model: _Model) -> _Model:
        if not hasattr(model, "card"):
            raise PositionError(
                f"{model.__name__} has no card, the description of '{name}'; give it the class attribute "
                "card = Card(paper, link, point, equation)"
            )
        _CATALOGUE[name] = model
        return model

    return enter


def catalogue() -> dict[str, type[PositionModel]]:
    """Return the position models of the library, by name and sorted by it.

    Example:
        >>> "floater" in catalogue()
        True
    """
    return dict(sorted(_CATALOGUE.items()))


def name_of(model: PositionModel) -> str:
    """Return the name of a position model in the catalogue, or that of its class if it is not there.

    Example:
        >>> name_of(build("none", dim=8, heads=2, layers=1, max_length=16))
        'none'
    """
    kind = type(model)
    return next((name for name, registered in _CATALOGUE.items() if registered is kind), kind.__name__)


def options(name: str) -> dict[str, Any]:
    """Return the options of a position model and their defaults.

    Raises:
        PositionError: if the name is unknown; it names the nearest one.

    Example:
        >>> list(options("sinusoidal").items())[:2]
        [('injection', 'input'), ('blocks', 'input')]
    """
    if not isinstance(name, str):
        raise PositionError(f"the position model is {name!r}; it must be a name; 'compose' takes several")
    if name not in _CATALOGUE:
        raise PositionError(f"unknown position model '{name}'{_nearest(name, catalogue())}")
    parameters = list(inspect.signature(_CATALOGUE[name].__init__).parameters.values())[2:]
    return {parameter.name: parameter.default for parameter in parameters}


def check_options(name: str, names: Iterable[str]) -> None:
    """Refuse names that are not options of a position model.

    Raises:
        PositionError: if a name is unknown; it names the nearest one.

    Example:
        >>> check_options("sinusoidal", ["block"])
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: unknown option 'block' of position model 'sinusoidal'; \
did you mean 'blocks'?
    """
    valid = options(name)
    for option in names:
        if option not in valid:
            raise PositionError(
                f"unknown option '{option}' of position model '{name}'{_nearest(option, valid)}"
            )


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    NoneType: "None",
}
"""The valid values of the types that options have."""


def check_types(name: str, values: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, where the annotation of an option is of plain types.

    Options with several kinds of strings, and "scaling", are checked by the model, whose message names the
    valid ones.

    Args:
        name: name of the position model.
        values: values of its options, by name.

    Raises:
        PositionError: if a value has the wrong type; the message names the first.

    Example:
        >>> check_types("t5", {"buckets": "many"})
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: buckets is 'many'; it must be a whole number
    """
    hints: dict[str, Any] = {}
    with suppress(NameError):  # annotations for type checkers only
        hints = get_type_hints(_CATALOGUE[name].__init__)
    for option, value in values.items():
        members = members_of(hints.get(option))
        plain = [_plain(member) for member in members]
        if option == "scaling" or (str in members and len(members) > 1) or not all(text for _, text in plain):
            continue
        if not any(_fits(value, kind) for kind, _ in plain):
            valid = " or ".join(dict.fromkeys(text for _, text in plain))
            raise PositionError(f"{option} is {value!r}; it must be {valid}")


def _plain(annotation: Any) -> tuple[Any, str]:
    """Return the part of an annotation that can be checked, and its valid values in words; "" without one."""
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (list, tuple, Sequence):
        part, text = _plain(arguments[0])
        return Sequence[part], f"a list, each {text}" if text else "a list"  # type: ignore[valid-type]
    if kind in (dict, Mapping):
        return Mapping[str, Any], "a mapping of names"
    return (kind, _WORDS[kind]) if kind in _WORDS else (Any, "")


def _fits(value: Any, kind: Any) -> bool:
    """Return whether an annotation of `_plain` allows a value."""
    try:
        convert(kind, value, scalar=_as_finite)
    except Mismatch:
        return False
    return True


def _as_finite(kind: Any, value: Any) -> Any:
    """Return a value as a scalar of a kind; refuse infinite numbers."""
    scalar = as_scalar(kind, value)
    if isinstance(scalar, float) and not math.isfinite(scalar):
        raise ValueError(f"{value!r} is not finite")
    return scalar


def build(
    name: str,
    *,
    dim: int,
    heads: int,
    layers: int,
    max_length: int,
    site: Site = "self",
    vocabulary: int | None = None,
    causal: bool = False,
    horizon: int | None = None,
    initializer_range: float | None = None,
    **arguments: Any,
) -> PositionModel:
    """Build a position model for a stack of blocks.

    Args:
        name: a name of the catalogue.
        dim: width of the model.
        heads: attention heads.
        layers: blocks.
        max_length: training length in tokens.
        site: see `StackSpec`.
        vocabulary: see `StackSpec`.
        causal: see `StackSpec`.
        horizon: see `StackSpec`; the number of entries of a table that is read at times.
        initializer_range: see `StackSpec`.
        arguments: options of the model, by name.

    Returns:
        The model; at a site where it does not act (such as a table of positions at "cross"), the identity.

    Raises:
        PositionError: if the name, an option or a value is not valid; it names the nearest valid one.

    Example:
        >>> build("sinusoidal", dim=8, heads=2, layers=1, max_length=16).overrides("embed")
        True
    """
    spec = StackSpec(dim, heads, layers, max_length, site, vocabulary, causal, horizon, initializer_range)
    return build_for(name, spec, **arguments)


def build_for(name: str, spec: StackSpec, **arguments: Any) -> PositionModel:
    """Build a position model for a stack of blocks; see `build`."""
    check_options(name, arguments)
    check_types(name, arguments)
    try:
        model = _CATALOGUE[name](spec, **arguments)
    except ValueError as error:  # of its flow: a solver or an activation
        raise PositionError(str(error)) from error
    end, horizon = model.max_positions, spec.horizon
    if horizon is not None and end is not None and end < horizon and model.reads_times:
        model = _CATALOGUE[name](replace(spec, max_length=horizon), **arguments)
    return model if spec.site in model.sites else PositionModel(spec)


def _nearest(word: str, valid: Iterable[str]) -> str:
    names = list(valid)
    return f"; {nearest(word, names)}" if names else "; it has no options"
