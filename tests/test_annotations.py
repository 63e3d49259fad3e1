"""Values against annotations; the validators of huggingface_hub are the oracle."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from huggingface_hub.dataclasses import type_validator
from hypothesis import given
from hypothesis import strategies as st

from floater.annotations import Mismatch, convert

scalars = st.sampled_from([int, float, str, bool, type(None), Path, Literal["a", 1], Any])
annotations = st.recursive(
    scalars,
    lambda inner: (
        st.builds(lambda part: list[part], inner)
        | st.builds(lambda part: tuple[part, ...], inner)
        | st.builds(lambda one, other: tuple[one, other], inner, inner)
        | st.builds(lambda part: dict[str, part], inner)
        | st.builds(lambda part: part | None, inner.filter(lambda part: part is not Any))
    ),
    max_leaves=4,
)
leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.sampled_from("ab1")
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)


def is_valid(annotation: Any, value: Any) -> bool:
    try:
        type_validator("value", value, annotation)
    except TypeError:
        return False
    return True


@given(annotation=annotations, value=values)
def test_what_is_converted_is_valid_and_what_is_valid_stays(annotation: Any, value: Any) -> None:
    try:
        result = convert(annotation, value)
    except Mismatch:
        assert not is_valid(annotation, value)
        return
    assert is_valid(annotation, result)
    assert repr(convert(annotation, result)) == repr(result)
    if is_valid(annotation, value):
        assert repr(result) == repr(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (list[int], [1, "b"], "steps[1]"),
        (dict[str, tuple[int, int]], {"a": [1, 2], "b": [1]}, "steps.b"),
        (dict[str, list[float]], {"a": [0, True]}, "steps.a[1]"),
        (dict[str, Any], {1: 2}, "key of steps"),
        (list[int] | None, [1, "b"], "steps"),
        (float, 10**400, "steps"),
        (str, 1, "steps"),
    ],
)
def test_the_part_that_does_not_fit_is_named(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(Mismatch) as error:
        convert(annotation, value, "steps")
    assert error.value.path == path


def test_numbers_of_numpy_are_numbers() -> None:
    assert convert(Sequence[float], (np.float32(0.5), np.int64(2))) == [0.5, 2.0]
    assert isinstance(convert(int, np.int64(2)), Integral)
    with pytest.raises(Mismatch):
        convert(int, np.bool_(True))
