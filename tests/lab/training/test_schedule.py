import math

import pytest
import torch

from floater.lab.training.schedule import inverse_sqrt, transformers_schedule


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def rates(*peaks: float, warmup: int, initial: float, updates: int) -> list[list[float]]:
    sgd = optimizer(*peaks)
    schedule = inverse_sqrt(sgd, warmup=warmup, initial=initial)
    seen = []
    for _ in range(updates):
        seen.append([group["lr"] for group in sgd.param_groups])
        sgd.step()
        schedule.step()
    return seen


def test_rates_by_hand() -> None:
    seen = rates(1e-3, warmup=4, initial=2e-4, updates=37)
    by_hand = {0: 2e-4, 1: 4e-4, 2: 6e-4, 3: 8e-4, 4: 1e-3, 9: 1e-3 * 2 / 3, 16: 5e-4, 36: 1e-3 / 3}
    for update, rate in by_hand.items():
        assert seen[update][0] == pytest.approx(rate, rel=1e-14)  # a few roundings of float64


def test_each_group_starts_at_the_same_rate_and_reaches_its_own_peak() -> None:
    seen = rates(5e-4, 5e-5, warmup=10, initial=1e-7, updates=41)
    assert seen[0] == pytest.approx([1e-7, 1e-7], rel=1e-14)
    assert seen[10] == [5e-4, 5e-5]
    assert seen[40] == pytest.approx([2.5e-4, 2.5e-5], rel=1e-14)


def test_agrees_with_vaswani_et_al_where_the_warm_up_starts_at_zero() -> None:
    """Section 5.3, equation 3: d^-0.5 min(u^-0.5, u W^-1.5)."""
    width, warmup = 512, 40
    seen = rates((width * warmup) ** -0.5, warmup=warmup, initial=0.0, updates=200)
    for update in range(1, 200):
        rate = width**-0.5 * min(update**-0.5, update * warmup**-1.5)
        assert seen[update][0] == pytest.approx(rate, rel=1e-13)


def test_resumes_where_it_was() -> None:
    whole = rates(1e-3, warmup=3, initial=0.0, updates=12)
    first, second = optimizer(1e-3), optimizer(1e-3)
    before, after = (inverse_sqrt(each, warmup=3, initial=0.0) for each in (first, second))
    for _ in range(7):
        first.step()
        before.step()
    second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    for update in range(7, 12):
        assert second.param_groups[0]["lr"] == whole[update][0]
        second.step()
        after.step()


@pytest.mark.parametrize(
    ("peak", "warmup", "initial", "message"),
    [
        (1e-3, 0, 1e-7, "warmup is 0 updates"),
        (0.0, 4, 0.0, "learning rate of parameter group 0 is 0.0"),
        (1e-3, 4, 2e-3, "initial learning rate is 0.002"),
        (1e-3, 4, -1e-3, "initial learning rate is -0.001"),
        (1e-3, 4, math.nan, "initial learning rate is nan"),
    ],
)
def test_refuses(peak: float, warmup: int, initial: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inverse_sqrt(optimizer(peak), warmup=warmup, initial=initial)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", [2e-4, 6e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4, 0, 0]),
        ("constant_with_warmup", [2e-4, 6e-4, *[1e-3] * 6]),
    ],
)
def test_schedules_of_transformers_warm_up_from_the_initial_rate(name: str, expected: list[float]) -> None:
    sgd = optimizer(1e-3)
    schedule = transformers_schedule(name, sgd, warmup=2, total=6, initial=2e-4)
    seen = []
    for _ in range(8):
        seen.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert seen == pytest.approx(expected, rel=1e-14)
