"""Refreshing (`refresh_every`): vectors that some calls reuse, and the state of training steps."""

import pytest
import torch
from flow_cases import encoder, exact
from torch.utils.checkpoint import checkpoint


def test_refresh_solves_on_every_third_call_and_reuses_between():
    model, at = encoder(refresh_every=3), torch.arange(5)[None]
    seen, requires = [], []
    for _ in range(7):
        vectors = model(at).at(0, "q")
        requires.append(vectors.requires_grad)
        seen.append(vectors.detach().clone())
        with torch.no_grad():
            model.field.outer.bias += 0.1
    assert requires == [True, False, False, True, False, False, True]
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[3], seen[5])
    assert not torch.allclose(seen[2], seen[3])


def test_a_pass_without_gradients_does_not_use_up_a_solve():
    model, at = encoder(refresh_every=3), torch.arange(5)[None]
    with torch.no_grad():
        model(at)
    assert [model(at).at(0, "q").requires_grad for _ in range(4)] == [True, False, False, True]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dtype", [torch.long, torch.double])
def test_a_gradient_checkpoint_repeats_the_call_that_it_recomputes(dtype, reentrant):
    def gradients(run):
        torch.manual_seed(0)
        model, at = encoder(refresh_every=2), torch.arange(5, dtype=dtype)[None]
        x = torch.ones((), requires_grad=True)
        seen = []
        for _ in range(5):
            run(lambda x: x * model(at).at(0, "q"), x).square().sum().backward()
            seen.append((None if model.start.grad is None else model.start.grad.clone(), x.grad.clone()))
            model.zero_grad()
            x.grad = None
        return seen

    actual = gradients(lambda part, x: checkpoint(part, x, use_reentrant=reentrant))
    for ours, theirs in zip(actual, gradients(lambda part, x: part(x)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_all_passes_of_a_step_solve_or_none_does():
    """Gradients of a batch in two parts are those of the whole, at every step."""
    model, at = encoder(refresh_every=2), torch.arange(5)[None]
    model.begin_step()
    model(at).at(0, "q").square().sum().backward()
    whole, model.start.grad = model.start.grad, None
    model.refresh()
    requires = []
    for _ in range(3):
        model.begin_step()
        parts = [model(at).at(0, "q")[:, part].square().sum() for part in (slice(2), slice(2, 5))]
        requires.append([part.requires_grad for part in parts])
        if parts[0].requires_grad:
            sum(parts).backward()
            torch.testing.assert_close(model.start.grad, whole)
            model.start.grad = None
    assert requires == [[True, True], [False, False], [True, True]]


def test_refresh_extends_the_cache_without_gradient_and_keeps_its_beginning():
    model = encoder(refresh_every=2)
    first = model(torch.arange(4)[None]).at(0, "q").detach()
    longer = model(torch.arange(9)[None]).at(0, "q")
    assert not longer.requires_grad
    assert torch.equal(longer[:, :4], first)
    torch.testing.assert_close(longer, exact(model, 0, "q", torch.arange(9)[None]), rtol=1e-5, atol=1e-5)


def test_refreshing_leaves_evaluation_alone():
    model, at = encoder(refresh_every=100), torch.arange(3)[None]
    model(at)
    with torch.no_grad():
        model.field.outer.bias += 1.0
    torch.testing.assert_close(model.eval()(at).at(0, "q"), exact(model, 0, "q", at), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_a_refreshed_encoder_goes_on_as_one_just_loaded(refresh_every):
    used, loaded = (encoder(refresh_every=refresh_every) for _ in range(2))
    at = torch.arange(200)[None]
    used(at)  # leaves a plan for these weights, and vectors to reuse
    for model in (used, loaded):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.1
    expected = loaded(at).at(0, "q")
    assert not torch.equal(used(at).at(0, "q"), expected)
    used.refresh()
    assert torch.equal(used(at).at(0, "q"), expected)


def test_calls_count_again_after_the_steps_of_a_trainer():
    model, at = encoder(refresh_every=2), torch.arange(5)[None]
    model.begin_step()
    model.refresh()
    assert [model(at).at(0, "q").requires_grad for _ in range(4)] == [True, False, True, False]
