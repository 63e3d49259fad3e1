"""Exported models: what programs that do not import this library make of them."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

import floater
from floater import FloaterConfig
from floater.pretrained import ExportError, ExtendError, PlugError, plain_model
from floater.transformer import FloaterForCausalLM

from . import zoo
from .extended import ROTARY, build, build_inputs, extended
from .tiny import tiny

LONG = 100
"""Tokens of a text that is longer than in training."""

ALONE = """
import json, sys
import torch, transformers
class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "floater":
            raise ImportError("floater cannot be imported")
sys.meta_path.insert(0, Blocked())
transformers.logging.set_verbosity_error()
for folder in sys.stdin.read().split():
    fields = json.load(open(folder + "/config.json"))
    names = [name for name in fields.get("auto_map", {}) if name != "AutoConfig"]
    kind = getattr(transformers, names[0] if names else fields["architectures"][0])
    model = kind.from_pretrained(folder, trust_remote_code=bool(names)).eval()
    inputs, expected = torch.load(folder + "/expected.pt")
    with torch.no_grad():
        output = model(**inputs)
    output = output.logits if "logits" in output else output[0]
    print(float((output - expected).abs().max() / expected.abs().max()))
"""


def errors_alone(folders: list[Path], python: str = sys.executable) -> list[float]:
    """Load exported models in a process without this library; return the relative errors of their outputs."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folders[0].parent / "modules"),
    }  # fmt: skip
    done = subprocess.run(
        [python, "-c", ALONE], input="\n".join(map(str, folders)), capture_output=True, text=True,
        env=environment, cwd=folders[0].parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(line) for line in done.stdout.split()]


def _exported(model: Any, folder: Path, name: str, **options: Any) -> Path:
    """Export a model with the outputs that a reader must compute."""
    floater.export(model, folder, **options)
    inputs = build_inputs(name, LONG)
    torch.save((inputs, zoo.output(model, **inputs)), folder / "expected.pt")
    return folder


def read(folder: Path) -> Any:
    """Return an exported model with its code."""
    _, auto, *_ = json.loads((folder / "config.json").read_text())["auto_map"]
    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()


def baked(name: str) -> Any:
    model = zoo.build(name)
    floater.plug(model, start="small", max_length=64)
    zoo.noisy(model)
    floater.bake(model, 64)
    return model


PLAIN = [
    *(("llama", method, {}) for method in ("linear", "ntk", "yarn", "llama3", "longrope", "dynamic", "clex")),
    ("llama", "yarn", {"attention_factor": 1.3}),
    *((name, "yarn", {}) for name in ("mistral", "qwen2", "smollm3", "gemma3", "gpt_neox")),
    ("phi3", "longrope", {}),
    ("phi3", "clex", {}),
    ("gemma2", "clex", {}),
    ("modernbert", "clex", {}),
    ("t5", "flow", {}),
]


def test_plain_models_are_read_without_this_library(tmp_path: Path) -> None:
    """The rewritten ones, CLEX and T5's biases, too; a server's keys mean the same to Transformers."""
    folders = []
    for number, (name, method, options) in enumerate(PLAIN):
        model = extended(name, method, **options)
        folders.append(_exported(model, tmp_path / f"{number}", name, reader="vllm"))
        fields = json.loads((folders[-1] / "config.json").read_text())
        assert "floater" not in json.dumps(fields)
        assert not list(folders[-1].glob("*.py"))
    errors = errors_alone(folders)
    assert len(errors) == len(folders)
    assert max(errors) < 2e-6, errors


