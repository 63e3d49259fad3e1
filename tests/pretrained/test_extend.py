"""Models that take longer inputs: what they gave stays, what is new follows from what was there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CanineConfig,
    CanineModel,
    CodeGenConfig,
    CodeGenModel,
    CTRLConfig,
    CTRLModel,
    DebertaV2Config,
    DebertaV2ForMultipleChoice,
    DistilBertConfig,
    DistilBertModel,
    GPTJConfig,
    GPTJModel,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100Model,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    RoFormerConfig,
    RoFormerModel,
)

import floater
from floater import FloaterConfig
from floater.pretrained.extending import ExtendError
from floater.pretrained.extending.continuation import METHODS
from floater.transformer import FloaterForCausalLM

from . import zoo
from .extended import ROTARY, build, build_inputs, llava, operators

TABLES = {
    "bert": 512, "roberta": 510, "xlm-roberta": 510, "distilbert": 512, "electra": 512, "albert": 512,
    "mpnet": 510, "gpt2": 64, "bart": 64, "whisper": 32, "siglip-text": 16, "bert-decoder": 512,
    "bert2bert": 512,
}  # fmt: skip


@pytest.mark.parametrize("plugged", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_every_family(tmp_path: Path, name: str, plugged: bool) -> None:
    """Unchanged within the old length, finite beyond; saved and loaded as any model."""
    model, old = zoo.build(name), TABLES[name]
    short, long = build_inputs(name, 12), build_inputs(name, old + 8)
    if plugged:
        floater.plug(model)
        zoo.noisy(model)
    before = zoo.output(model, **short)
    extension = floater.extend(model, old + 16)
    assert (extension.old, extension.new, extension.unchanged) == (old, old + 16, True)
    assert torch.equal(zoo.output(model, **short), before)
    actual = zoo.output(model, **long)
    assert actual.isfinite().all()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    # weights are read to other addresses, where kernels round differently
    torch.testing.assert_close(zoo.output(again, **long), actual, atol=1e-5, rtol=1e-5)
    with pytest.raises(ExtendError, match="already, so it must be more"):
        floater.extend(model, old + 16)


SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 40, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2,
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16,
}  # fmt: skip
GPTJ: dict[str, Any] = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
DISTIL: dict[str, Any] = {"vocab_size": 40, "dim": 16, "n_heads": 2, "n_layers": 1, "hidden_dim": 16}


@pytest.mark.parametrize(
    ("build", "config", "sizes"),
    [
        (MarianMTModel, MarianConfig, SEQ2SEQ),
        (PegasusForConditionalGeneration, PegasusConfig, SEQ2SEQ),
        (RoFormerModel, RoFormerConfig, SMALL),
        (DistilBertModel, DistilBertConfig, {**DISTIL, "sinusoidal_pos_embds": True}),
        (CTRLModel, CTRLConfig, {"vocab_size": 40, "n_embd": 16, "dff": 16, "n_layer": 1, "n_head": 2}),
        (GPTJModel, GPTJConfig, GPTJ),
        (CodeGenModel, CodeGenConfig, GPTJ),
    ],
)
def test_a_table_of_sinusoids_is_that_of_a_longer_model(
    tmp_path: Path, build: Any, config: Any, sizes: dict[str, Any]
) -> None:
    """It ends at the declared length; a model with the same weights that declares more is an oracle.

    GPT-J and CodeGen have the sines and cosines of their rotation in such a table, in each layer.
    """
    model, longer = (build(config(**sizes, max_position_embeddings=n)).eval() for n in (32, 80))
    longer.load_state_dict({n: x for n, x in model.state_dict().items() if "position" not in n}, strict=False)
    ids = zoo.text(2, 80, seed=1)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if sizes is SEQ2SEQ else {})
    before = zoo.output(model, **{name: x[:, :32] for name, x in inputs.items()})
    summary = floater.extend(model, 80)
    assert (summary.method, summary.unchanged) == ("sinusoid", True)
    assert torch.equal(zoo.output(model, **{name: x[:, :32] for name, x in inputs.items()}), before)
    expected = zoo.output(longer, **inputs)
    torch.testing.assert_close(zoo.output(model, **inputs), expected, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = build.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(zoo.output(again, **inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_sinusoids_that_are_not_saved_are_not_continued_otherwise(method: str) -> None:
    """A loaded Marian has sinusoids at all positions."""
    with pytest.raises(ExtendError, match="computes its sinusoids anew when it is loaded; method must be"):
        floater.extend(zoo.build("marian"), 1100, method)


def test_a_learned_table_is_not_continued_as_sinusoids() -> None:
    with pytest.raises(ExtendError, match="by 'sinusoid': the table is not one of sinusoids"):
        floater.extend(zoo.build("bert"), 600, "sinusoid")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: M2M100Model(M2M100Config(**SEQ2SEQ, max_position_embeddings=32)), "takes 64 tokens already"),
        (
            lambda: CanineModel(CanineConfig(**SMALL, max_position_embeddings=32, local_attention_length=8)),
            "has no positions that can be extended: .*; it does not take 64 tokens",
        ),
        (
            lambda: DebertaV2ForMultipleChoice(
                DebertaV2Config(**SMALL, relative_attention=True, position_biased_input=False)
            ),
            "takes 64 tokens already",
        ),
    ],
)
def test_positions_that_nothing_here_extends(model: Any, message: str) -> None:
    """Whether such a model takes the length is tried."""
    with pytest.raises(ExtendError, match=message):
        floater.extend(model(), 64)


def test_plugging_after_extending() -> None:
    model = zoo.build("bert")
    floater.extend(model, 600)
    plain = zoo.output(model, **build_inputs("bert", 560))
    floater.plug(model)
    assert torch.equal(zoo.output(model, **build_inputs("bert", 560)), plain)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TABLES)
def test_every_method_fills_every_table(name: str, method: str) -> None:
    model, old = zoo.build(name), TABLES[name]
    before = zoo.output(model, **build_inputs(name, 9))
    extension = floater.extend(model, old + 16, method)
    assert zoo.output(model, **build_inputs(name, old + 16)).isfinite().all()
    assert torch.equal(zoo.output(model, **build_inputs(name, 9)), before) == extension.unchanged


@pytest.mark.parametrize("name", zoo.IMAGES)
def test_larger_images(tmp_path: Path, name: str) -> None:
    """By 'interpolation', what Transformers' own interpolation gives; by 'flow', the old grid stays."""
    model, images = zoo.build(name), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    takes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    with torch.no_grad():
        expected = model(images, **({"interpolate_pos_encoding": True} if takes else {})).logits
    floater.extend(model, 16)
    torch.testing.assert_close(zoo.output(model, pixel_values=images), expected, atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    actual = zoo.output(again, pixel_values=images)
    torch.testing.assert_close(actual, zoo.output(model, pixel_values=images), atol=1e-5, rtol=1e-5)
    for method in METHODS:
        other = zoo.build(name)
        floater.extend(other, 16, method)
        assert zoo.output(other, pixel_values=images).isfinite().all()


@pytest.mark.parametrize("method", ["linear", "ntk", "dynamic", "yarn", "longrope", "llama3"])
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_models_of_every_family(tmp_path: Path, name: str, method: str) -> None:
    model = build(name)
    old = model.config.max_position_embeddings
    if name == "phi3" and method not in ("ntk", "dynamic", "longrope"):
        with pytest.raises(ExtendError, match=r"Phi3Model does not take .* must be one of"):
            floater.extend(model, 4 * old, method)
        return
    short, long = build_inputs(name, 10), build_inputs(name, 3 * old)
    before = zoo.output(model, **short)
    shared = model.config
    extension = floater.extend(model, 4 * old, method)
    assert shared.max_position_embeddings == old  # others may share the configuration that it had
    assert torch.equal(zoo.output(model, **short), before) or not extension.unchanged
    actual = zoo.output(model, **long)
    assert actual.isfinite().all()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(zoo.output(again, **long), actual, atol=1e-5, rtol=1e-5)
    with pytest.raises(ExtendError, match=r"already|takes any length as it is"):
        floater.extend(model, 2 * old, method)


@pytest.mark.parametrize("method", ["linear", "dynamic", "yarn", "longrope", "llama3"])
def test_rotary_models_are_those_of_the_configuration(method: str) -> None:
    """The same weights in a model that Transformers makes with the scaling from the start."""
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 20,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=32)).eval()
    rope: dict[str, Any] = {"rope_type": method, "rope_theta": 10000.0, "factor": 4.0}
    if method in ("yarn", "longrope", "llama3"):
        rope["original_max_position_embeddings"] = 32
    if method == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    options: dict[str, Any] = {
        "longrope": {"short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0]},
        "dynamic": {"declared": False},
    }.get(method, {})
    factors = options if method == "longrope" else {}
    length = 32 if method == "dynamic" else 128
    other = LlamaForCausalLM(
        LlamaConfig(**sizes, max_position_embeddings=length, rope_parameters=rope | factors)
    ).eval()
    other.load_state_dict(model.state_dict())
    floater.extend(model, 128, method, **options)
    for size in (20, 100):
        ids = zoo.text(2, size)
        assert torch.equal(zoo.output(model, input_ids=ids), zoo.output(other, input_ids=ids))


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma3", "modernbert"])
def test_dynamic_scaling_is_declared_for_the_longest_text(name: str) -> None:
    """A text of the declared length has the logits that the rule of Transformers gives it."""
    model, other, ids = build(name), build(name), zoo.text(2, 128)
    floater.extend(model, 128, "dynamic")
    report = floater.extend(other, 128, "dynamic", declared=False)
    assert report.by_longest
    torch.testing.assert_close(
        zoo.output(model, input_ids=ids), zoo.output(other, input_ids=ids), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("method", ["linear", "ntk", "yarn", "llama3"])
@pytest.mark.parametrize("name", ROTARY)
def test_a_scaling_by_the_configuration_costs_nothing(name: str, method: str) -> None:
    """A forward pass asks for the same operators in the same order, within the old length and beyond."""
    model = build(name)
    lengths = 10, model.config.max_position_embeddings + 20
    before = [operators(model, **build_inputs(name, length)) for length in lengths]
    if name != "phi3" or method == "ntk":
        floater.extend(model, 2 * model.config.max_position_embeddings, method)
        assert [operators(model, **build_inputs(name, length)) for length in lengths] == before


@pytest.mark.parametrize("name", TABLES)
def test_a_longer_table_costs_nothing(name: str) -> None:
    """But for the shape of views: a longer buffer is expanded and cut."""

    def actual() -> list[tuple[Any, ...]]:
        views = ("aten.slice.Tensor", "aten.expand.default")
        return [
            (op, None if op in views else what) for op, *what in operators(model, **build_inputs(name, 9))
        ]

    model = zoo.build(name)
    before = actual()
    floater.extend(model, TABLES[name] + 16, "repeat")
    assert actual() == before


@pytest.mark.parametrize("method", ["linear", "ntk", "dynamic", "yarn", "longrope", "llama3"])
def test_what_is_scaled_is_not_scaled_again(tmp_path: Path, method: str) -> None:
    """A second scaling would count from the new length; also of a model that was saved in between.

    Only the same scaling is made wider, where Transformers knows it by its name.
    """
    model = build("llama")
    floater.extend(model, 256, method)
    model.save_pretrained(tmp_path)
    alone = LlamaForCausalLM.from_pretrained.__func__.__wrapped__  # type: ignore[attr-defined]
    other = "linear" if method == "yarn" else "yarn"
    for extended in (model, LlamaForCausalLM.from_pretrained(tmp_path), alone(LlamaForCausalLM, tmp_path)):
        with pytest.raises(ExtendError, match=rf"by '{method}' already") as refused:
            floater.extend(extended, 1024, other)
        assert "\n" not in str(refused.value)


def test_ntk_stretches_the_slowest_wave_by_the_factor() -> None:
    model = zoo.build("qwen3")  # 8 components of a head, 4 frequencies
    before = model.model.rotary_emb.inv_freq.clone()
    floater.extend(model, 4 * 64, "ntk")
    ratio = before / model.model.rotary_emb.inv_freq
    assert ratio[0] == 1
    assert float(ratio[-1]) == pytest.approx(4, rel=1e-5)


def test_what_rescales_cached_keys_keeps_none() -> None:
    """Dynamic scaling rotates by the length of the text: keys from before would stand elsewhere."""
    model = zoo.build("llama")
    floater.extend(model, 256, "dynamic", declared=False)
    prompt = zoo.text(1, 60)
    written = model.generate(prompt, max_new_tokens=10, min_new_tokens=10, do_sample=False)
    for end in range(60, 70):
        expected = zoo.output(model, input_ids=written[:, :end])[0, -1].argmax()
        assert written[0, end] == expected


def test_the_default_is_one_that_the_model_takes() -> None:
    assert floater.extend(build("llama"), 256).method == "yarn"
    model = build("phi3")
    assert floater.extend(model, 256).method == "ntk"
    assert zoo.output(model, **build_inputs("phi3", 200)).isfinite().all()


def test_phi3_knows_its_original_length() -> None:
    config = Phi3Config(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=20,
        max_position_embeddings=32, original_max_position_embeddings=32, pad_token_id=1,
    )  # fmt: skip
    model = Phi3ForCausalLM(config)
    floater.extend(model, 64, "longrope", long_factor=[1.0, 2.0], short_factor=[1.0, 1.0])
    assert model.config.rope_parameters["original_max_position_embeddings"] == 32


@pytest.mark.parametrize(
    ("name", "length", "method", "options", "message"),
    [
        ("bert", 100, None, {}, "length is 100; the model takes 512 tokens already"),
        ("bert", 0, None, {}, "length is 0"),
        ("bert", 1024, "yarn", {}, "method is 'yarn'; .* a learned table of positions, which allow 'flow'"),
        ("llama", 1024, "flow", {}, "method is 'flow'; .* rotary positions, which allow 'linear'"),
        ("llama", 1024, "yarn", {"beta": 3}, "method 'yarn' has no option 'beta'; valid: attention_factor"),
        ("llama", 1024, "longrope", {"long_factor": [1.0]}, "long_factor must be a list of 3 numbers"),
        ("llama", 1024, "longrope", {"long_factor": ["a"] * 3}, "long_factor must be a list of 3 numbers"),
        ("llama", 1024, "longrope", {"long_factor": [1, 2, -1]}, "must be a list of 3 numbers above 0"),
        (
            "llama",
            1024,
            "yarn",
            {"attention_factor": -1},
            "attention_factor is -1; it must be a number above",
        ),
        ("llama", 1024, "yarn", {"beta_fast": "a"}, "beta_fast is 'a'; it must be a number above 0"),
        (
            "llama",
            1024,
            "yarn",
            {"beta_fast": 0.5},
            "beta_slow is 1.0; it must be below beta_fast, which is 0.5",
        ),
        ("llama", 1024, "yarn", {"truncate": 1}, "truncate is 1; it must be True or False"),
        ("llama", 1024, "yarn", {"mscale": 2.0}, "mscale is 2.0, which LlamaModel reads only beside mscale_"),
        (
            "llama",
            1024,
            "yarn",
            {"mscale_all_dim": 2.0},
            "mscale_all_dim is 2.0, which LlamaModel reads only beside mscale and without attention_factor",
        ),
        (
            "llama",
            1024,
            "yarn",
            {"mscale": 2.0, "mscale_all_dim": 1.0, "attention_factor": 1.2},
            "mscale is 2.0, which LlamaModel reads only beside mscale_all_dim and without attention_factor",
        ),
        ("llama", 1024, "llama3", {"low_freq_factor": 9.0}, "low_freq_factor is 9.0; it must be below high_"),
        ("bert", 1024, "flow", {"special": 1}, "special is 1; it must be two whole numbers"),
        ("bert", 512**2 + 1, "hierarchical", {"special": (0, 0)}, "reaches 262144 positions"),
        ("vit", 18, None, {}, "length is 18; it must be a multiple of the patches' side, 4"),
        ("vit", 8, None, {}, "takes images of 8 x 8 pixels already"),
        (
            "deberta-v2",
            1024,
            None,
            {},
            "takes 1024 tokens already: it has no positions, or computes",
        ),
    ],
)
def test_what_cannot_be_extended(
    name: str, length: int, method: str | None, options: dict[str, Any], message: str
) -> None:
    model = zoo.build(name)
    config = model.config.to_dict()
    with pytest.raises(ExtendError, match=message):
        floater.extend(model, length, method, **options)
    assert model.config.to_dict() == config


def test_a_model_of_texts_and_images_takes_longer_texts() -> None:
    """Images are those of a part that reads nothing else."""
    model = llava()
    side = model.config.vision_config.image_size
    assert floater.extend(model, 1024).positions == "rotary"
    assert model.config.text_config.max_position_embeddings == 1024
    assert floater.extend(model.model.vision_tower, 16).positions == "image"
    assert (side, model.model.vision_tower.config.image_size) == (8, 16)
    two = nn.ModuleList([zoo.build("vit"), zoo.build("vit")])
    with pytest.raises(ExtendError, match="ModuleList has 2 grids of patches; extend the parts one by one"):
        floater.extend(two, 16)


def test_a_grid_that_a_method_does_not_reach_is_refused() -> None:
    model = zoo.build("vit")
    with pytest.raises(ExtendError, match="length is 6; 'hierarchical' reaches 4 positions"):
        floater.extend(model, 24, "hierarchical")
    assert model.config.image_size == 8


def test_the_length_that_a_method_does_not_reach_is_that_of_the_model() -> None:
    model = zoo.build("bert")
    reach = 1 + (model.config.max_position_embeddings - 2) ** 2  # the first and the last vector are special
    with pytest.raises(ExtendError, match=f"length is {reach + 1}; 'hierarchical' reaches {reach} positions"):
        floater.extend(model, reach + 1, "hierarchical")
    floater.extend(model, reach, "hierarchical")
    assert model.config.max_position_embeddings == reach


def test_a_rotation_of_patches_declares_no_length() -> None:
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={
                "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]},
            },
            vision_config={"depth": 1, "embed_dim": 24, "num_heads": 2, "hidden_size": 24},
        )
    )  # fmt: skip
    assert floater.extend(model, 128).old == 64
    assert model.config.text_config.rope_parameters["mrope_section"] == [2, 2, 2]


