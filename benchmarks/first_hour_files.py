"""The files that the commands of a new user's first hour need: see first_hour.py."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import datasets
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from commands import small_study
from floater.lab.tasks.corpora import cldr

_MODEL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
_STEPS = {"max_steps": 4, "save_steps": 2, "eval_steps": 2, "warmup_steps": 1, "logging_steps": 1}
_WORDS = ["the", "a", "good", "bad", "film", "is", "was", "not", "it", "rome", "bonn", "in", "city", "where"]


def prepare(folder: Path) -> None:
    """Write texts, checkpoints and configurations of small runs into a directory."""
    parts = cldr.split(train=120, valid=5, test=1, mean_tokens=10)
    cldr.write(folder, parts | {"test": parts["valid"]}, source="en", target="de")
    sentence = "1\tgood\t_\tADJ\t_\t_\t2\tamod\t_\t_\n2\tfilm\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
    (folder / "words.conllu").write_text(f"{sentence}\n" * 40)
    events = (f"u{user},{user + 1.5 * time},{'ab'[time % 2]}\n" for user in range(30) for time in range(8))
    (folder / "events.csv").write_text("id,time,type\n" + "".join(events))
    (folder / "folder").mkdir()
    for label in ("good", "bad"):
        (folder / "documents" / label).mkdir(parents=True)
        for number in range(20):
            (folder / "documents" / label / f"{number}.txt").write_text(
                f"a {label} film .\nit was {label} .\n"
            )
    (folder / "glue" / "CoLA").mkdir(parents=True)
    lines = "".join(f"s{i}\t{i % 2}\t\tthe film was {('bad', 'good')[i % 2]}\n" for i in range(60))
    for name in ("train", "dev"):
        (folder / "glue" / "CoLA" / f"{name}.tsv").write_text(lines)
    (folder / "glue" / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tit was good\n1\tit was bad\n")
    context = {"context": "the film was in rome"}
    answer = {"text": "rome", "answer_start": 16}
    for name in ("squad", "asked"):
        asked = [{"id": f"{name}-{i}", "question": "where is it ?", "answers": [answer]} for i in range(20)]
        tree = {"data": [{"title": name, "paragraphs": [context | {"qas": asked}]}]}
        (folder / f"{name}.json").write_text(json.dumps(tree))
    _tables(folder)
    (folder / "broken.yaml").write_text("run: x\ntask: [generated\n")
    (folder / "empty.yaml").write_text("")
    (folder / "list.yaml").write_text("- run\n- task\n")
    (folder / "tabs.yaml").write_text("run: x\n\ttask: generated\n")
    _checkpoints(folder)
    for name, tree in _configurations().items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))


def _tables(folder: Path) -> None:
    """Write tables of texts with labels and of pairs, in every kind of file, and wrong ones."""
    texts = [(f"it was {label} film {i}", label) for i in range(20) for label in ("good", "bad")]
    english, german = ((folder / f"train.{code}").read_text().splitlines()[:60] for code in ("en", "de"))
    pairs = list(zip(english, german, strict=True))
    csv_text = "review,stars\n" + "".join(f'"{text}",{label}\n' for text, label in texts)
    rows = [{"text": text, "label": label} for text, label in texts]
    files: dict[str, str | bytes] = {
        "reviews.csv": csv_text,
        "reviews.tsv": csv_text.replace('",', '"\t').replace("review,", "review\t"),
        "semicolons.csv": csv_text.replace('",', '";').replace("review,", "review;"),
        "reviews.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "reviews.json": json.dumps({"data": rows}),
        "reviews.csv.gz": gzip.compress(csv_text.encode()),
        "reviews.csv.xz": lzma.compress(csv_text.encode()),
        "new.txt": "it was good\nit was bad\n",
        "pairs.jsonl": "".join(json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in pairs),
        "pairs.json": json.dumps([{"source": en, "target": de} for en, de in pairs]),
        "tags.jsonl": json.dumps({"words": ["good", "film"], "tags": ["ADJ", "NOUN"]}) + "\n",
        "ragged.csv": "text,label\ngood,1\nbad\n",
        "comma.csv": "text,label\ngood, or not,1\n",
        "open.csv": 'text,label\n"good,1\n',
        "quote.csv": 'text,label\n"a" film,1\n',
        "nolabel.csv": "text,label\ngood,1\nbad,\n",
        "onelabel.csv": "text,label\ngood,1\nbad,1\n",
        "unique.csv": "text,label\n" + "".join(f"text {i},{i}\n" for i in range(20)),
        "other.csv": "text,label\ngood,great\n",
        "nameless.csv": "a,b\n1,2\n",
        "twice.csv": "text,text\na,b\n",
        "header.csv": "text,label\n",
        "empty.csv": "",
        "latin.csv": "text,label\nsch\xf6n,1\n".encode("latin-1"),
        "sheet.csv": b"PK\x03\x04",
        "plain.csv.gz": "text,label\ngood,1\n",
        "cut.csv.xz": lzma.compress(csv_text.encode())[:-9],
        "broken.jsonl": '{"text": "a", "label": 1}\n{"text": "b"\n',
        "lacking.jsonl": '{"text": "a", "label": 1}\n{"txt": "b"}\n',
        "numbers.jsonl": '{"text": 5, "label": 1}\n',
        "lists.jsonl": '["a"]\n',
        "number.json": "5",
        "broken.parquet": b"PAR1",
        "untagged.jsonl": '{"words": ["good", "film"], "tags": ["ADJ"]}\n',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    data = datasets.Dataset.from_list(rows)
    data.to_parquet(folder / "reviews.parquet")
    datasets.DatasetDict(train=data, test=data.select(range(6))).save_to_disk(folder / "saved")
    (folder / "tables").mkdir()
    (folder / "tables" / "train.csv").write_text(csv_text)


def _checkpoints(folder: Path) -> None:
    """Write a BERT and a Llama with a tokenizer of a few words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = {f"{word[1:-1].lower()}_token": word for word in special}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    torch.manual_seed(0)
    sizes = {**_MODEL, "vocab_size": len(vocabulary), "max_position_embeddings": 48}
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(folder / "bert")
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "llama")
    for name in ("bert", "llama"):
        fast.save_pretrained(folder / name)


