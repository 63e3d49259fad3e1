"""Extended models in lm-evaluation-harness, on a task of one file; skipped without lm-eval."""

import json
import sys

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    MptForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import floater
from floater.errors import DataError
from floater.lab.harness import main
from floater.lab.text.bpe import train_bpe

lm_eval = pytest.importorskip("lm_eval")

QUESTIONS = ["The river runs to", "Rain falls on", " ".join(["Clouds come back over"] * 12)]
CHOICES = [" the sea", " the hills", " the land and the sea"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def saved(model, folder, length):
    """Write a model and a tokenizer of the texts of the task, and return the directory."""
    tokenizer = train_bpe([*QUESTIONS, *CHOICES] * 3, vocab_size=300)
    tokenizer.model_max_length = length
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def model(tmp_path):
    """Write a Llama of 32 positions that is extended to 128 by Self-Extend, and return its directory."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=32, **SIZES)).eval()
    torch.nn.init.normal_(llama.lm_head.weight)
    floater.extend(llama, 128, "self_extend")
    return saved(llama, tmp_path / "model", 128)


def prompt():
    """Return a request for 64 tokens."""
    from lm_eval.api.instance import Instance

    return Instance("generate_until", {}, ("Rain falls on", {"until": ["."], "max_gen_toks": 64}), 0)


def write_task(folder, questions):
    """Write a task with one question in each line of a file."""
    data = folder / "questions.jsonl"
    lines = [json.dumps({"q": text, "a": i % 3, "choices": CHOICES}) for i, text in enumerate(questions)]
    data.write_text("\n".join(lines))
    (folder / "local.yaml").write_text(
        "task: local_choices\ndataset_path: json\noutput_type: multiple_choice\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        "doc_to_text: '{{q}}'\ndoc_to_target: a\ndoc_to_choice: '{{choices}}'\ntarget_delimiter: ''\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )


def evaluate(model, folder, questions):
    """Run a task with one question in each line of a file."""
    from lm_eval.tasks import TaskManager

    from floater.lab.harness import model_class

    write_task(folder, questions)
    return lm_eval.simple_evaluate(
        model=model_class()(str(model), batch_size=2),
        tasks=["local_choices"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )


def test_scores_are_those_of_the_model(model, tmp_path):
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


def test_a_request_that_would_be_truncated_is_refused(model, tmp_path):
    with pytest.raises(DataError, match="and 128 can be read; it would be truncated"):
        evaluate(model, tmp_path, [" ".join(["Clouds come back over"] * 80)])


def test_an_encoder_and_a_decoder_each_read_their_part(tmp_path):
    """A context and an answer of T5 that are together longer than its tokenizer's limit."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 1, "num_heads": 2}
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=300, decoder_start_token_id=0, **sizes)).eval()
    torch.nn.init.normal_(t5.lm_head.weight)
    length = len(train_bpe([*QUESTIONS, *CHOICES] * 3, vocab_size=300)(QUESTIONS[2])["input_ids"])
    folder = saved(t5, tmp_path / "model", length)
    results = evaluate(folder, tmp_path, QUESTIONS[2:])
    from floater.lab.tasks.finetuning.checkpoint import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    context = tokenizer(QUESTIONS[2], add_special_tokens=False, return_tensors="pt")["input_ids"]
    for response, choice in zip(results["samples"]["local_choices"][0]["resps"], CHOICES, strict=True):
        labels = tokenizer(choice, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logs = t5(input_ids=context, labels=labels).logits.log_softmax(-1)
        expected = float(logs.gather(2, labels[..., None]).sum())
        assert float(response[0][0]) == pytest.approx(expected, abs=1e-3)


def command(monkeypatch, folder, options):
    write_task(folder, QUESTIONS)
    words = ["--model", "floater", "--model_args", options, "--tasks", "local_choices"]
    monkeypatch.setattr(sys, "argv", ["harness", "run", *words, "--include_path", str(folder)])
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)
    return main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_the_command_runs_without_a_gpu(model, tmp_path, monkeypatch, capsys):
    """The harness's command asks for "cuda:0" where no device is named."""
    assert command(monkeypatch, tmp_path, f"pretrained={model}") == 0
    assert "|local_choices|" in capsys.readouterr().out


