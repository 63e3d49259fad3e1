"""Projections with a flow that are replaced, quantized, parametrised, batched or exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.parametrizations import weight_norm

import floater
from floater.pretrained import PlugError

from . import zoo

BAKED = pytest.mark.parametrize("baked", [False, True])
LENGTH = 7


class Stored(Tensor):
    """A weight that only `nn.functional.linear` can read, as the quantized ones of torchao."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight, *bias = args
            return nn.functional.linear(x, weight.as_subclass(Tensor), *bias)
        if function in (Tensor.T.__get__, Tensor.permute):  # type: ignore[attr-defined]
            raise NotImplementedError(f"{function} of a quantized weight")
        return super().__torch_function__(function, types, args, kwargs or {})


def flowing(name: str, *, baked: bool) -> Any:
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    if baked:
        floater.bake(model, LENGTH)
    return model


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no int8 products")
@pytest.mark.filterwarnings("ignore")  # this quantization is deprecated
def test_quantized_projections_keep_the_flow() -> None:
    model, options = zoo.build("llama"), zoo.inputs("llama")
    plain = zoo.output(model, **options)
    floater.plug(model)
    zoo.noisy(model)
    whole = zoo.output(model, **options)
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert (zoo.output(quantized, **options) - whole).norm() < 0.1 * (plain - whole).norm()


@BAKED
def test_weights_of_another_kind_keep_the_flow(baked: bool) -> None:
    model, options = flowing("llama", baked=baked), zoo.inputs("llama")
    expected = zoo.output(model, **options)
    for part in model.modules():
        if isinstance(part, nn.Linear):
            weight = part.weight.detach().as_subclass(Stored)
            part.weight = nn.Parameter(weight, requires_grad=False)
    torch.testing.assert_close(zoo.output(model, **options), expected)
    if not baked:
        floater.bake(model, LENGTH)
        torch.testing.assert_close(zoo.output(model, **options), expected)


@BAKED
def test_a_projection_that_is_replaced_is_refused_and_its_flow_recovered(baked: bool, tmp_path: Path) -> None:
    model, options = flowing("llama", baked=baked), zoo.inputs("llama")
    expected = zoo.output(model, **options)
    attention = model.model.layers[1].self_attn
    before = attention.k_proj
    attention.k_proj = nn.Linear(before.in_features, before.out_features, bias=False)
    attention.k_proj.weight = before.weight
    with pytest.raises(PlugError, match=r"another Linear has taken the place of layers.1.self_attn.k_proj"):
        model(**options)
    floater.save(model, tmp_path)
    floater.unplug(model)
    torch.testing.assert_close(zoo.output(floater.load(tmp_path, model), **options), expected)


def test_a_model_that_has_lost_blocks_keeps_the_flow_of_the_others() -> None:
    options, shallow, deep = zoo.inputs("llama"), zoo.build("llama"), flowing("llama", baked=False)
    for model in (shallow, deep):
        model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
    floater.plug(shallow)
    for parameter, other in zip(shallow.floater.parameters(), deep.floater.parameters(), strict=True):
        parameter.data = other[: len(parameter)].detach()
    torch.testing.assert_close(zoo.output(deep, **options), zoo.output(shallow, **options))


def test_a_projection_parametrised_after_baking_is_unplugged() -> None:
    options = zoo.inputs("llama")
    plain = zoo.output(zoo.build("llama"), **options)
    model = flowing("llama", baked=True)
    expected = zoo.output(model, **options)
    weight_norm(model.model.layers[0].self_attn.q_proj)
    torch.testing.assert_close(zoo.output(model, **options), expected)
    floater.unplug(model)
    torch.testing.assert_close(zoo.output(model, **options), plain)
    floater.plug(model)
    floater.bake(model, LENGTH)
    torch.testing.assert_close(zoo.output(model, **options), plain)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_baked_models_run_as_a_batch_of_models(name: str) -> None:
    models = [flowing(name, baked=True) for _ in range(2)]
    ids = zoo.text(2, LENGTH)
    for parameter in models[1].parameters():
        parameter.mul_(1.1)
    parameters, buffers = stack_module_state(models)

    def run(*states: Any) -> Tensor:
        return zoo.logits(functional_call(models[0], states, (ids,)))

    expected = [run(dict(model.named_parameters()), dict(model.named_buffers())) for model in models]
    torch.testing.assert_close(vmap(run)(parameters, buffers), torch.stack(expected))


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), [("bert", {}), ("llama", {"use_cache": False})])
def test_a_baked_model_is_exported_for_lengths_in_a_range(name: str, options: dict[str, bool]) -> None:
    model = flowing(name, baked=True)
    shapes = {"input_ids": {1: Dim("length", min=2, max=LENGTH)}, **dict.fromkeys(options)}
    program = torch.export.export(model, (zoo.text(2, LENGTH),), options, dynamic_shapes=shapes)
    ids = zoo.text(2, 4)
    actual = zoo.logits(program.module()(ids, **options))
    torch.testing.assert_close(actual, zoo.output(model, input_ids=ids))
