"""FLOATER as a position model: its starts, its sharing, its time."""

import pytest
import torch

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.flow import sinusoid

SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 64}
USES = {
    "self": ("query", "key", "value"),
    "decoder": ("query", "key", "value", "cross_query"),
    "cross": ("key", "value"),
}


def model(seed=0, std=0.5, **options):
    torch.manual_seed(seed)
    built = build("floater", **(SIZES | {k: options.pop(k) for k in SIZES.keys() & options}), **options)
    for flow in built.flows:
        torch.nn.init.normal_(flow.start, std=std)
    return built


def fields(built):
    return [flow.field for flow in built.flows]


@pytest.mark.parametrize(("site", "uses"), USES.items())
def test_each_site_has_one_field_and_a_start_for_each_use(site, uses):
    built = model(dim=512, heads=8, layers=6, site=site)
    (flow,) = built.flows
    assert flow.names == uses
    assert sum(p.numel() for p in flow.field.parameters()) == 526_336  # 2 x (513 x 512 + 512), Table 6
    assert flow.start.shape == (6, len(uses), 512)


def test_added_vectors_have_one_start_a_block_and_none_for_cross_attention():
    assert model(injection="add").flows[0].names == ("p",)
    assert not list(model(injection="add", site="cross").parameters())


@pytest.mark.parametrize(("share", "count"), [("blocks", 1), ("none", 3)])
def test_sharing_counts_the_fields(share, count):
    built = model(share=share)
    assert len(fields(built)) == count
    state = built.prepare(Positions.arange(5))
    for layer in range(3):
        at = state.vectors[layer].at(layer, "query")
        flow = built.flows[0] if share == "blocks" else built.flows[layer]
        assert torch.equal(at[0, 0], flow.start[flow.blocks.index(layer), 0])


def test_unshared_fields_are_trained_by_their_own_blocks_only():
    built = model(share="none")
    state = built.prepare(Positions.arange(5))
    built.projection_bias("query", AttentionContext(state, 1)).square().sum().backward()
    assert [flow.field.outer.weight.grad is not None for flow in built.flows] == [False, True, False]


@pytest.mark.parametrize("blocks", ["input", "all", [1], [0, 2]])
@pytest.mark.parametrize("share", ["blocks", "none"])
@pytest.mark.parametrize("injection", ["qkv", "add"])
def test_only_the_chosen_blocks_are_touched(blocks, share, injection):
    built = model(blocks=blocks, share=share, injection=injection)
    chosen = {"input": [0], "all": [0, 1, 2]}[blocks] if isinstance(blocks, str) else blocks
    state = built.prepare(Positions.arange(5))
    x = torch.randn(2, 5, 8)
    if injection == "qkv":
        torch.testing.assert_close(built.embed(x, state), x + sinusoid(torch.arange(5), 8))
        touched = [built.projection_bias("query", AttentionContext(state, n)) is not None for n in range(3)]
        assert not any(not torch.equal(built.block(x, state, n), x) for n in range(3))
    else:
        enter = built.embed(x, state)
        touched = [not torch.equal(enter, x)] + [not torch.equal(built.block(x, state, n), x) for n in (1, 2)]
        assert torch.equal(built.block(x, state, 0), x)  # once, at the input
        assert all(
            built.projection_bias(use, AttentionContext(state, n)) is None
            for use in USES["self"]
            for n in range(3)
        )
    assert [n for n in range(3) if touched[n]] == chosen


@pytest.mark.parametrize(("site", "uses"), USES.items())
def test_every_projection_has_vectors_of_its_own(site, uses):
    built = build("floater", **SIZES, site=site)
    state = built.prepare(Positions.arange(5))
    vectors = [
        built.projection_bias(use, AttentionContext(state, layer)) for layer in range(3) for use in uses
    ]
    starts = torch.cat([flow.start.flatten(0, 1) for flow in built.flows])
    assert torch.equal(torch.stack([p[0, 0] for p in vectors]), starts)
    assert len(starts.unique(dim=0)) == 3 * len(uses)


@pytest.mark.parametrize("blocks", ["all", "input"])
def test_the_sinusoidal_start_is_equation_6(blocks):
    built = build("floater", **SIZES, injection="add", start="sinusoidal", blocks=blocks)
    positions = Positions.arange(64)
    state = built.prepare(positions)
    x = torch.zeros(1, 64, 8)
    # solver tolerance 1e-6 a step
    torch.testing.assert_close(built.embed(x, state), sinusoid(positions.query, 8), rtol=0, atol=1e-4)