def test_the_command_reports_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, tmp_path, f"pretrained={tmp_path}/none") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"floater: {tmp_path}/none: there is no such directory"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretrained": ""}, "names no checkpoint"),
        ({"load_in_4bit": True}, "has no option 'load_in_4bit'; it has: add_bos_token"),
        ({"dtype": "float99"}, "no model can be loaded"),
        ({"device": "gpu"}, "device 'gpu' is not available; there are: cpu"),
    ],
)
def test_wrong_options_are_refused(options, message, model):
    from floater.lab.harness import model_class

    with pytest.raises(DataError, match=message):
        model_class()(**{"pretrained": str(model)} | options)


def test_weights_are_loaded_in_the_type_of_the_options(model):
    from floater.lab.harness import model_class

    assert model_class()(str(model), dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_masked_language_model_is_refused(tmp_path):
    """The harness would score it as a causal model."""
    from floater.lab.harness import model_class

    folder = saved(BertForMaskedLM(BertConfig(vocab_size=300, **SIZES)), tmp_path / "bert", 128)
    with pytest.raises(DataError, match="BertForMaskedLM, which generates no text"):
        model_class()(str(folder))


@pytest.fixture
def gpt2(tmp_path):
    """Write a plugged GPT-2 of 32 positions, and return its directory."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2, n_positions=32))
    floater.plug(model)
    return saved(model, tmp_path / "gpt2", 128)


@pytest.mark.parametrize("length", [33, 0, -1, "long"])
def test_a_length_beyond_the_table_is_refused(length, gpt2):
    from floater.lab.harness import model_class

    with pytest.raises(DataError, match=f"max_length={length!r} of .* whole number between 1 and 32, the"):
        model_class()(str(gpt2), max_length=length)
    assert model_class()(str(gpt2), max_length=24).max_length == 24


def test_a_model_reads_no_more_than_its_table_and_its_baked_flow(gpt2, tmp_path):
    from floater.lab.harness import model_class

    model = GPT2LMHeadModel.from_pretrained(gpt2)
    floater.bake(model, 16)
    model.save_pretrained(gpt2)
    assert model_class()(str(gpt2)).max_length == 16
    config = RobertaConfig(
        vocab_size=300, max_position_embeddings=32, pad_token_id=1, is_decoder=True, **SIZES
    )
    roberta = saved(RobertaForCausalLM(config), tmp_path / "roberta", 128)
    assert model_class()(str(roberta)).max_length == 30


def test_a_model_that_cannot_read_a_request_is_an_error_of_one_line(tmp_path):
    """MPT declares its length by another name than the harness reads, and BART's answers end at its table."""
    from floater.lab.harness import model_class

    mpt = MptForCausalLM(MptConfig(vocab_size=300, d_model=32, n_layers=1, n_heads=2, max_seq_len=16))
    folder = saved(mpt, tmp_path / "mpt", 128)
    with pytest.raises(DataError, match=r"cannot read requests of up to \d+ tokens .*; lower max_length"):
        evaluate(folder, tmp_path, QUESTIONS[2:])
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    bart = BartForConditionalGeneration(
        BartConfig(vocab_size=300, d_model=32, max_position_embeddings=32, eos_token_id=None, **sizes)
    )
    bart.generation_config.forced_eos_token_id = None
    model = model_class()(str(saved(bart, tmp_path / "bart", 128)))
    with pytest.raises(DataError, match=r"cannot read a request and its answer .*; lower max_gen_toks"):
        model.generate_until([prompt()])


def test_an_answer_longer_than_the_model_is_refused(gpt2):
    from floater.lab.harness import model_class

    with pytest.raises(DataError, match=r"64.* must be less than model's maximum sequence length .32"):
        model_class()(str(gpt2)).generate_until([prompt()])
