"""Every setting of the data, the model and the evaluation acts, or is refused if nothing reads it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from floater.errors import DataError
from floater.lab.settings import SettingsError, make
from floater.lab.settings.keys import keys_of
from floater.lab.tasks import task
from floater.lab.tasks.prepared import Splits
from floater.lab.text.bpe import train_bpe
from lab.tasks.events.small import waves, write_csv
from lab.tasks.events.small import write_config as events_config
from lab.tasks.language_modeling.small import text
from lab.tasks.language_modeling.small import write_config as text_config
from lab.tasks.translation.small import SIZES

SECTIONS = ("data", "model", "masking", "evaluation", "decoding")


@dataclass(frozen=True)
class Case:
    """A small run, and how its settings act.

    Args:
        task: name of the task.
        base: overrides of the task's small run.
        acting: by the name of a setting the overrides with which it acts; the last one sets it.
        refused: overrides that are refused.
        stated: settings on which no score of the run depends, as the size of a batch that is scored.
    """

    task: str
    base: Sequence[str]
    acting: Mapping[str, Sequence[str]]
    refused: Sequence[str]
    stated: Collection[str] = ()


def each(*overrides: str) -> dict[str, Sequence[str]]:
    """Return overrides by the names of their settings, each of which acts without others."""
    return {setting.partition("=")[0]: [setting] for setting in overrides}


MODEL = {
    **each("model.changes.hidden_size=48", "model.changes.intermediate_size=48", "model.changes.dropout=0.3"),
    **each("model.changes.num_attention_heads=4", "model.changes.num_hidden_layers=3"),
    **each("model.changes.attention_dropout=0.3", "model.changes.activation_dropout=0.3"),
    **each("model.changes.activation_function=gelu", "model.changes.norm_first=true"),
    **each("model.changes.recipe=gpt", "model.changes.attention_temperature=learned"),
    "model.changes.attention": ["model.position=sinusoidal", "model.changes.attention=linear"],
    "model.changes.attention_features": [
        *("model.position=sinusoidal", "model.changes.attention=performer"),
        "model.changes.attention_features=9",
    ],
    "model.changes.share_layers": ["model.changes.num_hidden_layers=2", "model.changes.share_layers=true"],
    "model.preset": ["model.changes.hidden_size=null", "model.preset=small"],
    "model.position": ["model.position=alibi"],
    "model.position_options": ["model.position=t5", "model.position_options={buckets: 8}"],
    "model.max_length": ["model.position=floater", "model.max_length=200"],
    "model.times": ["model.position=sinusoidal", "model.times={mode: stretch, max_scale: 4}"],
}
READING = {"model.reading": ["model.position=alibi", "model.reading={group: [4, 2]}"]}
DECODER, OUTPUT = "model.changes.decoder_layers=3", "model.changes.tie_word_embeddings=false"
VOCABULARY = {
    **each("data.vocabulary_size=270"),
    "data.vocabulary": ["data.vocabulary_size=32768", "data.vocabulary=vocabulary"],
}
TEXT = {
    **MODEL,
    **READING,
    **VOCABULARY,
    **each(OUTPUT),
    **each("data.train=valid.txt", "data.valid=train.txt", "data.documents=line", "data.block=16"),
    **each("data.full_sentences=true", "data.lowercase=true", "data.pack=false", "evaluation.window=16"),
    "data.columns": ["data.train=table.csv", "data.valid=table.csv", "data.columns={text: other}"],
}
MASKED = {
    **each("masking.rate=0.3", "masking.mask=0.3", "evaluation.seed=3"),
    "masking.random": ["masking.mask=0.2", "masking.random=0.8"],
}
MEMORY = ["model.position=transformer_xl", "model.max_length=48"]
EVENTS = {
    **MODEL,
    **each("data.columns.id=part", "data.columns.time=later", "model.position_source=index"),
    **each("data.valid=other.csv", "data.valid_share=0.3", "data.test_share=0.3", "data.split_seed=5"),
    **each("data.train=other.csv", "data.max_events=6", "data.time_per_position=2"),
    **each("data.resolution=0.5"),
    "data.unit": ["data.time_per_position=2", "data.unit=2"],
}
VALUES = ["data.columns.type=null", "data.columns.values=[x, y]"]
PAIRS = {
    **VOCABULARY,
    **each(OUTPUT, DECODER, "data.max_tokens=6", "model.decoder_position=rotary"),
    **each("data.train_source=train.b", "data.train_target=train.a"),
    **each("data.valid_source=valid.b", "data.valid_target=valid.a", "decoding.max_ratio=2"),
    "model.decoder_position_options": [
        *("model.decoder_position=t5", "model.decoder_position_options={buckets: 8}")
    ],
    "decoding.target_ratio": ["decoding.beam=1", "model.position=ldpe", "decoding.target_ratio=0.2"],
}
CASES = {
    "causal": Case(
        "language_modeling",
        [],
        {
            **TEXT,
            **each("evaluation.stride=4"),
            "data.memory": [*MEMORY, "data.memory=16"],
            "evaluation.memory": [*MEMORY, "evaluation.memory=8"],
        },
        [DECODER, *(overrides[-1] for overrides in MASKED.values())],
        ["evaluation.max_tokens"],
    ),
    "masked": Case(
        "language_modeling",
        ["objective=masked"],
        {**TEXT, **MASKED},
        [DECODER, "data.memory=16", "evaluation.memory=16", "evaluation.stride=4"],
        ["evaluation.max_tokens"],
    ),
    "next": Case(
        "events",
        [],
        {
            **EVENTS,
            **READING,
            **each("data.columns.type=kind", "model.components=6"),
            **each("model.gap_feature=true", "model.head=hazard"),
        },
        [DECODER, OUTPUT, "model.goal=forecast", "data.columns.values=[x]", "data.mask_ratio=0.5"],
    ),
    "forecast": Case(
        "events",
        [*VALUES, "model.goal=forecast"],
        {
            **EVENTS,
            **READING,
            **each("data.mask_ratio=0.5", "model.goal=interpolate"),
            **each("data.columns.values=[x]"),
        },
        [
            *(DECODER, OUTPUT, "data.columns.type=kind", "model.head=hazard", "model.components=6"),
            "model.gap_feature=true",
        ],
    ),
}
CASES["translation"] = Case(
    "translation",
    ["decoding.max_ratio=0.01"],
    PAIRS,
    [
        *("data.columns={source: a}", "data.languages=[a]", "data.dataset=a", "data.dataset_config=a"),
        *("data.train=a.csv", "data.valid=a.csv", "data.builtin=30", "data.builtin_seed=2"),
    ],
    # the languages act on tables and on plain text; every beam of an untrained model repeats one token
    [
        "data.source",
        "data.target",
        "data.moses",
        "decoding.beam",
        "decoding.length_penalty",
        "decoding.max_tokens",
        *(name for name in {**MODEL, **READING} if name not in PAIRS),
    ],
)
UNREAD = [
    ("events", [*VALUES, "model.goal=forecast", "data.time_per_position=2", "data.resolution=0.5"]),
    ("events", [*VALUES, "model.goal=forecast", "model.position_source=index", "data.resolution=0.5"]),
    ("events", ["model.position_source=index", "data.time_per_position=2"]),
    ("events", ["data.valid=other.csv", "data.valid_share=0.2"]),
    ("events", ["data.valid=other.csv", "data.test_share=0", "data.split_seed=2"]),
    ("language_modeling", [*MEMORY, "data.memory=16", "data.pack=false"]),
    ("language_modeling", ["data.vocabulary=vocabulary", "data.vocabulary_size=300"]),
    ("translation", ["data.vocabulary=vocabulary", "data.vocabulary_size=300"]),
    ("translation", ["training.eval_strategy='no'", "training.samples=1"]),
    ("translation", ["training.eval_strategy='no'", "training.generation_num_beams=2"]),
    ("classification", ["data.valid=a.csv", "data.split_seed=2"]),
    ("tagging", [OUTPUT]),
    ("documents", [OUTPUT]),
    ("image_classification", [OUTPUT]),
    ("masked_lm", ["lora.r=2"]),
    ("causal_lm", ["train=positions", "lora.target_modules=[query]"]),
]
"""Settings, the last override of each, that are refused beside the others."""
CHECKPOINT = {"data": {"train": "a.txt", "valid": "a.txt"}, "model": {"path": "bert"}}
TREES: dict[str, dict[str, Any]] = {
    "masked_lm": CHECKPOINT,
    "causal_lm": CHECKPOINT,
    "classification": CHECKPOINT | {"data": {"train": "a.csv"}},
    "tagging": {"data": {"train": "a", "valid": "a"}},
    "documents": {"data": {"train": "a"}},
    "image_classification": {},
    "translation": {
        "data": {
            **{f"{part}_source": f"{part}.a" for part in ("train", "valid")},
            **{f"{part}_target": f"{part}.b" for part in ("train", "valid")},
            "vocabulary_size": 300,
        },
        "model": {"preset": "tiny", "position": "alibi", "changes": SIZES},
        "decoding": {"beam": 2},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    for name, lines, seed in (("train", 60, 0), ("valid", 12, 1)):
        (folder / f"{name}.txt").write_text(text(lines, seed).replace("the", "The"), encoding="utf-8")
    rows = "\n".join(f"{line},{line[::-1]}" for line in text(40, 2).split("\n") if line)
    (folder / "table.csv").write_text(f"text,other\n{rows}\n", encoding="utf-8")
    train_bpe([text(60, 3)], 262).save_pretrained(folder / "vocabulary")
    for part, lines in (("train", 40), ("valid", 4)):
        for seed, side in enumerate("ab"):
            words = [line for line in text(lines, seed).split("\n") if line]
            (folder / f"{part}.{side}").write_text("\n".join(words[:lines]), encoding="utf-8")
    for name, count, seed in (("clocks", 24, 0), ("other", 24, 1)):
        write_csv(
            folder / f"{name}.csv",
            [
                (id_, time, f"{id_}-{time > 2}", 2 * time, "up" if (x or 0) > 0 else "down", i % 3, x, y)
                for i, (id_, time, x, y) in enumerate(waves(count, seed))
            ],
            *("part", "later", "type", "kind", "x", "y"),
        )
    return folder


def tree_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the configuration of a small run of a task."""
    if name in TREES:
        return {"run": "run", "task": name} | TREES[name]
    model: dict[str, Any] = {"position": "sinusoidal"}
    write = {"language_modeling": text_config, "events": events_config}[name]
    tree: dict[str, Any] = yaml.safe_load(write(folder, model=model).read_text(encoding="utf-8"))
    tree["data"].pop("valid_share", None)
    tree["model"].pop("components", None)
    return tree


