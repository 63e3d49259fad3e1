"""Checkpoints of several families, with a task's head or their original one, plugged and reloaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

import floater
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.tasks.finetuning import checkpoint
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer, locate, read_config, start
from floater.lab.tasks.finetuning.features import encode_texts, loss, predict
from floater.lab.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.lab.tasks.finetuning.task import check_flow
from floater.lab.training.files import save_whole
from floater.lab.training.model import load_model
from floater.lab.training.settings import Flow
from floater.transformer import FloaterConfig, FloaterForCausalLM

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = {
    "bert": SIZES,
    "roberta": SIZES | {"max_position_embeddings": 70, "pad_token_id": 0},
    "electra": SIZES | {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "pad_token_id": None},
}
HEADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "classes": (AutoModelForSequenceClassification, {"num_labels": 3}),
    "span": (AutoModelForQuestionAnswering, {}),
    "choices": (AutoModelForMultipleChoice, {}),
}


def started(folder: str, head: str, tokenizer: Any, plug: Plug | None = None, **config: Any) -> Any:
    auto, ours = HEADS[head]
    return start(Checkpoint(folder, config), plug or Plug(), auto, tokenizer, **ours)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "floater")


FIRST, SECOND = ["the film was good", "it"], ["it is not bad, it is good", "rome"]


def write_model(folder: Path, bert: Path, family: str) -> Path:
    """A checkpoint without a head, of random weights, with the tokenizer of the tests' BERT."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=100, initializer_range=0.2, **FAMILIES[family])
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["classes", "span"])
def test_families_under_heads(
    tmp_path: Path, bert: Path, family: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new flow changes nothing; a trained one does, and is there again when the model is loaded."""
    path = write_model(tmp_path / "checkpoint", bert, family)
    tokenizer = load_tokenizer(str(path))
    if family in ("gpt2", "roberta", "distilbert"):
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    models = []
    for plug in (Plug(), Plug(options={})):
        torch.manual_seed(1)
        models.append(started(str(path), name, tokenizer, plug))
    features = encode_texts(tokenizer, FIRST, SECOND, max_length=32)
    plain, plugged = (predict(model, features, tokenizer) for model in models)
    assert all(np.array_equal(a, b) for a, b in zip(plain, plugged, strict=True))
    assert "new parameters" in caplog.text
    with torch.no_grad():
        for parameter in models[1].floater.parameters():
            parameter.normal_(std=0.3)
    changed = predict(models[1], features, tokenizer)
    assert not np.allclose(plain[0], changed[0], atol=1e-3)
    save_whole(tmp_path / "model", models[1], tokenizer)
    loaded, again = load_model(
        lambda folder: HEADS[name][0].from_config(read_config(str(folder))),
        tmp_path,
        "cpu",
        read=lambda folder: load_tokenizer(str(folder)),
    )
    again.model_input_names = tokenizer.model_input_names
    actual = predict(loaded, features, again)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(changed, actual, strict=True))


def test_a_checkpoint_without_its_body_is_refused(tmp_path: Path, bert: Path) -> None:
    """Only a head may be new: a deeper configuration than the weights is another model."""
    with pytest.raises(DataError, match=r"lacks \d+ parameters of BertForSequenceClassification"):
        started(str(bert), "classes", load_tokenizer(str(bert)), num_hidden_layers=4)
    with pytest.raises(
        DataError, match=r"lacks \d+ parameters .* or has them in another shape, such as bert"
    ):
        started(str(bert), "classes", load_tokenizer(str(bert)), hidden_size=64)
    with pytest.raises(DataError, match="no model can be loaded"):
        load_tokenizer(str(tmp_path))


def test_a_head_that_fits_is_kept(tmp_path: Path, bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(bert)
    config.num_labels = 3
    before = BertForSequenceClassification(config)
    before.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.save_pretrained(tmp_path)
    after = started(str(tmp_path), "classes", tokenizer)
    assert torch.equal(before.classifier.weight, after.classifier.weight)
    assert "new parameters" not in caplog.text


def test_a_head_for_other_labels_is_new_or_said(
    tmp_path: Path, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when RTE is learned from a model of MNLI, or MNLI goes on with its labels in another order."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(bert)
    names = ["contradiction", "neutral", "entailment"]
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    before = BertForSequenceClassification(config)
    before.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.save_pretrained(tmp_path)

    def with_labels(*labels: str) -> tuple[BertForSequenceClassification, str]:
        caplog.clear()
        told = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
        auto = AutoModelForSequenceClassification
        actual = start(Checkpoint(str(tmp_path)), Plug(), auto, tokenizer, **told)
        assert isinstance(actual, BertForSequenceClassification)
        return actual, caplog.text

    two, said = with_labels("entailment", "not_entailment")
    assert two.classifier.weight.shape[0] == 2
    assert torch.equal(
        two.bert.embeddings.word_embeddings.weight, before.bert.embeddings.word_embeddings.weight
    )
    assert "new parameters" in said
    assert "classifier.weight" in said
    same, said = with_labels(*names)
    assert torch.equal(same.classifier.weight, before.classifier.weight)
    assert "is now for" not in said
    _, said = with_labels(*reversed(names))
    assert (
        "was for contradiction, neutral, entailment; it is now for entailment, neutral, contradiction" in said
    )


def test_a_folder_inside_a_package() -> None:
    assert Path(locate("package:floater/lab/tasks")).name == "tasks"
    with pytest.raises(DataError, match="has no folder 'nothing'"):
        locate("package:floater/nothing")


def test_a_revision_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, *, revision: str, **kwargs: object) -> str:
        asked.append((name, revision))
        if revision == "gone":
            raise FileNotFoundError("no such revision")
        return "cached"

    monkeypatch.setattr("floater.lab.tasks.finetuning.checkpoint.snapshot_download", download)
    assert locate("owner/some-model_1.5@c9745ed") == "cached"
    assert asked == [("owner/some-model_1.5", "c9745ed")]
    with pytest.raises(DataError, match=r"owner/model@gone: cannot be downloaded \(no such revision\)"):
        locate("owner/model@gone")


def test_losses_by_hand() -> None:
    class Outputs:
        logits = torch.tensor([[2.0], [0.0]])

    assert loss(Outputs, torch.tensor([1.0, 0.5])).item() == pytest.approx((1 + 0.25) / 2)

    class Spans:
        start_logits = torch.zeros(1, 4)
        end_logits = torch.tensor([[0.0, 0.0, 1e4, 0.0]])

    assert loss(Spans, torch.tensor([[1, 2]])).item() == pytest.approx(np.log(4) / 2)


def test_a_number_of_tokens_beside_a_number_of_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens is 4096, which only per_device_train_batch_size null"):
        Training(max_tokens=4096)
    assert Training(max_tokens=4096, per_device_train_batch_size=None).max_tokens == 4096


def test_checkpoints_between_updates_of_a_flow_are_refused() -> None:
    model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8))
    training = Training(save_steps=4, eval_steps=4, flow=Flow(update_every=5))
    check_flow(model, training)  # there is no flow
    floater.plug(model)
    with pytest.raises(DataError, match=r"training\.save_steps is 4; with flow\.update_every 5"):
        check_flow(model, training)
    model.floater.requires_grad_(False)
    check_flow(model, training)


def test_a_name_on_the_hub_is_compared_by_the_commit_of_its_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert checkpoint.checkpoint_files("org/name") == [Path("org/name")], "nothing is in the cache"
    branch = tmp_path / "models--org--name" / "refs" / "main"
    branch.parent.mkdir(parents=True)
    branch.write_text("0123abc", encoding="utf-8")
    assert checkpoint.checkpoint_files("org/name") == [branch]
    assert checkpoint.checkpoint_files("org/name@0123abc") == [Path("org/name@0123abc")]


def changed(source: Path, to: Path, weights: Any = lambda tensors: None, **config: Any) -> Path:
    """Copy a checkpoint, and change its weights and fields of its configuration; None removes a field."""
    shutil.copytree(source, to)
    tensors = load_file(to / "model.safetensors")
    weights(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    fields = json.loads((to / "config.json").read_text(encoding="utf-8")) | config
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    (to / "config.json").write_text(text, encoding="utf-8")
    return to


def refused(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which a command refuses a checkpoint; nothing is written."""
    to = path.parent / "written"
    capsys.readouterr()
    assert main([command, str(path), *["256"] * (command == "extend"), "--to", str(to)]) == 2
    assert not to.exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize("command", ["extend", "export"])
def test_missing_weights_are_not_made_up(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    lacking = changed(bert, tmp_path / "lacking", lambda tensors: tensors.pop(QUERY))
    line = refused(command, lacking, capsys)
    assert f"lacks 1 parameters of BertForMaskedLM, or has them in another shape, such as {QUERY}" in line
    narrow = changed(bert, tmp_path / "narrow", lambda tensors: tensors.update({QUERY: torch.ones(2, 2)}))
    assert refused(command, narrow, capsys) == line.replace("lacking:", "narrow:")
    headless = tmp_path / "headless"
    BertModel.from_pretrained(bert).save_pretrained(headless)
    changed(headless, tmp_path / "masked", architectures=["BertForMaskedLM"])
    line = refused(command, tmp_path / "masked", capsys)
    assert "such as cls.predictions" in line
    assert line.endswith("; if it has no head, name BertModel in architectures of config.json")


def test_weights_that_the_class_of_a_checkpoint_does_not_read_are_named(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As bert-base-uncased, which holds the second head of its pretraining."""

    def add(tensors: dict[str, Any]) -> None:
        tensors |= {
            "cls.seq_relationship.weight": torch.ones(2, 32),
            "bert.pooler.dense.bias": torch.ones(32),
        }
        tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]  # Transformers ignores it

    path = changed(bert, tmp_path / "checkpoint", add)
    assert main(["extend", str(path), "256", "--to", str(tmp_path / "to")]) == 0
    unread = "bert.pooler.dense.bias, cls.seq_relationship.weight"
    said = f"{path}: BertForMaskedLM does not use these weights of the checkpoint: {unread}\n"
    assert capsys.readouterr().err == said
    checkpoint.load_pretrained(str(path))
    assert not capsys.readouterr().err, "each of several measurements loads it"


def test_a_random_pooler_is_named(tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(bert, tmp_path / "checkpoint", _without_head, architectures=["BertModel"])
    assert main(["extend", str(path), "256", "--to", str(tmp_path / "to")]) == 0
    lacks = "lacks weights of BertModel, which are random: pooler.dense.bias, pooler.dense.weight"
    assert capsys.readouterr().err == f"{path} {lacks}\n"


def _without_head(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith("cls.")]:
        tensors.pop(name)


@pytest.mark.parametrize("command", ["extend", "export"])
def test_a_head_without_a_class_is_not_dropped(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    nameless = changed(bert, tmp_path / "nameless", architectures=None)
    line = refused(command, nameless, capsys)
    assert "nameless: the checkpoint holds cls.predictions.bias, which BertModel does not read; name" in line
    unknown = changed(bert, tmp_path / "unknown", architectures=["MyBertRanker"])
    assert refused(command, unknown, capsys) == (
        f"floater: {unknown}: architectures in config.json is 'MyBertRanker', which is no model class of "
        "Transformers; name the one whose weights these are"
    )
    body = changed(bert, tmp_path / "body", _without_head, architectures=None)
    assert isinstance(checkpoint.load_pretrained(str(body)), BertModel)


def test_extending_adds_no_padding_token(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = AutoTokenizer.from_pretrained(bert).backend_tokenizer
    for name, special in (("end", {"eos_token": "[SEP]"}), ("neither", {})):
        path = changed(bert, tmp_path / name)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", **special)
        tokenizer.save_pretrained(path)
        to = tmp_path / f"{name}-longer"
        assert main(["extend", str(path), "256", "--to", str(to)]) == 0, capsys.readouterr().err
        before, after = (AutoTokenizer.from_pretrained(folder) for folder in (path, to))
        assert after.pad_token is None
        assert after.special_tokens_map == before.special_tokens_map
        assert after.model_max_length == 256
    assert load_tokenizer(str(tmp_path / "end")).pad_token == "[SEP]"
    with pytest.raises(DataError, match="neither a padding token nor an end token"):
        load_tokenizer(str(tmp_path / "neither"))


@pytest.mark.parametrize("command", ["extend", "export"])
def test_adapters_and_variants_are_named(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "holds a PEFT adapter (adapter_config.json); merge it into its model first" in refused(
        command, adapter, capsys
    )
    variant = Path(shutil.copytree(bert, tmp_path / "variant"))
    for name in ("model.fp16.safetensors", "model.fp16-00001-of-00002.safetensors"):
        next(variant.glob("model.*")).rename(variant / name)
        line = refused(command, variant, capsys)
        assert f"variant holds its weights as {name}; save it without a variant first" in line
        assert "variant='fp16'" in line


@pytest.mark.parametrize("command", ["extend", "export"])
def test_a_model_of_this_library_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "model"
    FloaterForCausalLM(FloaterConfig(vocab_size=50, **SIZES)).save_pretrained(path)
    assert "model holds a model of this library, not of Transformers: its encoding" in refused(
        command, path, capsys
    )
