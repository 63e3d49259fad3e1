"""The library's own ways to extend: a flow over scale, grouped distances, temperature."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from torch import Tensor
from torch.nn.utils import prune
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    LlamaModel,
    LlavaForConditionalGeneration,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import floater
from floater.pretrained import ExtendError, PlugError

from . import zoo
from .extended import BIASES, ROTARY, build, build_inputs, extended, llava, noisy

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


OURS = ("clex", "self_extend", "log_n")


CASES = [(name, method) for name in ROTARY for method in OURS]
CASES += [(name, None) for name in BIASES]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_every_family(tmp_path: Path, name: str, method: str | None) -> None:
    """Unchanged within the old length, bit for bit; other beyond, and finite; saved and loaded."""
    model = build(name)
    short, long = build_inputs(name, 32), build_inputs(name, 100)
    before = zoo.output(model, **short)
    far = None if name == "mpt" else zoo.output(model, **long)
    model = extended(name, method, **({"declared": False} if method == "clex" else {}))
    assert torch.equal(zoo.output(model, **short), before)
    actual = zoo.output(model, **long)
    assert actual.isfinite().all()
    if far is not None and name not in ("mistral", "gemma2", "llama4"):  # whose windows hide what is far
        assert (actual - far).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(zoo.output(again, **long), actual, atol=1e-5, rtol=1e-5)
    with pytest.raises(ExtendError, match="already"):
        floater.extend(again, 256)
    torch.testing.assert_close(zoo.output(copy.deepcopy(model), **long), actual, atol=1e-6, rtol=1e-6)


PICKLED = [*(("llama", method) for method in OURS), ("t5", None), ("mpt", None)]


@pytest.mark.parametrize(("name", "method"), PICKLED)
def test_extended_models_can_be_pickled(name: str, method: str | None) -> None:
    model, long = extended(name, method), build_inputs(name, 100)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(zoo.output(again, **long), zoo.output(model, **long), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("first", ["plug", "extend"])
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("llama", "clex"), ("llama", "self_extend"), ("llama", "yarn"), ("gpt_neox", "log_n"),
        ("modernbert", "self_extend"), ("gpt2", None), ("whisper", None), ("vit", None), ("t5", None),
    ],
)  # fmt: skip
def test_plugged_and_extended_in_either_order(
    tmp_path: Path, name: str, method: str | None, first: str
) -> None:
    model, long = build(name), build_inputs(name, 100)
    options = {"trained": 32} if name == "t5" else {}
    if first == "plug":
        floater.plug(model)
    floater.extend(model, 16 if name == "vit" else 128, method, **options)
    if first == "extend":
        floater.plug(model)
    zoo.noisy(model)
    noisy(model)
    actual = zoo.output(model, **long)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(zoo.output(again, **long), actual, atol=1e-5, rtol=1e-5)
    floater.unplug(model)
    model.save_pretrained(tmp_path / "apart")  # the extension stays, and its guard
    again = type(model).from_pretrained(tmp_path / "apart", attn_implementation="eager").eval()
    torch.testing.assert_close(zoo.output(again, **long), zoo.output(model, **long), atol=1e-5, rtol=1e-5)


def test_transformers_alone_refuses_the_folder(tmp_path: Path) -> None:
    model = extended("llama", "log_n")
    model.save_pretrained(tmp_path)
    alone = LlamaForCausalLM.from_pretrained.__func__.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="import floater before the model is loaded"):
        alone(LlamaForCausalLM, tmp_path)


@pytest.mark.parametrize(("name", "method"), [*(("llama", method) for method in OURS), ("t5", None)])
def test_another_configuration_does_not_take_the_extension_away(
    tmp_path: Path, name: str, method: str | None
) -> None:
    model = extended(name, method)
    model.save_pretrained(tmp_path)
    with pytest.raises(PlugError, match=r"holds an extended model, .* copy its 'floater_extension'"):
        type(model).from_pretrained(tmp_path, config=build(name).config)
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation="eager")
    again = type(model).from_pretrained(tmp_path, config=config).eval()
    long = build_inputs(name, 100)
    torch.testing.assert_close(zoo.output(again, **long), zoo.output(model, **long), atol=1e-5, rtol=1e-5)


def test_a_model_made_by_its_class_is_not_taken_for_an_extended_one() -> None:
    model = extended("llama", "self_extend")
    rebuilt = LlamaForCausalLM(model.config)
    with pytest.raises(PlugError, match="not extended by 'self_extend', as its configuration says"):
        rebuilt.load_state_dict(model.state_dict())
    with pytest.raises(PlugError, match="made without the flow that its configuration has"):
        rebuilt(**build_inputs("llama", 8))
    plain = build("llama")
    plain.set_attn_implementation("floater_sdpa")
    with pytest.raises(ExtendError, match=r"LlamaAttention is not extended, .*set_attn_implementation"):
        plain(**build_inputs("llama", 8))
    model.model.load_state_dict(model.model.state_dict())  # of a part, whose whole is extended


@pytest.mark.parametrize("method", ["clex", "log_n", "yarn"])
def test_a_part_that_shares_the_configuration_of_the_whole_is_not_saved_in_it(
    tmp_path: Path, method: str
) -> None:
    model = build("llama")
    floater.extend(model.model, 128, method)
    with pytest.raises(PlugError, match=r"was plugged or extended apart .* or save the part"):
        model.save_pretrained(tmp_path)
    model.model.save_pretrained(tmp_path)
    again, long = LlamaModel.from_pretrained(tmp_path).eval(), build_inputs("llama", 100)
    expected = model.model(**long).last_hidden_state
    torch.testing.assert_close(again(**long).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["clex", "yarn"])
def test_a_part_that_was_extended_is_not_saved_in_a_plugged_whole(tmp_path: Path, method: str) -> None:
    model = build("llama")
    floater.extend(model.model, 128, method)
    floater.plug(model)
    with pytest.raises(PlugError, match="a part of this LlamaForCausalLM was plugged or extended apart"):
        model.save_pretrained(tmp_path)


def test_a_learned_rotation_refuses_reentrant_checkpoints() -> None:
    model = extended("llama", "clex").train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ExtendError, match=r"'clex' has a rotation with weights, .* use False"):
        model(**build_inputs("llama", 70), use_cache=False)


def test_pruned_weights_are_refused() -> None:
    model = extended("llama", "clex")
    layer = model.floater_extension.scale_0.field.inner
    prune.l1_unstructured(layer, "weight", 0.5)
    with pytest.raises(ExtendError, match=r"prune hides the weights of 'clex' .* call prune.remove first"):
        model(**build_inputs("llama", 100))
    prune.remove(layer, "weight")
    assert bool(zoo.output(model, **build_inputs("llama", 100)).isfinite().all())


@pytest.mark.parametrize("method", ["yarn", "log_n", "clex"])
def test_a_part_with_a_configuration_of_its_own_comes_back_with_its_extension(
    tmp_path: Path, method: str
) -> None:
    model = llava().eval()
    section = model.config.text_config
    floater.extend(model.model.language_model, 128, method)
    model.save_pretrained(tmp_path)
    assert model.config.text_config is section
    again = type(model).from_pretrained(tmp_path)
    long = {"input_ids": torch.arange(100)[None] % 49}
    torch.testing.assert_close(zoo.output(again, **long), zoo.output(model, **long), atol=1e-5, rtol=1e-5)
    if method != "yarn":
        alone = LlavaForConditionalGeneration.from_pretrained.__func__.__wrapped__  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="import floater before the model is loaded"):
            alone(LlavaForConditionalGeneration, tmp_path)


@pytest.mark.parametrize(("name", "path"), [("llama", "model"), ("t5", "encoder"), ("bloom", "transformer")])
def test_a_part_is_not_saved_without_the_extension_of_the_whole(tmp_path: Path, name: str, path: str) -> None:
    model = copy.deepcopy(extended(name, "clex" if name == "llama" else None))
    part = model.get_submodule(path)
    with pytest.raises(PlugError, match=f"runs with the extension of a {type(model).__name__}, which"):
        part.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_without_the_extension_are_refused() -> None:
    state = extended("llama", "clex").state_dict()
    with pytest.raises(PlugError, match=r"not extended, and the weights .*floater.extend"):
        build("llama").load_state_dict(state)


@pytest.mark.parametrize(("name", "method"), [("llama", "clex"), ("t5", None)])
def test_initialising_the_rest_of_a_model_keeps_its_extension(name: str, method: str | None) -> None:
    model, long = extended(name, method), build_inputs(name, 100)
    before = zoo.output(model, **long)
    model.init_weights()
    assert torch.equal(zoo.output(model, **long), before)


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no int8 products")
@pytest.mark.filterwarnings("ignore")  # this quantization is deprecated
def test_a_quantized_model_keeps_its_frequencies() -> None:
    model = extended("llama", "clex")
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    flows = (each.floater_extension.scale_0 for each in (quantized, model))
    assert torch.equal(*(flow.at(2.0)[0] for flow in flows))
    zoo.output(quantized, **build_inputs("llama", 100))


def uncached(model: Any, prompt: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Greedy continuation and its logits (batch, count, vocabulary), each from a pass over the whole text."""
    text, logits = prompt, []
    for _ in range(count):
        logits.append(zoo.output(model, input_ids=text)[:, -1])
        text = torch.cat((text, logits[-1].argmax(-1, keepdim=True)), 1)
    return text, torch.stack(logits, 1)


