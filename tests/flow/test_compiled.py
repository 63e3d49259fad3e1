"""The solve as an operator of compiled programs, against the same calls without compilation."""

import copy
import gc

import pytest
import torch
from flow_cases import encoder, positions

from floater.flow import FlowDiverged, MLPField, compiled

AT = positions([0, 1, 2, 3, 4], [0, 0, 1, 2, 2])


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def whole(model, backend="eager"):
    """A compiled call of an encoder that is one graph, with the vectors of two projections."""

    def run(at, below=None):
        vectors = model(at, below=below)
        return vectors.at(0, "q"), vectors.at(2, "v")

    return torch.compile(run, fullgraph=True, backend=backend)


def eagerly(model, at):
    vectors = model(at)
    return vectors.at(0, "q"), vectors.at(2, "v")


def gradients(model, outputs, *more):
    loss = sum((x * torch.linspace(-1, 2, x.numel()).view_as(x)).sum() for x in outputs)
    return torch.autograd.grad(loss, [x for x in (*model.parameters(), *more) if x.requires_grad])


def close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("below", [5, None])
def test_vectors_and_gradients_are_those_of_plain_calls(backend, below):
    model = encoder(learn_time_scale=True)
    expected = eagerly(model, AT)
    actual = whole(model, backend)(AT, below)
    close(actual, expected)
    close(gradients(model, actual), gradients(model, expected))


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_real_positions_get_their_gradient(training, trained):
    model, at = encoder(), positions([0.0, 2.5, 1.25], dtype=torch.float64).requires_grad_()
    model.train(training).requires_grad_(trained)
    expected, actual = eagerly(model, at), whole(model, "aot_eager")(at)
    close(actual, expected)
    close(gradients(model, actual, at), gradients(model, expected, at))


def test_a_kinked_field_is_solved_all_the_same():
    model = encoder()
    model.field = MLPField(6, activation="relu")
    expected, actual = eagerly(model, AT), whole(model)(AT, 5)
    close(actual, expected)
    close(gradients(model, actual), gradients(model, expected))


def test_no_gradient_asked_for_is_none_made():
    model = encoder()
    with torch.no_grad():
        vectors, _ = whole(model)(AT, 5)
    assert not vectors.requires_grad


def test_one_call_in_three_has_gradients_as_section_4_4_has_it():
    model, plain = encoder(refresh_every=3), encoder(refresh_every=3)
    run = whole(model)
    for _ in range(5):
        actual, expected = run(AT, 5), eagerly(plain, AT)
        close(actual, expected)
        assert bool(actual[0].isfinite().all())
        learns = expected[0].requires_grad
        assert learns == any(bool(g.any()) for g in gradients(model, actual))
        with torch.no_grad():
            for parameter in (*model.parameters(), *plain.parameters()):
                parameter.mul_(0.9)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_optimizer_passes_over_reused_vectors_also_if_compiled(backend):
    """Momentum and weight decay move weights whose gradient is zero, and not those without one."""
    ends = []
    for is_compiled in (False, True):
        torch.compiler.reset()
        model = encoder(refresh_every=3)
        run = torch.compile(model, fullgraph=True, backend=backend) if is_compiled else model
        other = torch.zeros((), requires_grad=True)
        optimizer, moved = torch.optim.AdamW(model.parameters(), lr=0.01), []
        for _ in range(5):
            before = model.start.detach().clone()
            (run(AT).at(0, "q").square().sum() + other).backward()
            optimizer.step()
            optimizer.zero_grad()
            moved.append(not torch.equal(model.start, before))
        assert moved == [True, False, False, True, False]
        ends.append(model.start.detach())
    torch.testing.assert_close(*ends)


def test_changed_weights_are_seen_also_by_what_is_baked():
    model = encoder().eval()
    model.bake(8)
    run = whole(model)
    with torch.no_grad():
        before = run(AT, 5)[0].clone()
        model.start.mul_(2)
        after = run(AT, 5)
        close(after, eagerly(model, AT))
    assert not torch.allclose(before, after[0])


def test_parameters_that_stand_in_for_others_are_those_that_count():
    model = encoder().eval()
    other = {name: 0.5 * parameter.detach() for name, parameter in model.named_parameters()}

    def run(at):
        return torch.func.functional_call(model, other, (at,), {"below": 5}).at(0, "q")

    with torch.no_grad():
        actual = torch.compile(run, fullgraph=True, backend="eager")(AT)
        expected = torch.func.functional_call(model, other, (AT,)).at(0, "q")
    torch.testing.assert_close(actual, expected)


def test_a_copy_is_another_encoder():
    model = encoder()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.start.add_(1)
    close(whole(twin)(AT, 5), eagerly(twin, AT))
    torch.compiler.reset()
    close(whole(model)(AT, 5), eagerly(model, AT))


def test_the_state_of_the_solver_serves_compiled_steps(monkeypatch):
    model, selections = encoder(), []
    solver = "floater.flow.collocation.solver"
    select = __import__(solver, fromlist=["choose_edges"]).choose_edges
    monkeypatch.setattr(f"{solver}.choose_edges", lambda *a: selections.append(a) or select(*a))
    run = whole(model)
    for _ in range(3):
        gradients(model, run(AT, 5))
    assert len(selections) == 1


def test_a_solve_that_fails_says_so():
    model = encoder()
    with torch.no_grad():
        model.field.outer.weight.fill_(1e30)
    with pytest.raises(FlowDiverged):
        whole(model)(AT, 5)


def test_an_encoder_that_is_gone_is_named():
    start = torch.zeros(1, 1, 2)
    number = compiled.number(encoder())
    gc.collect()
    with pytest.raises(RuntimeError, match="flow encoder of a compiled program is gone"):
        compiled.opaque(number, AT, [start])


def test_the_operators_are_what_their_schemas_and_fakes_say():
    model = encoder()
    arguments = (AT, model.ordered_parameters(), model._number, True, False)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.floater.flow, arguments, test_utils=checks)


class Gathered(torch.nn.Module):
    def __init__(self, flow):
        super().__init__()
        self.flow = flow

    def forward(self, at):
        return self.flow(at).at(2, "k")


def test_export_takes_baked_vectors():
    model = encoder().eval()
    with pytest.raises(RuntimeError, match=r"bake\(length\) each FlowEncoder first"):
        torch.export.export(Gathered(model), (AT,))
    model.bake(9)
    program = torch.export.export(Gathered(model), (AT,))
    assert not any("floater" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(AT + 3), model(AT + 3).at(2, "k"))
