import copy
from collections import deque
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from floater.flow import (
    FlowEncoder,
    FlowError,
    MLPField,
    collocation,
    flow_error,
    nonblocking,
    plan,
    reference_solve,
    settle,
    solve,
)

TIMES = 0.1 * torch.arange(64, dtype=torch.float64)


@pytest.fixture
def late(monkeypatch):
    """Conditions on tensors of the CPU are read late, as on a GPU."""
    monkeypatch.setattr(nonblocking, "_LATE", {"cpu"})
    monkeypatch.setattr(nonblocking, "_waiting", deque())


def problem():
    torch.manual_seed(0)
    return MLPField(16), (0.02 * torch.randn(3, 16)).requires_grad_()


class NoBlockingCopy(TorchDispatchMode):
    """Refuses what would make the host wait while it sends numbers to the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            device = kwargs.get("device") or torch.device("cpu")
            assert device.type == "cpu" or kwargs.get("non_blocking"), "a copy that waits"
        return func(*args, **kwargs)


@pytest.mark.parametrize("encodes", [False, True])
def test_a_planned_solve_reads_nothing_from_its_device(encodes, monkeypatch):
    # Reading from the device "meta" raises: its tensors hold no numbers.
    field, start = problem()
    solve(field, start, TIMES).sum().backward()
    there = copy.deepcopy(field).to("meta")
    plan._plans[there] = copy.deepcopy(plan._plans[field])
    encoder = FlowEncoder(there, 16, blocks=[0], names=("q", "k", "v")).to("meta")
    state, positions = start.detach().to("meta").requires_grad_(), torch.arange(64).unsqueeze(0)
    monkeypatch.setattr(nonblocking, "_LATE", {"meta"})
    monkeypatch.setattr(nonblocking, "_waiting", deque())
    for module in ("collocation", "encoder", "nonblocking"):
        monkeypatch.setattr(f"floater.flow.{module}.settle", lambda **_: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which knows no such device

    def step():
        p = encoder(positions).at(0, "q") if encodes else solve(there, state, TIMES)
        p.sum().backward()

    step()  # which sends the plan
    with NoBlockingCopy():
        step()
    assert there.inner.weight.grad.device.type == "meta"
    # the start, the error of the solve and the change in the last backward sweeps
    assert [len(copied.numbers) for copied in nonblocking._waiting] == 2 * [1, 2, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_planned_solve_on_a_gpu_never_waits_and_gives_what_a_cpu_does():
    field, start = problem()
    there, state = copy.deepcopy(field).cuda(), start.detach().cuda().requires_grad_()
    for _ in range(2):
        solve(there, state, TIMES).square().sum().backward()
        settle()
        there.zero_grad()
    state.grad = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        p = solve(there, state, TIMES)
        p.square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    settle()
    expected = solve(field, start, TIMES)
    expected.square().sum().backward()
    assert flow_error(p.cpu(), expected) < 1e-5
    for got, wanted in ((state.grad, start.grad), (there.inner.weight.grad, field.inner.weight.grad)):
        assert float((got.cpu() - wanted).norm() / wanted.norm()) < 1e-5


def test_late_reading_changes_no_result(late):
    field, start = problem()
    solve(field, start, TIMES).sum().backward()
    start.grad = None
    field.zero_grad()
    p = solve(field, start, TIMES)
    p.square().sum().backward()
    assert nonblocking._waiting
    settle()
    assert not nonblocking._waiting
    gradients = [start.grad, *(parameter.grad for parameter in field.parameters())]
    nonblocking._LATE.clear()
    expected = solve(field, start, TIMES)
    assert torch.equal(p, expected)
    leaves = (start, *field.parameters())
    for got, wanted in zip(gradients, torch.autograd.grad(expected.square().sum(), leaves), strict=True):
        # One sweep more or less: rtol is 1e-6.
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_no_optimizer_steps_with_the_gradient_of_a_solve_that_failed(kind, late):
    field, start = problem()
    optimizer = kind([start, *field.parameters()], lr=1e-3)
    solve(field, start, TIMES).sum().backward()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(10)
    optimizer.zero_grad()
    before = copy.deepcopy(field.state_dict())
    solve(field, start, TIMES).sum().backward()
    with pytest.raises(FlowError):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in field.state_dict().items())
    optimizer.zero_grad()
    solve(field, start, TIMES).sum().backward()  # plans anew
    optimizer.step()
    assert not torch.equal(field.inner.weight, before["inner.weight"])


def test_a_solve_that_failed_is_noticed_at_the_next_one_without_an_optimizer(late):
    field, start = problem()
    solve(field, start, TIMES)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(10)
    solve(field, start, TIMES)
    with pytest.raises(FlowError):
        solve(field, start, TIMES)
    assert bool(solve(field, start, TIMES).isfinite().all())


def test_plans_are_renewed_before_they_fail(late):
    field, start = problem()
    optimizer = torch.optim.SGD([start, *field.parameters()], lr=0.0)
    plans = set()
    for _ in range(100):
        p = solve(field, start, TIMES)
        p.square().sum().backward()
        optimizer.step()
        plans.update(id(kept) for kept in plan._plans[field].values())
        assert flow_error(p, reference_solve(field, start, TIMES)) < 1e-5
        with torch.no_grad():
            for parameter in field.parameters():
                parameter.mul_(1.01)
    assert len(plans) > 2


def test_a_start_that_is_no_number_is_refused_late(late, monkeypatch):
    field, start = problem()
    solve(field, start, TIMES)
    for module in ("collocation", "nonblocking"):
        monkeypatch.setattr(f"floater.flow.{module}.settle", lambda **_: None)  # nothing is there yet
    solve(field, torch.full_like(start, torch.nan).requires_grad_(), TIMES)
    with pytest.raises(ValueError, match="start must be finite, got NaN or infinity"):
        settle()


@pytest.fixture
def counted(monkeypatch):
    """How often the backward sweeps were counted, and not known from a backward pass before."""
    sweeps, times = collocation.backward_sweeps, []

    def spied(y, windows, states, cotangent, rtol, counts=None):
        times.extend([len(states)] * (counts is None))
        return sweeps(y, windows, states, cotangent, rtol, counts)

    monkeypatch.setattr(collocation, "backward_sweeps", spied)
    return times


@pytest.mark.parametrize("reads", ["late", "at once"])
def test_texts_of_changing_length_share_windows_and_sweeps(reads, counted, monkeypatch):
    if reads == "late":
        monkeypatch.setattr(nonblocking, "_LATE", {"cpu"})
        monkeypatch.setattr(nonblocking, "_waiting", deque())
        monkeypatch.setattr(collocation, "windows_in_flight", lambda device: 8)
    field, start = problem()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(2)
    draw = torch.Generator().manual_seed(0)
    for length in [256, *torch.randint(20, 256, (30,), generator=draw).tolist()]:
        times = 0.1 * torch.arange(length, dtype=torch.float64)
        p = solve(field, start, times)
        p.square().sum().backward()
        settle()
        assert flow_error(p, reference_solve(field, start, times)) < 1e-5
    assert len(counted) - len(set(counted)) < 6  # once for each number of windows, and seldom anew
    assert len({id(kept) for kept in plan._plans[field].values()}) == 1


def told(loss):
    loss.backward()
    settle()


@pytest.mark.parametrize("gradient", ["discrete", "recomputed"])
def test_a_failed_solve_is_told_from_its_backward_pass(gradient, late):
    field, start = problem()
    solve(field, start, TIMES, gradient=gradient).sum().backward()
    settle()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(20)
    p = solve(field, start, TIMES, gradient=gradient)
    with pytest.raises(FlowError):
        told(p.sum())


@pytest.mark.parametrize("reads", ["late", "at once"])
def test_gradients_that_overflowed_go_to_who_scaled_the_loss(reads, monkeypatch):
    if reads == "late":
        monkeypatch.setattr(nonblocking, "_LATE", {"cpu"})
        monkeypatch.setattr(nonblocking, "_waiting", deque())
    field, start = problem()
    for size in (torch.inf, 1.0, torch.inf, torch.nan):
        start.grad = None
        field.zero_grad()
        (size * solve(field, start, TIMES)).sum().backward()
        settle()
        for tensor in (start, *field.parameters()):
            assert bool(tensor.grad.isfinite().all()) == (size == 1.0)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_no_closure_gives_an_optimizer_the_gradient_of_a_solve_that_failed(kind, late):
    field, start = problem()
    optimizer = kind([start, *field.parameters()], lr=1e-7)

    def closure():
        optimizer.zero_grad()
        loss = solve(field, start, TIMES).square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) > 0
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(10)
    before = copy.deepcopy(field.state_dict())
    with pytest.raises(FlowError):
        optimizer.step(closure)
    assert all(torch.equal(value, before[name]) for name, value in field.state_dict().items())


def test_vectors_of_a_failed_solve_are_not_kept(late):
    field, _ = problem()
    encoder, positions = (
        FlowEncoder(field, 16, blocks=[0], names=("q",), refresh_every=3),
        torch.arange(64)[None],
    )
    for _ in range(3):
        encoder(positions)
    settle()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(10)
    with pytest.raises(FlowError):
        encoder(positions)
    vectors = encoder(positions).at(0, "q")[0]
    expected = reference_solve(field, encoder.start.flatten(0, 1), TIMES)[:, 0]
    assert float((vectors - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("gradient", ["discrete", "recomputed"])
def test_what_inference_left_serves_training(gradient):
    field, start = problem()
    times = torch.tensor([0.7, 3.21])  # of no other test: windows are kept
    with torch.inference_mode():
        solve(field, start, times)
    solve(field, start, times, gradient=gradient).sum().backward()
    assert bool(start.grad.isfinite().all())


@torch.no_grad()
def test_inference_reads_at_once(late):
    field, start = problem()
    with pytest.raises(ValueError, match="start must be finite"):
        solve(field, torch.full_like(start, torch.inf), TIMES)
    solve(field, start, TIMES)
    assert not nonblocking._waiting
