"""The contract of every position encoding: its checks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from floater.testing import card, gradients, invariances, modules, numerics
from floater.testing.case import Blocks, Case, available_blocks

CHECKS: Mapping[str, Callable[[Case], None]] = MappingProxyType(
    {
        "autocast": numerics.autocast,
        "bound": numerics.bound,
        "cache": invariances.cache,
        "card": card.card,
        "causal": invariances.causal,
        "compile": modules.compiled,
        "copies": modules.copies,
        "decoder": invariances.decoder,
        "empty": numerics.empty,
        "gradients": gradients.gradients,
        "gradients_causal": gradients.gradients_causal,
        "kernels": numerics.kernels,
        "options": card.options_by_type,
        "order": invariances.order,
        "packing": invariances.packing,
        "packing_causal": invariances.packing_causal,
        "padding": invariances.padding,
        "parameters": gradients.parameters,
        "permutation": invariances.permutation,
        "prefix": invariances.prefix,
        "real": numerics.real,
        "reset": modules.reset,
        "rows": gradients.rows,
        "shift": invariances.shift,
        "shift_causal": invariances.shift_causal,
        "single_precision": numerics.single_precision,
    }
)
"""The checks of the contract, by name: what an encoding's card does not except, it keeps."""


def check_contract(
    name: str,
    check: str,
    options: Mapping[str, Any] | None = None,
    *,
    blocks: Blocks | None = None,
    random_weights: bool = False,
    order_alone: bool = False,
) -> None:
    """Check that a position encoding keeps one item of the contract.

    The encoding is one of the catalogue, or one that a module outside the package has registered.
    With pytest:

        @pytest.mark.parametrize("check", floater.testing.CHECKS)
        def test_my_encoding_keeps_the_contract(check):
            floater.testing.check_contract("my_encoding", check)

    Args:
        name: name of the encoding in the catalogue.
        check: a name of `CHECKS`.
        options: options of the encoding; None for the default ones.
        blocks: "transformer" checks it in the reference Transformer, "torch" in blocks that need no other
            package; None in the reference Transformer where Transformers is installed.
        random_weights: see `Case`.
        order_alone: see `Case`.

    Raises:
        AssertionError: if the encoding does not keep it.
        unittest.SkipTest: if the check needs the reference Transformer, and `blocks` is another; pytest
            reports it as skipped.
        ValueError: if there is no such check.

    Example:
        >>> check_contract("alibi", "padding", blocks="torch")
        >>> check_contract("alibi", "speed")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: unknown check 'speed'; there are: autocast, bound, cache, ...
    """
    if check not in CHECKS:
        raise ValueError(f"unknown check {check!r}; there are: {', '.join(CHECKS)}")
    case = Case(name, options or {}, blocks or available_blocks(), random_weights, order_alone)
    with torch.random.fork_rng(devices=[]):  # the weights and inputs are the same in each call
        CHECKS[check](case)
