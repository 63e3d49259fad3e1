"""Programs that torch's exporter writes, run by onnxruntime: `pip install onnx onnxscript onnxruntime`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DynamicCache,
)

import floater
from floater.pretrained import plain_model
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM

from . import zoo
from .extended import extended

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

LONG = 100
"""Tokens of the text that is read: more than in training, and than in the example of the export."""


def baked_bert() -> Any:
    model = zoo.build("bert")
    floater.plug(model, start="small", max_length=128)
    zoo.noisy(model)
    floater.bake(model, 128)
    return model


def bert(folder: Path) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
    }  # fmt: skip
    config = BertConfig(**sizes, vocab_size=zoo.VOCABULARY, pad_token_id=1, max_position_embeddings=64)
    model = BertForSequenceClassification(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    floater.extend(model, 128)
    return model


def t5_encoder(folder: Path) -> Any:
    return plain_model(extended("t5", "flow")).encoder


def coded_bert(folder: Path) -> Any:
    floater.export(baked_bert(), folder, code=True)
    return AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)


def coded_llama(method: str) -> Callable[[Path], Any]:
    def build(folder: Path) -> Any:
        floater.export(extended("llama", method), folder, code=True)
        return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

    return build


MODELS: Mapping[str, Callable[[Path], Any]] = {
    "BERT, longer table": bert,
    "BERT, plugged and baked": lambda _: baked_bert(),
    "BERT, plugged and baked, code": coded_bert,
    **{
        f"Llama, {method}": lambda _, method=method: extended("llama", method)
        for method in ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "clipped")
    },
    "T5 encoder, flow, plain": t5_encoder,
    "Llama, clex, plain": lambda _: plain_model(extended("llama", "clex")),
    "Llama, self_extend, code": coded_llama("self_extend"),
    "Llama, log_n, code": coded_llama("log_n"),
    "FloaterForMaskedLM, floater": lambda _: zoo.model_of_this_library(FloaterForMaskedLM, "floater", 128),
    "FloaterForMaskedLM, floater_relative": lambda _: zoo.model_of_this_library(
        FloaterForMaskedLM, "floater_relative", 128
    ),
    "FloaterForCausalLM, floater_relative": lambda _: zoo.model_of_this_library(
        FloaterForCausalLM, "floater_relative", 128
    ),
}


def difference(run: Any, inputs: Mapping[str, Tensor], expected: Tensor, mask: Tensor) -> float:
    actual = torch.from_numpy(run.run(None, {name: value.numpy() for name, value in inputs.items()})[0])
    kept = mask.bool() if expected.ndim == 3 else slice(None)
    return float((actual[kept] - expected[kept]).abs().max())


def session(program: Any, folder: Path) -> Any:
    program.save(folder / "model.onnx")
    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_computes_the_same(name: str, tmp_path: Path) -> None:
    """For another number of texts, longer ones, with padding."""
    model = MODELS[name](tmp_path / "code").eval()
    model.config.use_cache = False
    left = name.startswith(("Llama", "FloaterForCausalLM"))
    example = {"input_ids": zoo.text(2, 20), "attention_mask": torch.ones(2, 20, dtype=torch.long)}
    axes = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=3, max=128)}
    with torch.no_grad():
        program = torch.export.export(
            model, (), example, dynamic_shapes=dict.fromkeys(example, axes), strict=False
        )
        run = session(torch.onnx.export(program, dynamo=True, verbose=False), tmp_path)
    ids, mask = zoo.text(3, LONG, seed=1), torch.ones(3, LONG, dtype=torch.long)
    if left:
        mask[0, :9] = 0
    else:
        mask[0, -9:] = 0
    inputs = {"input_ids": ids.masked_fill(mask == 0, zoo.PADDING), "attention_mask": mask}
    expected = zoo.output(model, **inputs)
    error = difference(run, inputs, expected, mask)
    print(f"{name}: {error:.1e} of {float(expected.abs().max()):.1f}")
    assert error < 1e-5 * float(expected.abs().max())


class Step(nn.Module):
    """A step of decoding; earlier keys and values are one tensor (layers, 2, batch, heads, S, d)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        cache = DynamicCache([(layer[0], layer[1]) for layer in past.unbind()])
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True
        )
        return out.logits, torch.stack([torch.stack((each.keys, each.values)) for each in cache.layers])


@pytest.mark.parametrize(
    "name", ["Llama, yarn", "Llama, self_extend, code", "FloaterForCausalLM, floater_relative"]
)
@torch.no_grad()
def test_a_step_with_cached_keys(name: str, tmp_path: Path) -> None:
    """Prompts with padding, then a token at a time across the training length, by one program."""
    model = MODELS[name](tmp_path / "code").eval()
    ids, mask = zoo.text(3, 70, seed=1), torch.ones(3, 70, dtype=torch.long)
    mask[0, :5] = 0
    expected = zoo.output(model, input_ids=ids, attention_mask=mask)
    cache = model(input_ids=ids[:2, :3], attention_mask=mask[:2, :3], use_cache=True).past_key_values
    past = torch.stack([torch.stack((each.keys, each.values)) for each in cache.layers])
    example = {"input_ids": ids[:2, 3:7], "attention_mask": mask[:2, :7], "past": past}
    axes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    shapes = {"input_ids": axes, "attention_mask": axes, "past": {2: Dim.DYNAMIC, 4: Dim.DYNAMIC}}
    program = torch.onnx.export(
        Step(model).eval(), kwargs=example, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    run = session(program, tmp_path)
    begin, past, parts = 0, past.new_zeros(*past.shape[:2], 3, past.shape[3], 0, past.shape[5]), []
    for end in (*range(10, 60, 10), *range(60, 71)):
        inputs = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end], "past": past}
        actual = run.run(None, {name: value.numpy() for name, value in inputs.items()})
        logits, past = map(torch.from_numpy, actual)
        begin = end
        parts.append(logits)
    kept = mask.bool()
    error = float((torch.cat(parts, 1)[kept] - expected[kept]).abs().max())
    print(f"{name}, steps: {error:.1e} of {float(expected.abs().max()):.1f}")
    assert error < 1e-5 * float(expected.abs().max())