@pytest.mark.slow
def test_transformers_4_reads_plain_models(tmp_path: Path) -> None:
    """FLOATER_TRANSFORMERS_4 is the Python of an environment with Transformers 4.57."""
    python = os.environ.get("FLOATER_TRANSFORMERS_4")
    if python is None:
        pytest.skip("FLOATER_TRANSFORMERS_4 names no Python with Transformers 4.57")
    folders = []
    for number, (name, method, options) in enumerate(PLAIN):
        model = extended(name, method, **options)
        summary = floater.export(model, tmp_path / f"{number}")
        if (name, method) in (("modernbert", "clex"), ("phi3", "clex")):
            assert "Transformers 4 does not read" in str(summary)
        elif name != "gemma2":  # its default attention leaves out the cap of logits there
            folders.append(_exported(model, tmp_path / f"{number}-read", name))
    folders.append(_exported(extended("modernbert", "ntk"), tmp_path / "ntk", "modernbert"))
    for how in ("flow", "clock", "self_extend", "log_n"):
        folders.append(_exported(coded(how), tmp_path / how, "llama", code=True))
    for method in ("yarn", "ntk"):
        folders.append(_exported(older(method), tmp_path / f"older-{method}", "llama"))
    assert max(errors_alone(folders, python)) < 2e-6


def coded(how: str) -> Any:
    """A Llama with another base, for which code is written."""
    config = copy.deepcopy(zoo.build("llama").config)
    config.rope_parameters["rope_theta"] = 500.0
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    floater.extend(model, 128, "yarn" if how in ("flow", "clock") else how)
    if how == "flow":
        floater.plug(model, start="small", max_length=128)
        zoo.noisy(model)
        floater.bake(model, 128)
    if how == "clock":
        floater.plug(model, clock={}, start="small")
    return model


@pytest.mark.parametrize("how", ["flow", "clock", "self_extend"])
def test_code_states_its_rotation_by_the_names_of_transformers_4(how: str, tmp_path: Path) -> None:
    """It ignores those of version 5 without warning."""
    model = coded(how)
    floater.export(model, tmp_path, code=True)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["rope_theta"] == 500.0
    scaling = {name: value for name, value in model.config.rope_parameters.items() if name != "rope_theta"}
    assert fields.get("rope_scaling", {"rope_type": "default"}) == scaling
    inputs = build_inputs("llama", LONG)
    torch.testing.assert_close(zoo.output(read(tmp_path), **inputs), zoo.output(model, **inputs))


