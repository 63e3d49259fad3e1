import math

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from floater.lab.training import constant, inverse_sqrt, linear


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


def test_linear_decay_is_that_of_transformers() -> None:
    ours, theirs = optimizer(1e-3, 1e-4), optimizer(1e-3, 1e-4)
    schedules = (
        linear(ours, warmup=4, total=20),
        get_linear_schedule_with_warmup(theirs, num_warmup_steps=4, num_training_steps=20),
    )
    for _ in range(25):
        rates, expected = ([group["lr"] for group in sgd.param_groups] for sgd in (ours, theirs))
        assert rates == pytest.approx(expected, rel=1e-14)
        for sgd, schedule in zip((ours, theirs), schedules, strict=True):
            sgd.step()
            schedule.step()


def test_a_constant_rate_stays() -> None:
    sgd = optimizer(1e-3)
    schedule = constant(sgd, warmup=2, initial=2e-4)
    seen = []
    for _ in range(5):
        seen.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert seen == pytest.approx([2e-4, 6e-4, 1e-3, 1e-3, 1e-3], rel=1e-14)


def test_linear_and_constant_refuse() -> None:
    with pytest.raises(ValueError, match="warmup is 20 updates; it must be from 0 to below total = 20"):
        linear(optimizer(1e-3), warmup=20, total=20)
    with pytest.raises(ValueError, match="warmup is -1 updates"):
        constant(optimizer(1e-3), warmup=-1)
