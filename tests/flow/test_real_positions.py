"""Real positions: one solve, read row by row."""

import pytest
import torch
from flow_cases import DIM, encoder, positions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from floater.flow import (
    FlowEncoder,
    MLPField,
    SinusoidField,
    SpanTooLong,
    flow_error,
    reference_solve,
    solve_dense,
)


def times(rows, length, end, seed=0):
    draw = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return end * draw.sort(1).values


@pytest.mark.parametrize("end", [40.0, 400.0])
@torch.no_grad()
def test_every_real_position_is_a_fresh_solve_to_it(end):
    """In the error norm of the flow: relative for vectors longer than one."""
    model, at = encoder().eval(), times(3, 50, end)
    vectors = model(at)
    for row, (block, name) in enumerate((b, n) for b in model.blocks for n in model.names):
        start = model.start.flatten(0, 1)[row : row + 1]
        for t in at.flatten()[::30]:
            fresh = reference_solve(model.field, start, (t * model.delta)[None])
            actual = vectors.at(block, name)[at == t]
            assert flow_error(actual[:, None].double(), fresh) < 1e-5


def test_rows_are_read_as_all_at_once_with_the_same_gradients():
    torch.manual_seed(0)
    field, start = MLPField(5).double(), torch.randn(4, 5, dtype=torch.float64)
    at, weight = 3 * torch.rand(30, dtype=torch.float64), torch.randn(30, 4, 5, dtype=torch.float64)
    actual = []
    for whole in (True, False):
        start.requires_grad_().grad = None
        field.zero_grad()
        t = at.clone().requires_grad_()
        reading = solve_dense(field, start, 3.0).sample(t)
        p = reading.all() if whole else torch.stack([reading[i] for i in range(4)], 1)
        (p * weight).sum().backward()
        actual.append([p.detach(), t.grad, start.grad, *(x.grad for x in field.parameters())])
    for a, b in zip(*actual, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_gradient_in_a_time_is_the_velocity_there():
    torch.manual_seed(0)
    field, start = MLPField(5).double(), torch.randn(1, 5, dtype=torch.float64)
    at = torch.tensor([2.0, 0.5], dtype=torch.float64, requires_grad=True)
    p = solve_dense(field, start, 3.0, rtol=1e-10, atol=1e-10).sample(at)[0]
    for i in range(2):
        (gradient,) = torch.autograd.grad(p[i].sum(), at, retain_graph=True)
        torch.testing.assert_close(gradient[i], field(at[i], p[i : i + 1]).sum(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["collocation", "dopri5"])
def test_a_learned_time_scale_has_the_same_gradient_read_from_a_curve(method):
    at, actual = times(2, 9, 20.0), []
    for kind in (method, "rk4"):
        model = encoder(learn_time_scale=True, time_scale=1.3, method=kind).double()
        model(at).at(2, "k").sin().sum().backward()
        actual.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*actual, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [[[1.5, 0.0, 1.5]], [[0.0, 1.5], [1.5, 2.5]]])
def test_gradients_that_no_solver_gives_to_positions_are_refused(rows):
    at = torch.tensor(rows, requires_grad=True)
    with pytest.raises(ValueError, match="in one row have gradients by 'collocation' only"):
        encoder(method="rk4")(at)
    encoder()(at).at(2, "k").sum().backward()
    assert at.grad is not None


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.size = max([self.size, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
        return out


def test_no_more_than_the_vectors_of_one_row_are_made_at_once():
    torch.manual_seed(0)
    model = FlowEncoder(MLPField(16), 16, blocks=range(4), names=("q", "k", "v"))
    at = times(20, 200, 30.0)
    with Largest() as seen:
        vectors = model(at)
        for block in range(4):
            vectors.at(block, "k").square().sum().backward(retain_graph=True)
    assert seen.size == at.numel() * 16


def test_a_batch_of_real_positions_is_one_solve(monkeypatch):
    model, calls = encoder(), []
    monkeypatch.setattr(
        "floater.flow.encoder.solve_dense",
        lambda *args, **kwargs: calls.append(args) or solve_dense(*args, **kwargs),
    )
    vectors = model(times(4, 100, 30.0))
    for block in model.blocks:
        for name in model.names:
            vectors.at(block, name)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 4)])
