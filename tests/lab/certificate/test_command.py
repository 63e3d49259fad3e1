"""`floater extend --prove`: it resumes, stops in time, chooses, and refuses wrong input in one line."""

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from floater.lab.cli import main
from floater.lab.text.bpe import train_bpe

ROOM = 320


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with a Llama of 128 positions, and a text that is long enough and one that is not."""
    monkeypatch.chdir(tmp_path)
    sentences = [f"Word {i} follows word {i + 1} in the river of the silver harbor." for i in range(200)]
    tokenizer = train_bpe(sentences, vocab_size=330)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)
    LlamaForCausalLM(config).save_pretrained("model")
    tokenizer.save_pretrained("model")
    Path("text.txt").write_text(" ".join(sentences))
    Path("short.txt").write_text(sentences[0])
    return tmp_path


def refused(capsys, *words):
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert main(["extend", *words]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("floater: ")]
    return line


def test_a_certificate_resumes_and_chooses(folder, capsys):
    command = ["extend", "model", str(ROOM), "--method", "auto", "--prove", "text.txt", "--report", "report"]
    assert main([*command, "--minutes", "1e-9"]) == 0
    begun = json.loads(Path("report/certificate.json").read_text())["results"]
    assert len(begun) <= 1
    assert "Not finished: " in capsys.readouterr().out
    assert main([*command, "--to", "longer"]) == 0
    whole = json.loads(Path("report/certificate.json").read_text())["results"]
    assert {key: whole[key] for key in begun} == begun
    assert Path("report/certificate.html").is_file()
    out = capsys.readouterr().out
    for name in ("self_extend", "log_n"):  # both promise to keep short inputs
        assert whole[f"loss/{name}/{ROOM}/0"]["short"]["equal"]
    assert not whole[f"loss/linear/{ROOM}/0"]["short"]["equal"]
    chosen = out.split("Chosen by the measurements: ")[1].split(":")[0].split()[0]
    config = json.loads(Path("longer/config.json").read_text())
    assert chosen in json.dumps(config)
    # measured again, nothing is added or changed
    path = Path("report/certificate.json")
    record = json.loads(path.read_text())
    (today,) = record["settings"]["environments"]
    record["settings"]["environments"] = [today | {"threads": 99}]
    path.write_text(json.dumps(record))
    assert main(command) == 0
    again = json.loads(path.read_text())
    assert again["results"] == whole
    # the report names the machines of all results
    assert again["settings"]["environments"] == [today | {"threads": 99}, today]
    threads = f"cpu, 99 threads; cpu, {today['threads']} threads"
    assert threads in Path("report/certificate.html").read_text()


def test_results_of_another_model_length_or_text_are_not_mixed(folder, capsys):
    command = ["model", str(ROOM), "--method", "yarn", "--report", "report", "--minutes", "1e-9"]
    assert main(["extend", *command, "--prove", "text.txt"]) == 0
    model = LlamaForCausalLM.from_pretrained("model")
    with torch.no_grad():
        model.lm_head.weight[0] += 1  # the directory and the sizes remain
    model.save_pretrained("retrained/model")
    AutoTokenizer.from_pretrained("model").save_pretrained("retrained/model")
    retrained = ["retrained/model", *command[1:], "--prove", "text.txt"]
    assert "has results for weights " in refused(capsys, *retrained)
    other = ["model", "400", *command[2:], "--prove", "text.txt"]
    first = json.loads(Path("report/certificate.json").read_text())
    assert first["settings"]["length"] == ROOM
    assert "has results for length 320, not 400" in refused(capsys, *other)
    Path("text.txt").write_text("Other. " + Path("text.txt").read_text())
    assert "has results for other texts" in refused(capsys, *command, "--prove", "text.txt")


def test_texts_of_one_file_name_are_told_apart(folder, capsys):
    text = Path("text.txt").read_text()
    for name in ("a", "b", "c"):
        Path(name).mkdir()
        Path(name, "text.txt").write_text(f"Of {name}. {text}")
    command = ["model", str(ROOM), "--method", "yarn", "--report", "report", "--minutes", "1e-9"]
    assert main(["extend", *command, "--prove", "a/text.txt", "b/text.txt"]) == 0
    texts = json.loads(Path("report/certificate.json").read_text())["settings"]["texts"]
    assert list(texts) == ["a/text.txt", "b/text.txt"]
    assert len({*texts.values()}) == 2
    for others in (["c/text.txt", "b/text.txt"], ["b/text.txt"]):
        assert "has results for other texts" in refused(capsys, *command, "--prove", *others)


def test_a_text_that_is_given_twice_is_refused(folder, capsys):
    Path("copy.txt").write_text(Path("text.txt").read_text())
    command = ["model", str(ROOM), "--method", "yarn", "--report", "report", "--prove", "text.txt"]
    for again in ("copy.txt", "text.txt"):
        assert f"{again} has the same first" in refused(capsys, *command, again)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_record_is_named(folder, capsys, text):
    Path("report").mkdir()
    Path("report/certificate.json").write_text(text)
    command = ["model", str(ROOM), "--method", "yarn", "--report", "report", "--prove", "text.txt"]
    assert "certificate.json is " in refused(capsys, *command)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--prove", "short.txt", "--report", "r"], "a certificate at 320 tokens needs as many"),
        (["--prove", "none.txt", "--report", "r"], "none.txt: cannot be read as UTF-8 text"),
        (["--prove", "text.txt", "--report", "r", "--method", "flow"], "which allow"),
        (["--prove", "text.txt"], "give a directory for the certificate with --report"),
        (
            ["--prove", "text.txt", "--report", "r", "--minutes", "0"],
            "--minutes is 0; it must be",
        ),
        (
            ["--prove", "text.txt", "--report", "r", "--method", "auto", "--option", "a=1"],
            "every method has its",
        ),
        (["--to", "longer", "--method", "auto"], "--method auto chooses by measurements"),
        (["--to", "longer", "--minutes", "3"], "--minutes is for --prove"),
        ([], "give a new directory with --to"),
    ],
)
def test_wrong_arguments(folder, capsys, words, reason):
    assert reason in refused(capsys, "model", str(ROOM), *words)
    assert not Path("longer").exists()


def test_a_model_that_needs_more_memory_is_refused_before_it_is_loaded(folder, capsys, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    Path("model/model.safetensors").unlink()  # it would be missed if it were loaded first
    line = refused(capsys, "model", str(ROOM), "--prove", "text.txt", "--report", "r")
    assert "a certificate at 320 tokens needs about" in line
    assert "0.0 GiB are free" in line


def test_gguf_and_other_models_are_refused(folder, capsys):
    Path("gguf").mkdir()
    Path("gguf/model.gguf").write_bytes(b"GGUF")
    words = ["128", "--prove", "text.txt", "--report", "r"]
    for more in (words, ["128", "--to", "longer"]):
        assert "holds GGUF, which is read only; convert it" in refused(capsys, "gguf", *more)
    config = json.loads(Path("model/config.json").read_text()) | {"architectures": ["LlamaModel"]}
    Path("model/config.json").write_text(json.dumps(config))
    assert "LlamaModel is neither" in refused(capsys, "model", str(ROOM), *words[1:])


def test_a_model_whose_table_ends_is_compared_with_its_parts(folder, capsys):
    """Unextended, it reads the old length alone; its extension reads the new one."""
    config = json.loads(Path("model/config.json").read_text())
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}
    GPT2LMHeadModel(GPT2Config(vocab_size=config["vocab_size"], **sizes)).save_pretrained("model")
    words = ["--method", "repeat", "--prove", "text.txt", "--report", "r"]
    assert main(["extend", "model", "1024", *words]) == 0
    results = json.loads(Path("r/certificate.json").read_text())["results"]
    assert "out of range" in results["loss/unextended/1024/0"]["ends"]
    assert sum(results["loss/unextended/1024/0"]["tokens"]) < 128
    predicted = 1024 - 2  # the first token is not predicted, and room is kept for an end token
    assert sum(results["loss/repeat/1024/0"]["tokens"]) == predicted
    assert "which cannot read 1024 tokens" in capsys.readouterr().out
