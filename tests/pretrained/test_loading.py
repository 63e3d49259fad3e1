"""A plugged model that is loaded in an ordinary way is plugged, or refused with a reason."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import init_empty_weights
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, Trainer, TrainingArguments, pipeline
from transformers.trainer_utils import load_sharded_checkpoint

import floater
from floater.pretrained import FAMILIES, PlugError

from . import extended, zoo
from .extended import BIASES, ROTARY, build, noisy

AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "EncoderDecoderModel": "AutoModelForSeq2SeqLM",
}


def auto(model: Any) -> Any:
    """The Auto class of a model's head."""
    if "SiglipText" in type(model).__name__:
        return type(model)  # there is none
    if "Whisper" in type(model).__name__:
        return transformers.AutoModelForSpeechSeq2Seq
    name = next(name for ending, name in AUTO.items() if type(model).__name__.endswith(ending))
    return getattr(transformers, name)


def trained(name: str) -> Any:
    model = zoo.build(name)
    floater.plug(model, delta=0.2)
    zoo.noisy(model)
    return model


UNBOUNDED = ("deberta-v2", "marian")  # these declare no length to extend
EXTENDED = [name for name in (*zoo.NAMES, "bloom", "mpt") if name not in UNBOUNDED]
CHANGED = [*((name, "plug") for name in zoo.NAMES), *((name, "extend") for name in EXTENDED)]


def changed(name: str, how: str) -> Any:
    """A plugged model, or one that is extended by what this library adds to its weights, where it can be."""
    if how == "plug":
        return trained(name)
    model = build(name)
    floater.extend(
        model,
        16 if name in zoo.IMAGES else 600,
        "clex" if name in ROTARY else None,
        **({"trained": 32} if name == "t5" else {}),
    )
    noisy(model)
    return model


@pytest.fixture(autouse=True)
def fast(few_steps_for_biases: None) -> None:
    """Fits take no time."""


def assert_same(name: str, again: Any, model: Any, how: str = "plug") -> None:
    options = inputs(name, how)
    assert torch.equal(zoo.output(again.eval(), **options), zoo.output(model.eval(), **options))


def inputs(name: str, how: str) -> dict[str, Tensor]:
    return zoo.inputs(name) if how == "plug" else extended.build_inputs(name, 100)


def test_every_family_is_in_the_zoo() -> None:
    kinds = {
        part.config.model_type
        for name in zoo.NAMES
        for part in zoo.build(name).modules()
        if hasattr(part, "config")
    }
    assert set(FAMILIES) <= kinds


@pytest.mark.parametrize("name", zoo.NAMES)
def test_auto_and_own_classes_give_the_plugged_model(tmp_path: Path, name: str) -> None:
    """The own class as it is, the Auto class baked."""
    model = trained(name)
    for baked, kind in ((False, type(model)), (True, auto(model))):
        if baked:
            floater.bake(model, 16)
        model.save_pretrained(tmp_path)
        again = kind.from_pretrained(tmp_path, attn_implementation="eager")
        assert type(again) is type(model)
        assert_same(name, again, model)
        assert again.config.floater == model.config.floater


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_adapters_merge_and_come_back(tmp_path: Path, name: str, how: str) -> None:
    """On a flow that was saved with its model, and on one that the adapter brings along."""
    model = changed(name, how)
    model.save_pretrained(tmp_path / "base")
    named = {
        "bert2bert": "bert",
        "siglip-vision": "siglip_vision_model",
        "bloom": "gpt_neox",
        "mpt": "modernbert",
    }
    family = FAMILIES[named.get(name, model.config.model_type)]  # one with the same names of projections
    flows = ["floater"] if how == "plug" else None  # PEFT does not save a ModuleDict, as of extensions
    config = LoraConfig(target_modules=[family.attention[0].module], modules_to_save=flows, r=2)
    base = auto(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    lora: Any = get_peft_model(base, config)
    torch.manual_seed(4)
    for parameter in lora.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    lora.eval()
    options = inputs(name, how)
    expected = zoo.output(lora, **options)
    lora.save_pretrained(tmp_path / "adapter")
    base = auto(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    again = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(zoo.output(again, **options), expected, atol=1e-6, rtol=1e-6)
    merged: Any = lora.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded = auto(merged).from_pretrained(tmp_path / "merged", attn_implementation="eager")
    assert_same(name, loaded, merged, how)


def test_an_adapter_with_a_flow_needs_a_plugged_base(tmp_path: Path) -> None:
    zoo.build("llama").save_pretrained(tmp_path / "base")
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(tmp_path / "base")
    floater.plug(model)
    lora: Any = get_peft_model(
        model, LoraConfig(target_modules=["q_proj"], modules_to_save=["floater"], task_type="CAUSAL_LM")
    )
    lora.save_pretrained(tmp_path / "adapter")
    plain = kind.from_pretrained(tmp_path / "base")
    with pytest.raises(PlugError, match="not plugged"):
        PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    # its base is on no disk: neither may the plain one be taken for it
    with pytest.raises((OSError, ValueError), match="save_pretrained"):
        AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapter"))
    with pytest.raises((OSError, ValueError), match="save_pretrained"):
        kind.from_pretrained(tmp_path / "adapter")
    floater.plug(plain)
    PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))


