"""Train a small Llama on short rows, extend it by every method, with and without training, and compare.

    python benchmarks/extend_methods.py --run runs/extend --train TRAIN.txt --valid VALID.txt --seeds 1 2 3

An interrupted study resumes when the command is repeated: trainings from their last checkpoint, measurements
by method. More seeds and other lengths are added to a run directory; existing results are not computed again.
--passkeys adds documents with a hidden number to the training text; --trials measures such texts.
--no-long leaves out the model trained on long rows, which must have at most --batch tokens.
docs/extend.md has the defaults, and a command at full size.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import floater
from floater.lab.settings import make
from floater.lab.tasks import task
from floater.lab.tasks.causal_lm import CausalLMSettings, Evaluation, long_rows, rows_of
from floater.lab.tasks.causal_lm.score import causal_batch, passkeys, prompt
from floater.lab.tasks.examples import Encoded
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.language_modeling.data import read_documents
from floater.lab.tasks.language_modeling.far import doubling, ranges
from floater.lab.tasks.language_modeling.score import rows_score
from floater.lab.tasks.measurement import perplexity
from floater.lab.text.bpe import train_bpe
from floater.lab.training import flush_denormals
from floater.lab.training.files import save_whole, write_json, write_whole
from floater.lab.training.messages import show_messages

CHARACTERS = 100_000
"""The beginning of the validation text, which is for the log of trainings only."""

MAX_TOKENS, DEPTHS, POINTS = 4096, 5, 32
"""Settings of the measurements: tokens in a batch, depths of a hidden number, points of a curve."""

NUMBER, SHORTEST = 9, 95
"""Documents with a hidden number: characters of the number, and tokens of the shortest one."""

PLAIN: tuple[str, dict[str, Any]] = ("", {})  # trained: as many more steps on short rows
UNTRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "none": PLAIN,
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "dynamic": ("dynamic", {"declared": False}),
    "llama3": ("llama3", {}),
    "yarn": ("yarn", {}),
    "self_extend": ("self_extend", {}),
    "self_extend + log_n": ("self_extend", {"temperature": True}),
    "log_n": ("log_n", {}),
}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "none": PLAIN,
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "yarn": ("yarn", {}),
    "clex from yarn": ("clex", {"declared": False}),
    "clex from linear": ("clex", {"start": "linear", "declared": False}),
    "clex slow": ("clex", {"declared": False}),
    "clex declared slow": ("clex", {"declared": True}),
}
MULTIPLIER = {"clex slow": 0.01, "clex declared slow": 0.01}
"""Multipliers of the learning rate of CLEX's flow, chosen on held-out training text; elsewhere 1."""

LONG = "trained on long rows"
"""The model that extensions are compared with: never short, never extended."""
TASK = task("causal_lm")


@dataclass(frozen=True)
class Result:
    """The measurements of one model.

    Args:
        method: method of the extension.
        trained: whether it was trained afterwards.
        seed: seed of all trainings.
        scores: perplexities, by the name of their column.
        curve: first position, last position and loss in nats, of each range of the long rows.
        recall: for each length, the share of the hidden numbers found at each depth.
    """

    method: str
    trained: bool
    seed: int
    scores: dict[str, float]
    curve: list[tuple[int, int, float]]
    recall: dict[str, list[float]]


def settings(
    arguments: argparse.Namespace, run: Path, train: str, path: Path, seed: int, **parts: Any
) -> CausalLMSettings:
    """Return the settings of a training."""
    steps = parts.pop("steps")
    block = parts.pop("block", arguments.block)
    config = {
        "run": str(run),
        "task": "causal_lm",
        "data": {
            "train": train, "valid": str(Path(arguments.run) / "valid.txt"), "block": block,
            "documents": "blank line" if arguments.passkeys else "file",
        },
        "model": {"path": str(path)},
        "training": {
            "learning_rate": parts.pop("rate", arguments.rate), "warmup_steps": 0.1,
            "max_tokens": arguments.batch,
            "max_steps": steps, "eval_steps": steps, "save_steps": steps if steps % 5 else steps // 5,
            "seed": seed, "flow": {"lr_multiplier": parts.pop("flow", 1.0)},
        },
        "evaluation": {"rows": arguments.rows},
        **parts,
    }  # fmt: skip
    return make(CausalLMSettings, config, "benchmarks/extend_methods.py")


