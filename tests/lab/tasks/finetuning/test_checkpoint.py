"""Checkpoints of several families under the heads of tasks, plugged and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
)

import floater
from floater.errors import DataError
from floater.lab.tasks.finetuning import checkpoint
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer, locate, read_config, start
from floater.lab.tasks.finetuning.features import encode_texts, loss, predict
from floater.lab.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.lab.tasks.finetuning.task import check_flow
from floater.lab.training.files import save_whole
from floater.lab.training.model import load_model
from floater.lab.training.settings import Flow

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
