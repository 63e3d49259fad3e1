"""FlowEncoder: times, gathering, gradients and dtypes."""

import math

import pytest
import torch
from flow_cases import DIM, encoder, exact, positions

from floater.flow import (
    FlowEncoder,
    FlowError,
    FlowTransformError,
    SinusoidField,
    ZeroField,
    gradient_error,
    sinusoid,
    solve,
)

AT = {
    "counting": positions([0, 1, 2, 3]),
    "offset": positions([5, 6, 7]),
    "left padded, packed": positions([0, 0, 0, 1], [0, 1, 0, 1]),
    "unsorted": positions([4, 0, 9, 2]),
    "real": positions([0.0, 0.25, 7.5], [3.1, 0.25, 0.1], dtype=torch.float64),
}


@pytest.mark.parametrize("at", AT.values(), ids=AT.keys())
@pytest.mark.parametrize("mode", ["train", "eval", "refresh", "baked", "baked lazily", "frozen"])
def test_every_position_gets_the_vector_of_its_time(at, mode):
    model = encoder(refresh_every=3 if mode == "refresh" else 1).train(mode in ("train", "refresh", "frozen"))
    if mode == "baked":
        model.bake(4)
    elif mode == "baked lazily":
        model.bake(1)
    elif mode == "frozen":
        model.requires_grad_(False)
    elif mode == "refresh":
        model(positions([0, 1]))
    for block, name in ((0, "q"), (2, "v")):
        torch.testing.assert_close(
            model(at).at(block, name), exact(model, block, name, at), rtol=1e-5, atol=1e-5
        )  # the default tolerances, 1e-6, with room for steps that add up


def test_the_first_position_gets_the_start_itself():
    model = encoder()
    assert torch.equal(model(positions([0, 1])).at(2, "k")[0, 0], model.start[1, 1])


def test_the_sinusoidal_encoding_is_one_flow():
    field = SinusoidField(DIM, delta=0.1)
    model = FlowEncoder(field, DIM, blocks=[0], names=["q"], delta=0.1)
    with torch.no_grad():
        model.start.copy_(field.start())
    torch.testing.assert_close(
        model(torch.arange(60)[None]).at(0, "q"), sinusoid(torch.arange(60), DIM)[None], rtol=0, atol=1e-4
    )


class Growth(torch.nn.Module):
    """dp/dt = p, so p(t) = p(0) e^t."""

    def forward(self, t, p):
        return p


@pytest.mark.parametrize("method", ["collocation", "dopri5"])
@pytest.mark.parametrize(
    "at", [positions([0, 40, 43, 60]), positions([0.0, 40.5, 60.0], dtype=torch.float64)]
)
def test_vectors_whose_squared_norm_overflows_are_refused(method, at):
    """|p|^2 = 4 e^2t passes the largest float32, 3.4e38, at t = 43.7; attention would compute NaN."""
    model = FlowEncoder(Growth(), 4, blocks=[0], names=["q"], delta=1.0, method=method)
    torch.nn.init.ones_(model.start)
    model(at.clamp(max=43)).at(0, "q")
    refusal = r"t = (4[3-9]|5\d|60)\b.*squared norm of p is too large for torch.float32"
    with pytest.raises(FlowError, match=refusal):
        model(at)


