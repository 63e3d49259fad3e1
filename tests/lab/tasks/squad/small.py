"""A small SQuAD whose answer is the word after "in", and a run of seconds."""

import json
import random
from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.squad import SquadSettings
from helpers import write_run_config


def asked(id_: str, question: str, context: str, *answers: str, **more: Any) -> dict[str, Any]:
    """A question; its answers stand where the context has them first."""
    spans = [{"text": answer, "answer_start": context.find(answer)} for answer in answers]
    return {"id": id_, "question": question, "answers": spans} | more


def squad(*articles: list[tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """A file of articles, each with its paragraphs: context and questions."""
    data = [
        {"title": f"T{i}", "paragraphs": [{"context": context, "qas": qas} for context, qas in article]}
        for i, article in enumerate(articles)
    ]
    return {"version": "x", "data": data}


def write_squad(path: Path, articles: int, seed: int, unanswerable: bool = False) -> Path:
    """Eight questions an article."""
    draw, entries = random.Random(seed), []
    for a in range(articles):
        paragraphs = []
        for p in range(8):
            city = draw.choice(["rome", "bonn"])
            none = unanswerable and draw.random() < 0.4
            filler = draw.choices(["the", "a", "film", "good", "bad"], k=draw.randrange(1, 6))
            words = [*filler, *([] if none else ["in", city]), "it", "was"]
            context = " ".join(words)
            more = {"is_impossible": none} if unanswerable else {}
            answers = () if none else (city,)
            paragraphs.append(
                (context, [asked(f"{seed}-{a}-{p}", "where is the city?", context, *answers, **more)])
            )
        entries.append(paragraphs)
    path.write_text(json.dumps(squad(*entries)), encoding="utf-8")
    return path


def write_config(folder: Path, checkpoint: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config = {
        "task": "squad",
        "data": {
            "train": str(folder / "train.json"),
            "valid": str(folder / "valid.json"),
            "max_length": 20,
            "stride": 2,
        },
        "model": {"path": str(checkpoint)},
        "plug": {},
        "answers": {},
        "training": {
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 16,
            "max_steps": 60,
            "save_steps": 30,
            "logging_steps": 30,
            "save_total_limit": 2,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(folder: Path, checkpoint: Path, name: str = "run", **parts: Any) -> SquadSettings:
    return load(SquadSettings, write_config(folder, checkpoint, name, **parts))
