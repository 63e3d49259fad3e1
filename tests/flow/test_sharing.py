"""One solve of a step has the gradients of a solve in each of its passes."""

import pytest
import torch
from flow_cases import encoder

from floater.flow.errors import FlowDiverged

LENGTHS = (5, 9, 3)


def step(model, length, lengths=LENGTHS):
    """The gradients of passes over texts of several lengths, and the positions of each solve."""
    solved, solve = [], model._solve
    model._solve = lambda wanted: solved.append(len(wanted)) or solve(wanted)
    model.begin_step(length)
    for number, each in enumerate(lengths, start=1):
        if number == len(lengths):
            model.last_pass()
        vectors = model(torch.arange(each)[None])
        (vectors.at(0, "q").square().sum() + vectors.at(2, "k").sin().sum()).backward()
    model.end_step()
    model._solve = solve
    return {name: weight.grad for name, weight in model.named_parameters()}, solved


@pytest.mark.parametrize(
    "options", [{}, {"learn_time_scale": True}, {"method": "rk4"}, {"gradient": "adjoint"}]
)
@pytest.mark.parametrize(("length", "solved"), [(9, [9]), (4, [5, 9]), (20, [20])])
def test_gradients_are_those_of_a_solve_in_each_pass(options, length, solved):
    options = {"method": "rk4"} | options if options.get("gradient") else options
    expected, each = step(encoder(**options).double(), None)
    actual, shared = step(encoder(**options).double(), length)
    assert (each, shared) == (list(LENGTHS), solved)
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_the_last_pass_does_not_take_along_is_an_error():
    model = encoder()
    model.begin_step(4)
    model(torch.arange(4)[None]).at(0, "q").sum().backward()
    model.last_pass()
    with pytest.raises(RuntimeError, match="the last pass of a step did not call the flow"):
        model.end_step()


def test_a_last_pass_at_other_positions_takes_the_gradient_along():
    """A longer text than the shared solve reaches, and one that does not begin at 0."""
    for last in (torch.arange(9)[None], torch.arange(2, 4)[None]):
        passes, gradients = (torch.arange(4)[None], torch.arange(3)[None], last), []
        for length in (None, 4):
            model = encoder().double()
            model.begin_step(length)
            for at in passes:
                if at is last:
                    model.last_pass()
                model(at).at(0, "q").square().sum().backward()
            model.end_step()
            gradients.append(model.start.grad)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_a_call_after_a_step_solves_with_its_weights():
    model, at = encoder(), torch.arange(4)[None]
    model.begin_step(4)
    model.last_pass()
    model(at).at(0, "q").sum().backward()
    model.end_step()
    with torch.no_grad():
        model.start += 1
    vectors = model(at).at(0, "q")
    assert torch.equal(vectors[0, 0], model.start[0, 0])
    vectors.sum().backward()


def test_a_solve_that_fails_past_a_pass_leaves_the_pass_alone():
    """Positions of another stack may be more than this flow can reach."""
    model = encoder()
    solve = model._solve

    def short(wanted):
        if len(wanted) > 4:
            raise FlowDiverged(1.0, "too far")
        return solve(wanted)

    model._solve = short
    model.begin_step(100)
    assert model(torch.arange(4)[None]).at(0, "q").requires_grad


def test_evaluation_within_a_step_solves_with_its_weights():
    model, at = encoder(), torch.arange(4)[None]
    model.begin_step(4)
    model(at)
    with torch.no_grad():
        model.start += 1
    assert torch.equal(model.eval()(at).at(0, "q")[0, 0], model.start[0, 0])
