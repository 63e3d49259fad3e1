"""Clocks in pretrained rotary models: zero weights, times by hand, caches, files, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.utils import prune
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import floater
from floater.encodings.composed.clock import RATES
from floater.encodings.errors import PositionError
from floater.pretrained import ExportError, ExtendError, PlugError, export

from . import zoo
from .test_exporting import errors_alone, read
from .test_generation import prompt
from .tiny import accepted, tiny

CAUSAL = ["gemma", "gemma2", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"]
TWO = math.log2(3)  # bias of the rate "softplus", log2(1 + 2^bias) = 2


def stir(model: Any) -> Any:
    torch.manual_seed(1)
    for parameter in model.floater.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def stirred(name: str, rate: str = "softplus") -> Any:
    model = zoo.build(name)
    floater.plug(model, clock={"rate": rate})
    return stir(model)


@pytest.mark.parametrize("name", CAUSAL)
def test_zero_weights_leave_every_bit_and_others_do_not(name: str) -> None:
    options = prompt(name)
    for dtype in (torch.float32, torch.bfloat16):
        model = zoo.build(name, "sdpa", dtype)
        before = zoo.output(model, **options)
        for rate in ("softplus", "sigmoid", "signed", "angle"):
            floater.plug(model, clock={"rate": rate})
            assert torch.equal(zoo.output(model, **options), before)
            torch.nn.init.constant_(model.floater.bias, 0.5)
            assert not torch.equal(zoo.output(model, **options), before)
            floater.unplug(model)
            assert torch.equal(zoo.output(model, **options), before)
    assert "Turn" not in repr([*(m._forward_pre_hooks for m in model.modules())])


def test_pruned_weights_are_read_again_in_each_pass() -> None:
    model, options = stirred("llama"), prompt("llama")
    prune.l1_unstructured(model.floater, "weight", 0.5)
    before = zoo.output(model, **options)
    with torch.no_grad():
        model.floater.weight_orig.mul_(2)
    changed = zoo.output(model, **options)
    assert not torch.equal(changed, before)
    prune.remove(model.floater, "weight")
    assert torch.equal(zoo.output(model, **options), changed)


def one_block() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=32, num_key_value_heads=1, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval()


def clocked(name: str) -> Any:
    model = tiny(name)
    zoo.output(model, input_ids=zoo.text(2, 9))
    floater.plug(model, clock={})
    return model


@torch.no_grad()
def check(model: Any) -> None:
    """Compare a model whose clocks run twice as fast with itself at twice the positions."""
    ids = zoo.text(2, 9)
    every, padded = torch.ones_like(ids), torch.ones_like(ids)
    padded[0, :3] = 0

    def output(rows: int = 2, begin: int = 0, mask: Tensor = every, **options: Any) -> Tensor:
        part = slice(rows), slice(begin, None)
        result: Tensor = model(input_ids=ids[part], attention_mask=mask[part], **options)[0]
        return result

    zero = output()
    torch.nn.init.constant_(model.floater.bias, TWO)
    fast, scale = output(), float(zero.abs().max())
    torch.testing.assert_close(output(mask=padded)[0, 3:], output(1, 3)[0], rtol=0, atol=1e-4 * scale)
    floater.unplug(model)
    assert torch.equal(output(), zero)
    assert not torch.allclose(zero, fast, rtol=0, atol=1e-5 * scale)
    twice = 1 + 2 * torch.arange(9).expand(2, -1)
    torch.testing.assert_close(fast, output(position_ids=twice), rtol=0, atol=2e-4 * scale)


@torch.no_grad()
def check_cache(model: Any) -> bool:
    """Compare a text read at once with one read in parts, beyond windows; False without a cache."""
    ids = zoo.text(1, 32)
    whole = model(input_ids=ids)[0]
    cache = getattr(model(input_ids=ids[:, :30], use_cache=True), "past_key_values", None)
    if cache is None:
        return False
    parts = [model(input_ids=ids[:, i : i + 1], past_key_values=cache, use_cache=True)[0] for i in (30, 31)]
    scale = float(whole.abs().max())
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, 30:], rtol=0, atol=1e-4 * scale)
    return True


@torch.no_grad()
def check_code(model: Any, folder: Path) -> None:
    """Compare a model with clocks with its exported code."""
    ids = zoo.text(2, 9)
    expected, actual = model(input_ids=ids)[0], read(folder)(input_ids=ids)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "name",
    ["cohere2", "deepseek_v3", "falcon", "gemma3_text", "gemma4_text", "gpt_oss", "modernbert", "qwen3_next"],
)
def test_rotations_of_other_kinds_run_at_the_times_of_the_clock(name: str) -> None:
    """Neighbours, latent attention, two sets of frequencies, sinks, both sides, layers of a recurrence."""
    check(clocked(name))


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["cohere2", "deepseek_v3", "gemma4_text", "gpt_oss", "qwen3_next", "qwen4_exp_text"]
)
def test_caches_of_other_kinds_change_nothing(name: str) -> None:
    model, ids = clocked(name), zoo.text(2, 9)
    torch.nn.init.constant_(model.floater.bias, TWO)
    whole = model(input_ids=ids)[0]
    cache = model(input_ids=ids[:, :5], use_cache=True).past_key_values
    rest = model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True)[0]
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.slow
def test_every_class_that_takes_a_clock_runs_at_its_times_also_as_exported_code(tmp_path: Path) -> None:
    """A minute and a half of a core."""
    names, exported, cached = [], [], []
    for name, model in accepted(clocked):
        # two take no positions, rounding decides which two keys hy_v4 reads, and mistral_large4_text chooses
        # keys by absolute positions, with padding counted
        if name not in ("csm_depth_decoder_model", "dia_encoder", "hy_v4", "mistral_large4_text"):
            check(model)
            names.append(name)
        if name != "gpt_oss":  # its experts, by the default of files, want a larger width
            again = stir(clocked(name))
            if name not in ("axk2", "bamba") and check_cache(again):  # without a clock they differ, too
                cached.append(name)
            with contextlib.suppress(ExportError):  # no Auto class loads it
                export(again, tmp_path / name, code=True)
                check_code(again, tmp_path / name)
                exported.append(name)
    assert len(names) > 130
    assert len(cached) > 100
    assert len(exported) > 125


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("deepseek_v2", "is not given a pair of cosines and sines"),  # but complex numbers
        ("phimoe", "rotates by frequencies that are computed in each pass"),
        ("hrm_text", "is run several times in a pass"),
        ("ernie4_5_vl_moe_text", "has angles that are not those of the frequencies"),
        ("moshi", "no attention module of MoshiModel rotates by 'position_embeddings'"),
        ("minimax", "MiniMaxModel defines the cache MiniMaxCache, which cannot hold the sums of a clock"),
        ("csm", "this CsmForConditionalGeneration has 2; plug the part that reads text"),
        ("dia_decoder", "how DiaDecoder rotates cannot be seen"),
    ],
)
def test_rotations_that_a_clock_cannot_turn_are_refused(name: str, reason: str) -> None:
    with pytest.raises(PlugError, match=reason):
        floater.plug(tiny(name), clock={})


def test_blocks_that_read_the_keys_of_others_are_refused() -> None:
    """Their queries would be turned by another clock than these keys."""
    plain = tiny("gemma3n_text")
    config = plain.config
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    config.num_kv_shared_layers = 1
    model = type(plain)(config).eval()
    with pytest.raises(PlugError, match="num_kv_shared_layers is 1"):
        floater.plug(model, clock={})
    with pytest.raises(ExtendError, match="reads the keys of another block, which 'log_n' does not do"):
        floater.extend(model, 2 * config.max_position_embeddings, "log_n")


@torch.no_grad()
def test_the_rotation_is_that_of_the_times_of_the_text() -> None:
    """The same model without a clock, at times summed by hand, and padding on the left."""
    model, ids = one_block(), torch.randint(3, 32, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    floater.plug(model, clock={})
    clocks: Any = model.floater
    torch.nn.init.normal_(clocks.weight, std=0.5)
    torch.nn.init.constant_(clocks.bias, 0.7)
    actual = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    x = model.model.layers[0].input_layernorm(model.model.embed_tokens(ids))
    rate = (1 + torch.exp2(x @ clocks.weight[0] + 0.7)).log2()
    assert float(rate.std()) > 0.3
    floater.unplug(model)
    times = (rate * mask).cumsum(1)
    expected = model(ids, attention_mask=mask, position_ids=times).logits
    torch.testing.assert_close(actual[mask > 0], expected[mask > 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox", "mistral", "qwen3"])
def test_caches_beams_and_padding_change_nothing(name: str) -> None:
    model, options = stirred(name), prompt(name)
    steps = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    for more in ({}, {"num_beams": 2}):
        expected = model.generate(**options, **steps, **more, use_cache=False)
        assert torch.equal(model.generate(**options, **steps, **more), expected)
    ids, mask = options["input_ids"], options["attention_mask"]
    whole = model(ids, attention_mask=mask).logits
    cache, parts = None, []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        out = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        cache, parts = out.past_key_values, [*parts, out.logits]
    torch.testing.assert_close(torch.cat(parts, 1)[mask > 0], whole[mask > 0], atol=1e-5, rtol=1e-4)


def test_sums_follow_a_cache_that_is_cropped() -> None:
    model, ids = stirred("llama"), zoo.text(1, 7)
    whole = model(ids).logits
    cache = model(torch.cat([ids[:, :4], ids[:, :2]], 1), use_cache=True).past_key_values
    cache.crop(-2)
    rest = model(ids[:, 4:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 4:], atol=1e-5, rtol=1e-4)
    looked = model.generate(
        ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, prompt_lookup_num_tokens=2
    )
    assert torch.equal(looked, model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False))


@torch.no_grad()
def test_drafts_of_the_first_blocks_alone_change_nothing() -> None:
    model, ids = stirred("llama"), zoo.text(1, 7)
    steps = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    drafted = model.generate(ids, **steps, assistant_early_exit=1)
    assert torch.equal(drafted, model.generate(ids, **steps))


def test_files_hold_the_clock(tmp_path: Path) -> None:
    model, ids = stirred("llama", "signed"), zoo.text()
    expected = zoo.output(model, input_ids=ids)
    model.save_pretrained(tmp_path / "whole")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", attn_implementation="eager").eval()
    assert torch.equal(zoo.output(loaded, input_ids=ids), expected)
    floater.save(model, tmp_path / "clock")
    other = zoo.build("llama")
    floater.load(tmp_path / "clock", other)
    assert torch.equal(zoo.output(other, input_ids=ids), expected)
    another = zoo.build("llama")
    floater.plug(another, clock={"rate": "softplus"})
    with pytest.raises(PlugError, match="plugged differently from this model: clock is"):
        floater.load(tmp_path / "clock", another)


@torch.no_grad()
def test_exported_code_computes_the_same_without_this_library(tmp_path: Path) -> None:
    """Rates, layouts of the rotation, heads that build their body, extensions, half precision."""
    zoo.build("llama").save_pretrained(tmp_path / "plain")
    models = {
        **{rate: stirred("llama", rate) for rate in RATES},
        **{
            name: stir(clocked(name))
            for name in ("cohere2", "falcon", "gemma3_text", "modernbert", "qwen3_next")
        },
        "head": AutoModelForSequenceClassification.from_config(zoo.build("llama").config).eval(),
        "yarn": stirred("llama"),
        "bfloat16": AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16).eval(),
    }
    floater.extend(models["yarn"], 2 * models["yarn"].config.max_position_embeddings, "yarn")
    for name in ("head", "bfloat16"):
        floater.plug(models[name], clock={}, blocks="input", start="small")
    ids = zoo.text(1, 9)
    for name, model in models.items():
        export(model, tmp_path / name, code=True)
        torch.save(({"input_ids": ids}, model(input_ids=ids)[0]), tmp_path / name / "expected.pt")
    errors = dict(zip(models, errors_alone([tmp_path / name for name in models]), strict=True))
    assert errors.pop("bfloat16") == 0
    assert max(errors.values()) < 2e-6, errors


def test_exported_code_generates_trains_and_copies_as_this_library_does(tmp_path: Path) -> None:
    model, ids = stirred("llama"), zoo.text(2, 7)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    export(model, tmp_path, code=True)
    coded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    steps = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    for more in ({}, {"num_beams": 3}, {"use_cache": False}):
        expected = model.generate(ids, **steps, **more)
        for each in (coded, copy.deepcopy(coded), pickle.loads(pickle.dumps(coded))):
            assert torch.equal(each.generate(ids, **steps, **more), expected)
    with pytest.raises(ValueError, match="the default of generate; this is a StaticCache"):
        coded.generate(ids, **steps, cache_implementation="static", disable_compile=True)
    with pytest.raises(ValueError, match="continuous batching joins texts in a row"):
        coded.model.layers[0].self_attn(ids, position_embeddings=(ids, ids), cache=object())
    for each in (model, coded):
        each.train().gradient_checkpointing_enable({"use_reentrant": False})
        each(ids, labels=ids).loss.backward()
    for name in ("weight", "bias"):
        torch.testing.assert_close(getattr(coded.clocks, name).grad, getattr(model.floater, name).grad)
    expected = zoo.output(coded.eval(), input_ids=ids)
    coded.save_pretrained(tmp_path / "again")
    offloaded = {"model": "cpu", "lm_head": "cpu", "clocks": "disk"}
    for options in ({}, {"device_map": offloaded, "offload_folder": tmp_path / "offloaded"}):
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True, **options)
        assert torch.equal(zoo.output(again.eval(), input_ids=ids), expected)


def test_attention_that_has_lost_its_clock_is_not_exported(tmp_path: Path) -> None:
    model = stirred("llama")
    model.model.layers[1].self_attn = copy.deepcopy(zoo.build("llama").model.layers[1].self_attn)
    with pytest.raises(ExportError, match="1 of the 2 attention modules of this LlamaForCausalLM"):
        export(model, tmp_path / "new", code=True)
    assert not (tmp_path / "new").exists()


def test_gradients_through_checkpoints_are_those_without() -> None:
    grads = []
    for checkpoints in (False, True):
        model = stirred("llama").train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(zoo.text(), labels=zoo.text()).loss.backward()
        grads.append([parameter.grad for parameter in model.floater.parameters()])
    for plain, again in zip(*grads, strict=True):
        assert float(plain.abs().min(-1).values.max()) > 0
        torch.testing.assert_close(again, plain)


def test_a_frozen_model_trains_its_clocks_alone() -> None:
    model = zoo.build("llama")
    assert str(floater.plug(model, clock={}, freeze_model=True, blocks="input", start="small")).startswith(
        "a clock in each of 1 blocks; "
    )
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        "floater.weight",
        "floater.bias",
    }


def test_it_refuses(tmp_path: Path) -> None:
    for name, options, message in (
        (
            "bert",
            {},
            "turns the rotation of one model .* this BertForSequenceClassification has none",
        ),
        ("llama", {"clock": {"per": "head"}}, "per='head'; .* must be 'block'"),
        ("llama", {"clock": {"rates": 1}}, "it maps 'per' and 'rate' to values"),
        ("llama", {"delta": 0.2}, "a clock is not a flow: it takes only blocks"),
        ("llama", {"projections": ["query"]}, "a clock is not a flow"),
    ):
        with pytest.raises(PlugError, match=message):
            floater.plug(zoo.build(name), **{"clock": {}, **options})
    with pytest.raises(PositionError, match="rate is 'exp'"):
        floater.plug(zoo.build("llama"), clock={"rate": "exp"})
    model = stirred("llama")
    with pytest.raises(PlugError, match="there is no vector of a position to bake"):
        floater.bake(model, 8)
    with pytest.raises(PlugError, match=r"kept in a plain DynamicCache, .* this is a StaticCache"):
        model.generate(zoo.text(), max_new_tokens=2, cache_implementation="static", disable_compile=True)
    with pytest.raises(ExportError, match="drives its rotation; export it with code=True"):
        export(model, tmp_path / "new")
    plain = zoo.build("llama")
    cache = plain(zoo.text(), use_cache=True).past_key_values
    with pytest.raises(PlugError, match="the cache has 7 tokens and the sums of a clock for 0"):
        model(zoo.text(), past_key_values=cache)


@pytest.mark.parametrize(
    "method", ["linear", "yarn", "ntk", "dynamic", "longrope", "clipped", "self_extend", "log_n"]
)
def test_a_clock_turns_the_frequencies_of_an_extension(method: str, tmp_path: Path) -> None:
    """Loading extends first, then plugs."""
    model = stirred("llama")
    floater.extend(model, 2 * model.config.max_position_embeddings, method)
    ids = zoo.text(1, model.config.max_position_embeddings // 2)
    expected = zoo.output(model, input_ids=ids)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation=model.config._attn_implementation
    )
    torch.testing.assert_close(zoo.output(loaded.eval(), input_ids=ids), expected, atol=1e-5, rtol=1e-5)
    steps = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, **steps), model.generate(ids, **steps, use_cache=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_files_in_half_precision_take_and_hold_a_clock(dtype: torch.dtype, tmp_path: Path) -> None:
    """Their configuration names the type, in which a dry run builds the model."""
    zoo.build("llama").to(dtype).save_pretrained(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    floater.plug(model, clock={}, start="small")
    model.save_pretrained(tmp_path / "clocked")
    for options in ({}, {"dtype": torch.float32}):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "clocked", **options)
        assert torch.equal(loaded.floater.weight.float(), model.floater.weight.float())


def test_frequencies_that_each_pass_computes_have_no_clock() -> None:
    clocked, length = stirred("llama"), 2 * zoo.build("llama").config.max_position_embeddings
    with pytest.raises(ExtendError, match="has a clock, which turns a rotation of fixed frequencies; 'clex'"):
        floater.extend(clocked, length, "clex")
    extended = zoo.build("llama")
    floater.extend(extended, length, "clex")
    with pytest.raises(PlugError, match="the extension of this LlamaForCausalLM, 'clex', computes them in"):
        floater.plug(extended, clock={})


def test_adapters_that_are_disabled_or_have_no_clock_leave_the_model_as_it_was() -> None:
    model = zoo.build("llama")
    ids = zoo.text()
    floater.plug(model, clock={})
    before = zoo.output(model, input_ids=ids)
    lora: Any = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["floater"], r=2))
    with torch.no_grad():
        lora.base_model.model.floater.modules_to_save["default"].weight.normal_(std=0.5)
    assert not torch.equal(zoo.output(lora, input_ids=ids), before)
    with lora.disable_adapter():
        assert torch.equal(zoo.output(lora, input_ids=ids), before)
    lora.add_adapter("b", LoraConfig(target_modules=["q_proj"], r=2))
    lora.set_adapter("b")
    assert torch.equal(zoo.output(lora, input_ids=ids), before)


def test_inference_mode_neither_hides_a_rotation_nor_freezes_its_clock(tmp_path: Path) -> None:
    stirred("llama").save_pretrained(tmp_path)
    model, ids = zoo.build("llama"), zoo.text()
    with torch.inference_mode():
        floater.plug(model, clock={})
        loaded = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert torch.equal(zoo.output(loaded, input_ids=ids), zoo.output(stirred("llama"), input_ids=ids))
    model(ids, labels=ids).loss.backward()
    assert bool(model.floater.weight.grad.any())


def test_continuous_batching_and_parts_of_a_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stirred("llama")
    with pytest.raises(
        PlugError, match=r"no continuous batching, which joins texts in .*use model.generate$"
    ):
        model.generate_batch([[3, 4, 5]])
    monkeypatch.setattr("floater.pretrained.clocks.in_context_parallel", lambda: True)
    with pytest.raises(PlugError, match="a clock sums over all tokens of a text, of which context_parallel"):
        model(zoo.text())
