"""Refreshing, baking and freezing: stored vectors never change an answer."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from flow_cases import DIM, encoder, exact, positions
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.flow import FlowDiverged, FlowEncoder, FlowInaccurate, solve
from floater.flow.cache import VectorTable


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(0, 120), min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_sequence_of_requests_to_a_cache_gets_the_right_vectors(requests):
    model = encoder().eval()
    table = model(torch.arange(121)[None]).at(0, "v")[0]
    with model.baked(), torch.no_grad():
        for request in requests:
            at = torch.tensor([request])
            torch.testing.assert_close(model(at).at(0, "v"), table[at], rtol=1e-4, atol=1e-5)


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


def test_calls_count_again_after_the_steps_of_a_trainer():
    model, at = encoder(refresh_every=2), torch.arange(5)[None]
    model.begin_step()
    model.refresh()
    assert [model(at).at(0, "q").requires_grad for _ in range(4)] == [True, False, True, False]


def test_a_fixed_step_is_a_fifth_of_the_time_between_tokens_unless_it_is_given():
    at = torch.arange(4)[None]
    paper, arguments = encoder(method="rk4", delta=0.5), encoder(method="rk4", delta=0.5, step=0.1)
    assert torch.equal(paper(at).at(0, "q"), arguments(at).at(0, "q"))
    coarse = encoder(method="euler", delta=0.5, step=0.5)
    assert not torch.allclose(paper(at).at(0, "q"), coarse(at).at(0, "q"), atol=1e-4)


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


def test_a_baked_cache_keeps_its_beginning_and_extends_as_a_fresh_solve():
    model = encoder().eval()
    model.bake(16)
    short = model(torch.arange(16)[None]).at(2, "k")
    model(positions([0.5, 21.25], dtype=torch.float64))
    long = model(torch.arange(200)[None]).at(2, "k")
    assert torch.equal(long[:, :16], short)
    model.unbake()
    torch.testing.assert_close(long, model(torch.arange(200)[None]).at(2, "k"), rtol=1e-4, atol=1e-5)


def solves(model, monkeypatch):
    """The lengths of the solves to come."""
    seen, solve = [], model._solve
    monkeypatch.setattr(
        model, "_solve", lambda *arguments: (seen.append(len(arguments[0])), solve(*arguments))[1]
    )
    return seen


def test_a_baked_encoder_does_not_evaluate_its_field(monkeypatch):
    model = encoder().eval()
    model.bake(32)
    seen = solves(model, monkeypatch)
    model(torch.arange(32)[None])
    model(positions([3, 31], [0, 0]))
    model(positions([17]))
    assert not seen


def test_decoding_step_by_step_solves_once_in_a_while():
    model, calls = encoder().eval(), []
    model.field.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad(), model.baked():
        steps = [(model(positions([i])).at(0, "q"), len(calls))[1] for i in range(128)]
    assert len(set(steps)) <= 4
    before = len(calls)
    model(positions([5]))
    assert len(calls) > before  # what was kept in the block is gone


def test_looking_ahead_is_no_reason_to_fail():
    class Square(torch.nn.Module):
        def forward(self, t, p):
            return p**2

    model = FlowEncoder(Square(), 2, blocks=[0], names=["q"], delta=0.1).eval()
    with torch.no_grad():
        model.start.fill_(0.5)  # infinite at t = 2, position 20
        with model.baked():
            for i in (0, 1, 18):
                vector = model(positions([i])).at(0, "q")
                torch.testing.assert_close(
                    vector[0, 0, 0], torch.tensor(1 / (2 - 0.1 * i)), rtol=1e-4, atol=0
                )
            with pytest.raises(FlowDiverged, match=r"t = 2"):
                model(positions([25]))


def test_looking_ahead_past_what_the_tolerance_allows_is_no_reason_to_fail(monkeypatch):
    def short(field, start, times, **options):
        if float(times[-1]) > 5:
            raise FlowInaccurate(5.0, 7.0)
        return solve(field, start, times, **options)

    monkeypatch.setattr("floater.flow.encoder.solve", short)
    model = encoder(delta=0.1).eval()
    with torch.no_grad(), model.baked():
        model(positions([0]))
        vector = model(positions([40])).at(0, "q")
        assert torch.equal(vector, model(positions([40])).at(0, "q"))
        with pytest.raises(FlowInaccurate, match="near t = 5"):
            model(positions([60]))


def test_training_a_baked_encoder_is_refused():
    model = encoder()
    model.bake(4)
    with pytest.raises(RuntimeError, match=r"call unbake\(\) before training"):
        model.train()(torch.arange(4)[None])
    assert not model.requires_grad_(False)(torch.arange(4)[None]).at(0, "q").requires_grad
    model.requires_grad_(True).unbake()
    assert model(torch.arange(4)[None]).at(0, "q").requires_grad


def test_a_flow_whose_parameters_do_not_learn_is_solved_once_in_training(monkeypatch):
    model, at = encoder(learn_time_scale=True).train(), torch.arange(4)[None]
    before = model(at).at(0, "q").detach()
    model.requires_grad_(False)
    seen = solves(model, monkeypatch)
    for _ in range(3):
        stored = model(at).at(0, "q")
        assert not stored.requires_grad
        torch.testing.assert_close(stored, before, rtol=1e-5, atol=1e-6)
    assert 0 < len(seen) < 3
    with torch.no_grad():
        model.start += 1.0
    assert torch.equal(model(at).at(0, "q")[0, 0], model.start[0, 0])
    model.requires_grad_(True)
    model(at).at(0, "q").sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_other_parameters_in_the_place_of_those_are_seen():
    """Objects that are gone give their numbers away, so an identity that is only noted may come again."""
    model, at = encoder(), torch.arange(4)[None]
    model.requires_grad_(False)
    for shift in range(20):
        start = model.start + shift
        vectors = torch.func.functional_call(model, {"start": start}, (at,)).at(0, "q")
        assert torch.equal(vectors[0, 0], start[0, 0])
        del start, vectors


def write(model, other):
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)


def write_past_autograd(model, other):
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data.copy_(theirs.data)


def replace_data(model, other):
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(other.parameters()), model.parameters()
    )


def swap(model, other):
    for mine, theirs in zip(model.parameters(), copy.deepcopy(other).parameters(), strict=True):
        torch.utils.swap_tensors(mine, theirs)


def load_field(model, other):
    model.field.load_state_dict(other.field.state_dict())
    model.start.data.copy_(other.start.data)


def step(**options):
    def stepped(model, other):
        """The parameters go to the others' in one step."""
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.grad = (mine - theirs).detach()
        torch.optim.SGD(model.parameters(), lr=1.0, **options).step()

    return stepped


