"""Word reordering detection: which word was moved, and from where (Yang et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from floater.errors import DataError
from floater.lab.study.analyses.plotting import COLOURS, tidy
from floater.lab.study.analyses.subject import Source, Subject, check_vocabulary, load_subject, run_tokens
from floater.lab.study.analyses.vectors import reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHORTEST, LONGEST = 6, 49  # words, as in the authors' reorder_word.py
LEAST, SENTENCES = 40, 4000  # fewer sentences are too few, further ones are not read
HELD_OUT = 0.2


class Moved(NamedTuple):
    """A sentence with one word moved.

    Args:
        order: indices of the words in the original sentence, in their new order.
        inserted: index of the moved word.
        original: index of the word that followed it before.
    """

    order: list[int]
    inserted: int
    original: int


def move(words: int, random: np.random.Generator) -> Moved:
    """Move one word of a sentence to another index, both sampled uniformly.

    The last word never moves, and no word moves behind it.

    Args:
        words: number of words, at least 3.
        random: random number generator.

    Example:
        >>> moved = move(6, np.random.default_rng(0))
        >>> moved
        Moved(order=[0, 1, 2, 4, 3, 5], inserted=4, original=3)
    """
    out, to = random.choice(words - 1, size=2, replace=False).tolist()
    order = [word for word in range(words) if word != out]
    order.insert(to, out)
    return Moved(order, to, order.index(out + 1))


@dataclass(frozen=True)
class Detection:
    """Accuracy of detecting a moved word in held-out sentences.

    Args:
        inserted: share of sentences in which the moved word is detected.
        original: share of sentences in which its original index is detected.
        both: share of sentences in which both are.
        chance: expected share of either for a random choice.
        sentences: number of sentences that trained the pointers.
        held_out: number of sentences that tested them.
        too_long: number of excluded sentences, which have more tokens than the model has positions.
    """

    inserted: float
    original: float
    both: float
    chance: float
    sentences: int
    held_out: int
    too_long: int = 0


class Pointers(nn.Module):
    """Two pointers over the states of a model: to the moved word, and to its original index.

    The first is additive attention with a learned query; the second is dot-product attention from the
    word that the first points at.

    Args:
        dim: width of the states.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inserted = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1, bias=False))
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (batch, W) of both pointers.

        Args:
            states: (batch, W, d), one for each word, padded.
            words: (batch, W), False at padding.
        """
        h = self.norm(states)
        first = self.inserted(h).squeeze(-1).masked_fill(~words, -torch.inf).log_softmax(-1)
        moved_query = (first.exp()[:, None] @ self.query(h)).squeeze(1)
        second = torch.einsum("bd,bwd->bw", moved_query, self.key(h)) * h.shape[-1] ** -0.5
        return first, second.masked_fill(~words, -torch.inf).log_softmax(-1)


def detect(
    source: Source,
    text: Sequence[str],
    *,
    epochs: int = 20,
) -> Detection:
    """Train two pointers on the last states of a frozen model to find the word that was moved.

    One word of each sentence of 6 to 49 words is moved. Only the pointers are trained, not the model, as in
    the paper for encoders that were trained to translate. A fifth of the sentences is held out. The
    tokenizer delimits words; a word is moved with all its subwords, and its first subword represents it.

    Args:
        source: see `floater.lab.study.analyses.subject.load_subject`; it needs a tokenizer.
        text: lines, a sentence each; those that are too short, too long or repeated are excluded, and so are
            those with more tokens than the model has positions.
        epochs: epochs of training the pointers.

    Raises:
        DataError: if the model has no tokenizer, or too few sentences are left.
    """
    subject = load_subject(source)
    random = np.random.default_rng(0)
    tokenizer = subject.tokenizer()
    most = reach(subject)
    examples, too_long = _examples(tokenizer, text, SENTENCES, most, random)
    if len(examples) < LEAST:
        raise DataError(
            f"{len(examples)} of the {len(text)} lines have {SHORTEST} to {LONGEST} words"
            + (f" of no more than {most} tokens" if too_long else "")
            + f" and are no repetition; detection needs {LEAST} such sentences"
        )
    check_vocabulary(
        subject.name, tokenizer, torch.tensor([token for ids, _, _ in examples for token in ids])
    )
    states = _states(subject, [ids for ids, _, _ in examples], [firsts for _, firsts, _ in examples])
    targets = torch.tensor([[moved.inserted, moved.original] for _, _, moved in examples])
    cut = max(1, int(HELD_OUT * len(examples)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pointers = _train_pointers(states[cut:], targets[cut:], epochs, random)
    right = _correct(pointers, states[:cut], targets[:cut])
    # the last word never moves
    chance = float(np.mean([1 / (len(moved.order) - 1) for _, _, moved in examples[:cut]]))
    inserted, original = right.float().mean(0).tolist()
    both = float(right.all(1).float().mean())
    return Detection(inserted, original, both, chance, len(examples) - cut, cut, too_long)


def _examples(
    tokenizer: Any, text: Sequence[str], sentences: int, most: int | None, random: np.random.Generator
) -> tuple[list[tuple[list[int], list[int], Moved]], int]:
    """Return examples, and the number of sentences that were excluded for more than `most` tokens.

    An example is the token ids of a sentence with a word moved, the first token of each word, and the move.
    """
    examples: list[tuple[list[int], list[int], Moved]] = []
    too_long = 0
    # a word whose tokens differ at the beginning of a line and within it would show that it was moved
    twice = tokenizer("so so", add_special_tokens=False)["input_ids"]
    space = "" if twice[:1] == twice[-1:] else " "
    for line in dict.fromkeys(line.strip() for line in text):
        encoded = tokenizer(space + line)
        ids, owners = encoded["input_ids"], encoded.word_ids()
        words: dict[int, list[int]] = {}
        for token, owner in zip(ids, owners, strict=True):
            if owner is not None:
                words.setdefault(owner, []).append(token)
        if not SHORTEST <= len(words) <= LONGEST:
            continue
        if most is not None and len(ids) > most:
            too_long += 1
            continue
        inside = [i for i, owner in enumerate(owners) if owner is not None]
        moved = move(len(words), random)
        spans = list(words.values())
        new = [spans[i] for i in moved.order]
        starts = np.cumsum([inside[0], *map(len, new)])[:-1].tolist()
        examples.append(
            ([*ids[: inside[0]], *chain.from_iterable(new), *ids[inside[-1] + 1 :]], starts, moved)
        )
        if len(examples) == sentences:
            break
    return [examples[i] for i in random.permutation(len(examples))], too_long


def _states(subject: Subject, ids: list[list[int]], firsts: list[list[int]]) -> list[Tensor]:
    """Return the last states of a model at the first token of each word, (words, d) of each sentence."""
    states: dict[int, Tensor] = {}
    order = np.argsort([len(row) for row in ids], kind="stable").tolist()
    for start in range(0, len(order), 32):
        batch = order[start : start + 32]
        rows = [torch.tensor(ids[i]) for i in batch]
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        out = run_tokens(subject.model, pad_sequence(rows, batch_first=True), mask)[-1].float()
        states |= {i: row[firsts[i]] for i, row in zip(batch, out, strict=True)}
    return [states[i] for i in range(len(ids))]


def _train_pointers(
    states: list[Tensor], targets: Tensor, epochs: int, random: np.random.Generator
) -> Pointers:
    pointers = Pointers(states[0].shape[-1])
    optimizer = torch.optim.Adam(pointers.parameters(), lr=1e-3)
    for _ in range(epochs):
        for chosen in np.array_split(random.permutation(len(states)), max(1, len(states) // 64)):
            first, second = pointers(*_batch([states[i] for i in chosen]))
            goal = targets[torch.as_tensor(chosen)]
            loss = F.nll_loss(first, goal[:, 0]) + F.nll_loss(second, goal[:, 1])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return pointers


@torch.no_grad()
def _correct(pointers: Pointers, states: list[Tensor], targets: Tensor) -> Tensor:
    """Return which of the two pointers select the right word, (sentences, 2)."""
    predictions: list[Any] = []
    for start in range(0, len(states), 64):
        first, second = pointers(*_batch(states[start : start + 64]))
        predictions.append(torch.stack([first.argmax(-1), second.argmax(-1)], 1))
    return torch.cat(predictions) == targets


def _batch(states: list[Tensor]) -> tuple[Tensor, Tensor]:
    masks = pad_sequence([torch.ones(len(rows), dtype=torch.bool) for rows in states], batch_first=True)
    return pad_sequence(states, batch_first=True), masks


def detection_bars(axes: Axes, detection: Detection, *, title: str = "") -> None:
    """Draw the detection rates of the moved word, of its original index and of both, and those of chance.

    Args:
        axes: axes to draw on.
        detection: result of `detect`.
        title: title of the axes.

    Example:
        >>> from matplotlib.figure import Figure
        >>> detection_bars(Figure().subplots(), Detection(0.8, 0.7, 0.6, 0.05, 400, 100))
    """
    shares = [100 * share for share in (detection.inserted, detection.original, detection.both)]
    bars = axes.bar(range(3), shares, color=COLOURS[0])
    axes.bar_label(bars, [f"{share:.1f}" for share in shares])
    axes.hlines(
        100 * detection.chance, -0.5, 1.5, color=COLOURS[1], linestyle="--", label="chance, either one"
    )
    axes.set_xticks(range(3), ["where the word is", "where it came from", "both"])
    axes.set_ylim(0, 108)
    tidy(axes, title=title, xlabel="found in sentences held out", ylabel="% of sentences")
    axes.legend(frameon=False, loc="upper right")
