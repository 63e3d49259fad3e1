"""Models whose files hold their weights at odd addresses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    BertConfig,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import floater
from floater.lab.study.analyses import load_subject
from floater.lab.tasks.finetuning.checkpoint import start
from floater.lab.tasks.finetuning.settings import Checkpoint, Plug
from floater.lab.training.model import configured, load_model
from floater.transformer import FloaterConfig, FloaterForCausalLM
from floater.transformer.alignment import align

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
IDS = torch.arange(3, 11).view(2, 4)


def ours(**changes: Any) -> FloaterForCausalLM:
    """A model whose output depends on its flow."""
    torch.manual_seed(0)
    options = {"injection": "add"}
    model = FloaterForCausalLM(FloaterConfig(**SIZES, vocab_size=37, position_options=options, **changes))
    for name, parameter in model.named_parameters():
        if name.endswith("start"):
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, vocab_size=37)).eval()


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """A directory with the model, whose file has its first tensor 44 bytes behind a multiple of 64."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    padding = (44 - end) % 64
    header = content[8:end] + b" " * padding
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    return folder


def addresses(model: nn.Module) -> set[int]:
    return {tensor.data_ptr() % 64 for tensor in (*model.parameters(), *model.buffers())}


@torch.no_grad()
def outputs(model: nn.Module) -> torch.Tensor:
    return model(IDS)[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("device", [{}, {"device_map": "cpu"}, {"low_cpu_mem_usage": True}])
def test_loaded_models_compute_what_the_saved_ones_did(tied: bool, device: Any, tmp_path: Path) -> None:
    model = ours(tie_word_embeddings=tied)
    saved(model, tmp_path)
    for kind in (FloaterForCausalLM, AutoModelForCausalLM):
        loaded, info = kind.from_pretrained(tmp_path, output_loading_info=True, **device)
        assert not info["missing_keys"]
        assert addresses(loaded) == {0}
        assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
        assert torch.equal(outputs(loaded), outputs(model))


def test_a_model_on_disk_stays_there(tmp_path: Path) -> None:
    loaded = FloaterForCausalLM.from_pretrained(
        saved(ours(tie_word_embeddings=False), tmp_path / "model"),
        device_map={"model": "disk", "lm_head": "cpu"},
        offload_folder=tmp_path / "disk",
    )
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"meta"}
    assert addresses(loaded.lm_head) == {0}


def test_plugged_models_of_other_libraries_compute_what_the_saved_ones_did(tmp_path: Path) -> None:
    model = bert()
    saved(model, tmp_path / "plain")
    floater.plug(model, start="small")
    model.config._name_or_path = str(tmp_path / "plain")
    floater.save(model, tmp_path / "named")
    saved(model, tmp_path / "whole")
    for folder in ("named", "whole"):
        loaded = floater.load(tmp_path / folder).eval()
        assert addresses(loaded) == {0}
        assert torch.equal(outputs(loaded), outputs(model))


def test_models_that_are_trained_and_analysed_are_aligned(tmp_path: Path) -> None:
    saved(ours(), tmp_path / "ours")
    saved(bert(), tmp_path / "bert")
    model, _ = load_model(configured(FloaterForCausalLM), tmp_path / "ours", "cpu", read=lambda folder: None)
    assert torch.equal(outputs(model), outputs(ours()))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})))
    begun = start(Checkpoint(str(tmp_path / "bert")), Plug(), AutoModelForQuestionAnswering, tokenizer)
    for loaded in (
        model,
        begun,
        load_subject(tmp_path / "ours").model,
        load_subject(tmp_path / "bert").model,
    ):
        assert addresses(loaded) == {0}


def test_only_what_is_misaligned_moves(tmp_path: Path) -> None:
    model = ours()
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert align(model) is model
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    plain = AutoModel.from_pretrained(saved(bert(), tmp_path))
    assert addresses(plain) != {0}  # transformers leaves them where they are
    moved = list(plain.parameters())
    align(plain)
    assert addresses(plain) == {0}
    assert all(a is b for a, b in zip(plain.parameters(), moved, strict=True))
    with torch.device("meta"):
        assert align(nn.Linear(2, 2)).weight.is_meta
