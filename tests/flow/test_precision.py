"""The precision of a solve: that of its start, whatever autocast and the backend's products have."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from flow_cases import field_and_start, gradients

from floater.flow import (
    BoundedField,
    FlowDiverged,
    FlowEncoder,
    MLPField,
    SinusoidField,
    flow_error,
    gradient_error,
    reference_solve,
    solve,
)
from floater.flow.collocation.mesh_selection import choose_edges
from floater.flow.precision import full_precision


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_solved_in_float32(dtype, gradient):
    field, start = field_and_start(dtype=dtype)
    times = torch.tensor([0.5, 2.0])
    p = solve(field, start, times, gradient=gradient)
    assert p.dtype == torch.float32
    assert flow_error(p, reference_solve(field, start, times)) < 1e-4
    half = gradients(field, start, times, gradient=gradient)
    exact = gradients(field.double(), start.double(), times, rtol=1e-10, atol=1e-10)
    assert {g.dtype for g in half} == {dtype}
    assert gradient_error(half, exact) < 0.02  # gradients are rounded to eight bits


@pytest.mark.parametrize(
    "options", [{"method": "collocation"}, {"method": "dopri5"}, {"method": "dopri5", "gradient": "adjoint"}]
)
def test_an_overflow_of_the_loss_scale_reaches_every_gradient(options):
    """By which a scaler of losses skips the step; an error would end the training."""
    field, start = field_and_start()
    start.requires_grad_()
    p = solve(field, start, torch.tensor([0.5, 2.0]), **options)
    p.backward(torch.full_like(p, torch.inf))
    assert not any(x.grad.isfinite().any() for x in (start, *field.parameters()))


@pytest.fixture
def precision():
    """The precision inside float32 products, for all backends; put back afterwards."""
    backends = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    chosen = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "none"
    yield torch.backends
    for backend, before in zip(backends, chosen, strict=True):
        backend.fp32_precision = before


@pytest.mark.parametrize(
    "options",
    [{"method": "collocation"}, {"method": "dopri5"}],
)
def test_products_of_less_precision_do_not_reach_the_field(precision, options):
    seen = set()

    class Watched(MLPField):
        def forward(self, t, p):
            seen.add((precision.cuda.matmul.fp32_precision, precision.mkldnn.matmul.fp32_precision))
            return super().forward(t, p)

    precision.fp32_precision = "tf32"
    precision.mkldnn.matmul.fp32_precision = "bf16"
    solve(Watched(4), torch.ones(1, 4), torch.tensor([0.5, 1.0]), **options).sum().backward()
    assert seen == {("ieee", "ieee")}
    assert (precision.cuda.matmul.fp32_precision, precision.mkldnn.matmul.fp32_precision) == ("tf32", "bf16")


def test_a_precision_that_was_inherited_can_still_be_changed_for_all(precision):
    field, start = field_and_start(dtype=torch.float32)
    precision.fp32_precision = "tf32"
    solve(field, start, torch.tensor([0.5]))
    precision.fp32_precision = "ieee"
    assert precision.cuda.matmul.fp32_precision == "ieee"


def test_threads_side_by_side_leave_the_precision_as_it_was(precision):
    precision.fp32_precision = "tf32"
    precision.mkldnn.matmul.fp32_precision = "bf16"
    inside = threading.Barrier(2)

    def one(first):
        with full_precision(torch.device("cpu")):
            inside.wait()  # both are inside
            if not first:
                left.wait()
        if first:
            left.set()

    left = threading.Event()
    threads = [threading.Thread(target=one, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (precision.cuda.matmul.fp32_precision, precision.mkldnn.matmul.fp32_precision) == ("tf32", "bf16")


def test_threads_share_a_flow_in_half_precision():
    """Each solve evaluates the field with float32 weights, which the threads put into one module."""
    torch.manual_seed(0)
    encoder = FlowEncoder(BoundedField(16), 16, blocks=(0,), names=("p",)).bfloat16().eval()
    tensors, lengths = dict(encoder.named_parameters()), range(20, 24)
    vectors = {}

    def serve(length):
        with torch.no_grad():
            for _ in range(4):
                vectors[length] = encoder(torch.arange(length)[None]).at(0, "p")

    threads = [threading.Thread(target=serve, args=(length,)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = dict(encoder.named_parameters())
    assert after.keys() == tensors.keys()
    assert all(after[name] is tensor for name, tensor in tensors.items())
    assert vectors.keys() == set(lengths)
    for length in lengths:
        assert torch.equal(vectors[length], encoder(torch.arange(length)[None]).at(0, "p"))


def test_threads_solve_one_field_in_two_precisions():
    """A field that is called as it is must not meet the weights that another thread has put into it."""
    torch.manual_seed(0)
    field, times = MLPField(3), torch.linspace(0.1, 3, 9)
    weights = list(field.parameters())

    def gradient(dtype):
        solution = solve(field, torch.ones(1, 3, dtype=dtype), times, method="dopri5")
        return torch.autograd.grad(solution.square().sum(), weights)

    types = [torch.float32, torch.float64] * 20
    expected = {dtype: gradient(dtype) for dtype in types[:2]}
    with ThreadPoolExecutor(4) as pool:
        for dtype, actual in zip(types, pool.map(gradient, types), strict=True):
            assert all(map(torch.equal, actual, expected[dtype]))


@pytest.mark.parametrize("field", [MLPField(3), BoundedField(3)])
def test_a_backward_pass_under_autocast_gives_the_gradient_to_its_precision(field):
    def actual(enabled):
        loss = solve(field, start, torch.linspace(0.1, 3, 9), method="collocation").square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(loss, [start, *field.parameters()])

    start = torch.ones(2, 3, requires_grad=True)
    assert gradient_error(actual(True), actual(False)) < 2e-2


def test_autocast_does_not_reach_the_solve():
    field, start = field_and_start(dtype=torch.float32)
    times = torch.tensor([0.5, 2.0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = solve(field, start, times)
    assert torch.equal(inside, solve(field, start, times))


def test_a_float64_start_is_solved_in_float64_whatever_the_weights():
    field, start = field_and_start(dtype=torch.float32)
    times = torch.tensor([0.5, 2.0])
    p = solve(field, start.double(), times, rtol=1e-10, atol=1e-10)
    assert p.dtype == torch.float64
    assert flow_error(p, reference_solve(field, start, times)) < 1e-8


def test_a_mesh_that_single_precision_does_not_give_is_selected_in_double(monkeypatch):
    def choose(form, start, begin, end, *tolerances):
        if form.dtype == torch.float32:
            raise FlowDiverged(end, "10000 intervals were not enough")
        return choose_edges(form, start, begin, end, *tolerances)

    field = SinusoidField(4)
    wanted = solve(field, field.start()[None], torch.tensor([2.0]))
    monkeypatch.setattr("floater.flow.collocation.solver.choose_edges", choose)
    torch.testing.assert_close(solve(field, field.start()[None], torch.tensor([2.0])), wanted)