def observe(settings: Any) -> Any:
    """Return the encoded examples, the untrained model, its outputs in training, its scores and its text."""
    run = task(settings.task)
    prepared = run.prepare(settings, Path(settings.run), Splits(*run.read(settings)))
    batch = run.training_collate(prepared, 0)([prepared.train[index] for index in range(3)])
    torch.manual_seed(0)
    outputs = prepared.model.train()(**{key: value for key, value in batch.items() if key != "labels"})
    tensors = [*prepared.model.state_dict().items(), *batch.items(), *outputs.items()]
    measured = run.score(settings, prepared.model, prepared.processor, prepared.valid)
    return (
        list(prepared.train.lengths),
        [(name, value.tolist()) for name, value in tensors if isinstance(value, Tensor)],
        {name: value for name, value in measured.scores.items() if name != "seconds"},
        list(measured.lines),
    )


@pytest.mark.parametrize("name", CASES)
def test_every_setting_acts_or_is_refused(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.chdir(folder)
    kind, tree = task(case.task).Settings, tree_of(case.task, folder)
    refused = {override.partition("=")[0]: override for override in case.refused}
    keys = [key for key in keys_of(kind) if key.partition(".")[0] in SECTIONS]
    names = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    explained = [*case.acting, *refused, *case.stated]
    assert sorted(explained) == sorted(names), f"say how these act: {names ^ {*explained}}"
    for override in refused.values():
        with pytest.raises((SettingsError, DataError)):
            task(case.task).check(make(kind, tree, "here", [*case.base, override]))
    seen: dict[tuple[str, ...], Any] = {}
    for setting, overrides in case.acting.items():
        *needed, changed = overrides
        first = (*case.base, *needed)
        if first not in seen:
            seen[first] = observe(make(kind, tree, "here", first))
        assert observe(make(kind, tree, "here", [*first, changed])) != seen[first], f"{setting} does nothing"


@pytest.mark.parametrize(("name", "overrides"), UNREAD)
def test_settings_that_nothing_reads_are_refused(name: str, overrides: list[str], folder: Path) -> None:
    *others, last = overrides
    tree = tree_of(name, folder)
    if last.startswith("data.vocabulary_size"):
        tree["data"].pop("vocabulary_size")
    setting, kind = last.partition("=")[0].rpartition(".")[2], task(name).Settings
    make(kind, tree, "here", others)
    with pytest.raises(SettingsError, match=rf"{setting} is .*, which only .* reads?; leave it out, or at"):
        make(kind, tree, "here", overrides)