def test_an_adapter_names_the_plugged_model_as_its_base(tmp_path: Path) -> None:
    model = trained("llama")
    model.save_pretrained(tmp_path / "base")
    base = type(model).from_pretrained(tmp_path / "base", attn_implementation="eager")
    get_peft_model(base, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(
        str(tmp_path / "adapter")
    )
    again = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapter"), attn_implementation="eager")
    assert_same("llama", again, model)


def adapted(model: Any, **options: Any) -> Any:
    """A model with random adapters."""
    lora: Any = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **options))
    torch.manual_seed(4)
    for parameter in lora.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return lora.eval()


def test_an_auto_class_that_is_given_an_adapter_brings_its_flow(tmp_path: Path) -> None:
    kind = transformers.AutoModelForCausalLM
    trained("llama").save_pretrained(tmp_path / "base")
    base = kind.from_pretrained(tmp_path / "base", attn_implementation="eager")
    lora = adapted(base, modules_to_save=["floater"])
    lora.save_pretrained(tmp_path / "adapter")
    again = kind.from_pretrained(tmp_path / "adapter", attn_implementation="eager")
    assert_same("llama", again, lora)


@pytest.mark.parametrize("change", ["plug", "clex", "self_extend", "yarn"])
def test_an_adapter_does_not_run_without_what_its_base_had(tmp_path: Path, change: str) -> None:
    """A base that was changed in memory, before or after the adapter was made, or is in a folder."""
    kind = transformers.AutoModelForCausalLM
    zoo.build("llama").save_pretrained(tmp_path / "plain")

    def changed(model: Any) -> Any:
        if change == "plug":
            floater.plug(model)
        else:
            floater.extend(model, 128, change)
        return model

    def plain() -> Any:
        return kind.from_pretrained(tmp_path / "plain")

    changed(plain()).save_pretrained(tmp_path / "changed")
    bases = [changed(plain()), kind.from_pretrained(tmp_path / "changed")]
    for i, lora in enumerate([*map(adapted, bases), changed(adapted(plain()))]):
        lora.save_pretrained(tmp_path / f"{i}")
        if i != 1:
            with pytest.raises((OSError, ValueError), match="save_pretrained it"):
                AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / f"{i}"))
        if (change, i) != ("yarn", 1):  # an ordinary model of Transformers
            with pytest.raises(PlugError, match="neither plugged nor extended, but the adapter's base is"):
                PeftModel.from_pretrained(plain(), str(tmp_path / f"{i}"))
            with pytest.raises(PlugError, match="neither plugged nor extended, but the adapter's base is"):
                plain().load_adapter(str(tmp_path / f"{i}"))
        PeftModel.from_pretrained(changed(plain()), str(tmp_path / f"{i}"))


