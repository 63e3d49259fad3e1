"""Plugged and extended models are the same by `model.forward(...)`, without hooks, as by `model(...)`."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import BertModel, LlamaModel

import floater
from checkpoints import checkpoint
from floater.pretrained import ExtendError, PlugError

from . import zoo
from .extended import build, noisy

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


def plugged() -> Any:
    """A body that is the whole model, as sentence-transformers have it."""
    model = zoo.build("bert").bert
    floater.plug(model)
    zoo.noisy(model)
    return model


def extended(method: str, **options: Any) -> Any:
    model = build("llama").model
    floater.extend(model, 128, method, **options)
    noisy(model)
    return model


def states(run: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        actual: Tensor = run(ids).last_hidden_state
    return actual


@pytest.mark.parametrize("name", sorted(set(zoo.NAMES) - {"bert2bert"}))
def test_forward_of_every_plugged_family(name: str) -> None:
    model, inputs = zoo.build(name), zoo.inputs(name)
    floater.plug(model)
    zoo.noisy(model)
    with torch.no_grad():
        actual = zoo.logits(model.forward(**inputs))
    assert torch.equal(actual, zoo.output(model, **inputs))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("clex", {}),
        ("clex", {"declared": False}),
        ("self_extend", {}),
        ("log_n", {}),
        ("dynamic", {"declared": False}),
    ],
)
def test_forward_of_an_extended_model(method: str, options: dict[str, Any]) -> None:
    """Before any other call, and after a call with a longer text."""
    model, short, long = extended(method, **options), zoo.text(1, 12), zoo.text(1, 100)
    expected = [states(copy.deepcopy(model), ids) for ids in (short, long)]
    for ids, right in zip((short, long, short), (*expected, expected[0]), strict=True):
        assert torch.equal(states(model.forward, ids), right)


def test_a_part_of_a_model_does_not_read_the_pass_before() -> None:
    model = extended("clex", declared=False)
    states(model, zoo.text(1, 100))
    with pytest.raises(ExtendError, match="called in part"):
        model.rotary_emb(torch.zeros(1, 3, 16), torch.arange(3)[None])


@pytest.mark.parametrize("make", [plugged, lambda: extended("clex", declared=False)])
def test_copies_run_by_themselves(make: Any) -> None:
    model, ids = make(), zoo.text(2, 100)
    expected = states(model, ids)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(states(again.forward, ids), expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        assert torch.equal(states(again.forward, ids), expected)
        assert torch.equal(states(again, ids), expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.div_(2)


def test_the_names_of_inputs_stay() -> None:
    """Trainers, generation and pipelines read them."""
    assert inspect.signature(plugged().forward) == inspect.signature(zoo.build("bert").bert.forward)


def test_nothing_is_left_when_a_model_is_unplugged() -> None:
    model = plugged()
    floater.unplug(model)
    assert "forward" not in model.__dict__
    assert not model._forward_pre_hooks
    assert model.forward.__func__ is BertModel.forward


def test_a_model_with_accelerates_hook() -> None:
    """Which surrounds the function of a module, too."""
    ids, plain = zoo.text(), states(zoo.build("bert").bert, zoo.text())
    expected = states(plugged(), ids)
    model = plugged()
    add_hook_to_module(model, ModelHook())
    assert torch.equal(states(model, ids), expected)
    floater.unplug(model)
    assert torch.equal(states(model, ids), plain)
    floater.plug(model)
    zoo.noisy(model)
    assert torch.equal(states(model, ids), expected)
    remove_hook_from_module(model)
    assert torch.equal(states(model, ids), expected)
    floater.unplug(model)
    assert torch.equal(states(model, ids), plain)


def test_adapters_call_forward() -> None:
    for model in (plugged(), extended("clex", declared=False)):
        ids = zoo.text(2, 100)
        expected = states(model, ids)
        targets = ["query"] if hasattr(model, "encoder") else ["q_proj"]
        assert torch.equal(states(get_peft_model(model, LoraConfig(target_modules=targets)), ids), expected)


@pytest.mark.parametrize("method", ["clex", pytest.param("self_extend", marks=pytest.mark.slow)])
def test_compiled_models(method: str) -> None:
    torch.compiler.reset()
    model, ids = extended(method), zoo.text(1, 30)
    expected = states(model, ids)
    torch.testing.assert_close(
        states(torch.compile(model, backend="eager"), ids), expected, atol=1e-5, rtol=1e-5
    )


def test_sentence_transformers_call_forward() -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = str(checkpoint("minilm"))
    model, texts = sentence_transformers.SentenceTransformer(folder, device="cpu"), ["a text", "more"]
    before = model.encode(texts)
    floater.plug(model[0].model)
    assert (model.encode(texts) == before).all()
    zoo.noisy(model[0].model)
    assert abs(model.encode(texts) - before).max() > 1e-3


def test_an_exported_model() -> None:
    model, ids = plugged(), zoo.text()
    floater.bake(model, 16)
    program = torch.export.export(model, (ids,), strict=False).module()
    torch.testing.assert_close(states(program, ids), states(model, ids), atol=1e-5, rtol=1e-5)


def test_a_model_without_the_flow_of_its_configuration_does_not_run() -> None:
    rebuilt = LlamaModel(extended("clex").config)
    for run in (rebuilt, rebuilt.forward):
        with pytest.raises(PlugError, match="made without the flow"):
            run(zoo.text())


def test_replicas_run_with_their_own_parameters() -> None:
    """A copy by nn.DataParallel has the function of the model, but other weights, on its device."""
    model, ids = extended("clex", declared=False), zoo.text(1, 100)
    expected = states(model, ids)
    replica = model._replicate_for_data_parallel()
    replica._parameters, replica._buffers = dict(model._parameters), dict(model._buffers)
    replica._modules = dict(model._modules)
    replica.norm = copy.deepcopy(model.norm)
    with torch.no_grad():
        replica.norm.weight.mul_(2)
    torch.testing.assert_close(states(replica, ids), 2 * expected)
    assert torch.equal(states(model, ids), expected)


@pytest.mark.parametrize(("name", "method"), [("llama", "self_extend"), ("bloom", None), ("mpt", None)])
def test_checkpoints_of_two_passes_before_one_backward_pass(name: str, method: str | None) -> None:
    """Each block runs again with the positions of its own pass, as in losses that compare two texts."""
    gradients = []
    for checkpointed in (False, True):
        model = build(name)
        floater.extend(model, 128, method)
        noisy(model)
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        mask = torch.ones(2, 90, dtype=torch.long)
        mask[0, :33] = 0
        first = model(zoo.text(2, 90, seed=1), attention_mask=mask, use_cache=False).logits
        second = model(zoo.text(2, 70, seed=2), use_cache=False).logits
        (first.square().mean() + second.square().mean()).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)
