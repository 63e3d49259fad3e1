import math

import pytest
import torch

from floater.lab.training import flush_denormals

DENORMAL = torch.tensor(1, dtype=torch.int32).view(torch.float32)  # the least above 0

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush denormals")


def _survives() -> bool:
    return bool((DENORMAL * 1).view(torch.int32))


def test_denormals_are_zero_within_and_numbers_after() -> None:
    assert _survives()
    with flush_denormals():
        assert not _survives()
        with flush_denormals():
            pass
        assert not _survives()
    assert _survives()


def test_denormals_are_numbers_again_after_an_error() -> None:
    with pytest.raises(KeyError), flush_denormals():
        raise KeyError
    assert _survives()


def test_the_least_normal_number_stays() -> None:
    least = torch.tensor(torch.finfo(torch.float32).tiny)
    with flush_denormals():
        assert (least * 1).item() == math.ldexp(1.0, -126)
