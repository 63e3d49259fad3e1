"""A zero start changes nothing, baking changes nothing, unplugging leaves nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import floater
from checkpoints import checkpoint
from floater.flow import BoundedField

from . import zoo


@pytest.mark.parametrize("name", zoo.NAMES)
def test_zero_start_leaves_every_bit(name: str) -> None:
    for attention in ("eager", "sdpa"):
        for dtype in (torch.float32, torch.bfloat16):
            for padded in (True, False):
                model = zoo.build(name, attention, dtype)
                options = {
                    key: value.to(dtype) if value.is_floating_point() else value
                    for key, value in zoo.inputs(name, padded).items()
                }
                before = zoo.output(model, **options)
                floater.plug(model)
                assert torch.equal(zoo.output(model, **options), before), (attention, dtype, padded)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_unplugging_leaves_nothing(name: str) -> None:
    model, options = zoo.build(name), zoo.inputs(name)
    names = {key: value.clone() for key, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    trained = {key for key, value in model.named_parameters() if value.requires_grad}
    config, before = model.config.to_dict(), zoo.output(model, **options)
    for baked in (False, True):
        floater.plug(model, freeze_model=True)
        zoo.noisy(model)
        if baked:
            floater.bake(model, 16)
        assert not torch.equal(zoo.output(model, **options), before)
        floater.unplug(model)
        after = model.state_dict()
        assert after.keys() == names.keys()
        assert all(torch.equal(after[key], names[key]) for key in names)
        assert [type(module) for module in model.modules()] == kinds
        assert model.config.to_dict() == config
        assert {key for key, value in model.named_parameters() if value.requires_grad} == trained
        assert torch.equal(zoo.output(model, **options), before)
    hooks = [(*m._forward_hooks.values(), *m._forward_pre_hooks.values()) for m in model.modules()]
    assert "floater" not in repr(hooks)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox", "llama", "t5"])
@pytest.mark.parametrize("projections", [("query",), ("key", "value")])
def test_only_the_chosen_blocks_and_projections_change(name: str, projections: tuple[str, ...]) -> None:
    """Vectors of the same size everywhere, in both plugs: the rest of the larger one must be what differs."""
    model, options = zoo.build(name), zoo.inputs(name)
    floater.plug(model, projections=projections, blocks=[1])
    for parameter in model.floater.encoders.parameters():
        torch.nn.init.ones_(parameter)
    some = zoo.output(model, **options)
    floater.unplug(model)
    floater.plug(model)
    rows = 0
    for encoders in model.floater.encoders.values():
        for encoder in encoders.values():
            with torch.no_grad():
                for block in encoder.blocks:
                    for i, part in enumerate(encoder.names):
                        chosen = block == 1 and ("query" if part == "cross_query" else part) in projections
                        encoder.start[encoder.blocks.index(block), i] = float(chosen)
                        rows += chosen
    assert rows >= len(projections)
    assert torch.equal(zoo.output(model, **options), some)


@pytest.mark.parametrize("name", ["bert", "llama", "whisper"])
def test_copies_are_independent(name: str) -> None:
    model, options = zoo.build(name), zoo.inputs(name)
    floater.plug(model)
    plain = zoo.output(model, **options)
    twin = copy.deepcopy(model)
    zoo.noisy(twin)
    assert torch.equal(zoo.output(model, **options), plain)
    assert not torch.equal(zoo.output(twin, **options), plain)
    floater.unplug(model)
    floater.bake(twin, 8)
    assert torch.equal(zoo.output(model, **options), plain)


@pytest.fixture(scope="module")
def minilm() -> Any:
    return checkpoint("minilm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_pretrained_bert_keeps_every_bit(minilm: Path, attention: str, dtype: torch.dtype) -> None:
    model = AutoModel.from_pretrained(minilm, attn_implementation=attention, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    texts = [
        "A man plays the guitar.",
        "It rains.",
        "The committee, which met on Monday, is still to decide.",
    ]
    for side in ("right", "left"):
        options = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
        with torch.no_grad():
            before = model(**options).last_hidden_state
            floater.plug(model)
            assert torch.equal(model(**options).last_hidden_state, before)
            floater.unplug(model)


def test_a_trained_flow_in_a_pretrained_bert_bakes(minilm: Path) -> None:
    model = AutoModel.from_pretrained(minilm)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    options = tokenizer(["A man plays the guitar.", "It rains."], return_tensors="pt", padding=True)
    floater.plug(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(**options).last_hidden_state[:, 0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        unbaked = model(**options).last_hidden_state
        assert bool(model.floater("tokens", torch.arange(9)[None])["384"].at(0, "key").any())
        floater.bake(model, 512)
        baked = model(**options).last_hidden_state
    tokens = options["attention_mask"].bool()
    assert float((baked - unbaked)[tokens].abs().max()) < 1e-6


def test_a_model_made_in_inference_mode_bakes() -> None:
    with torch.inference_mode():
        model = zoo.build("bert")
        floater.plug(model)
        zoo.noisy(model)
        options = zoo.inputs("bert")
        before = zoo.output(model, **options)
        floater.bake(model, 16)
        torch.testing.assert_close(zoo.output(model, **options), before, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
@pytest.mark.parametrize("baked", [True, False])
def test_elements_that_change_places_are_seen_at_once(name: str, baked: bool) -> None:
    """Of biases, of vectors and of fields, past all that counts writes; sums do not change."""
    model, options = zoo.build(name), zoo.inputs(name)
    floater.plug(model)
    zoo.noisy(model)
    if baked:
        floater.bake(model, 16)
    seen = [zoo.output(model, **options)]
    flow = [*model.floater.parameters(), *model.floater.buffers()]
    biases = [module.bias for module in model.modules() if getattr(module, "bias", None) is not None]
    for tensors in (flow, biases):
        if tensors:
            for tensor in tensors:
                tensor.data.copy_(tensor.data.flip(tuple(range(tensor.dim()))))
            seen.append(zoo.output(model, **options))
            assert not torch.equal(seen[-1], seen[-2])
            # A copy remembers nothing.
            torch.testing.assert_close(
                seen[-1], zoo.output(copy.deepcopy(model), **options), atol=1e-6, rtol=0
            )


@pytest.mark.parametrize("field", ["mlp", "bounded"])
def test_what_is_baked_in_training_is_the_flow_as_it_is_now(field: str) -> None:
    """Not as it was solved some steps ago."""
    model, options = zoo.build("bert"), zoo.inputs("bert")
    before = zoo.output(model, **options)
    floater.plug(model, refresh_every=10, field=field)
    assert torch.equal(zoo.output(model, **options), before)
    zoo.noisy(model)
    model.train()
    for _ in range(4):
        model(**options).logits.square().sum().backward()
        with torch.no_grad():
            for parameter in model.floater.parameters():
                parameter.mul_(0.9)
    unbaked = zoo.output(copy.deepcopy(model).eval(), **options)
    floater.bake(model, 8)
    torch.testing.assert_close(zoo.output(model.eval(), **options), unbaked, atol=1e-6, rtol=1e-6)


def test_the_bounded_field_is_the_one_that_is_asked_for() -> None:
    model = zoo.build("bert")
    floater.plug(model, field="bounded")
    assert {type(field) for field in model.floater.fields.values()} == {BoundedField}


def test_clocks_slower_than_the_training_span_are_cut_if_asked_for() -> None:
    model = zoo.build("bert")
    floater.plug(model, field="bounded", delta=1.0, max_length=20, uncovered="cut")
    clocks = 0.5 ** torch.arange(8.0)
    for field in model.floater.fields.values():
        assert torch.equal(field.adapt(clocks), clocks * (2 * torch.pi / clocks <= 20))