def _configurations() -> dict[str, dict[str, object]]:
    model = {"preset": "tiny", "max_length": 64, "changes": _MODEL}
    data = {"problem": "reverse", "lengths": [3, 5], "longest": 10, "train": 100, "valid": 8, "test": 4}
    corpus = {f"{part}_{side}": f"{part}.{code}" for part in ("train", "valid") for side, code in _SIDES}
    text = {"train": "train.en", "valid": "valid.en"}
    settings = {"data": data | {"symbols": 9}, "model": model, "training": _STEPS}
    from_bert = {"model": {"path": "bert"}, "training": _STEPS}
    runs: dict[str, dict[str, object]] = {
        "generated": {"task": "generated", **settings},
        "translation": {
            "task": "translation",
            "data": corpus | {"source": "en", "target": "de", "vocabulary_size": 300},
            "model": model,
            "training": _STEPS,
            "decoding": {"beam": 2, "max_ratio": 0.2},
        },
        "causal": {
            "task": "language_modeling",
            "data": text | {"block": 64, "documents": "line", "vocabulary_size": 300},
            "model": model,
            "training": _STEPS,
        },
        "tagging": {
            "task": "tagging",
            "data": {"train": "words.conllu", "valid": "words.conllu"},
            "model": model | {"position": "tree", "position_options": {"binary": True, "depth": 4}},
            "training": _STEPS,
        },
        "tags": {
            "task": "tagging",
            "data": {"train": "tags.jsonl", "valid": "tags.jsonl", "min_count": 1},
            "model": model,
            "training": _STEPS,
        },
        "events": {
            "task": "events",
            "data": {"train": "events.csv"},
            "model": model | {"components": 2},
            "training": _STEPS,
        },
        "documents": {
            "task": "documents",
            "data": {"train": "documents", "min_count": 1},
            "model": model | {"word_layers": 1},
            "training": _STEPS,
        },
        "digits": {
            "task": "image_classification",
            "data": {"source": "digits", "image_size": 8, "patch_size": 2, "num_channels": 1},
            "model": model | {"position": "rotary_axial", "max_length": 4},
            "training": _STEPS,
        },
        "cola": {"task": "glue", "data": {"task": "CoLA", "folder": "glue", "max_length": 32}, **from_bert},
        "reviews": {
            "task": "classification",
            "data": {"train": "reviews.csv", "valid_share": 0.2, "test_share": 0.2, "max_length": 24},
            **from_bert,
        },
        "pairs": {
            "task": "translation",
            "data": {"train": "pairs.jsonl", "valid": "pairs.jsonl", "vocabulary_size": 300},
            "model": model,
            "training": _STEPS,
            "decoding": {"beam": 1, "max_ratio": 0.2},
        },
        "squad": {
            "task": "squad",
            "data": {"train": "squad.json", "valid": "asked.json", "max_length": 32, "stride": 8},
            **from_bert,
        },
        "filled": {"task": "masked_lm", "data": text | {"documents": "line", "block": 32}, **from_bert},
        "longer": {
            "task": "causal_lm",
            "data": text | {"documents": "file", "block": 64},
            "model": {"path": "llama"},
            "extend": {"length": 96, "method": "yarn"},
            "training": _STEPS,
            "evaluation": {"rows": 2, "trials": 1},
        },
    }
    study = small_study(settings) | {"folder": "studies/small"}
    return {name: {"run": f"runs/{name}", **tree} for name, tree in runs.items()} | {"grid-small": study}


_SIDES = (("source", "en"), ("target", "de"))