@pytest.mark.parametrize("site", USES)
def test_the_zero_start_is_zero_everywhere_and_can_be_trained(site):
    built = build("floater", **SIZES, start="zero", site=site)
    state = built.prepare(Positions.arange(40))
    vectors = [state.vectors[n].at(n, use) for n in range(3) for use in USES[site]]
    assert not any(v.any() for v in vectors)
    sum((v - 1).square().sum() for v in vectors).backward()
    (flow,) = built.flows
    assert bool(flow.start.grad.any())
    assert bool(flow.field.outer.weight.grad.any())


@pytest.mark.parametrize("max_length", [64, 512])
@pytest.mark.parametrize("delta", [0.01, 0.1])
def test_the_small_start_stays_of_order_one_over_the_training_length(max_length, delta):
    torch.manual_seed(0)
    built = build("floater", dim=64, heads=2, layers=2, max_length=max_length, delta=delta)
    with torch.no_grad():
        vectors = built.prepare(Positions.arange(max_length)).vectors[1].at(1, "key")
    size = vectors.square().mean(-1).sqrt()
    assert float(size.max()) < 2
    assert float(size[0, -1]) > 0.1  # and does move


def test_512_positions_begin_4096():
    built = model(dim=16, max_length=512).eval()
    with torch.no_grad():
        short, long = (built.prepare(Positions.arange(n)).vectors[2].at(2, "value") for n in (512, 4096))
    # adaptive steps differ between the solves: a few tolerances of 1e-6
    torch.testing.assert_close(long[:, :512], short, rtol=1e-4, atol=1e-4)


def test_real_times_and_padding_get_the_vectors_of_their_positions():
    built = model().eval()
    whole = built.prepare(Positions.arange(8)).vectors[0].at(0, "query")[0]
    left = Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    real = Positions.times(torch.tensor([[0.0, 2.0, 2.0, 7.0]]))
    for positions in (left, real, Positions.arange(2, offset=5)):
        actual = built.prepare(positions).vectors[0].at(0, "query")
        torch.testing.assert_close(actual, whole[positions.query.long()], rtol=1e-5, atol=1e-5)


def test_the_learned_time_scale_has_the_gradient_of_finite_differences():
    built = model(time_scale="learned", injection="add").double()
    (scale,) = (p for name, p in built.named_parameters() if name.endswith("log_time_scale"))

    def loss():
        state = built.prepare(Positions.arange(30))
        return built.block(torch.zeros(1, 30, 8).double(), state, 1).sin().sum()

    (gradient,) = torch.autograd.grad(loss(), scale)
    with torch.no_grad():
        scale += 1e-3
        above = loss()
        scale -= 2e-3
        below = loss()
    # solves to 1e-6, differences of 1e-3
    assert float(gradient) == pytest.approx(float((above - below) / 2e-3), rel=1e-2)
    assert abs(float(gradient)) > 0.1


def test_a_fixed_time_scale_multiplies_delta():
    actual = [
        model(delta=delta, time_scale=scale, max_length=length)
        .prepare(Positions.arange(20))
        .vectors[0]
        .at(0, "key")
        for delta, scale, length in ((0.1, 2.0, 64), (0.2, 1.0, 64))
    ]
    torch.testing.assert_close(*actual)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "delta must be a positive number, got 0.0"),
        ({"time_scale": -1.0}, "time_scale must be a positive number, got -1.0"),
        ({"refresh_every": 0}, "refresh_every must be at least 1 call, got 0"),
        ({"solver": "rk5"}, "unknown solver method 'rk5'; valid: 'rk4'"),
        ({"gradient": "exact"}, "unknown gradient 'exact'"),
        ({"activation": "tan"}, "unknown activation 'tan'; valid: 'tanh'"),
    ],
)
def test_numbers_and_names_of_the_flow_are_checked_when_the_model_is_built(options, message):
    with pytest.raises(ValueError, match=message):
        build("floater", **SIZES, **options)


def test_real_positions_before_the_first_are_refused():
    with pytest.raises(ValueError, match=r"finite and not negative, got -0\.5"):
        model().prepare(Positions.times(torch.tensor([[0.0, -0.5]])))


def test_reset_parameters_draws_every_parameter_anew():
    built = model(time_scale="learned", share="none")
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.fill_(7.0)
    built.reset_parameters()
    for name, parameter in built.named_parameters():
        assert not bool((parameter == 7.0).any()), name
