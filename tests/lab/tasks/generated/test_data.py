"""Splits that share nothing, and what a model reads."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.tasks.corpora.problems import PROBLEMS
from floater.lab.tasks.generated.data import collate, encode, generate, split_of, vocabulary
from floater.lab.tasks.generated.settings import Data

SHORTEST, LONGEST = 4, {"interleaved_majority": 9}  # its lengths are multiples of 3; 8 elsewhere
NAMES = {"lego": 64, "recall": 64}  # those of the longest test all differ


def lengths(problem: str) -> tuple[int, int]:
    return SHORTEST, LONGEST.get(problem, 8)


def data(problem: str, **changes: object) -> Data:
    options = {"symbols": NAMES.get(problem, 4), "digits": 3, "least_first": False}
    read = {name: value for name, value in options.items() if name in PROBLEMS[problem].options}
    return Data(problem, **{"lengths": lengths(problem), **read, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [name for name, each in PROBLEMS.items() if each.disjoint])
def test_no_question_is_in_two_splits_whatever_the_seeds(problem: str) -> None:
    asked = {
        split: {
            tuple(one.question)
            for seed in (0, 1)
            for one in generate(data(problem, seed=seed), split, 40, lengths(problem))
        }
        for split in ("train", "valid", "test")
    }
    assert not asked["train"] & asked["valid"]
    assert not asked["train"] & asked["test"]
    assert not asked["valid"] & asked["test"]


def test_a_split_has_its_share() -> None:
    """Of 10,000 questions a tenth validates and a tenth tests; within five standard deviations."""
    shares = Counter(split_of([str(i)]) for i in range(10_000))
    for split, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1)):
        assert abs(shares[split] - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("problem", PROBLEMS)
def test_draws_follow_from_the_seed_and_fit(problem: str) -> None:
    shortest, longest = between = lengths(problem)
    first, again = (generate(data(problem), "train", 50, between) for _ in range(2))
    assert first == again
    assert first != generate(data(problem, seed=1), "train", 50, between)
    assert first[:20] == generate(data(problem), "train", 20, between)
    assert {one.length for one in first} <= set(range(shortest, longest + 1))
    assert max(one.length for one in first) == longest


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_row_is_longer_than_said_and_some_are_as_long(problem: str) -> None:
    dataset = data(problem)
    tokenizer = vocabulary(dataset)
    _, longest = lengths(problem)
    drawn = generate(dataset, "train", 500, (longest, longest))
    tokens = encode(drawn, tokenizer, dataset.classifies, dataset.aligned).lengths
    assert max(tokens) == dataset.tokens(longest)


@given(
    st.sampled_from([name for name, each in PROBLEMS.items() if not (each.classes or each.aligned)]),
    st.integers(0, 1000),
)
def test_a_row_reads_as_the_question_and_its_answer(problem: str, seed: int) -> None:
    dataset = data(problem, seed=seed)
    tokenizer = vocabulary(dataset)
    (drawn,) = generate(dataset, "train", 1, lengths(problem))
    row = encode([drawn], tokenizer, False)[0]
    said = ["<s>", *drawn.question, "=", *drawn.answer, "</s>"]
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == said
    first = len(drawn.question) + 2
    wanted = range(len(drawn.answer) + 1) if drawn.asked is None else drawn.asked
    asked = {i: label for i, label in enumerate(row["labels"]) if label != -100}
    assert list(asked) == [first + i for i in wanted]
    assert [*asked.values()] == [row["input_ids"][i] for i in asked]


@given(st.sampled_from([name for name, each in PROBLEMS.items() if each.aligned]), st.integers(0, 1000))
def test_an_aligned_answer_is_predicted_at_the_tokens_of_the_question(problem: str, seed: int) -> None:
    dataset = data(problem, seed=seed)
    tokenizer = vocabulary(dataset)
    (drawn,) = generate(dataset, "train", 1, lengths(problem))
    row = encode([drawn], tokenizer, False, aligned=True)[0]
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == ["<s>", *drawn.question, "</s>"]
    at = range(len(drawn.answer)) if drawn.asked is None else drawn.asked
    # the logits after <s> and i + 1 tokens of the question are compared with the label after these
    predicted = {i: label for i, label in enumerate(row["labels"][2:]) if label != -100}
    assert row["labels"][:2] == [-100, -100]
    assert {i: tokenizer.convert_ids_to_tokens(label) for i, label in predicted.items()} == {
        i: drawn.answer[i] for i in at
    }


def test_batches_are_padded_on_the_right_and_classes_are_not() -> None:
    dataset = data("copy")
    examples = encode(generate(dataset, "train", 3, lengths("copy")), vocabulary(dataset), False)
    batch = collate([examples[i] for i in range(3)])
    assert batch["attention_mask"].sum(1).tolist() == examples.lengths
    assert (batch["input_ids"] == 0).equal(batch["attention_mask"] == 0)
    assert bool((batch["labels"][batch["attention_mask"] == 0] == -100).all())
    dataset = data("listops")
    drawn = generate(dataset, "train", 3, lengths("listops"))
    examples = encode(drawn, vocabulary(dataset), True)
    batch = collate([examples[i] for i in range(3)])
    assert batch["labels"].tolist() == [int(one.answer[0]) for one in drawn]
    assert batch["input_ids"][:, 0].tolist() == [1, 1, 1]


def test_a_split_without_questions_is_an_error_and_not_a_loop() -> None:
    # neither of the two questions belongs to the test
    with pytest.raises(DataError, match="examples of 'copy' with lengths 1 to 1 gave no test example"):
        generate(Data("copy", lengths=(1, 1), symbols=2), "test", 1, (1, 1))
    with pytest.raises(DataError, match="examples of 'parity' with lengths 1 to 1 gave no test example"):
        generate(data("parity"), "test", 1, (1, 1))
    with pytest.raises(DataError, match="no ListOps expression of 2 to 3 tokens"):
        generate(data("listops"), "train", 1, (2, 3))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_reads_its_options_and_refuses_those_of_others(problem: str) -> None:
    dataset, options = data(problem), {name for each in PROBLEMS.values() for name in each.options}
    seen: set[str] = set()

    class Watched:
        def __getattr__(self, name: str) -> object:
            seen.add(name)
            return getattr(dataset, name)

    watched: Any = Watched()
    PROBLEMS[problem].generate(watched, lengths(problem), np.random.default_rng(0))
    PROBLEMS[problem].words(watched)
    PROBLEMS[problem].tokens(watched, 5)
    assert seen & options == {*PROBLEMS[problem].options}
    for name in options - seen:
        default = getattr(dataset, name)
        other = not default if isinstance(default, bool) else default / 2 if default < 1 else default + 1
        with pytest.raises(
            ValueError, match=f"{name} is {other}, which problem '{problem}' does not read; remove"
        ):
            data(problem, **{name: other})
