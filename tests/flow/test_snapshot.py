"""Snapshots: every change of what they hold is seen, and nothing else is a change."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from floater.flow import FlowEncoder, MLPField
from floater.flow.snapshot import Snapshot

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20)
@given(data=st.data())
def test_every_bit_of_a_tensor_counts(dtype, data):
    """Against bytes compared by Python."""
    count = data.draw(st.integers(1, 6)) * torch.empty(0, dtype=dtype).element_size()
    top = 1 if dtype == torch.bool else 255
    raw = data.draw(arrays(np.uint8, count, elements=st.integers(0, top)))
    tensor = torch.from_numpy(raw.copy()).view(dtype)
    snapshot = Snapshot({"x": [tensor]})
    tensor.view(torch.uint8).copy_(torch.from_numpy(raw))
    assert snapshot.matches({"x": [tensor]})
    other = data.draw(arrays(np.uint8, count, elements=st.integers(0, top)))
    tensor.view(torch.uint8).copy_(torch.from_numpy(other))
    assert snapshot.matches({"x": [tensor]}) == (raw.tobytes() == other.tobytes())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).T,
        torch.arange(6.0)[::2],
        torch.ones(()).expand(3),
        torch.tensor([1 + 2j, math.nan]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.ones(0),
        torch.tensor(math.nan),
    ],
    ids=["transposed", "strided", "expanded", "conjugate", "negated", "empty", "NaN"],
)
def test_any_layout_in_memory_is_compared(tensor):
    assert Snapshot(tensor).matches(tensor)
    assert Snapshot(tensor).matches(tensor.clone())
    assert Snapshot(tensor).matches(tensor + 1) == (tensor.numel() == 0 or bool((tensor + 1).isnan().all()))


@pytest.mark.parametrize("make", [lambda: torch.ones(2).to_sparse(), lambda: torch.ones(2, device="meta")])
def test_what_cannot_be_compared_counts_as_changed(make):
    tensor = make()
    assert not Snapshot(tensor).matches(tensor)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2).double()),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2), -torch.zeros(2)),
        (np.zeros(2), np.zeros((2, 1))),
        (torch.nn.Linear(2, 2).eval(), torch.nn.Linear(2, 2)),
        (torch.sin, torch.cos),
        ([torch.ones(1)] * 2, [torch.ones(1), torch.zeros(1)]),
    ],
)
def test_what_differs_in_kind_or_shape_is_a_change(before, after):
    assert Snapshot(before).matches(before)
    assert not Snapshot(before).matches(after)


def test_objects_that_contain_themselves_are_compared():
    module = torch.nn.Linear(2, 2)
    module.owners = [module, {"again": module}]
    module.options = type("Options", (), {})()
    module.options.owner, module.options.rate = module, 1.0
    snapshot = Snapshot(module)
    assert snapshot.matches(module)
    module.options.rate = 2.0
    assert not snapshot.matches(module)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_module_is_compared_by_its_parameters():
    module = torch.jit.script(torch.nn.Linear(2, 2))
    snapshot = Snapshot(module)
    assert snapshot.matches(module)
    module.weight.data.neg_()
    assert not snapshot.matches(module)


def test_equal_values_are_no_change_whoever_holds_them():
    field = MLPField(3)
    assert Snapshot(field).matches(copy.deepcopy(field))
    with torch.inference_mode():
        snapshot = Snapshot(field)
        assert snapshot.matches(field)
    assert snapshot.matches(field.requires_grad_(False))


def test_what_an_encoder_remembers_is_no_change_of_it():
    encoder = FlowEncoder(MLPField(2), 2, blocks=[0], names=["q"]).eval()
    snapshot = Snapshot(encoder)
    encoder.stored(torch.arange(3)[None])
    encoder(torch.arange(3)[None]).at(0, "q").sum().backward()
    assert snapshot.matches(encoder)
