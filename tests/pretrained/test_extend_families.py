"""Every class of Transformers that declares positions itself is extended, or refused in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from floater.pretrained import ExtendError

TABLE = Path(__file__).parents[2] / "docs" / "families.csv"
SAMPLE = {
    "bert": "table, flow",
    "clvp_decoder": "table, flow",
    "ibert": "table, flow",
    "gptj": "table, sinusoid",
    "canary_decoder": "table, sinusoid",
    "esm": "rotary, ntk",
    "zaya": "rotary, yarn",
    "gemma4_text": "rotary, proportional",
    "bamba": "rotary, yarn",
    "vit": "image, interpolation",
    "jamba": "takes any length: no positions, or positions that are computed",
    "deepseek_v4": "layers of several kinds attend to the whole text",
    "wav2vec2-bert": "reads no text: positions of frames or patches",
}
"""Some classes, with their kinds of positions and methods or the reasons of their refusals."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_is_extended_or_refused(name: str) -> None:
    from transformers import CONFIG_MAPPING

    import families
    import tiny_configs

    outcome = families.examine(name, type(CONFIG_MAPPING[name]()))
    assert (outcome.reason, outcome.result in ("extended", "refused")) == (SAMPLE[name], True), outcome
    assert "\n" not in outcome.text
    assert tiny_configs.LENGTH < families.LONGER


def test_an_extension_without_effect_and_one_that_is_lost_are_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The benchmark finds what is wrong: so its count of failures means something."""
    from transformers import CONFIG_MAPPING

    import families
    import floater

    kind, extend = type(CONFIG_MAPPING["llama"]()), floater.extend

    def lost(model, length, *args, **options):  # type: ignore[no-untyped-def]
        summary = extend(model, length, *args, **options)
        model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        return summary

    def without_effect(model, length, *args, **options):  # type: ignore[no-untyped-def]
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        summary = extend(model, length, *args, **options)
        model.rotary_emb.inv_freq, model.rotary_emb.attention_scaling = before["rotary_emb.inv_freq"], 1.0
        return summary

    def internal(model, length, *args, **options):  # type: ignore[no-untyped-def]
        raise ExtendError("LlamaModel cannot be extended: KeyError: 'x'")

    for broken, reason in (
        (lost, "outputs differ after loading"),
        (without_effect, "the extension has no effect"),
        (internal, "unknown refusal"),
    ):
        monkeypatch.setattr(floater, "extend", broken)
        outcome = families.examine("llama", kind)
        assert (outcome.result, outcome.reason) == ("failing", reason)


def test_a_model_that_does_not_load_without_an_extension_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from transformers import CONFIG_MAPPING

    import families

    monkeypatch.setattr(families, "_loaded", lambda *_: torch.zeros(1))
    outcome = families.examine("llama", type(CONFIG_MAPPING["llama"]()))
    assert (outcome.result, outcome.reason) == (
        "not built",
        f"not extended it fails, too: {families.DIFFERS}",
    )


def test_the_published_table_has_no_failure() -> None:
    with TABLE.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) > 500
    assert {row["result"] for row in rows} == {"extended", "refused", "not built"}
    assert all(row["text"] and row["commit"] for row in rows)


@pytest.mark.slow
def test_every_class_that_declares_positions_itself() -> None:
    """Two minutes of a core; test_extend_composites.py has the others, for a second process."""
    import families
    import tiny_configs

    kinds = tiny_configs.classes(whole=False)
    outcomes = [families.examine(name, kind) for name, kind in kinds.items()]
    assert [each for each in outcomes if each.result == "failing"] == []
    assert len(outcomes) > 350