@pytest.mark.parametrize("method", ["yarn", "clex"])
def test_an_adapter_trained_at_another_scale_is_refused(method: str, tmp_path: Path) -> None:
    """The configuration of LoRA says nothing about positions but the name of its base."""

    def longer(length: int, name: str) -> Any:
        model = zoo.build("llama")
        floater.extend(model, length, name)
        return model

    adapted(longer(256, method)).save_pretrained(tmp_path / "adapter")
    reason = (
        f"the adapter's base is extended from 64 to 256 by '{method}', and this LlamaForCausalLM is extended"
    )
    for other in (longer(128, method), longer(256, "linear")):
        with pytest.raises(PlugError, match=reason):
            PeftModel.from_pretrained(other, str(tmp_path / "adapter"))
    PeftModel.from_pretrained(longer(256, method), str(tmp_path / "adapter"))
    longer(256, "clex").save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted(base).save_pretrained(tmp_path / "of_folder")
    with pytest.raises(PlugError, match=r"is extended by .*'new': 256.* and this LlamaForCausalLM by .*128"):
        PeftModel.from_pretrained(longer(128, "clex"), str(tmp_path / "of_folder"))


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Inputs of a model, row by row."""

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: tensor[i % len(tensor)] for name, tensor in self.inputs.items()}


class Squares(Trainer):
    """A training that needs no labels."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return zoo.logits(model(**inputs)).square().mean()


def train(model: Any, inputs: dict[str, Tensor], folder: Path, checkpoint: str | None = None) -> None:
    arguments = TrainingArguments(
        str(folder), max_steps=2, save_steps=1, per_device_train_batch_size=2, learning_rate=1e-2,
        report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, seed=1,
    )  # fmt: skip
    Squares(model, arguments, train_dataset=Rows(inputs)).train(checkpoint)


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_a_trainer_resumes_with_the_flow_or_not_at_all(tmp_path: Path, name: str, how: str) -> None:
    model, arguments = changed(name, how), inputs(name, how)
    train(model, arguments, tmp_path)
    checkpoint = str(tmp_path / "checkpoint-1")
    again = changed(name, how)
    train(again, arguments, tmp_path / "again", checkpoint)
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in again.state_dict().items())
    assert_same(name, again, model, how)
    with pytest.raises((PlugError, RuntimeError), match=r"is not plugged|is not extended|size mismatch"):
        train(build(name), arguments, tmp_path / "plain", checkpoint)


@pytest.mark.parametrize("shards", [False, True])
def test_a_checkpoint_by_other_names_is_read(tmp_path: Path, shards: bool) -> None:
    """Transformers writes GPT-NeoX by the names of its first release, also of one that is not plugged."""
    for folder, model in ((tmp_path / "plug", trained("gpt_neox")), (tmp_path / "plain", build("gpt_neox"))):
        model.save_pretrained(folder, **({"max_shard_size": "5KB"} if shards else {}))
        again = type(model)(copy.deepcopy(model.config))
        if hasattr(model, "floater"):
            floater.plug(again, delta=0.2)
        again.set_attn_implementation("eager")
        assert not torch.equal(again.lm_head.weight, model.lm_head.weight)
        if shards:
            load_sharded_checkpoint(again, str(folder), strict=False)
        else:
            again.load_state_dict(load_file(folder / "model.safetensors"))
        assert_same("gpt_neox", again, model)


@pytest.mark.parametrize("change", ["delta", "log_n", "self_extend", "ntk"])
def test_a_trainer_does_not_resume_a_model_of_another_kind(tmp_path: Path, change: str) -> None:
    """Though weights have the same names and shapes."""
    model, other, arguments = build("llama"), build("llama"), inputs("llama", "extend")
    if change == "delta":
        floater.plug(model, delta=0.2)
        floater.plug(other, delta=0.3)
    else:
        floater.extend(model, 128, change)
    train(model, arguments, tmp_path)
    with pytest.raises(PlugError, match=r"delta is 0.2 there and 0.3 here|is not extended as the model in"):
        train(other, arguments, tmp_path / "other", str(tmp_path / "checkpoint-1"))


TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSpeechSeq2Seq": "automatic-speech-recognition",
}


def task(model: Any) -> Any:
    """Return the name of the pipeline of a model's head, or that of feature extraction."""
    return TASKS.get(auto(model).__name__, "feature-extraction")


