"""Every full-size study of a table has a twin for a laptop; both are built from data of the right shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from floater.encodings import build
from floater.lab.settings import load
from floater.lab.study.grid import grid, merged
from floater.lab.study.settings import ShortToLong, StudySettings
from floater.lab.study.variants import Trial
from floater.lab.tasks import registry
from floater.lab.tasks.corpora.glue import TASKS
from floater.lab.text.bpe import train_bpe

FOLDER = Path(__file__).parents[3] / "configs" / "study"
TWINS = {
    "floater_table2_en_de_base": "multi30k",
    "floater_table2_en_de_large": "multi30k",
    "floater_table2_en_fr_base": "multi30k",
    "floater_table2_en_fr_large": "multi30k",
    "floater_table3_base": "floater_table3_small",
    "floater_table3_large": "floater_table3_small",
    "floater_table4": "floater_table4_small",
    "floater_table5_v1": "floater_table5_small",
    "floater_table5_v2": "floater_table5_small",
    "floater_table6": "multi30k",
    "floater_figure2": "multi30k_s2l",
    "tupe_table2": "tupe_small",
    "tupe_glue": "tupe_glue_small",
    "survey_figure10": "survey_figure10_small",
}
BUILT = sorted({*TWINS, *TWINS.values()} - {"survey_figure10", "survey_figure10_small", "floater_figure2"})
LARGE = ("floater_table2_en_de_large", "floater_table2_en_fr_large", "tupe_table2")
LINES = [f"the {colour} cat sat on {count} mats" for colour in ("red", "grey") for count in "ab"] * 8


def read(name: str) -> StudySettings:
    return load(StudySettings, FOLDER / f"{name}.yaml")


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def checkpoint(folder: Path) -> Path:
    """A RoBERTa of one narrow block, and a tokenizer of words."""
    words = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
        *sorted({word for line in LINES for word in line.split()}),
    ]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{k}_token": v for k, v in names.items()})
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = RobertaConfig(vocab_size=len(words), max_position_embeddings=600, **sizes)
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def twin_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with data as `floater data` leaves them, in which the tests run."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = "\n".join(LINES) + "\n"
        for pair in ("en_de", "en_fr"):
            base = f"data/wmt14_{pair}"
            for language in pair.split("_"):
                for part in ("train", "valid", "newstest2014"):
                    write(f"{base}/{part}.{language}", text)
            train_bpe(LINES, 300, pretokenized=True).save_pretrained(f"{base}/vocabulary")
        for part in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
            for language in ("en", "de"):
                write(f"data/multi30k/{part}.{language}", text)
        for part in ("train", "valid"):
            write(f"data/wiki_books/{part}.txt", text.replace("mats\n", "mats\n\n"))
        for task in TASKS.values():
            labels = (task.labels or ("1.5", "4.0")) * 4
            texts = [(*(line for _ in task.texts), label) for line, label in zip(LINES, labels, strict=False)]
            rows = "\n".join("\t".join(row) for row in ((*task.texts, task.label), *texts)) + "\n"
            if task.columns.get(4):  # without a header
                rows = "".join(f"a\t{row[-1]}\t\t{row[0]}\n" for row in texts)
            for split in ("train", *task.valid):
                write(f"data/glue/{task.name}/{split}.tsv", rows)
        passage = {"article": LINES[0], "questions": [LINES[1]], "options": [[*"abcd"]], "answers": ["B"]}
        for split in ("train", "dev", "test"):
            for level in ("middle", "high"):
                write(f"data/race/{split}/{level}/1.txt", json.dumps(passage))
        answers = [{"text": "red", "answer_start": 4}]
        asked = [{"id": "q{}", "question": LINES[1], "answers": answers, "is_impossible": False}]
        article = json.dumps({"title": "A", "paragraphs": [{"context": LINES[0], "qas": asked}]})
        for name in ("train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"):
            articles = ", ".join(article.replace("q{}", f"{name}-{i}") for i in range(48))
            write(f"data/squad/{name}.json", f'{{"data": [{articles}]}}')
        checkpoint(folder / "checkpoint")
        yield folder


def small(settings: StudySettings, name: str, twin_folder: Path) -> StudySettings:
    """The study on the data of `place`: what names files that cannot be here is changed, and nothing else."""
    common = settings.settings
    if name in ("multi30k", "multi30k_s2l"):  # gzip there
        sides = {f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")}
        data = {key: value.removesuffix(".gz") for key, value in common["data"].items() if key in sides}
        common = merged(common, {"data": data})
    if name == "tupe_small":
        common = merged(
            common, {"data": {"train": "data/wiki_books/train.txt", "valid": "data/wiki_books/valid.txt"}}
        )
    variants, rates = dict(settings.models), settings.axes.get("rate", {})
    if settings.task in ("glue", "race", "squad"):
        config = {} if settings.task != "glue" else {"config": {}}
        common = merged(common, {"model": {"path": str(twin_folder / "checkpoint")}})
        common["model"] |= config
        for key, entry in variants.items():
            changes = dict((entry or {}).get("settings") or {})
            changes.pop("model", None)
            if plug := changes.get("plug"):
                changes["plug"] = {**{k: v for k, v in plug.items() if k == "train"}, "options": {}}
            variants[key] = {"settings": changes}
    tests = {
        key: {k: v.removesuffix(".gz") for k, v in test.items() if isinstance(v, str)}
        for key, test in settings.tests.items()
        if name != "tupe_small"
    }
    return replace(
        settings,
        folder=str(twin_folder / "runs" / name),
        settings=common,
        models=variants,
        tests=tests,
        short_to_long=ShortToLong(builtin=60 * settings.short_to_long.enabled),
        checkpoints={},
        seeds=settings.seeds[:1],
        axes=settings.axes | ({"rate": dict([*rates.items()][:1])} if rates else {}),
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in BUILT]
)
def test_it_is_built_from_data_of_the_right_shape(name: str, twin_folder: Path) -> None:
    """Data are read and encoded, and a model of every variant is built, large ones without memory."""
    settings = small(read(name), name, twin_folder)
    built = grid(settings, name)
    task = registry.task(settings.task)
    models_: dict[str, Trial] = {}
    for trial in built.trials:
        models_.setdefault(trial.variant.model, trial)
    first = next(iter(models_.values())).settings
    splits = task.read(first)
    processor = task.processor(first, Path(first.run), splits.train)
    train = task.encode(first, processor, splits.train, training=True)
    assert len(train) > 0
    for trial in models_.values():
        meta = settings.task in ("translation", "language_modeling") and trial.variant.start is None
        if trial.variant.start is not None:  # from a run that is not there
            training = replace(trial.settings.training, warm_start=None)
            trial = replace(trial, settings=replace(trial.settings, training=training))
            meta = True
        with torch.device("meta" if meta else "cpu"):
            model = task.build(trial.settings, processor, train)
        assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_every_full_size_study_names_a_twin_and_the_twin_what_it_is_scaled_from() -> None:
    papers = {p.stem for p in FOLDER.glob("*.yaml") if p.stem.startswith(("floater_", "tupe_", "survey_"))}
    assert papers == {*TWINS, *TWINS.values()} - {"multi30k", "multi30k_s2l"}
    for full, twin in TWINS.items():
        assert read(full).scaled_from is None
        assert read(twin).scaled_from is not None
        paper = {"floater": "Liu et al. 2020", "tupe": "Ke et al. 2021", "survey": "Dufter et al. 2022"}
        assert paper[full.partition("_")[0]] in str(read(twin).scaled_from)


def test_table_6_injects_all_rows_alike_with_the_parameters_of_the_paper() -> None:
    variants = read("floater_table6").models
    sizes = {"dim": 512, "heads": 8, "layers": 6, "max_length": 1024}

    def parameters(name: str) -> int:
        entry: dict[str, Any] = variants[name] or {}
        model = build(entry["position"], **sizes, **entry["position_options"])
        starts = 6 * 512  # a vector for each block, which Table 6 does not count
        return sum(parameter.numel() for parameter in model.parameters()) - starts

    assert parameters("floater-add") == parameters("rnn2-scalar") == 526_336
    assert parameters("rnn1-scalar") == 263_168