def start(arguments: argparse.Namespace, folder: Path, seed: int, block: int) -> Path:
    """Write a Llama of `block` positions before its first step, and a vocabulary of its training text."""
    path = folder / ("start" if block == arguments.block else f"start-{block}")
    if path.is_dir():
        return path
    texts = read_documents(arguments.train, "file")
    tokenizer = train_bpe((line for text in texts for line in text), vocab_size=arguments.vocabulary)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        intermediate_size=2 * arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        max_position_embeddings=block,
        initializer_range=arguments.init,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_whole(path, LlamaForCausalLM(config), tokenizer)
    return path


def training_text(arguments: argparse.Namespace, begin: Path, seed: int, block: int) -> str:
    """Return the training text, or a file of it and of documents that hide numbers, none of them tested."""
    if not arguments.passkeys:
        return str(arguments.train)
    path = begin.parent / f"train-{block}-{arguments.passkeys}.txt"
    if path.is_file():
        return str(path)
    tokenizer = load_tokenizer(str(begin))

    def hidden(length: int, depth: float, rng: np.random.Generator) -> str:
        return str(tokenizer.decode(prompt(tokenizer, length, depth, rng)[0]))

    tests = [(n, np.random.default_rng((n, depth))) for n in sizes(arguments) for depth in range(DEPTHS)]
    tested = {hidden(n, 0.0, rng)[-NUMBER:] for n, rng in tests for _ in range(arguments.trials)}
    texts = ["\n".join(line for text in read_documents(arguments.train, "file") for line in text)]
    rng = np.random.default_rng(seed)
    while len(texts) <= arguments.passkeys:
        # mostly short: the number is as much to learn in a short text as in a long one
        size = int(SHORTEST + (block - SHORTEST) * rng.random() ** 3)
        text = hidden(size, float(rng.random()), rng)
        texts += [text] * (text[-NUMBER:] not in tested)
    write_whole(path, "\n\n".join(texts))
    return str(path)


def sizes(arguments: argparse.Namespace) -> list[int]:
    """Return the lengths of the texts with a hidden number."""
    return [*doubling(arguments.block, arguments.length), arguments.length] if arguments.trials else []