@pytest.fixture(scope="module")
def processors() -> dict[str, Any]:
    """Return the tokenizer and the feature extractors that pipelines need besides a model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({str(i): i for i in range(zoo.VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    return {
        "tokenizer": transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="1", mask_token="2"
        ),
        "image_processor": transformers.ViTImageProcessor(size={"height": 8, "width": 8}),
        "feature_extractor": transformers.WhisperFeatureExtractor(feature_size=4),
    }


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_pipelines_have_the_model(tmp_path: Path, processors: dict[str, Any], name: str, how: str) -> None:
    """If no pipeline fits the head, that of feature extraction has the model without it."""
    model = changed(name, how)
    model.save_pretrained(tmp_path)
    runs = pipeline(
        task(model),
        model=str(tmp_path),
        model_kwargs={"attn_implementation": "eager"},
        device="cpu",
        **processors,
    )
    options = inputs(name, how)
    if type(runs.model) is type(model):
        expected = zoo.output(model.eval(), **options)
    else:
        with torch.no_grad():
            states = model.eval()(**options, output_hidden_states=True)
        expected = (states.get("hidden_states") or states["decoder_hidden_states"])[-1]
    assert torch.equal(zoo.output(runs.model.eval(), **options), expected)


def test_a_pipeline_runs_the_plugged_model(tmp_path: Path, processors: dict[str, Any]) -> None:
    model = trained("bert")
    model.save_pretrained(tmp_path)
    processors["tokenizer"].save_pretrained(tmp_path)
    runs: Any = pipeline(
        "text-classification", model=str(tmp_path), model_kwargs={"attn_implementation": "eager"}
    )
    actual = runs("3 4 5 9 2 6", top_k=None)
    ids = torch.tensor([[3, 4, 5, 9, 2, 6]])
    expected = zoo.output(model, input_ids=ids).softmax(-1)[0]
    scores = {row["label"]: row["score"] for row in actual}
    assert [scores["LABEL_0"], scores["LABEL_1"]] == pytest.approx(expected.tolist(), abs=1e-6)


def test_other_heads_other_types_and_shards(tmp_path: Path) -> None:
    model = trained("bert")
    model.save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    options = zoo.inputs("bert")
    with torch.no_grad():
        expected = model.bert(**options)[0]
        body = AutoModel.from_pretrained(tmp_path / "shards", attn_implementation="eager").eval()
        assert torch.equal(body(**options)[0], expected)
        masked, info = transformers.AutoModelForMaskedLM.from_pretrained(
            tmp_path / "shards", attn_implementation="eager", output_loading_info=True
        )
        assert torch.equal(masked.eval().bert(**options)[0], expected)
        assert not any("floater" in key for keys in info.values() for key in keys)
        config = AutoConfig.from_pretrained(tmp_path / "shards", attn_implementation="eager")
        assert_same("bert", type(model).from_pretrained(tmp_path / "shards", config=config), model)
    half = type(model).from_pretrained(tmp_path / "shards", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in half.floater.parameters()} == {torch.float32}
    state = type(model).from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), attn_implementation="eager"
    )
    assert_same("bert", state, model)


def test_a_model_made_from_the_configuration_is_plugged(tmp_path: Path) -> None:
    model = trained("bert")
    for baked in (False, True):
        if baked:
            floater.bake(model, 16)
        model.save_pretrained(tmp_path)
        config = AutoConfig.from_pretrained(tmp_path, attn_implementation="eager")
        again = auto(model).from_config(config)
        again.load_state_dict(model.state_dict())
        assert_same("bert", again, model)


def test_initialising_the_rest_of_a_model_keeps_its_flow() -> None:
    model = trained("bert")
    before = {name: value.clone() for name, value in model.floater.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(value, before[name]) for name, value in model.floater.state_dict().items())


def test_a_model_made_without_memory_takes_its_weights_later() -> None:
    model = trained("bert")
    for baked in (False, True):
        if baked:
            floater.bake(model, 16)
        with init_empty_weights():
            again = auto(model).from_config(model.config, attn_implementation="eager")
        again.load_state_dict(model.state_dict(), assign=True)
        assert_same("bert", again, model)


def test_a_model_made_by_its_class_does_not_run_without_the_flow() -> None:
    model = trained("bert")
    rebuilt = type(model)(model.config)
    for part in (rebuilt, rebuilt.bert):
        with pytest.raises(
            PlugError, match=r"made without the flow that its configuration has: .* from_config"
        ):
            part(**zoo.inputs("bert"))
    floater.plug(rebuilt, delta=0.2)
    rebuilt.load_state_dict(model.state_dict())
    rebuilt.set_attn_implementation("eager")
    assert_same("bert", rebuilt, model)


def test_weights_of_a_plugged_model_are_not_read_into_a_plain_one() -> None:
    model, plain = trained("bert"), zoo.build("bert")
    for strict in (False, True):
        with pytest.raises(PlugError, match=r"BertForSequenceClassification is not plugged, .*floater\.plug"):
            plain.load_state_dict(model.state_dict(), strict=strict)


def test_a_flow_inside_a_larger_model_is_not_lost(tmp_path: Path) -> None:
    """A plugged encoder that was put into a translation model: what was saved is not plugged as a whole."""
    model = zoo.build("bert2bert")
    floater.plug(model.encoder)
    model.save_pretrained(tmp_path)
    with pytest.raises(PlugError, match=r"encoder\.floater\."):
        type(model).from_pretrained(tmp_path)


def test_a_plugged_part_of_a_larger_model_comes_back(tmp_path: Path) -> None:
    """A translation model made of a plugged encoder: its configuration says that its part is plugged."""
    bert = zoo.build("bert").bert
    floater.plug(bert, time_scale=0.5)
    zoo.noisy(bert)
    bert.save_pretrained(tmp_path / "encoder")
    zoo.build("bert2bert").decoder.save_pretrained(tmp_path / "decoder")
    kind = transformers.EncoderDecoderModel
    model: Any = kind.from_encoder_decoder_pretrained(tmp_path / "encoder", tmp_path / "decoder").eval()
    model.config.decoder_start_token_id, model.config.pad_token_id = 0, zoo.PADDING
    model.save_pretrained(tmp_path / "whole")
    assert "import floater" in str(
        json.loads((tmp_path / "whole" / "config.json").read_text())["fusion_config"]
    )
    again: Any = kind.from_pretrained(tmp_path / "whole").eval()
    options = zoo.inputs("bert2bert")
    torch.testing.assert_close(
        zoo.output(again, **options), zoo.output(model, **options), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize(("name", "path"), [("bert", "bert"), ("bert2bert", "encoder")])
def test_a_part_is_not_saved_without_the_flow_of_the_whole(tmp_path: Path, name: str, path: str) -> None:
    model = trained(name)
    part: Any = model.get_submodule(path)
    with pytest.raises(PlugError, match=f"this BertModel runs with the flow of a {type(model).__name__}"):
        part.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    floater.unplug(model)
    part.save_pretrained(tmp_path)
    assert not hasattr(AutoModel.from_pretrained(tmp_path), "floater")


def test_weights_without_the_flow_are_refused(tmp_path: Path) -> None:
    model = trained("bert")
    model.save_pretrained(tmp_path, state_dict=zoo.build("bert").state_dict())
    for load in (AutoModel.from_pretrained, type(model).from_pretrained, floater.load):
        with pytest.raises(PlugError, match="is missing there"):
            load(tmp_path)


PLAIN = """
import sys, transformers
assert "floater" not in sys.modules
for line in sys.stdin:
    folder, task, *names = line.split()
    ways = [getattr(transformers, name).from_pretrained for name in names]
    for way in (*ways, lambda folder: transformers.pipeline(task, folder)):
        try:
            way(folder)
        except Exception as error:
            print(str(error).replace("\\n", " "))
        else:
            print("loaded")
"""


@pytest.mark.slow
def test_transformers_alone_refuses(tmp_path: Path) -> None:
    """In a process that does not import this library, of all families; but for ordinary extended models."""
    asked = []
    for name, how in CHANGED:
        if how == "plug" or name in (*ROTARY, *BIASES):
            model, folder = changed(name, how), tmp_path / f"{name}-{how}"
            model.save_pretrained(folder)
            asked.append(f"{folder} {task(model)} {auto(model).__name__} {type(model).__name__}")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    older = os.environ.get("FLOATER_TRANSFORMERS_4")  # Python of an environment with Transformers 4.57
    for python in filter(None, (sys.executable, older)):
        done = subprocess.run(
            [python, "-c", PLAIN], input="\n".join(asked), capture_output=True, text=True,
            env=environment, cwd=tmp_path, check=True,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert len(lines) == 3 * len(asked) > 3 * len(zoo.NAMES)
        assert {line for line in lines if "import floater" not in line} == set()


def test_unplugging_takes_the_guard_away(tmp_path: Path) -> None:
    model = trained("bert")
    floater.unplug(model)
    model.save_pretrained(tmp_path)
    assert "floater" not in (tmp_path / "config.json").read_text()
