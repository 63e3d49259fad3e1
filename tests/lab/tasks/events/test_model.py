"""Models of events: likelihoods, invariances, and what a prediction may depend on."""

import pytest
import torch

from floater.encodings import PositionError
from floater.transformer.events import EventsConfig, FloaterForEvents, FloaterForSeries

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
STAMP = 1_325_476_708.0  # unix seconds, January 2012


def build(kind, **options):
    torch.manual_seed(0)
    config = EventsConfig(**SIZES, training_length=32, dropout=0.0, **options)
    model = kind(config).eval()
    for flow in getattr(model.encoder.position, "flows", ()):
        torch.nn.init.normal_(flow.start)  # what starts small would hide a mistake
    return model


def events(**options):
    return build(
        FloaterForEvents, types=["a", "b", "c"], log_gap=[0.5, 1.0], time_per_position=1.5, **options
    )


def series(**options):
    return build(FloaterForSeries, features=["x", "y"], goal="interpolate", **options)


TYPES = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]])
TIMES = torch.tensor([[0.0, 0.5, 3.0, 3.25, 9.0], [1.0, 2.0, 4.0, 4.5, 4.75]], dtype=torch.float64)
OPTIONS = [
    {"position": "floater"},
    {"position": "floater", "position_options": {"time_scale": "learned"}},
    {"position": "rotary"},
    {"position": "sinusoidal", "position_source": "index"},
    {"position": "none", "gap_feature": True},
    {"position": "floater", "head": "hazard", "edges": [0.0, 1.0, 4.0]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_the_likelihood_of_an_event_is_that_of_what_comes_before_it(options):
    model = events(**options)
    whole = model(TYPES, TIMES)
    for i in range(1, 5):
        torch.testing.assert_close(model(TYPES[:, :i], TIMES[:, :i]).nll, whole.nll[:, :i])
    later = TIMES.clone()
    later[:, -1] += 1.0
    other = model(TYPES.roll(1, 1).where(torch.arange(5) == 4, TYPES), later)
    torch.testing.assert_close(other.nll[:, :4], whole.nll[:, :4])
    assert not bool((other.nll[:, 4] == whole.nll[:, 4]).any())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_the_parts_of_the_likelihood_are_the_heads(options):
    model = events(**options)
    out = model(TYPES, TIMES)
    gaps = TIMES.diff().float()
    type_log_probs = out.type_logits[:, :-1].log_softmax(-1).gather(-1, TYPES[:, 1:, None])[..., 0]
    torch.testing.assert_close(out.nll_gap[:, 1:], -model.gaps(out.raw[:, :-1]).log_prob(gaps))
    torch.testing.assert_close(out.nll[:, 1:], out.nll_gap[:, 1:] - type_log_probs)
    assert not out.nll[:, 0].any()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_padding_and_the_origin_of_time_change_nothing(options):
    model = events(**options)
    whole = model(TYPES, TIMES).nll
    # stamps are multiples of 2^-22 s, the times of this test of 2^-2
    torch.testing.assert_close(model(TYPES, TIMES + STAMP).nll, whole)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    short = model(TYPES, TIMES.masked_fill(mask == 0, 0.0), mask).nll
    torch.testing.assert_close(short[1, :3], whole[1, :3])
    assert not short[1, 3:].any()
    with pytest.raises(ValueError, match="padding must be on the right"):
        model(TYPES, TIMES, mask.flip(1))


@torch.no_grad()
def test_one_second_tells_events_ten_years_apart():
    """Unix stamps: the vectors of two events a second apart differ, ten years after the first one."""
    model = events(position="floater")
    times = STAMP + torch.tensor([[0.0, 3.2e8, 3.2e8 + 1.0]], dtype=torch.float64)
    from floater.transformer.events import event_positions

    at = event_positions(model.config, times, torch.ones(1, 3).bool()).query
    assert float(at[0, 2] - at[0, 1]) == pytest.approx(1 / 1.5, rel=1e-6)
    with pytest.raises(ValueError, match=r"torch\.float32, which rounds them; give float64"):
        model(TYPES[:1, :3], times.float())


@torch.no_grad()
def test_events_at_one_time_need_a_resolution():
    times = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"row 0: events 1 and 2 are at one time.*resolution"):
        events(position="floater")(TYPES[:1, :3], times)
    model = events(position="floater", resolution=0.25)
    apart = torch.tensor([[0.0, 1.0, 1.25]], dtype=torch.float64)
    actual, other = (model(TYPES[:1, :3], at).nll for at in (times, apart))
    assert bool(actual.isfinite().all())
    torch.testing.assert_close(actual, other)  # the third is judged at the least gap, and its time not read


def test_every_parameter_learns_through_the_reading():
    model = events(position="floater", position_options={"time_scale": "learned"}, gap_feature=True)
    model(TYPES, TIMES).nll.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


VALUES = torch.randn(1, 6, 2, generator=torch.Generator().manual_seed(3))
AT = torch.tensor([[0.0, 0.4, 0.4, 2.0, 5.5, 7.0]], dtype=torch.float64)
SHOWN = torch.tensor([[[1, 1], [1, 0], [1, 1], [0, 0], [0, 1], [0, 0]]])


DRIVEN = {"name": "floater_cde", "std": 0.3}
CLOCK = {"name": "rotary", "clock": {"std": 0.3}}


@pytest.mark.parametrize(
    "position", ["floater", "rotary", "sinusoidal", "alibi", "t5", "cape", DRIVEN, CLOCK], ids=str
)
@torch.no_grad()
def test_a_read_out_of_a_set_of_events_does_not_depend_on_their_order(position):
    """Positions are times, and a query sees what is shown as a set.

    Events that share a time, 1 and 2, are in no order, unless the text drives the time between events.
    """
    model = series(position=position)
    whole = model(VALUES, AT, SHOWN).mean
    ties = [[0, 2, 1, 3, 4, 5]] if isinstance(position, str) else []
    for order in (*ties, [5, 3, 1, 0, 4, 2]):
        actual = model(VALUES[:, order], AT[:, order], SHOWN[:, order]).mean
        torch.testing.assert_close(actual, whole[:, order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", ["floater", DRIVEN, CLOCK], ids=str)
@torch.no_grad()
def test_a_value_does_not_depend_on_what_else_is_asked_or_hidden(position):
    model = series(position=position)
    whole = model(VALUES, AT, SHOWN).mean
    kept = [0, 1, 2, 4, 5]
    torch.testing.assert_close(model(VALUES[:, kept], AT[:, kept], SHOWN[:, kept]).mean, whole[:, kept])
    other = torch.where(SHOWN.bool(), VALUES, 1e3)
    assert torch.equal(model(other, AT, SHOWN).mean, whole)
    moved = AT.clone()
    moved[0, 5] = 6.0
    assert not torch.allclose(model(VALUES, moved, SHOWN).mean[0, 5], whole[0, 5])


@torch.no_grad()
def test_the_likelihood_of_values_is_normal_in_their_own_units():
    model = series(position="floater", means=[3.0, -1.0], scales=[2.0, 0.5])
    asked = (1 - SHOWN) * torch.tensor([1, 1])
    out = model(VALUES, AT, SHOWN, asked=asked)
    wanted = -torch.distributions.Normal(out.mean, out.std).log_prob(VALUES)
    torch.testing.assert_close(out.nll, wanted * asked)


def test_models_survive_saving(tmp_path):
    for model in (events(position="floater"), series(position="floater")):
        model.save_pretrained(tmp_path)
        same = type(model).from_pretrained(tmp_path)
        ours, theirs = (config.to_diff_dict() for config in (model.config, same.config))
        assert theirs | {"_name_or_path": ""} == ours | {"_name_or_path": ""}
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


def test_wrong_choices_are_refused():
    with pytest.raises(ValueError, match="position_source is 'tim'; valid: time, index"):
        EventsConfig(position_source="tim")


@torch.no_grad()
def test_whole_numbers_are_values_as_real_ones_are():
    """Statistics of whole numbers were rounded to whole numbers: a scale of 0.7 to zero."""
    model = series(means=[2.6, -1.2], scales=[1.9, 0.7])
    counts, shown = torch.tensor([[[1, -2], [3, 0], [7, -1]]]), torch.ones(1, 3, 2)
    for whole in (counts, counts.to(torch.int16)):
        actual, expected = (model(x, TIMES[:1, :3], shown, asked=shown) for x in (whole, counts.double()))
        torch.testing.assert_close(actual.mean, expected.mean)
        torch.testing.assert_close(actual.nll, expected.nll)


@torch.no_grad()
def test_nanoseconds_since_1970_are_not_rounded():
    gaps = torch.tensor([[0, 100, 350, 1000]])
    model, values, shown = series(unit=100), torch.randn(1, 4, 2), torch.ones(1, 4, 2)
    next_event, types, order = events(unit=100), TYPES[:1, :4], torch.tensor([3, 1, 0, 2])
    for start in (1_700_000_000_000_000_000, 1_700_000_000_000_000_037):
        late = gaps + start
        torch.testing.assert_close(next_event(types, late).nll, next_event(types, gaps).nll)
        actual = model(values[:, order], late[:, order], shown).mean
        torch.testing.assert_close(actual, model(values, gaps, shown).mean[:, order])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_the_gap_is_embedded_in_the_precision_of_the_model(dtype):
    model = events(gap_feature=True)
    expected = model(TYPES, TIMES).nll
    actual = model.to(dtype)(TYPES, TIMES).nll
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("gap_feature", [False, True])
@torch.no_grad()
def test_no_event_has_no_likelihood(gap_feature):
    output = events(gap_feature=gap_feature)(TYPES[:, :0], TIMES[:, :0])
    assert output.nll.shape == output.nll_gap.shape == (2, 0)


SPACED = [
    *({"times": {"mode": mode, "max_scale": 2.0}} for mode in ("stretch", "shift")),
    {"reading": {"interpolate": True}},
    {"reading": {"interpolate": True, "length": 100}},
]


@pytest.mark.parametrize("options", SPACED, ids=str)
@torch.no_grad()
def test_no_spacing_of_times_tells_how_much_time_is_to_come(options):
    """The length of a sequence that is read is that of its future, too; a declared one is not."""
    model = events(position="sinusoidal", **options)
    far = TIMES * 8  # to position 48 of the first row, 32 are trained
    if "length" in options.get("reading", {}) or "times" in options:
        whole = model(TYPES, far).nll
        for i in range(1, 5):
            torch.testing.assert_close(model(TYPES[:, :i], far[:, :i]).nll, whole[:, :i])
    if "length" not in options.get("reading", {}):
        with pytest.raises(PositionError, match=r"no length was declared.*declare"):
            model(TYPES, TIMES * 20)


@pytest.mark.parametrize("unknown", ["attention_mask", "time_per_position"])
def test_unknown_arguments_are_refused(unknown):
    values = torch.randn(2, 5, 2)
    for model, arguments in ((events(), (TYPES, TIMES)), (series(), (values, TIMES, torch.ones(2, 5, 2)))):
        with pytest.raises(TypeError, match=f"does not take {unknown}"):
            model(*arguments, **{unknown: torch.ones(2, 5)})


@torch.no_grad()
def test_padding_is_not_scored():
    model, values, shown = series(), torch.randn(1, 5, 2), torch.tensor([1, 1, 1, 0, 0])[None, :, None]
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    nll = model(values, TIMES[:1], shown.expand(1, 5, 2), mask, asked=torch.ones(1, 5, 2)).nll
    assert bool(nll[:, :4].all())
    assert not bool(nll[:, 4].any())


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("components", 0, "at least 1"),
        ("unit", 0.0, "a positive number"),
        ("time_per_position", float("nan"), "a positive number"),
        ("resolution", -5.0, "at least 0"),
        ("log_gap", [0.0, 0.0], "a positive deviation"),
        ("log_gap", [0.0], "a positive deviation"),
        ("edges", [1.0, 2.0], "growing numbers, the first 0"),
        ("edges", [0.0, 2.0, 2.0], "growing numbers, the first 0"),
        ("means", [0.0], "2 numbers"),
        ("scales", [1.0, 0.0], "2 positive numbers"),
    ],
)
def test_wrong_numbers_are_refused(field, value, wanted):
    with pytest.raises(ValueError, match=rf"{field} is .*it must be .*{wanted}"):
        EventsConfig(features=["x", "y"], **{field: value})
