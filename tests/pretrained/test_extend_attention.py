"""Self-Extend in models whose attention was seen to rotate by their frequencies alone, of any family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater.pretrained import ExtendError
from floater.pretrained.extending import rotary

from . import zoo
from .tiny import accepted, tiny

OLD, LONG, WINDOW = 16, 60, 4


def short(name: str) -> Any:
    """A model of OLD tokens."""
    model = tiny(name)
    for body in rotary.rotary_bodies(model):
        body.config.max_position_embeddings = OLD
    return model


@torch.no_grad()
def output(model: Any, ids: Tensor, **options: Any) -> Tensor:
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    result: Tensor = model(input_ids=ids, **decoder, **options)[0]
    return result


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def rules(model: Any) -> list[Any]:
    each = {id(rule): rule for part in model.modules() if (rule := part.__dict__.get("floater_rule"))}
    return [*each.values()]


@torch.no_grad()
def check(name: str) -> None:
    """Short texts stay, groups of one distance change nothing, and caches and padding change no text."""
    plain, ids = short(name), zoo.text(1, LONG)
    model = copy.deepcopy(plain)
    floater.extend(model, 64, "self_extend", window=WINDOW)
    close(output(model, ids[:, :OLD]), output(plain, ids[:, :OLD]))
    grouped, ungrouped = output(model, ids), output(plain, ids)
    assert not torch.allclose(grouped, ungrouped, atol=1e-5)
    for rule in rules(model):
        group, rule.group = rule.group, (WINDOW, 1)
    close(output(model, ids), ungrouped)
    for rule in rules(model):
        rule.group = group
    if not model.config.is_encoder_decoder:
        mask = torch.ones(2, LONG, dtype=torch.long)
        mask[0, 45:] = 0
        padded = output(model, ids.repeat(2, 1), attention_mask=mask)
        close(padded[:1, :45], output(model, ids[:, :45]))
    if hasattr(model, "lm_head") and getattr(model.config, "use_cache", False):
        cache = model(input_ids=ids[:, :40], use_cache=True).past_key_values
        close(output(model, ids[:, 40:], past_key_values=cache), grouped[:, 40:])


@pytest.mark.parametrize(
    "name", ["mixtral", "olmo2", "granite", "glm4", "cohere", "falcon_h1", "dia_encoder", "nomic_bert"]
)
def test_a_family_without_a_description_is_extended(name: str) -> None:
    """GLM and Cohere rotate neighbours, Falcon-H1 has layers of a recurrence, two attend to both sides."""
    check(name)


@pytest.mark.slow
def test_every_class_that_is_extended_by_groups() -> None:
    """A minute of a core."""

    def extended(name: str) -> None:
        model = short(name)
        output(model, zoo.text(1, LONG))
        floater.extend(model, 64, "self_extend", window=WINDOW)

    names = []
    for name, _ in accepted(extended):
        check(name)
        names.append(name)
    assert len(names) > 70


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("granite_swa", "has attention with s_aux, which 'self_extend' does not compute"),
        # norms after the rotation
        ("hunyuan_v1_dense", "does not rotate its queries and keys by the frequencies alone"),
        ("nanochat", "does not rotate its queries and keys by the frequencies alone"),  # the other way round
        ("qwen2_vl_text", "rotates by several positions of a token"),
        ("deepseek_v3", "the projections of queries and keys of DeepseekV3Model are not known"),
        ("stablelm", "has another than Transformers' attention functions"),
    ],
)
def test_attention_that_cannot_be_rotated_further_is_refused(name: str, reason: str) -> None:
    model = short(name)
    before = output(model, zoo.text(1, LONG))
    with pytest.raises(ExtendError, match=reason):
        floater.extend(model, 64, "self_extend", window=WINDOW)
    assert torch.equal(output(model, zoo.text(1, LONG)), before)
