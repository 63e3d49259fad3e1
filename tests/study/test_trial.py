"""Costs of its training that a trial records."""

from pathlib import Path

import pytest

from floater.study.trial import _cost as cost
from floater.transformer import FloaterConfig, FloaterForCausalLM


@pytest.mark.parametrize(("periods", "counted"), [("component", 64), ("word", 500), ("both", 64 * 500)])
def test_position_parameters_are_those_of_the_model(tmp_path: Path, periods: str, counted: int) -> None:
    """As of those that have some for each word of the vocabulary."""
    options = {"periods": periods}
    config = FloaterConfig.preset("tiny", vocab_size=500, position="complex", position_options=options)
    model = FloaterForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    found = cost(tmp_path)
    assert found["position_parameters"] == counted
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
