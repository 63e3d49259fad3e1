"""CLEX, grouped distances and temperature have the formulas of their papers."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import floater
from floater.pretrained.extending import attention, clex
from floater.pretrained.extending.watch import PassPositions

from . import zoo
from .extended import build


def test_clex_begins_as_its_scaling() -> None:
    """The logits are those of the model that Transformers scales; up to a training length those of before."""
    ids = zoo.text(2, 240)
    for start in ("linear", "ntk", "yarn"):
        ours, theirs = build("qwen3"), build("qwen3")
        floater.extend(ours, 256, "clex", start=start, declared=True)
        floater.extend(theirs, 256, start)
        torch.testing.assert_close(
            zoo.output(ours, input_ids=ids), zoo.output(theirs, input_ids=ids), atol=1e-4, rtol=1e-4
        )


def test_clex_has_the_frequencies_of_the_released_code() -> None:
    """Compare with DAMO-NLP-SG/CLEX at 023709d (RK4, step 0.01), computed for these weights and scales."""
    flow = clex.ScaleFlow(8, 10000.0, 64, "dynamic")
    flow.field.inner.weight.data = torch.arange(32.0).sin().view(8, 4) * 0.3
    flow.field.outer.weight.data = torch.arange(32.0).cos().view(4, 8) * 0.1
    released = {
        1.0: [1.0, 0.1, 0.01, 0.001],
        2.0: [1.0696382522583008, 0.04561392217874527, 0.005076973233371973, 0.000498710316605866],
        3.0: [1.1491245031356812, 0.024420665577054024, 0.0038372117560356855, 0.0004631620831787586],
        4.0: [1.2360845804214478, 0.013564824126660824, 0.0032737585715949535, 0.0005223482148721814],
    }
    for scale, expected in released.items():
        torch.testing.assert_close(flow.at(scale)[0], torch.tensor(expected), atol=0, rtol=2e-5)


def test_clex_reads_weights_that_were_written_past_all_counters() -> None:
    """A fused optimizer does not count its writes, nor does `.data`."""
    flow = clex.ScaleFlow(8, 10000.0, 64, "linear")
    with torch.no_grad():
        seen = [flow.at(2.0)[0]]
    flow.at(2.0)[0].sum().backward()
    torch.optim.AdamW(flow.parameters(), lr=0.1, fused=True).step()
    with torch.no_grad():
        seen.append(flow.at(2.0)[0])
        flow.field.outer.weight.data.copy_(flow.field.outer.weight.data.flip(0, 1))
        seen.append(flow.at(2.0)[0])
        flow.start = "ntk"
        seen.append(flow.at(2.0)[0])
    assert not any(torch.equal(before, after) for before, after in pairwise(seen))


def test_clex_learns_its_frequencies_beyond_a_training_length() -> None:
    model = build("llama")
    floater.extend(model, 256, "clex", declared=False)
    model.train()
    for length, learns in ((40, False), (100, True)):
        model.zero_grad()
        model(zoo.text(1, length)).logits.square().mean().backward()
        gradient = model.floater_extension.scale_0.field.outer.weight.grad
        assert (gradient is not None and bool(gradient.any())) == learns


def test_a_text_has_the_scale_of_its_length() -> None:
    """At 2 training lengths the model is the one that is declared for those."""
    model, twice = build("llama"), build("llama")
    report = floater.extend(model, 256, "clex", start="linear", declared=False)
    assert str(report).endswith("as before; the longest text of a batch sets the rotation of all")
    floater.extend(twice, 128, "linear")
    ids = zoo.text(1, 120)
    torch.testing.assert_close(zoo.output(model, input_ids=ids), zoo.output(twice, input_ids=ids))


def rotated(x: Tensor, at: int, frequencies: Tensor) -> Tensor:
    """A vector as Llama rotates it."""
    a, b = x.chunk(2)
    angle = at * frequencies
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()))


@pytest.mark.parametrize("cached", [0, 7])
@pytest.mark.parametrize("function", ["eager", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
def test_grouped_distances_are_those_of_the_formula(
    monkeypatch: pytest.MonkeyPatch, causal: bool, function: str, cached: int
) -> None:
    """Every pair by itself, from vectors that are not rotated (Jin et al. 2024, equation 4).

    Of a causal model the first queries, which see no more positions than in training, keep their distances.
    """
    monkeypatch.setattr(attention, "_ROWS", 4)
    torch.manual_seed(0)
    trained, length, width, window, size = 5, 12, 6, 3, 2
    frequencies = torch.tensor([1.0, 0.3, 0.05]).double()
    q, k, v = torch.randn(3, length, width, dtype=torch.float64)
    shift = window - window // size
    expected = torch.full((length, length), -math.inf, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1 if causal else length):
            distance = i - j
            if causal and i < trained:
                pass
            elif distance >= window:
                distance = i // size - j // size + shift
            elif distance <= -window:
                distance = i // size - j // size - shift
            expected[i, j] = rotated(q[i], distance, frequencies) @ k[j] * 0.5
    at = torch.arange(length)[None]
    holder: Any = SimpleNamespace(inv_freq=frequencies)
    module: Any = nn.Module()
    module.is_causal, module.floater_grouped = causal, True
    module.floater_rule = attention.Rule((window, size), trained, False, holder, "inv_freq", True)
    query, key = (
        torch.stack([rotated(x[i], i, frequencies) for i in range(length)])[None, None] for x in (q, k)
    )
    mask = expected[None, None, cached:].isfinite() if cached else None
    positions = PassPositions(at[:, cached:], at, 1.0)
    options: dict[str, Any] = {"scaling": 0.5, "floater_pass": positions}
    attend = ALL_ATTENTION_FUNCTIONS[attention.NAMES[function]]
    actual, weights = attend(module, query[:, :, cached:], key, v[None, None], mask, **options)
    shares = expected.softmax(-1)[cached:]
    assert (weights is None) == (function == "sdpa")
    if weights is not None:
        torch.testing.assert_close(weights[0, 0], shares, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(actual[0, :, 0], shares @ v, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2", "modernbert"])
def test_the_kernel_does_not_matter(name: str) -> None:
    """SDPA hides keys by a mask of truth values or by none, eager attention by numbers."""
    model, other = build(name), build(name)
    if name != "gemma2":
        other.set_attn_implementation("sdpa")
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[0, 90:] = 0
    for one in (model, other):
        floater.extend(one, 256, "self_extend", temperature=True)
    for more in ({}, {"attention_mask": mask}):
        actual, expected = (one(input_ids=zoo.text(2, 100), **more).logits[:, :90] for one in (model, other))
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        for logits in (actual, expected):
            logits.square().mean().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-4, rtol=1e-4)


def test_groups_of_one_are_the_model_itself() -> None:
    model, ids = build("llama"), zoo.text(2, 100)
    expected = zoo.output(model, input_ids=ids)
    floater.extend(model, 65, "self_extend", window=63, group=2)
    rule = model.model.layers[0].self_attn.floater_rule
    rule.group = (63, 1)
    torch.testing.assert_close(zoo.output(model, input_ids=ids), expected, atol=1e-5, rtol=1e-5)


def test_log_n_multiplies_logits() -> None:
    """By the attention weights of the first block, whose logits the plain model has, too."""
    model, ids = build("llama"), zoo.text(1, 100)
    plain = model(ids, output_attentions=True).attentions[0]
    floater.extend(model, 256, "log_n")
    actual = model(ids, output_attentions=True).attentions[0]
    factor = (torch.arange(1, 101).log() / math.log(64)).clamp(min=1)[:, None]
    expected = (plain.log() * factor).softmax(-1)  # a softmax does not see what is added to a row
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(actual[..., -1, :], plain[..., -1, :], atol=1e-5)
