"""Options: tests that take minutes or need a GPU, and weights at addresses where kernels round otherwise."""

import gc
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from floater import PositionModel
from floater.encodings import Card, registry

# No test rests on the speed of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--misaligned",
        action="store_true",
        help="put the weights of all modules at odd addresses, where matrix products round otherwise",
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--fuzz", type=int, metavar="SEED", help="check the properties of tests/fuzz at random")
    parser.addoption(
        "--minutes", type=float, default=0.0, help="how long --fuzz goes on, with one seed after another"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Patch modules for the whole session, before session fixtures build theirs."""
    if config.getoption("--misaligned"):
        from misaligned import misalign  # it needs Transformers, which tests of the core do without

        config.add_cleanup(misalign().undo)


def pytest_collection_finish() -> None:
    """Exclude what the imports leave from garbage collection: each training collects, in half a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = config.getoption("--slow") or "slow" in config.getoption("-m")
    for item in items:
        if item.get_closest_marker("slow") and not slow:
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and PyTorch sees none"))
    if config.getoption("--misaligned"):
        skip = pytest.mark.skip(reason="tests that weights are aligned")
        for item in items:
            if "alignment" in item.nodeid:
                item.add_marker(skip)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an encoding that lets tokens attend to later ones."""

    class Ahead(PositionModel):
        card = Card(paper="", link="", point="absolute", equation="x_t + mean x")

        def embed(self, x: Tensor, state: Any) -> Tensor:
            return x + x.mean(1, keepdim=True)

    monkeypatch.setitem(registry._CATALOGUE, "ahead", Ahead)
    return "ahead"