def test_time_scale_stretches_positions():
    slow, fast = encoder(delta=0.1), encoder(delta=0.1, time_scale=2.0)
    learned = encoder(delta=0.1, time_scale=2.0, learn_time_scale=True)
    expected = slow(positions([0, 2, 4])).at(0, "q")
    torch.testing.assert_close(fast(positions([0, 1, 2])).at(0, "q"), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(learned(positions([0, 1, 2])).at(0, "q"), expected, rtol=1e-5, atol=1e-5)
    assert learned.time_scale == pytest.approx(2.0)


def test_the_gradient_of_the_time_scale_is_that_of_finite_differences():
    model = encoder(learn_time_scale=True, time_scale=1.5, rtol=1e-9, atol=1e-9).double()
    at, eps = positions([0, 7, 30]), 1e-4

    def loss():
        return model(at).at(0, "q").sin().sum()

    (gradient,) = torch.autograd.grad(loss(), model.log_time_scale)
    with torch.no_grad():
        model.log_time_scale += eps
        above = loss()
        model.log_time_scale -= 2 * eps
        below = loss()
    assert float(gradient) == pytest.approx(float((above - below) / (2 * eps)), rel=1e-4)


@pytest.mark.parametrize("at", AT.values(), ids=AT.keys())
def test_gradients_are_those_of_the_plain_solve(at):
    model = encoder()
    model(at).at(2, "q").square().sum().backward()
    row = model.start.detach()[1, 0][None].clone().requires_grad_()
    wanted, index = at.double().unique(return_inverse=True)
    solve(model.field, row, 0.1 * wanted)[index, 0].square().sum().backward()
    torch.testing.assert_close(model.start.grad[1, 0], row.grad[0], rtol=1e-3, atol=1e-4)
    others = model.start.grad.clone()
    others[1, 0] = 0
    assert not others.any()


def test_512_positions_are_the_beginning_of_4096():
    model = encoder().eval()
    with torch.no_grad():
        short, long = (model(torch.arange(n)[None]).at(0, "q") for n in (512, 4096))
    torch.testing.assert_close(long[:, :512], short, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", [False, True])
def test_bfloat16(keep):
    model, at = encoder().bfloat16().eval(), torch.arange(6)[None]
    if keep:
        model.bake(2)
    vectors = model(at).at(2, "q")
    assert vectors.dtype == torch.bfloat16
    # One rounding to eight bits of a solve in float32.
    torch.testing.assert_close(vectors.float(), exact(model, 2, "q", at), rtol=2**-8, atol=1e-4)


def test_adjoint_gradients_through_the_encoder():
    at = positions([0, 3, 3, 8])
    actual = []
    for gradient in ("discrete", "adjoint"):
        model = encoder(gradient=gradient, learn_time_scale=True, rtol=1e-8, atol=1e-8)
        model(at).at(2, "v").square().sum().backward()
        actual.append([p.grad for p in model.parameters()])
    assert gradient_error(actual[1], actual[0]) < 1e-4


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (torch.tensor([0, 1]), r"positions must be \(N, T\) and not empty, got shape \(2,\)"),
        (torch.zeros(1, 0), r"not empty, got shape \(1, 0\)"),
        (torch.tensor([[3, -1]]), "not negative, got -1"),
        (torch.tensor([[0.0, math.nan]]), "finite and not negative, got nan"),
        (torch.tensor([[0.0, math.inf]]), "finite and not negative, got inf"),
        (torch.tensor([[1j]]), "positions must be whole or real numbers, got torch.complex64"),
    ],
)
def test_bad_positions(at, message):
    model = encoder().eval()
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            model(at)
        model.bake(2)


def test_positions_that_vmap_maps_are_refused():
    model = encoder()
    with pytest.raises(FlowTransformError, match=r"cannot run under torch\.vmap"):
        torch.vmap(lambda at: model(at[None]).at(0, "q"))(torch.arange(6).view(2, 3))


def test_weights_without_values_are_refused():
    with pytest.raises(RuntimeError, match="the flow is on the device 'meta', which has no values"):
        encoder().to("meta")(positions([0, 1]))


def test_unknown_block_or_name():
    with pytest.raises(
        ValueError, match=r"no flow vectors for \(1, 'q'\); valid \(block, name\): \(0, 'q'\)"
    ):
        encoder()(positions([0])).at(1, "q")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refresh_every": 0}, "refresh_every must be at least 1 call, got 0"),
        ({"delta": 0.0}, "delta must be a positive number, got 0.0"),
        ({"time_scale": -1.0}, "time_scale must be a positive number, got -1.0"),
        ({"names": ()}, r"names must be distinct and not empty, got \[\]"),
        ({"blocks": (1, 1)}, r"blocks must be distinct and not empty, got \[1, 1\]"),
        ({"method": "rk5"}, "unknown solver method 'rk5'; valid: 'rk4'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        FlowEncoder(ZeroField(), 2, **({"blocks": [0], "names": ["q"]} | arguments))
