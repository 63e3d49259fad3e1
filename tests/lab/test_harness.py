"""Extended models in lm-evaluation-harness, on a task of one file; skipped without lm-eval."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import floater
from floater.errors import DataError
from floater.lab.text.bpe import train_bpe

lm_eval = pytest.importorskip("lm_eval")

QUESTIONS = ["The river runs to", "Rain falls on", " ".join(["Clouds come back over"] * 12)]
CHOICES = [" the sea", " the hills", " the land and the sea"]


@pytest.fixture
def model(tmp_path):
    """Write a Llama of 32 positions that is extended to 128 by Self-Extend, and return its directory."""
    tokenizer = train_bpe([*QUESTIONS, *CHOICES] * 3, vocab_size=300)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)
    llama = LlamaForCausalLM(config).eval()
    torch.nn.init.normal_(llama.lm_head.weight)
    floater.extend(llama, 128, "self_extend")
    folder = tmp_path / "model"
    llama.save_pretrained(folder)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder)
    return folder


def evaluate(model, folder, questions):
    """Run a task with one question in each line of a file."""
    from lm_eval.tasks import TaskManager

    from floater.lab.harness import model_class

    data = folder / "questions.jsonl"
    lines = [json.dumps({"q": text, "a": i % 3, "choices": CHOICES}) for i, text in enumerate(questions)]
    data.write_text("\n".join(lines))
    (folder / "local.yaml").write_text(
        "task: local_choices\ndataset_path: json\noutput_type: multiple_choice\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        "doc_to_text: '{{q}}'\ndoc_to_target: a\ndoc_to_choice: '{{choices}}'\ntarget_delimiter: ''\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    return lm_eval.simple_evaluate(
        model=model_class()(str(model), batch_size=2),
        tasks=["local_choices"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )


def test_scores_are_those_of_the_model(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    results = evaluate(model, tmp_path, QUESTIONS)
    samples = sorted(results["samples"]["local_choices"], key=lambda sample: sample["doc_id"])
    llama = LlamaForCausalLM.from_pretrained(model).eval()
    from floater.lab.tasks.finetuning.checkpoint import load_tokenizer

    tokenizer = load_tokenizer(str(model))
    right = 0
    for i, (question, sample) in enumerate(zip(QUESTIONS, samples, strict=True)):
        context = tokenizer(question, add_special_tokens=False)["input_ids"]
        expected = []
        for choice in CHOICES:
            whole = tokenizer(question + choice, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logs = llama(torch.tensor([whole])).logits[0].log_softmax(-1)
            spots = range(len(context), len(whole))
            expected.append(float(sum(logs[spot - 1, whole[spot]] for spot in spots)))
        scores = [float(response[0][0]) for response in sample["resps"]]
        assert scores == pytest.approx(expected, abs=1e-3)
        right += max(range(3), key=expected.__getitem__) == i % 3
    assert results["results"]["local_choices"]["acc,none"] == pytest.approx(right / 3)


def test_a_request_that_would_be_truncated_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="and 128 can be read; it would be truncated"):
        evaluate(model, tmp_path, [" ".join(["Clouds come back over"] * 80)])
