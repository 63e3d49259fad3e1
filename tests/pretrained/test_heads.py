"""Every head that Transformers has for a model comes back with the flow or the extension of the whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import floater
from floater.pretrained.extending.install import extension_settings
from floater.pretrained.plugged import plugged

from . import extended, zoo
from .changed import change

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")

TASKS = (
    "", "ForCausalLM", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering", "ForImageClassification",
)  # fmt: skip
CASES = [("flow", name) for name in zoo.NAMES if name not in (*zoo.SEQ2SEQ, "siglip-vision")] + [
    ("extend", name) for name in ("llama", "gemma3", "modernbert", "bloom", "clip-text")
]


def heads(name: str) -> Iterator[tuple[Any, Any]]:
    """The Auto classes that have a class for a model, and models of those classes."""
    if name == "clip-text":
        sizes: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 24}
        config: Any = transformers.CLIPTextConfig(
            vocab_size=40, num_hidden_layers=1, max_position_embeddings=64, eos_token_id=2, **sizes
        )
        yield transformers.CLIPTextModelWithProjection, transformers.CLIPTextModelWithProjection(config)
        return
    config = extended.build(name).config
    for task in TASKS:
        auto: Any = getattr(transformers, f"AutoModel{task}")
        if type(config) in auto._model_mapping:
            yield auto, auto.from_config(copy.deepcopy(config))


def changed(model: Any, name: str, how: str) -> Any:
    """The model, all its weights large enough for position to matter, plugged or extended."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.set_attn_implementation("eager")
    return change(model.eval(), "clex" if how == "extend" and name in extended.ROTARY else how)


def first(model: Any, name: str) -> torch.Tensor:
    options = zoo.inputs(name, padded=False)
    if name == "clip-text":
        options = {"input_ids": zoo.text(2, 100)}
    with torch.no_grad():
        return model(**options).to_tuple()[0]


@pytest.mark.parametrize(("how", "name"), CASES)
def test_every_head(tmp_path: Path, how: str, name: str) -> None:
    for auto, model in heads(name):
        changed(model, name, how)
        actual = first(model, name)
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder, attn_implementation="eager").eval()
        torch.testing.assert_close(first(again, name), actual, atol=1e-6, rtol=1e-6)
        if hasattr(auto, "from_config"):
            built = auto.from_config(copy.deepcopy(again.config))
            for parts in (again.modules(), built.modules()):
                ours = [part for part in parts if plugged(part) or extension_settings(part)]
                assert [type(part) for part in ours] == [type(model)]


def test_a_head_that_its_class_builds_is_plugged_as_a_whole() -> None:
    """Its body, which Transformers builds from the same configuration, has no flow of its own."""
    model = next(model for auto, model in heads("llama") if "SequenceClassification" in auto.__name__)
    changed(model, "llama", "flow")
    rebuilt = type(model)(copy.deepcopy(model.config)).eval()
    assert not any(map(plugged, rebuilt.modules()))
    floater.plug(rebuilt)
    rebuilt.load_state_dict(model.state_dict())
    rebuilt.set_attn_implementation("eager")
    assert torch.equal(first(rebuilt, "llama"), first(model, "llama"))


@pytest.mark.parametrize("padded", [False, True])
def test_choices_are_rows(padded: bool) -> None:
    """The body of GPT-2 makes (batch * choices, T) of them itself."""
    model = transformers.GPT2DoubleHeadsModel(extended.build("gpt2").config)
    changed(model, "gpt2", "flow")
    ids, mask = zoo.text(6, 7), torch.ones(6, 7, dtype=torch.long)
    mask[2, :3] = 0
    options = {"attention_mask": mask} if padded else {}
    with torch.no_grad():
        rows = model(input_ids=ids, **options).logits
        choices = model(
            input_ids=ids.view(2, 3, 7), **{k: v.view(2, 3, 7) for k, v in options.items()}
        ).logits
    torch.testing.assert_close(choices.flatten(0, 1), rows, atol=1e-6, rtol=1e-6)