def generated(model: Any, prompt: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Greedy continuation by 9 tokens and its logits, by generate()."""
    result = model.generate(
        prompt, max_new_tokens=9, do_sample=False, return_dict_in_generate=True, output_logits=True, **options
    )
    return result.sequences, torch.stack(result.logits, 1)


FACTORS = [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("method", "options", "cached"),
    [
        ("dynamic", {"declared": False}, False),
        ("dynamic", {}, True),
        ("longrope", {"short_factor": [1.0] * 3, "long_factor": FACTORS}, False),
        ("longrope", {"short_factor": FACTORS, "long_factor": FACTORS}, True),
        ("longrope", {"long_factor": FACTORS}, True),
        ("clex", {"declared": False}, False),
        ("clex", {}, True),
        ("self_extend", {"window": 20, "group": 8, "temperature": True}, True),
        ("log_n", {}, True),
        ("yarn", {}, True),
    ],
)
def test_generation_across_the_old_length(
    tmp_path: Path, method: str, options: dict[str, Any], cached: bool
) -> None:
    """Tokens and logits of generate() are those of passes without a cache, also of the model loaded again."""
    model = build("llama")
    report = floater.extend(model, 256, method, **options)
    assert report.by_longest != cached
    noisy(model)
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    prompt = zoo.text(2, 60)
    expected = uncached(model, prompt, 9)
    for one in (model, again):
        assert one.generation_config.use_cache == cached
        torch.testing.assert_close(generated(one, prompt), expected, atol=1e-4, rtol=1e-4)
        if cached:
            continue
        with pytest.raises(ExtendError, match=r"rotated for shorter texts.*use_cache=False"):
            generated(one, prompt, use_cache=True)
        within = generated(one, prompt[:, :40], use_cache=True)
        torch.testing.assert_close(within, uncached(one, prompt[:, :40], 9), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", OURS)
def test_a_call_without_tokens_is_refused_by_the_model_itself(method: str) -> None:
    """Not by a StopIteration, which would end an iteration over inputs silently."""
    with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
        extended("llama", method)(attention_mask=torch.ones(1, 3))


def test_generation_ends_at_the_new_length_if_it_ended_at_the_old_one() -> None:
    for before, after in ((64, 256), (20, 20), (None, None)):
        model = build("llama")
        model.generation_config.max_length = before
        floater.extend(model, 256, "yarn")
        assert model.generation_config.max_length == after


def test_a_cache_from_before_and_another_attention_are_refused() -> None:
    model, ids = build("llama"), zoo.text(1, 20)
    cache = model(ids, use_cache=True).past_key_values
    floater.extend(model, 256, "self_extend")
    with pytest.raises(ExtendError, match="not of this model since it was extended"):
        model(ids, past_key_values=cache)
    prefix = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    with pytest.raises(ExtendError, match=r"learned keys of prefix tuning .* or use prompt tuning"):
        get_peft_model(copy.deepcopy(model), prefix)(input_ids=ids)
    model.set_attn_implementation("sdpa")
    message = r"'self_extend' needs 'floater_eager' or 'floater_sdpa': call .*\('floater_sdpa'\)"
    with pytest.raises(ExtendError, match=message):
        model(ids)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "modernbert"])
def test_an_extended_model_changes_its_kernel(name: str) -> None:
    """The kernel of the extension alone was accepted, so that a model that began with SDPA had no weights."""
    model, inputs = extended(name, "self_extend"), build_inputs(name, 100)
    expected = model(**inputs, output_attentions=True)
    model.set_attn_implementation("floater_sdpa")
    torch.testing.assert_close(zoo.output(model, **inputs), expected[0], atol=1e-4, rtol=1e-4)
    model.set_attn_implementation("floater_eager")
    again = model(**inputs, output_attentions=True)
    torch.testing.assert_close(again.attentions, expected.attentions)


def test_functions_are_known_to_transformers() -> None:
    assert {"floater_eager", "floater_sdpa"} <= set(ALL_ATTENTION_FUNCTIONS.valid_keys())


@pytest.mark.parametrize("method", ["clex", "dynamic", "ntk"])
def test_what_rotates_too_little(method: str) -> None:
    with pytest.raises(ExtendError, match=f"rotates 1 components; '{method}' needs 4, 6, 8 or more"):
        floater.extend(zoo.build("gpt_neox"), 4096, method)


@torch.no_grad()
def test_threads_have_frequencies_of_their_own() -> None:
    """A thread that changed those of the model left them to the others, and to all later calls."""
    model = extended("llama", "clex")
    texts = [zoo.text(1, length) for length in (20, 70, 100, 120)]
    wanted = [model(text).logits for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for actual, expected in zip(
            pool.map(lambda text: model(text).logits, texts * 25), wanted * 25, strict=True
        ):
            torch.testing.assert_close(actual, expected)


def test_a_flow_that_overflows_is_refused() -> None:
    model = extended("llama", "clex")
    generator = torch.Generator().manual_seed(1)
    for weight in model.floater_extension.parameters():
        torch.nn.init.normal_(weight, std=1.0, generator=generator)
    with pytest.raises(ExtendError, match=r"the flow of 'clex' diverges: at scale 2 a frequency is inf"):
        model(zoo.text(1, 70))


@pytest.mark.parametrize("method", OURS)
def test_padding_in_double_precision_is_not_read(method: str) -> None:
    model = zoo.build("llama", "sdpa", torch.float64)
    floater.extend(model, 128, method)
    text = zoo.text(1, 100)
    mask = torch.ones_like(text)
    mask[:, :5] = 0
    torch.testing.assert_close(
        model(text, attention_mask=mask).logits[:, 5:], model(text[:, 5:]).logits, rtol=1e-5, atol=1e-5
    )


def test_checkpoints_of_gradients_read_the_same_positions() -> None:
    for method in OURS:
        gradients = []
        for checkpointed in (False, True):
            model = extended("llama", method)
            model.train()
            if checkpointed:
                model.gradient_checkpointing_enable()
            model(zoo.text(2, 100), use_cache=False).logits.square().mean().backward()
            gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("name", "length", "method", "options", "message"),
    [
        (
            "llama",
            256,
            "clex",
            {"start": ["yarn"]},
            r"start is \['yarn'\]; it must be one of 'yarn', 'linear'",
        ),
        ("llama", 256, "clex", {"start": "flow"}, "start is 'flow'; it must be one of 'yarn', 'linear'"),
        ("llama", 256, "clex", {"declared": 1}, "declared is 1; it must be True or False"),
        ("llama", 256, "self_extend", {"window": 64}, "window is 64; it must be a whole number from 1 to 63"),
        ("llama", 256, "self_extend", {"group": 2}, "group is 2; .* of at least 5"),
        ("llama", 256, "self_extend", {"temperature": 2}, "temperature is 2; it must be True or False"),
        ("llama", 64, "log_n", {}, "length is 64; the model takes 64 tokens already"),
        ("t5", 512, None, {}, "length is 512; the model takes 512 tokens already"),
        ("t5", 1024, "yarn", {}, "method is 'yarn'; .* biases of distances, which allow 'flow'"),
        ("t5", 1024, None, {"trained": 3}, "trained is 3; it must be a whole number of at least 16"),
        ("mpt", 16, None, {}, "length is 16; the model takes 32 tokens already"),
        ("mpt", 64, None, {"trained": 64}, "length is 64; the model takes 64 tokens already"),
    ],
)
def test_what_cannot_be_extended(
    name: str, length: int, method: str | None, options: dict[str, Any], message: str
) -> None:
    model = build(name)
    config = model.config.to_dict()
    with pytest.raises(ExtendError, match=message):
        floater.extend(model, length, method, **options)
    assert model.config.to_dict() == config
    assert not hasattr(model, "floater_extension")


@pytest.mark.parametrize("method", ["self_extend", "log_n"])
def test_files_load_with_the_attention_function_that_is_asked_for(tmp_path: Path, method: str) -> None:
    extended("llama", method).save_pretrained(tmp_path)

    def load(implementation: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation)

    for implementation in ("eager", "sdpa"):
        for asked in (implementation, f"floater_{implementation}"):
            assert load(asked).config._attn_implementation == f"floater_{implementation}"
    with pytest.raises(ExtendError, match=f"'flex_attention'; '{method}' is computed by 'eager' or 'sdpa'"):
        load("flex_attention")
