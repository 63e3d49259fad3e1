"""Plugged models compiled to one graph, and exported, against the same models as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import floater

from . import extended, zoo

SLOW = ("bert", "gpt2", "roberta", "t5", "whisper")


def cases(**padded: bool) -> list[Any]:
    """Families and whether their inputs are padded; those whose attention another family covers are slow."""
    return [
        pytest.param(*case, marks=pytest.mark.slow) if case[0] in SLOW else case
        for case in ((name.replace("_", "-"), pad) for name, pad in padded.items())
    ]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def plugged(name: str) -> Any:
    model = zoo.build(name)
    floater.plug(model)
    zoo.noisy(model)
    return model


def compiled(model: Any, backend: str = "eager") -> Any:
    return torch.compile(model, fullgraph=True, backend=backend)


def build_inputs(name: str, padded: bool) -> dict[str, Any]:
    cached = name in zoo.DECODERS or name in zoo.SEQ2SEQ
    return {**zoo.inputs(name, padded), **({"use_cache": False} if cached else {})}


def gradients(model: Any, inputs: dict[str, Any]) -> list[Tensor | None]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = zoo.logits(model(**inputs)).square().mean()
    return list(torch.autograd.grad(loss, parameters, allow_unused=True))


def same(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if a is None else a, torch.zeros_like(a) if b is None else b, atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "padded"),
    cases(gpt2=True, llama=True, bert=True, roberta=True, t5=True, whisper=True, siglip_text=False),
)
def test_a_plugged_model_trains_as_one_graph(name: str, padded: bool) -> None:
    model, inputs = plugged(name), build_inputs(name, padded)
    expected = gradients(model, inputs)
    actual = gradients(compiled(model, "aot_eager"), inputs)
    same(actual, expected)
    assert any(gradient is not None and bool(gradient.any()) for gradient in actual)


def test_checkpoints_are_part_of_the_graph() -> None:
    model, inputs = plugged("llama").train(), build_inputs("llama", True)
    expected = gradients(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    same(gradients(compiled(model, "aot_eager"), inputs), expected)


@pytest.mark.parametrize(
    ("name", "padded"),
    cases(gpt2=False, llama=False, bert=False, roberta=False, t5=True, whisper=False, siglip_text=True),
)
def test_a_baked_model_is_one_graph(name: str, padded: bool) -> None:
    model, inputs = plugged(name), build_inputs(name, padded)
    floater.bake(model, 8)
    expected = zoo.output(model, **inputs)
    torch.testing.assert_close(zoo.output(compiled(model), **inputs), expected, atol=1e-6, rtol=1e-6)


def test_inference_without_baking_solves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = plugged("bert"), zoo.inputs("bert")
    expected = zoo.output(model, **inputs)
    monkeypatch.setattr("floater.flow.encoder.solve", None)  # vectors come from the cache
    torch.testing.assert_close(zoo.output(compiled(model), **inputs), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("baked", [False, True])
def test_position_ids_are_an_input_of_the_graph(baked: bool) -> None:
    model, ids = plugged("llama"), zoo.text(2, 4)
    if baked:
        floater.bake(model, 16)
    one = compiled(model)
    for positions in ([[0, 1, 2, 3]], [[5, 9, 2, 7]]):
        at = {"input_ids": ids, "position_ids": torch.tensor(positions), "use_cache": False}
        at["attention_mask"] = torch.ones_like(ids)
        torch.testing.assert_close(zoo.output(one, **at), zoo.output(model, **at), atol=1e-6, rtol=1e-6)
    if baked:
        with pytest.raises(RuntimeError, match="positions 0 to 15; another was asked for"):
            zoo.output(one, **at | {"position_ids": torch.tensor([[0, 1, 2, 16]])})


@pytest.mark.parametrize("method", ["yarn", "clex", "self_extend", "log_n"])
def test_an_extended_model_is_compiled_anew_for_few_lengths(method: str) -> None:
    """Trained on 32 tokens; a text of 33 to 64, of 65 to 96 and of 97 to 128 has another scale by CLEX."""
    model = zoo.build("llama")
    model.config.max_position_embeddings = 32
    floater.extend(model, 128, method)
    graphs = CompileCounter()
    run = torch.compile(model, backend=graphs)

    def check(lengths: tuple[int, ...]) -> None:
        for length in lengths:
            ids = zoo.text(1, length)
            torch.testing.assert_close(run(ids).logits, model(ids).logits)

    with torch.no_grad():
        check((20, 24, 50, 60, 70, 80, 100, 101))
        count = graphs.frame_count
        check((16, 31, 33, 63, 90, 97, 128))
    assert count == graphs.frame_count <= 10


@pytest.mark.usefixtures("few_steps_for_biases")
@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_the_blocks_of_a_model_with_continued_biases_are_one_graph(name: str) -> None:
    """Another holds what is before the pass; each block ended a graph."""
    model = extended.extended(name).train()
    inputs = extended.build_inputs(name, 60)
    expected, graphs = gradients(model, inputs), CompileCounter()
    same(gradients(torch.compile(model, backend=graphs), inputs), expected)
    assert graphs.frame_count <= 2
