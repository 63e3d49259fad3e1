"""The catalogue: position models by name, their options, and their construction."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from floater.encodings.checks import is_number, is_whole
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.spec import Site, StackSpec

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
        >>> options("sinusoidal")
        {'injection': 'input', 'blocks': 'input', 'uncovered': 'keep'}
    """
    if not isinstance(name, str):
        raise PositionError(f"the position model is {name!r}; it must be a name; 'compose' takes several")
    if name not in _CATALOGUE:
        raise PositionError(f"unknown position model '{name}'{_nearest(name, catalogue())}")
    parameters = list(inspect.signature(_CATALOGUE[name].__init__).parameters.values())[2:]
    return {parameter.name: parameter.default for parameter in parameters}


def check_options(name: str, names: Iterable[str]) -> None:
    """Refuse names that are no options of a position model.

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


_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    NoneType: "None",
    Mapping: "a mapping of names",
}


def check_types(name: str, values: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, where the annotation of an option is of plain types.

    Options with several kinds of strings, and "scaling", are checked by the model, whose message names the
    valid ones.

    Raises:
        PositionError: if a value has another type; the message names the first.

    Example:
        >>> check_types("t5", {"buckets": "many"})
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: buckets is 'many'; it must be a whole number
    """
    hints: dict[str, Any] = {}
    with suppress(NameError):  # annotations for type checkers only
        hints = get_type_hints(_CATALOGUE[name].__init__)
    for option, value in values.items():
        kind = hints.get(option)
        members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        checked_by_model = option == "scaling" or (str in members and len(members) > 1)
        valid = [_valid(each) for each in members]
        if not checked_by_model and all(valid) and not any(_fits(value, each) for each in members):
            raise PositionError(f"{option} is {value!r}; it must be {' or '.join(dict.fromkeys(valid))}")


def _valid(kind: Any) -> str:
    """Return the values that an annotation allows in words; empty where they are not plain."""
    kind, inner = get_origin(kind) or kind, get_args(kind)
    if kind in (list, tuple, Sequence):
        return f"a list, each {each}" if (each := _valid(inner[0])) else "a list"
    return _KINDS.get(Mapping if kind is dict else kind, "")


def _fits(value: Any, kind: Any) -> bool:
    """Return whether an annotation with words in `_valid` allows a value."""
    kind, inner = get_origin(kind) or kind, get_args(kind)
    if kind in (list, tuple, Sequence):
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return is_list and (not _valid(inner[0]) or all(_fits(each, inner[0]) for each in value))
    if kind in (int, float):
        return is_number(value) if kind is float else is_whole(value)
    if kind in (dict, Mapping):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return isinstance(value, kind)


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
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if names else "; it has no options"
