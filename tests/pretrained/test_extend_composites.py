"""Every class of Transformers whose parts declare positions is extended, or refused in one line."""

from __future__ import annotations

import pytest

SAMPLE = {
    "llava": "rotary, yarn",
    "molmo2": "rotary, yarn",
    "clip": "table, flow",
    "sam3_tracker": "reads no text: positions of frames or patches",
    "kimi_k25": "rotary, yarn",
    "dia": "a part that runs only within its whole",
}
"""Some classes, with the kinds of positions and methods of their parts, or the reasons of their refusals."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_composite_model_is_extended_or_refused(name: str) -> None:
    from transformers import CONFIG_MAPPING

    import families

    outcome = families.examine(name, type(CONFIG_MAPPING[name]()))
    assert (outcome.reason, outcome.result in ("extended", "refused")) == (SAMPLE[name], True), outcome
    assert "\n" not in outcome.text


@pytest.mark.slow
def test_every_composite_model_of_the_installed_version() -> None:
    """A minute and a half of a core."""
    import families
    import tiny_configs

    kinds = tiny_configs.classes(whole=True)
    outcomes = [families.examine(name, kind) for name, kind in kinds.items()]
    assert [each for each in outcomes if each.result == "failing"] == []
    assert len(outcomes) > 120