def test_the_shape_and_dtype_are_those_of_whole_positions(dtype, shape):
    model, at = encoder().to(dtype), torch.zeros(shape)
    vectors = model(at).at(0, "q")
    assert (vectors.shape, vectors.dtype) == ((*shape, DIM), dtype)
    assert torch.equal(vectors, model.start[0, 0].expand(*shape, DIM))


def test_a_baked_curve_is_solved_again_only_to_reach_farther(monkeypatch):
    model, ends = encoder().eval(), []
    model.bake(1)
    monkeypatch.setattr(
        "floater.flow.encoder.solve_dense",
        lambda field, start, end, **kwargs: ends.append(end) or solve_dense(field, start, end, **kwargs),
    )
    for last in (10.0, 15.0, 19.0, 25.0):
        model(positions([0.5, last], dtype=torch.float64))
    assert len(ends) == 2  # to 20, which is twice as far as was asked for, and to 50


def test_refresh_reads_the_same_curve_between_solves():
    model, at = encoder(refresh_every=3), times(2, 5, 9.0)
    requires, seen = [], []
    for _ in range(4):
        vectors = model(at).at(0, "q")
        requires.append(vectors.requires_grad)
        seen.append(vectors.detach())
        with torch.no_grad():
            model.field.outer.bias += 0.1
    assert requires == [True, False, False, True]
    assert torch.equal(seen[0], seen[2])
    assert not torch.allclose(seen[2], seen[3])


@pytest.mark.parametrize("end", [1e4, 3e8])
@torch.no_grad()
def test_ten_times_the_span_and_far_more_overflow_nothing(end):
    torch.manual_seed(0)
    from floater import Positions, build

    model = build("floater", dim=16, heads=2, layers=2, max_length=64)
    at = Positions.events(torch.tensor([[0.0, 1.0, 640.0, end - 1, end]], dtype=torch.float64))
    state = model.prepare(at)
    for layer in range(2):
        vectors = state.vectors[layer].at(layer, "query")[0]
        assert bool(vectors.isfinite().all())
        assert float((vectors[1] - vectors[0]).norm()) > 0
        assert float((vectors[4] - vectors[2]).norm()) > 0


def test_a_span_that_cannot_be_solved_is_an_error_with_the_scale_to_try(monkeypatch):
    monkeypatch.setattr("floater.flow.collocation.mesh_selection.MAX_INTERVALS", 60)
    model = FlowEncoder(SinusoidField(4, delta=0.1), 4, blocks=[0], names=["q"])
    at = torch.tensor([[0.0, 1.0, 1e5]], dtype=torch.float64)
    with pytest.raises(SpanTooLong, match=r"position 100000.*60 intervals.*try time_scale=\d") as error:
        model(at)
    scale = error.value.scale
    assert 0 < scale < 0.1
    slower = FlowEncoder(SinusoidField(4, delta=0.1), 4, blocks=[0], names=["q"], time_scale=scale / 2)
    assert bool(slower(at).at(0, "q").isfinite().all())


def test_a_span_whose_tolerance_is_out_of_reach_names_a_scale(monkeypatch):
    monkeypatch.setattr("floater.flow.collocation.solver.bound", lambda *_: -1.0)  # nothing is exact enough
    model = FlowEncoder(SinusoidField(4, delta=0.1), 4, blocks=[0], names=["q"])
    with pytest.raises(SpanTooLong, match=r"tolerance is out of reach.*try time_scale=\d"):
        model(torch.tensor([[0.0, 1.5, 90.0]]))
