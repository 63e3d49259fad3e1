"""Biases of distances that a flow continues: within what was trained they stay, beyond they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5EncoderModel,
    UMT5ForConditionalGeneration,
)

import floater
from floater.pretrained import plain_model
from floater.pretrained.extending import biases

from . import zoo
from .extended import build, build_inputs, extended, noisy

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


def test_alibi_is_continued_nearly_as_alibi(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in distance is an exponential in its logarithm, which a flow follows well beyond its fit."""
    monkeypatch.setattr(biases, "STEPS", 20)
    model, ids = build("bloom"), zoo.text(2, 60)
    expected = zoo.output(model, input_ids=ids)
    extension = floater.extend(model, 64)
    assert extension.error is not None
    assert extension.error < 1e-2
    torch.testing.assert_close(zoo.output(model, input_ids=ids), expected, atol=1e-2, rtol=1e-2)


def test_the_fit_to_a_rough_bias_is_not_stiff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in buckets, as of a T5 that is not trained, once took minutes to solve."""
    monkeypatch.setattr(biases, "STEPS", 20)
    steepest = 0.0

    def solve(flow: nn.Module, arguments: tuple[Tensor]) -> None:
        nonlocal steepest
        inner, outer = (getattr(flow.get_submodule("field"), name).weight for name in ("inner", "outer"))
        norms = torch.linalg.matrix_norm(inner) * torch.linalg.matrix_norm(outer)
        steepest = max(steepest, float(norms.max()))

    torch.manual_seed(1)
    flow, table = biases.new_flow(4, 512, causal=False), torch.randn(2, 18, 4)
    flow.flow.register_forward_pre_hook(solve)
    biases.fit(
        flow, lambda far: table[(far > 0).long(), (2 * far.abs()).float().log1p().mul(2.5).long()], 512
    )
    assert steepest < 2 * biases.STEEPEST + 1


@pytest.mark.parametrize("both", [False, True])
def test_the_flow_of_a_smooth_bias_foresees_its_continuation(
    monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """A logarithmic kernel (KERPLE's), other on either side, known up to 128 and asked for up to 256."""
    monkeypatch.setattr(biases, "STEPS", 20)
    rates = torch.tensor([[0.5, 1.0], [2.0, 0.1]])

    def kernel(distances: Tensor) -> Tensor:
        return -rates[(distances > 0).long()] * torch.log1p(distances.abs())[:, None]

    torch.manual_seed(0)
    flow = biases.new_flow(2, 256, causal=not both)
    error = biases.fit(flow, kernel, 128)
    assert error < 1e-3
    for side in (range(-255, -127), range(128, 256))[: 1 + both]:
        actual = biases.continued_bias(
            biases.CachedBias(lambda: flow), kernel, side, 128, torch.device("cpu")
        ).detach()
        torch.testing.assert_close(actual, kernel(torch.tensor([*side])), atol=5e-2, rtol=0)


def test_a_bias_goes_on_from_its_last_value() -> None:
    """T5's bias at the first new distance is near that of the last old one, on both sides."""
    model = build("t5")
    extension = floater.extend(model, 128, trained=32)
    assert "the flow misses the trained bias by" in str(extension)
    buckets = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    distances = torch.arange(-40, 41)
    bias = buckets(distances[None])[0]
    assert torch.equal(bias[9:72], buckets.trained(distances[9:72]))
    for new, last in ((8, 9), (72, 71)):
        assert (bias[new] - bias[last]).abs().max() < 0.1


def test_only_new_distances_train_the_flow() -> None:
    model = build("mpt")
    floater.extend(model, 128)
    for length, learns in ((32, False), (40, True)):
        model.zero_grad()
        model(zoo.text(1, length)).logits.square().mean().backward()
        gradient = model.floater_extension.past.readout.grad
        assert (gradient is not None and bool(gradient.any())) == learns


@pytest.mark.parametrize("name", ["t5", "bloom", "mpt"])
def test_biases_change_with_the_weights_of_the_flow(name: str) -> None:
    model, long = extended(name), build_inputs(name, 60)
    before = zoo.output(model, **long)
    assert torch.equal(zoo.output(model, **long), before)
    for change in (noisy, flipped):
        change(model)
        assert not torch.allclose(zoo.output(model, **long), before, atol=1e-5)
        with torch.enable_grad():
            expected = zoo.logits(model(**long)).detach()
        torch.testing.assert_close(zoo.output(model, **long), expected, atol=1e-5, rtol=1e-5)


def flipped(model: nn.Module) -> None:
    """Exchange elements of the flows, past all that counts writes; sums do not change."""
    for parameter in model.floater_extension.parameters():
        parameter.data.copy_(parameter.data.flip(tuple(range(parameter.dim()))))


@pytest.mark.parametrize("name", ["t5", "bloom", "mpt"])
def test_biases_and_cached_keys(name: str) -> None:
    model = extended(name)
    mask = torch.ones(2, 60, dtype=torch.long)
    if name != "mpt":  # which counts padding
        mask[0, :7] = 0
    ids = zoo.text(2, 60)
    if name == "t5":
        both = {"input_ids": ids, "attention_mask": mask}
        whole = model(**both, decoder_input_ids=ids).logits
        begin = model(**both, decoder_input_ids=ids[:, :50], use_cache=True).past_key_values
        end = model(**both, decoder_input_ids=ids[:, 50:], past_key_values=begin).logits
    else:
        whole = model(ids, attention_mask=mask).logits
        begin = model(ids[:, :50], attention_mask=mask[:, :50], use_cache=True).past_key_values
        end = model(ids[:, 50:], attention_mask=mask, past_key_values=begin).logits
    torch.testing.assert_close(end, whole[:, 50:], atol=1e-5, rtol=1e-5)


def umt5(layers: int) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": layers, "num_heads": 4}
    model = UMT5ForConditionalGeneration(
        UMT5Config(**sizes, vocab_size=40, decoder_start_token_id=0, pad_token_id=0)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_block_of_umt5_is_one_of_t5() -> None:
    """With one block, the two differ by name alone."""
    model, ids = umt5(1), zoo.text(2, 60)
    twin = T5ForConditionalGeneration(T5Config(**{**model.config.to_dict(), "model_type": "t5"})).eval()
    twin.load_state_dict(model.state_dict())
    for each in (model, twin):
        floater.extend(each, 128, trained=32)
    expected = zoo.output(twin, input_ids=ids, decoder_input_ids=ids)
    torch.testing.assert_close(zoo.output(model, input_ids=ids, decoder_input_ids=ids), expected)


def test_each_block_of_umt5_has_a_flow(tmp_path: Path) -> None:
    model, ids = umt5(2), zoo.text(2, 60)
    short = {"input_ids": ids[:, :32], "decoder_input_ids": ids[:, :32]}
    long = {"input_ids": ids, "decoder_input_ids": ids}
    before = zoo.output(model, **short), zoo.output(model, **long)
    floater.extend(model, 128, trained=32)
    assert torch.equal(zoo.output(model, **short), before[0])
    flows = dict(model.floater_extension.named_children())
    assert {*flows} == {"both", "both_1", "past", "past_1"}
    for flow in flows.values():
        expected = zoo.output(model, **long)
        flow.readout.data += 0.3 * torch.randn_like(flow.readout)
        assert not torch.allclose(zoo.output(model, **long), expected, atol=1e-4)
    expected = zoo.output(model, **long)
    torch.testing.assert_close(zoo.output(plain_model(model), **long), expected, atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path)
    again = UMT5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(zoo.output(again, **long), expected)
    encoder, states = UMT5EncoderModel.from_pretrained(tmp_path).eval(), model.encoder(ids).last_hidden_state
    torch.testing.assert_close(encoder(ids).last_hidden_state, states)


@pytest.mark.parametrize("name", ["bloom", "mpt", "t5"])
def test_compiled_code_of_any_length_continues_biases(name: str) -> None:
    """Dynamo failed on the ends of distances, which are symbols, from the second length on."""
    model = build(name)
    floater.extend(model, 128, **({"trained": 32} if name == "t5" else {}))
    run = torch.compile(model, backend="eager", dynamic=True)
    for length in (20, 40, 70, 100):
        inputs = {"input_ids": zoo.text(1, length)}
        if name == "t5":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        with torch.no_grad():
            expected = zoo.output(model, **inputs)
            torch.testing.assert_close(zoo.output(run, **inputs), expected, atol=1e-5, rtol=1e-5)
