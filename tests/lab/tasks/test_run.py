"""Process and model state around measuring and training, common to all tasks."""

from pathlib import Path

import pytest
import torch
from torch import nn

from floater.encodings import PositionError
from floater.errors import DataError
from floater.flow import FlowEncoder, ZeroField
from floater.lab.tasks import Splits, task
from floater.lab.tasks.generated.settings import Data, GeneratedSettings
from floater.lab.training.model import inference


@pytest.mark.parametrize("baked", [False, True])
def test_a_model_that_refuses_an_example_goes_on_in_the_mode_it_was_in(baked: bool) -> None:
    flow = FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"])
    model = nn.ModuleList([nn.Dropout(), flow])

    def measure() -> None:
        with inference(model, baked=baked):
            assert not model[0].training
            assert not torch.is_grad_enabled()
            raise PositionError("it ends here")

    with pytest.raises(PositionError, match="it ends here"):
        measure()
    assert model[0].training
    assert flow(torch.tensor([[0, 1]])).at(0, "q").requires_grad


def test_a_training_flushes_denormals_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this CPU cannot flush denormals")
    least = torch.tensor(1, dtype=torch.int32).view(torch.float32)

    generated, seen = task("generated"), []

    def read(settings: GeneratedSettings) -> Splits:
        seen.append(int((least * 1).view(torch.int32)))
        raise DataError("that is enough")

    monkeypatch.setattr(generated, "read", read)
    with pytest.raises(DataError, match="that is enough"):
        generated.train(GeneratedSettings(run=str(tmp_path / "run"), data=Data(problem="copy")))
    assert seen == [0]
    assert (least * 1).view(torch.int32)