def average(model, other):
    """An average of one model, in the place of the parameters."""
    averaged = torch.optim.swa_utils.AveragedModel(other)
    averaged.update_parameters(other)
    for mine, theirs in zip(model.parameters(), averaged.module.parameters(), strict=True):
        mine.data = theirs.data


class Constant(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value.clone()

    def forward(self, x):
        return self.value


def parametrize(model, other):
    """Parameters that are computed from others."""
    for module, twin in ((model, other), *zip(model.field.children(), other.field.children(), strict=True)):
        for name, value in list(twin.named_parameters(recurse=False)):
            torch.nn.utils.parametrize.register_parametrization(module, name, Constant(value.detach()))


CHANGES = {
    "a state dict": lambda model, other: model.load_state_dict(other.state_dict()),
    "an assigned state dict": lambda model, other: model.load_state_dict(other.state_dict(), assign=True),
    "the field's state dict": load_field,
    "no_grad": write,
    ".data": write_past_autograd,
    "other data": replace_data,
    "exchanged": swap,
    "foreach": step(foreach=True),
    "fused": step(fused=True),
    "an average": average,
    "parametrizations": parametrize,
    "another field": lambda model, other: (setattr(model, "field", other.field), write(model, other)),
}


def stored(baked, **kwargs):
    """An encoder that takes its vectors from the cache, which has some."""
    model = encoder(**kwargs)
    model.eval().bake(4) if baked else model.train().requires_grad_(False)
    model(torch.arange(4)[None])
    return model


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("baked", [True, False])
def test_changed_parameters_empty_the_cache(change, baked):
    model, other, at = stored(baked), encoder(seed=5), torch.arange(4)[None]
    change(model, other)
    torch.testing.assert_close(
        model(at).at(0, "q"), other(at).at(0, "q").detach(), rtol=1e-5, atol=1e-5, check_stride=False
    )


@pytest.mark.parametrize("baked", [True, False])
@settings(max_examples=20)
@given(chance=st.randoms(use_true_random=False))
def test_exchanged_and_negated_elements_are_seen(baked, chance):
    """What has equal sums, norms or sets of elements is not the same parameter."""
    model, at = stored(baked), torch.arange(4)[None]
    tensor = chance.choice([model.start, *model.field.parameters()]).data.flatten()
    i, j = chance.sample(range(tensor.numel()), 2)
    before = model(at).at(0, "q")
    tensor[i], tensor[j] = chance.choice([(1.0, 2.0), (1.0, -1.0), (3e-38, -3e-38)])
    model(at)
    tensor[i], tensor[j] = chance.choice([(tensor[j].item(), tensor[i].item()), (-tensor[i], -tensor[j])])
    expected = copy.deepcopy(model)(at)
    for name in "qkv":
        assert torch.equal(model(at).at(2, name), expected.at(2, name))
    assert before.shape == expected.at(0, "q").shape


@dataclass
class Options:
    rate: float = 1.0


class Rich(torch.nn.Module):
    """A field that reads its velocity from everything that a module can hold, and counts its evaluations."""

    smooth = True

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(DIM, DIM)
        self.norm = torch.nn.BatchNorm1d(DIM)
        self.register_buffer("scale", torch.ones(DIM))
        self.register_buffer("hidden", torch.ones(DIM), persistent=False)
        self.tensor, self.array = torch.ones(DIM), np.ones(DIM, np.float32)
        self.rate, self.options, self.nested = 1.0, Options(), {"rates": [(1.0, np.float64(1.0))]}
        self.activation = partial(torch.nn.functional.softplus, beta=2.0)
        self.evaluations = 0

    def forward(self, t, p):
        self.evaluations += 1
        pairs = self.nested["rates"][0]
        rate = self.rate * self.options.rate * pairs[0] * float(pairs[1]) * (1 if self.training else 2)
        scale = self.scale * self.hidden * self.tensor * torch.from_numpy(self.array)
        return self.activation(self.linear(p - self.norm.running_mean)) * scale * rate


FIELD_CHANGES = {
    "a buffer": lambda field: field.scale.mul_(3),
    "a buffer, .data": lambda field: field.scale.data.copy_(torch.arange(DIM) / DIM),
    "a buffer that is not saved": lambda field: field.hidden.data.mul_(3),
    "another buffer": lambda field: field.register_buffer("scale", torch.full((DIM,), 2.0)),
    "a buffer of a part": lambda field: field.norm.running_mean.data.add_(1),
    "a tensor": lambda field: field.tensor.data.mul_(3),
    "an array": lambda field: np.copyto(field.array, np.float32(2)),
    "a number": lambda field: setattr(field, "rate", 1.5),
    "an option": lambda field: setattr(field.options, "rate", 1.5),
    "a nested number": lambda field: field.nested["rates"].__setitem__(0, (0.5, 1.5)),
    "an argument": lambda field: field.activation.keywords.__setitem__("beta", 1.0),
    "a function": lambda field: setattr(field, "activation", torch.sin),
    "a part": lambda field: setattr(field, "linear", torch.nn.Linear(DIM, DIM)),
    "a hook": lambda field: field.register_forward_hook(lambda module, args, output: 2 * output),
    "its forward": lambda field: setattr(field, "forward", lambda t, p: p),
    "its mode": lambda field: field.train(not field.training),
    "its precision": lambda field: field.bfloat16(),
}
ENCODER_CHANGES = {
    "delta": lambda model: setattr(model, "delta", 0.3),
    "time_scale": lambda model: setattr(model, "_time_scale", 3.0),
    "a learned time scale": lambda model: setattr(
        model, "log_time_scale", torch.nn.Parameter(torch.ones(()))
    ),
    "the solver": lambda model: model.solver.update(method="euler", step=0.1),
}


def rich(baked):
    torch.manual_seed(0)
    model = FlowEncoder(Rich(), DIM, blocks=[0], names="q", delta=0.1)
    torch.nn.init.normal_(model.start)
    model.eval().bake(8) if baked else model.train().requires_grad_(False)
    return model


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("baked", [True, False])
@pytest.mark.parametrize(
    "change",
    [*(lambda model, of=of: of(model.field) for of in FIELD_CHANGES.values()), *ENCODER_CHANGES.values()],
    ids=[*FIELD_CHANGES, *ENCODER_CHANGES],
)
def test_whatever_changes_in_a_field_empties_the_cache(change, baked, real, monkeypatch):
    model, at = rich(baked), torch.arange(8.0 if real else 8)[None]
    before = model(at).at(0, "q")
    seen = solves(model, monkeypatch)
    assert torch.equal(model(at).at(0, "q"), before)
    assert not seen  # also of a field that counts its evaluations
    with torch.no_grad():
        change(model)
    expected = copy.deepcopy(model)(at).at(0, "q")
    assert not torch.allclose(expected, before, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(at).at(0, "q"), expected, rtol=1e-5, atol=1e-5)


def test_vectors_of_a_refresh_cycle_are_not_taken_for_frozen_ones():
    model, at = encoder(refresh_every=3).train(), torch.arange(4)[None]
    model.requires_grad_(False)
    expected = model(at).at(0, "q")
    first = copy.deepcopy(model.state_dict())
    model.requires_grad_(True)
    write(model, encoder(seed=5))
    model(at)
    model(torch.arange(9)[None])  # extends the vectors of this cycle
    model.load_state_dict(first, assign=True)
    torch.testing.assert_close(model.requires_grad_(False)(at).at(0, "q"), expected, rtol=1e-5, atol=1e-5)


def test_moving_a_baked_encoder_moves_its_vectors():
    model = encoder().eval()
    model.bake(4)
    assert model.double()(torch.arange(4)[None]).at(0, "q").dtype == torch.float64


def test_the_cache_is_not_saved_but_baking_survives_a_copy():
    model = encoder().eval()
    names = set(model.state_dict())
    model.bake(8)
    assert set(model.state_dict()) == names
    at = torch.arange(8)[None]
    # The copy solves again, to another end and so on other intervals.
    torch.testing.assert_close(copy.deepcopy(model)(at).at(0, "q"), model(at).at(0, "q"), rtol=0, atol=1e-6)


def test_what_leaves_a_baked_block_is_not_taken_for_what_was_solved_in_it():
    model, other, at = encoder().eval(), encoder(seed=5).eval(), torch.arange(4)[None]
    model.stored(at)
    write(model, other)
    with model.baked():
        model(at)
    torch.testing.assert_close(
        model.stored(at).at(0, "q"), other(at).at(0, "q").detach(), rtol=1e-5, atol=1e-5, check_stride=False
    )


def test_a_copy_that_is_written_to_once_solves_anew():
    model, other, at = encoder(), encoder(seed=5), torch.arange(4)[None]
    model.eval().bake(4)
    twin = copy.deepcopy(model)
    write(twin, other)
    torch.testing.assert_close(
        twin(at).at(0, "q"), other(at).at(0, "q").detach(), rtol=1e-5, atol=1e-5, check_stride=False
    )


def test_vectors_stored_in_inference_mode_serve_autograd_later():
    model, at = encoder().eval(), torch.arange(4)[None]
    model.bake(1)
    with torch.inference_mode():
        model(at)
        model(positions([0, 7], [3, 3]))
    for request in (at, positions([0, 7], [3, 3])):
        scale = torch.ones((), requires_grad=True)
        (scale * model(request).at(0, "q")).square().sum().backward()
        assert float(scale.grad) > 0


def test_a_table_merges_in_order_and_knows_when_it_is_a_range():
    def at(*x):
        return torch.tensor(x, dtype=torch.float64)

    store = VectorTable(at(0, 2), torch.tensor([[[0.0], [2.0]]]))
    assert not store.is_range
    merged = store.merged(at(1, 3), torch.tensor([[[1.0], [3.0]]]))
    assert merged.is_range
    assert merged.values.flatten().tolist() == [0, 1, 2, 3]
    index, held = store.find(at(0, 1, 2, 5))
    assert held.tolist() == [True, False, True, False]
    assert index[held].tolist() == [0, 1]


def test_bake_needs_a_length():
    with pytest.raises(ValueError, match="length must be a whole number of at least 1 position, got 0"):
        encoder().bake(0)


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
