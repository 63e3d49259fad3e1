"""A toy treebank whose tags depend on the tree, and a run of seconds."""

import random
from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.tagging import TaggingSettings
from helpers import write_run_config

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}


def conllu(sentences: list[tuple[list[str], list[str], list[int]]]) -> str:
    """CoNLL-U of words, tags and heads; a relation says which side the head is on."""
    blocks = []
    for words, tags, parents in sentences:
        rows = []
        for i, (word, tag, parent) in enumerate(zip(words, tags, parents, strict=True)):
            relation = "root" if parent < 0 else "left" if parent < i else "right"
            rows.append(
                "\t".join([str(i + 1), word, "_", tag, "_", "_", str(parent + 1), relation, "_", "_"])
            )
        blocks.append("\n".join(rows) + "\n")
    return "\n".join(blocks)


def tree(length: int, draw: random.Random) -> list[int]:
    """A random tree whose words have at most two others under them."""
    order = draw.sample(range(length), length)
    parents, room = [-1] * length, {order[0]: 2}
    for node in order[1:]:
        head = draw.choice([node for node, left in room.items() if left])
        parents[node], room[head], room[node] = head, room[head] - 1, 2
    return parents


def write_treebank(folder: Path, name: str, count: int, seed: int) -> Path:
    """Words that say nothing: a tag is how deep in its tree a word stands, up to 2."""
    draw, sentences = random.Random(seed), []
    for _ in range(count):
        length = draw.randint(1, 7)
        parents = tree(length, draw)

        def depth(node: int, parents: list[int] = parents) -> int:
            return 0 if parents[node] < 0 else 1 + depth(parents[node])

        tags = [f"D{min(depth(node), 2)}" for node in range(length)]
        sentences.append(([draw.choice(WORDS) for _ in range(length)], tags, parents))
    path = folder / f"{name}.conllu"
    path.write_text(conllu(sentences), encoding="utf-8")
    return path


def write_config(folder: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config = {
        "task": "tagging",
        "data": {"train": str(folder / "train.conllu"), "valid": str(folder / "valid.conllu")},
        "model": {"position": "tree", "position_options": {"depth": 4}, "max_length": 32, "changes": SIZES},
        "training": {
            "learning_rate": 5e-3,
            "warmup_steps": 3,
            "max_tokens": 100,
            "max_steps": 12,
            "save_steps": 4,
            "logging_steps": 1,
            "save_total_limit": 2,
            "average_last": 2,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(folder: Path, name: str = "run", **parts: Any) -> TaggingSettings:
    return load(TaggingSettings, write_config(folder, name, **parts))