def measure(
    arguments: argparse.Namespace, model: PreTrainedModel, tokenizer: Any, texts: Any
) -> dict[str, Any]:
    """Return perplexities of short rows and of long ones by the tokens read before, and of hidden numbers."""
    short = rows_of(tokenizer, texts, arguments.block)
    step = max(1, len(short) // (arguments.rows * arguments.length // arguments.block))
    examples = [short[row] for row in range(0, len(short), step)]
    chosen = Encoded(examples, [len(example["input_ids"]) for example in examples])
    collate = partial(causal_batch, tokenizer=tokenizer)
    scores = {"short": rows_score(model, chosen, collate, MAX_TOKENS, later=True).perplexity}
    # before the long rows: "dynamic" keeps the scale of a long text until one is shorter than a training row
    recall = {
        str(n): passkeys(model, tokenizer, n, DEPTHS, arguments.trials, MAX_TOKENS) for n in sizes(arguments)
    }
    rows = long_rows(tokenizer, texts, arguments.length, Evaluation(rows=arguments.rows))
    losses = rows_score(model, rows, collate, MAX_TOKENS, later=True).losses
    edges = doubling(arguments.block, arguments.length)
    by_context = ranges(losses, None, edges, arguments.length)
    scores |= {f"{part.low}-{part.high}": perplexity(part.loss) for part in by_context}
    width = max(1, arguments.length // POINTS)
    curve = ranges(losses, None, range(width, arguments.length, width), arguments.length)
    return {"scores": scores, "curve": [(part.low, part.high, part.loss) for part in curve], "recall": recall}


def one_seed(arguments: argparse.Namespace, seed: int) -> list[Result]:
    """Train, extend and measure with one seed."""
    folder = Path(arguments.run) / f"seed{seed}"
    texts = read_documents(arguments.valid, "file")
    begin = start(arguments, folder, seed, arguments.block)
    train = training_text(arguments, begin, seed, arguments.block)
    base = TASK.train(settings(arguments, folder / "base", train, begin, seed, steps=arguments.steps))
    tokenizer = load_tokenizer(str(base))

    def result(method: str, run: Path, name: str = "", options: dict[str, Any] | None = None) -> Result:
        """Load the model of a run, extend it and measure it, unless that was done."""
        trained = run != base
        kind = "trained" if trained else "untrained"
        file = folder / f"{method.replace(' ', '_')}-{kind}-{arguments.length}.json"
        if not file.is_file():
            model, _, _ = TASK.load(run, "cpu")
            if name:
                floater.extend(model, arguments.length, name, **(options or {}))
            write_json(file, measure(arguments, model, tokenizer, texts))
        return Result(method, trained, seed, **json.loads(file.read_text(encoding="utf-8")))

    results = [result(method, base, *how) for method, how in UNTRAINED.items()]
    for method, (name, options) in TRAINED.items():
        extend = {"length": arguments.length, "method": name, "options": options, "positions": "pose"}
        run = folder / (f"{method.replace(' ', '_')}-{arguments.length}" if name else "more")
        parts: dict[str, Any] = {"extend": extend} if name else {}
        parts |= {"flow": MULTIPLIER.get(method, 1.0), "rate": 1e-3}
        again = settings(arguments, run, train, base, seed, steps=arguments.tune, **parts)
        results.append(result(method, TASK.train(again)))
    if not arguments.long:
        return results
    # as many tokens, all in rows of the new length
    begin = start(arguments, folder, seed, arguments.length)
    steps, folder_long = arguments.steps + arguments.tune, folder / f"long-{arguments.length}"
    train = training_text(arguments, begin, seed, arguments.length)
    long = settings(arguments, folder_long, train, begin, seed, steps=steps, block=arguments.length)
    return [*results, result(LONG, TASK.train(long))]


def by_method(results: Iterable[Result]) -> dict[tuple[str, bool], list[Result]]:
    """Group results by method and training; the seeds of each remain."""
    groups: dict[tuple[str, bool], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.method, result.trained].append(result)
    return groups


def shown(values: Sequence[float], digits: int) -> str:
    """Return a mean and, of several seeds, their standard deviation."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def perplexities(results: Sequence[Result]) -> str:
    """Return the perplexities of all methods as Markdown, sorted by that at the end of long rows."""
    names = list(results[0].scores)
    groups = by_method(results).items()
    rows = [
        [method, "yes" if trained else "no", *(shown([r.scores[name] for r in group], 2) for name in names)]
        for (method, trained), group in sorted(
            groups, key=lambda item: mean(r.scores[names[-1]] for r in item[1])
        )
    ]
    return markdown(["method", "trained", *names], rows)


def hidden_numbers(results: Sequence[Result]) -> str:
    """Return the percentages of hidden numbers found by length, and by depth in parentheses, as Markdown."""

    def cell(group: Sequence[Result], size: str) -> str:
        recall = 100 * np.array([result.recall[size] for result in group])
        return (
            f"{shown(recall.mean(1).tolist(), 0)} ({', '.join(f'{share:.0f}' for share in recall.mean(0))})"
        )

    names = list(results[0].recall)
    rows = [
        [method, "yes" if trained else "no", *(cell(group, name) for name in names)]
        for (method, trained), group in by_method(results).items()
    ]
    return markdown(["method", "trained", *(f"{name} tokens" for name in names)], rows)


def write(results: Sequence[Result], folder: Path) -> str:
    """Write scores.csv, curves.csv and tables.md; return the tables."""
    with (folder / "scores.csv").open("w", encoding="utf-8", newline="") as file:
        keys = ["method", "trained", "seed", *results[0].scores]
        writer = csv.writer(file)
        writer.writerow(keys)
        writer.writerows([r.method, r.trained, r.seed, *r.scores.values()] for r in results)
    with (folder / "curves.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "trained", "seed", "low", "high", "loss"])
        writer.writerows([r.method, r.trained, r.seed, *point] for r in results for point in r.curve)
    tables = [perplexities(results)] + ([hidden_numbers(results)] if results[0].recall else [])
    text = "\n\n".join(tables) + "\n"
    write_whole(folder / "tables.md", text)
    return text


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("run", "runs/extend"), ("train", None), ("valid", None)):
        parser.add_argument(f"--{name}", default=default, required=default is None)
    numbers: dict[str, float] = {"rate": 3e-3, "init": 0.02}
    numbers |= {"block": 256, "length": 1024, "hidden": 128, "layers": 3, "heads": 4, "vocabulary": 1024}
    numbers |= {"steps": 700, "tune": 150, "batch": 2048, "rows": 48, "trials": 0, "passkeys": 0}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=type(number), default=number)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--long", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    show_messages()
    run = Path(arguments.run)
    folder = run / str(arguments.length)
    folder.mkdir(parents=True, exist_ok=True)
    if not (run / "valid.txt").is_file():
        write_whole(run / "valid.txt", Path(arguments.valid).read_text(encoding="utf-8")[:CHARACTERS])
    results: list[Result] = []
    with flush_denormals():
        for seed in arguments.seeds:  # write the tables of the seeds so far before the next one
            results += one_seed(arguments, seed)
            text = write(results, folder)
    print(text, end="")


if __name__ == "__main__":
    main()