def older(method: str) -> Any:
    """A Qwen2-VL whose configuration has the older name of the kind of its rotation."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64}
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(
        text_config={**text, "rope_theta": 500.0, "rope_scaling": scaling},
        vision_config={"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4},
        **{f"{name}_token_id": 36 + i for i, name in enumerate(("image", "video", "vision_start"))},
    )
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    floater.extend(model, 128, method)
    return model


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("method", "kind"), [("yarn", "yarn"), ("ntk", "default")])
def test_the_older_name_of_a_rotation_does_not_survive(
    method: str, kind: str, saved: bool, tmp_path: Path
) -> None:
    """Transformers 4 prefers it, and vLLM refuses two that differ; a model may have been saved with both."""
    model = older(method)
    rope = model.config.text_config.rope_parameters
    assert "type" not in rope
    if saved:
        rope["type"] = "mrope"
    floater.export(model, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())["text_config"]
    for name in ("rope_parameters", "rope_scaling"):
        assert fields[name]["rope_type"] == kind
        assert fields[name]["mrope_section"] == [2, 3, 3]
        assert "type" not in fields[name]
    again = transformers.Qwen2VLForConditionalGeneration.from_pretrained(tmp_path).eval()
    inputs = build_inputs("llama", LONG)
    torch.testing.assert_close(zoo.output(again, **inputs), zoo.output(model, **inputs))


def test_a_scaling_by_its_older_name_is_made_wider_without_it() -> None:
    config = transformers.LlamaConfig.from_dict({
        **zoo.build("llama").config.to_dict(), "rope_parameters": None,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    })  # fmt: skip
    assert config.rope_parameters["type"] == "dynamic"
    model = transformers.LlamaForCausalLM(config)
    floater.extend(model, 256)
    assert model.config.rope_parameters.keys() == {"rope_type", "rope_theta"}


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral"])
def test_weights_have_the_names_of_the_first_release(name: str, tmp_path: Path) -> None:
    """As in the files of `save_pretrained`; other readers know no others."""
    model = build(name) if name == "gpt_neox" else tiny(name)
    floater.extend(model, 128, "ntk")
    model.save_pretrained(tmp_path / "saved")
    floater.export(model, tmp_path / "exported")
    names = []
    for folder in ("saved", "exported"):
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            names.append({*file.keys()})
    assert names[0] == names[1]
    assert not names[0] & model.state_dict().keys() >= model.state_dict().keys()
    if name == "gpt_neox":
        fields = json.loads((tmp_path / "exported" / "config.json").read_text())
        rope = model.config.rope_parameters
        assert (fields["rotary_pct"], fields["rotary_emb_base"]) == (0.5, rope["rope_theta"])


@pytest.mark.parametrize("name", ["bamba", "dots3_note_text"])
def test_infinity_and_fields_that_differ_among_layers_are_exported(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    floater.extend(model, 128, "ntk")
    floater.export(model, tmp_path / "plain")
    again, ids = type(model).from_pretrained(tmp_path / "plain").eval(), zoo.text()
    torch.testing.assert_close(zoo.output(again, input_ids=ids), zoo.output(model, input_ids=ids))


@pytest.mark.parametrize("name", ["bamba", "dots3_note_text", "beam"])
def test_code_is_written_for_such_models_and_for_layers_with_a_window_alone(
    name: str, tmp_path: Path
) -> None:
    model, ids = tiny(name), zoo.text()
    floater.plug(model, clock={})
    floater.export(model, tmp_path, code=True)
    torch.testing.assert_close(zoo.output(read(tmp_path), input_ids=ids), zoo.output(model, input_ids=ids))


def test_code_reads_packed_rows_as_the_texts_alone(tmp_path: Path) -> None:
    """Transformers tells them apart by position_ids, also in a compiled graph."""
    floater.export(extended("llama", "self_extend", temperature=True), tmp_path, code=True)
    model, lengths = read(tmp_path), (LONG, 24, 70)
    texts = [zoo.text(1, length, seed=seed) for seed, length in enumerate(lengths)]
    at = torch.cat([torch.arange(length) for length in lengths])[None]
    inputs = {"input_ids": torch.cat(texts, 1), "position_ids": at, "use_cache": False}
    expected = torch.cat([zoo.output(model, input_ids=text) for text in texts], 1)
    torch.testing.assert_close(zoo.output(model, **inputs), expected, atol=1e-5, rtol=1e-5)
    torch.compiler.reset()
    graph = torch.compile(model, backend="eager")
    torch.testing.assert_close(zoo.output(graph, **inputs), expected, atol=1e-5, rtol=1e-5)
    window = torch.ones(1, 1, LONG, LONG, dtype=torch.bool).tril().triu(-20)
    with pytest.raises(ValueError, match="the mask hides the first tokens of a text from later ones"):
        model(texts[0], attention_mask=window)


def test_exported_code_is_not_changed_or_written_again(tmp_path: Path) -> None:
    for how in ("flow", "clock", "self_extend"):
        floater.export(coded(how), tmp_path / how, code=True)
        model, new = read(tmp_path / how), tmp_path / "new"
        message = "FloaterLlamaForCausalLM is exported code, which cannot be {}; load the model that it was"
        with pytest.raises(PlugError, match=message.format("plugged")):
            floater.plug(model)
        with pytest.raises(PlugError, match=message.format("plugged")):
            floater.plug(model, clock={})
        with pytest.raises(ExtendError, match=message.format("extended")):
            floater.extend(model, 1024)
        with pytest.raises(ExportError, match=message.format("written for vllm")):
            floater.export(model, new, reader="vllm")
        with pytest.raises(ExportError, match=message.format("written as code")):
            floater.export(model, new, code=True)
        assert not new.exists()
        floater.export(model, tmp_path / f"{how}-again")
        inputs = build_inputs("llama", LONG)
        expected = zoo.output(model, **inputs)
        torch.testing.assert_close(zoo.output(read(tmp_path / f"{how}-again"), **inputs), expected)


@pytest.mark.parametrize("name", ROTARY)
def test_a_plain_model_computes_the_same(name: str) -> None:
    model = extended(name, "clex")
    plain = plain_model(model)
    assert type(plain) is type(model)
    assert not any("floater" in each for each in plain.state_dict())
    inputs = build_inputs(name, LONG)
    expected = zoo.output(model, **inputs)
    torch.testing.assert_close(
        zoo.output(plain, **inputs), expected, atol=1e-5 * float(expected.abs().max()), rtol=0
    )
    shared = model.get_input_embeddings().weight.data_ptr()
    assert plain.get_input_embeddings().weight.data_ptr() == shared


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "albert", "vit"])
def test_longer_tables_are_plain(name: str, tmp_path: Path) -> None:
    model = zoo.build(name)
    new = 16 if name == "vit" else 4 * int(model.config.max_position_embeddings)
    floater.extend(model, new, *(["flow"] if name == "vit" else []))
    floater.export(model, tmp_path / "plain")
    plain = type(model).from_pretrained(tmp_path / "plain").eval()
    inputs = build_inputs(name, LONG)
    torch.testing.assert_close(zoo.output(plain, **inputs), zoo.output(model, **inputs), atol=1e-6, rtol=0)


def test_code_is_read_without_this_library(tmp_path: Path) -> None:
    folders = []
    for name in ("bert", "roberta", "albert", "deberta-v2", "vit", "gpt2", "llama"):
        model, folder = baked(name), tmp_path / name
        floater.export(model, folder, code=True)
        inputs = zoo.inputs(name)
        if "attention_mask" in inputs:  # the vectors of padding are not defined
            inputs = {name: value[:1] for name, value in inputs.items()}
            inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        torch.save((inputs, zoo.output(model, **inputs)), folder / "expected.pt")
        folders.append(folder)
    for name in ("llama", "gemma3", "gpt_neox"):
        for method, options in (("self_extend", {"temperature": True}), ("log_n", {})):
            folder = tmp_path / f"{name}-{method}"
            folders.append(_exported(extended(name, method, **options), folder, name, code=True))
    errors = errors_alone(folders)
    assert len(errors) == len(folders)
    assert max(errors) < 2e-6, errors


def test_heads_that_build_their_body_are_read_without_this_library(tmp_path: Path) -> None:
    folders = []
    for name, task in (("llama", "SequenceClassification"), ("qwen3", "TokenClassification")):
        auto = getattr(transformers, f"AutoModelFor{task}")
        for how in ("plug", "self_extend", "clex"):
            torch.manual_seed(0)
            model = auto.from_config(zoo.build(name).config).eval()
            if how == "plug":
                floater.plug(model, start="small")
                zoo.noisy(model)
                floater.bake(model, LONG)
            else:
                floater.extend(model, 128, how)
            folder = _exported(model, tmp_path / f"{name}-{how}", name, code=how != "clex")
            folders.append(folder)
    errors = errors_alone(folders)
    assert len(errors) == len(folders)
    assert max(errors) < 1e-5


@pytest.mark.parametrize("name", ["bert", "albert", "deberta-v2", "gpt2"])
def test_code_adds_the_flow_in_every_pass(name: str, tmp_path: Path) -> None:
    """Also by `forward`, as sentence-transformers calls it, in a copy, and in several threads."""
    model = baked(name)
    floater.export(model, tmp_path, code=True)
    copied = read(tmp_path)
    texts = [zoo.text(1, length) for length in range(5, 13)]
    with torch.no_grad():
        expected = [model(text)[0] for text in texts]
        for each in (copied, copied.forward, copy.deepcopy(copied), pickle.loads(pickle.dumps(copied))):
            for text, output in zip(texts, expected, strict=True):
                torch.testing.assert_close(each(text)[0], output, atol=1e-5, rtol=1e-5)

    def serve(text: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return [copied(text)[0] for _ in range(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        for served, output in zip(pool.map(serve, texts), expected, strict=True):
            torch.testing.assert_close(served, output, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="does not support"):
        copied.gradient_checkpointing_enable()


def test_code_adds_the_flow_to_layers_that_are_replaced(tmp_path: Path) -> None:
    """As `from_pretrained` with a bitsandbytes configuration replaces them, after the hooks are there."""
    model, inputs = baked("bert"), zoo.inputs("bert")
    floater.export(model, tmp_path, code=True)
    copied = read(tmp_path)
    for block in copied.base_model.encoder.layer:
        before = block.attention.self.query
        block.attention.self.query = torch.nn.Linear(before.in_features, before.out_features)
        block.attention.self.query.load_state_dict(before.state_dict())
    actual, again = (zoo.output(copied, **inputs) for _ in range(2))
    torch.testing.assert_close(actual, zoo.output(model, **inputs), atol=1e-5, rtol=1e-5)
    assert torch.equal(actual, again)


@pytest.mark.parametrize(("name", "renamed"), [("gpt_neox", True), ("llama", False)])
def test_code_with_other_names_of_weights_refuses_transformers_4(
    name: str, renamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started the head of a GPT-NeoX at random."""
    floater.export(baked(name), tmp_path, code=True)
    read(tmp_path)
    monkeypatch.setattr(transformers, "__version__", "4.57.3")
    specification = importlib.util.spec_from_file_location("code", tmp_path / "modeling_floater.py")
    assert specification is not None
    assert specification.loader is not None
    with (
        pytest.raises(ImportError, match=r"have the names of Transformers 5, and this is 4\.57\.3$")
        if renamed
        else contextlib.nullcontext()
    ):
        specification.loader.exec_module(importlib.util.module_from_spec(specification))