def test_a_flow_is_extended_before_it_is_baked() -> None:
    for name, length in (("llama", 128), ("bert", 1024), ("vit", 16)):
        model = zoo.build(name)
        floater.plug(model)
        floater.bake(model, 64)
        with pytest.raises(ExtendError, match="ed for 64 positions; extend it before it is baked"):
            floater.extend(model, length)
        if name == "llama":
            with pytest.raises(ExtendError, match="this LlamaForCausalLM is baked for 64 positions"):
                floater.extend(model.model, length)
            assert model.config.rope_parameters["rope_type"] == "default"
    enough = zoo.build("llama")
    floater.plug(enough)
    floater.bake(enough, 128)
    assert floater.extend(enough, 128).new == 128
    assert zoo.output(enough, input_ids=zoo.text(1, 100)).shape[1] == 100


def test_a_model_of_this_library_is_not_extended() -> None:
    model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=20, position="floater"))
    with pytest.raises(ExtendError, match=r"a model of this library, .* \(floater models floater\)"):
        floater.extend(model, 4096)


def test_what_is_no_model() -> None:
    with pytest.raises(ExtendError, match="the model is a str; it must be a model of transformers"):
        floater.extend("bert", 1024)  # type: ignore[arg-type]


def test_trained_tables_may_learn_on() -> None:
    model = zoo.build("bert")
    floater.extend(model, 520)
    model(**build_inputs("bert", 516)).logits.square().mean().backward()
    gradient = model.bert.embeddings.position_embeddings.weight.grad
    assert bool(gradient[512:516].any())


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_inference_mode_changes_no_extension(name: str) -> None:
    """A server that loads, extends and runs a model in one block of it."""
    ids, outside, inside = zoo.text(1, 80), zoo.build(name), zoo.build(name)
    floater.extend(outside, 600)
    with torch.inference_mode():
        floater.extend(inside, 600)
    assert torch.equal(zoo.output(inside, input_ids=ids), zoo.output(outside, input_ids=ids))
    assert not any(parameter.is_inference() for parameter in inside.parameters())
