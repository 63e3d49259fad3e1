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
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel
from transformers.trainer_utils import load_sharded_checkpoint

import floater
from floater.pretrained import FAMILIES, PlugError

from . import zoo
from .changed import CHANGED, assert_same, auto, changed, task, trained
from .extended import BIASES, ROTARY, build

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


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


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("how", ["plug", "extend"])
def test_a_mapping_of_names_is_that_of_the_flow_too(tmp_path: Path, how: str, shards: bool) -> None:
    """As of weights that were saved within another module."""
    model = changed("llama", how)
    model.save_pretrained(tmp_path, **({"max_shard_size": "5KB"} if shards else {}))
    for file in tmp_path.glob("*.safetensors"):
        weights = {f"module.{name}": tensor for name, tensor in load_file(file).items()}
        save_file(weights, file, {"format": "pt"})
    if shards:
        index = tmp_path / "model.safetensors.index.json"
        fields = json.loads(index.read_text())
        fields["weight_map"] = {f"module.{name}": file for name, file in fields["weight_map"].items()}
        index.write_text(json.dumps(fields))
    options: dict[str, Any] = {"key_mapping": {r"^module\.": ""}, "attn_implementation": "eager"}
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True, **options)
    assert not info["unexpected_keys"] | info["missing_keys"]
    assert_same("llama", again, model, how)


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