@pytest.mark.parametrize("how", ["flow", "clock", "self_extend"])
def test_code_refuses_positions_that_it_would_not_read(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a part of a text, a flow needs position_ids; clocks and attention need the whole text."""
    floater.export(coded(how), tmp_path, code=True)
    model, ids = read(tmp_path), zoo.text()
    for name in ("positions", "times"):
        with pytest.raises(ValueError, match=f"does not take {name}; pass position_ids"):
            model(ids, **{name: torch.arange(7)[None]})
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Any:
        return attention(*args, **kwargs)

    attend.__module__ = "torch.distributed.tensor.experimental._context_parallel._attention"
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    with pytest.raises(ValueError, match="context_parallel shows a part"):
        model(ids)
    placed = {"input_ids": ids, "position_ids": torch.arange(7)[None]}
    if how == "flow":
        assert torch.isfinite(zoo.output(model, **placed)).all()
    else:
        with pytest.raises(ValueError, match="context_parallel shows a part"):
            model(**placed)


def test_code_refuses_tokens_before_the_first_position_and_texts_that_it_would_join(tmp_path: Path) -> None:
    """They had the vectors of position 0, and those of one text, without a word."""
    for name, first in (("roberta", 2), ("llama", 0)):
        floater.export(baked(name), tmp_path / name, code=True)
        model, ids = read(tmp_path / name), zoo.text()
        at = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]) + first
        with pytest.raises(ValueError, match=f"position_ids begin at {first - 2}; .* is {first}$"):
            model(ids, position_ids=at - 2)
        mask = torch.ones_like(ids)
        mask[:, 0] = 0
        padded = torch.cat((at[:, :1] * 0, at[:, 1:]), 1)  # of padding, they may begin anywhere
        outputs = [
            zoo.output(model, input_ids=ids, position_ids=each, attention_mask=mask)[:, 1:]
            for each in (at, padded)
        ]
        torch.testing.assert_close(*outputs)
        with pytest.raises(ValueError, match=r"cu_seq_lens_q packs texts, .* pass position_ids, too"):
            model(ids, cu_seq_lens_q=torch.tensor([0, 3, 7]))


@pytest.mark.parametrize(("name", "method"), [("llama", "self_extend"), ("gpt2", None)])
def test_code_generates_as_this_library_does(name: str, method: str | None, tmp_path: Path) -> None:
    """With padding on the left, across the training length, with every cache that a server has."""
    model = baked(name) if method is None else extended(name, method)
    floater.export(model, tmp_path, code=True)
    copied = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    length = 20 if method is None else 58
    ids, mask = zoo.text(2, length), torch.ones(2, length, dtype=torch.long)
    mask[0, :7] = 0
    options: dict[str, Any] = {
        "max_new_tokens": 12,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 1,
    }
    expected = model.generate(ids, attention_mask=mask, **options)
    assert expected.shape[1] == length + 12
    for more in ({}, {"use_cache": False}, {"num_beams": 1, "prefill_chunk_size": 8}):
        assert torch.equal(copied.generate(ids, attention_mask=mask, **options, **more), expected)
    if method is not None:
        static = copied.generate(
            ids, attention_mask=mask, **options, cache_implementation="static", disable_compile=True
        )
        assert torch.equal(static, expected)


def test_code_of_a_decoder_that_counts_after_its_padding_generates_from_zero(tmp_path: Path) -> None:
    """As `generate` counts for every model."""
    config = transformers.RobertaConfig(**zoo._SIZE, **zoo._TEXT, is_decoder=True)
    model: Any = transformers.RobertaForCausalLM(config).eval()
    floater.plug(model, start="small", max_length=64)
    zoo.noisy(model)
    floater.bake(model, 64)
    floater.export(model, tmp_path, code=True)
    copied = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    ids, mask = zoo.text(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        expected, actual = (
            each.generate(**inputs, **options, output_logits=True, return_dict_in_generate=True)
            for each in (model, copied)
        )
        assert torch.equal(actual.sequences, expected.sequences)
        torch.testing.assert_close(actual.logits, expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(copied(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
        static = {"cache_implementation": "static", "disable_compile": True}
        for each in (model, copied):
            assert torch.equal(each.generate(**inputs, **options, **static), expected.sequences)
    joined = {
        "generation_config": transformers.GenerationConfig(
            **options | {"eos_token_id": -1, "pad_token_id": 1}
        ),
        "continuous_batching_config": transformers.ContinuousBatchingConfig(
            num_blocks=8, page_size=16, max_batch_tokens=16
        ),
    }
    for each in (model, copied):
        (_, second) = each.generate_batch([ids[0, :3].tolist(), ids[1].tolist()], **joined).values()
        alone = model.generate(ids[1:], **options)
        assert second.generated_tokens == alone[0, 8:].tolist()


def test_trained_biases_that_no_class_of_transformers_has_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 40}
    options = {"alibi": True, "multi_query": False, "max_position_embeddings": 32}
    model = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes, **options))
    floater.extend(model, 64)
    with pytest.raises(ExportError, match="the code of FalconForCausalLM computes the slopes of its biases"):
        floater.export(model, tmp_path / "new")
    with pytest.raises(ExportError, match="this FalconForCausalLM is extended by 'flow'"):
        floater.export(model, tmp_path / "new", code=True)


def test_code_refuses_another_attention(tmp_path: Path) -> None:
    floater.export(extended("llama", "log_n"), tmp_path, code=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="'sdpa', which ignores the positions of this model"):
        model(zoo.text(1, 8))


@pytest.mark.parametrize(("method", "keys"), [
    ("linear", {"max_position_embeddings": 64, "factor": 2.0}),
    ("yarn", {"max_position_embeddings": 128, "factor": 2.0, "original_max_position_embeddings": 64}),
    ("llama3", {"max_position_embeddings": 128, "factor": 2.0, "original_max_position_embeddings": 64}),
    ("longrope", {"max_position_embeddings": 128, "original_max_position_embeddings": 64}),
    ("ntk", {"max_position_embeddings": 128}),
])  # fmt: skip
@pytest.mark.parametrize("reader", ["vllm", "sglang"])
def test_servers_derive_the_new_length(
    tmp_path: Path, reader: str, method: str, keys: dict[str, Any]
) -> None:
    """The length that vLLM derives (vllm/config/model.py) and the keys that its rotary classes read."""
    summary = floater.export(extended("llama", method), tmp_path, reader=reader)
    assert ("token at position 64 as the first" in str(summary)) is (
        (reader, method) == ("sglang", "longrope")
    )
    fields = json.loads((tmp_path / "config.json").read_text())
    rope = fields["rope_parameters"]
    assert keys.items() <= {**fields, **rope}.items()
    derived = (
        rope["original_max_position_embeddings"]
        if rope["rope_type"] == "yarn"
        else fields["max_position_embeddings"]
    )
    if rope["rope_type"] not in ("longrope", "llama3"):
        derived *= rope.get("factor", 1.0)
    assert derived == 128


def test_a_stated_temperature_is_the_multiple_that_servers_read(tmp_path: Path) -> None:
    """YaRN's class in vLLM multiplies attn_factor by 0.1 ln(factor) + 1."""
    floater.export(extended("llama", "yarn", attention_factor=1.3), tmp_path, reader="vllm")
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    assert rope["attn_factor"] * (0.1 * torch.log(torch.tensor(2.0)) + 1) == pytest.approx(1.3)


@pytest.mark.parametrize("reader", ["vllm", "sglang", "llama.cpp"])
def test_a_model_of_windows_alone_has_no_rotation_for_servers(tmp_path: Path, reader: str) -> None:
    config = build("gemma3").config
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    config.rope_parameters = {"sliding_attention": config.rope_parameters["sliding_attention"]}
    model = transformers.Gemma3ForCausalLM(config)
    with pytest.raises(ExportError, match="has no such layers, or several kinds of them"):
        floater.export(model, tmp_path / reader, reader=reader)


def test_llama_cpp_reads_the_trained_length_of_llama_3(tmp_path: Path) -> None:
    floater.export(extended("llama", "llama3"), tmp_path, reader="llama.cpp")
    assert json.loads((tmp_path / "config.json").read_text())["original_max_position_embeddings"] == 64


@pytest.mark.parametrize("reader", ["transformers", "vllm"])
@pytest.mark.parametrize(
    "method", ["linear", "yarn", "llama3", "ntk", "dynamic", "longrope", "clipped", "clex"]
)
def test_an_exported_model_is_extended_as_the_original_or_refused(
    tmp_path: Path, method: str, reader: str
) -> None:
    """Without a note, "ntk" is an original of the new length, and "linear" for vLLM one of the old length."""
    floater.export(extended("llama", method), tmp_path, reader=reader)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    if method in ("yarn", "llama3") or (method, reader) == ("linear", "transformers"):
        once = build("llama")
        floater.extend(once, 256, method)
        floater.extend(again, 256)
        inputs = build_inputs("llama", 200)
        torch.testing.assert_close(zoo.output(again, **inputs), zoo.output(once, **inputs))
    else:
        for other in (None, "yarn", "self_extend"):
            with pytest.raises(ExtendError, match=f"extended by '{method}' already; extend the original"):
                floater.extend(again, 256, other)


@pytest.mark.parametrize(("name", "method", "options", "reader", "message"), [
    ("llama", "self_extend", {}, "transformers", "code=True"),
    ("llama", "log_n", {}, "vllm", "code=True"),
    ("llama", "clex", {"declared": False}, "transformers", "declared=True"),
    ("llama", "dynamic", {"declared": False}, "vllm", "does not compute 'dynamic'"),
    ("bloom", "flow", {}, "transformers", "slopes"),
    ("t5", "flow", {}, "llama.cpp", "buckets"),
    ("qwen2", "llama3", {}, "llama.cpp", "ignores it"),
    ("llama", "yarn", {"attention_factor": 1.3}, "llama.cpp", "temperature"),
    ("phi3", "dropped", {}, "llama.cpp", "by 1.08, and this model by 1, as 'clipped', 'dropped'"),
    ("llama", "dropped", {}, "llama.cpp", "ignores it"),
    ("llama", "yarn", {}, "ollama", "must be one of"),
])  # fmt: skip
def test_what_a_reader_would_compute_otherwise_is_refused(
    tmp_path: Path, name: str, method: str, options: dict[str, Any], reader: str, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        floater.export(extended(name, method, **options), tmp_path / "new", reader=reader)
    assert not (tmp_path / "new").exists()


def test_a_flow_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="after the layer norm"):
        floater.export(baked("bert"), tmp_path / "new")
    model = zoo.build("bert")
    floater.plug(model)
    with pytest.raises(ExportError, match="bake it first"):
        floater.export(model, tmp_path / "new", code=True)
    with pytest.raises(ExportError, match="flows over two inputs"):
        floater.export(baked("t5"), tmp_path / "new", code=True)
    with pytest.raises(ExportError, match="another rotation"):
        floater.export(extended("modernbert", "self_extend"), tmp_path / "new", code=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("code", [False, True])
def test_weights_of_another_architecture_are_refused(tmp_path: Path, code: bool) -> None:
    """Transformers starts the weights that are missing at random, and drops those it has no place for."""

    def changed(change: str) -> Any:
        model = baked("bert") if code else zoo.build("bert")
        if change == "block":
            del model.bert.encoder.layer[-1]
        elif change == "head":
            model.cls = torch.nn.Sequential(torch.nn.Linear(model.config.hidden_size, 3))
        else:
            torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)
        return model

    for change, message in (
        ("block", r"layer\.\d\.attention.* is missing in this model and \(\d+,\) in a"),
        ("head", "'cls.* is .* and missing in a|'cls.* is missing in this model"),
        ("quantized", "in this model and"),
    ):
        with pytest.raises(ExportError, match=message):
            floater.export(changed(change), tmp_path / "new", code=code)
        assert not (tmp_path / "new").exists()


def test_a_directory_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ExportError, match="exists already"):
        floater.export(build("llama"), tmp_path)
    for no_path in (None, "", 3):
        with pytest.raises(ExportError, match=f"directory is {no_path!r}; it must be the path of a new or"):
            floater.export(build("llama"), no_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["clex", "self_extend", "log_n"])
def test_texts_in_one_row_are_refused_unless_the_model_is_plain(method: str) -> None:
    """Continuous batching would bypass the rules of these methods; a plain model has none."""
    model = extended("llama", method)
    with pytest.raises(PlugError, match="no continuous batching"):
        model.init_continuous_batching()
    if method == "clex":
        assert plain_model(model).init_continuous_batching() is not None


def test_models_of_this_library_refuse_continuous_batching() -> None:
    model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=20, position="rotary"))
    with pytest.raises(PlugError, match="no continuous batching"):
        model.init_continuous_batching()


def test_threads_write_the_nearest_distance_of_each_bucket(tmp_path: Path) -> None:
    """All later keys share the bucket of distance 0 in a decoder; threads wrote one of them, at random."""
    model, threads = extended("t5", "flow"), torch.get_num_threads()
    table = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
    torch.set_num_threads(2)
    try:
        for number in range(4):
            floater.export(model, tmp_path / f"{number}")
            plain = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / f"{number}")
            written = plain.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
            assert torch.equal(written[0], table.weight[0])
    finally:
        torch.set_num_threads(threads)
