"""Questions whose answers depend on fields of the positions: a graph, a language, another order, a length."""

from collections import defaultdict
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from floater import catalogue
from floater.encodings import PositionError
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.problems import PositionedExample
from floater.lab.tasks.corpora.problems.positioned import FAR
from floater.lab.tasks.generated import GeneratedSettings
from floater.lab.tasks.generated.data import collate, encode, generate, vocabulary
from floater.lab.tasks.generated.settings import Data

from .small import settings

DISTANCES = ("tree_distance", "graph_distance")
CONFIGS = Path(__file__).parents[4] / "configs" / "generated"
SUPPLIED = ("copy", "listops", "tree_distance", "languages", "reorder", "repeat")
"""Problems that supply all fields of positions between them."""


def examples(problem: str, count: int = 60, **changes: object) -> tuple[Data, list[PositionedExample]]:
    data = Data(problem, lengths=(4, 9), longest=16, symbols=16, **changes)  # type: ignore[arg-type]
    rows = generate(data, "train", count, (4, 9))
    assert all(isinstance(row, PositionedExample) for row in rows)
    return data, rows  # type: ignore[return-value]


def graph_of(example: PositionedExample) -> nx.Graph:
    if "edges" in example.positions:
        return nx.Graph(example.positions["edges"])
    return nx.Graph([(p, i) for i, p in enumerate(example.positions["parents"]) if p >= 0])


@pytest.mark.parametrize("problem", DISTANCES)
def test_the_answer_is_the_length_of_the_shortest_path(problem: str) -> None:
    for example in examples(problem)[1]:
        graph = graph_of(example)
        assert sorted(graph) == list(range(example.length))
        ends = example.question.index("from"), example.question.index("to")
        steps = nx.shortest_path_length(graph, *ends)
        assert example.answer == [str(min(steps, FAR) - 1)]


def test_trees_are_binary_trees_and_graphs_have_more_edges() -> None:
    for example in examples("tree_distance")[1]:
        children = nx.DiGraph([(p, i) for i, p in enumerate(example.positions["parents"]) if p >= 0])
        assert nx.is_arborescence(children)
        assert max(degree for _, degree in children.out_degree()) <= 2
    sizes = [
        graph_of(example).number_of_edges() - example.length
        for example in examples("graph_distance", extra_edges=3)[1]
    ]
    assert max(sizes) == 2


@pytest.mark.parametrize("problem", DISTANCES)
def test_classes_are_equally_frequent(problem: str) -> None:
    """Within five standard deviations."""
    answers = [int(example.answer[0]) for example in examples(problem, 900)[1]]
    assert np.abs(np.bincount(answers, minlength=FAR) - 300).max() < 5 * (900 / 3 * 2 / 3) ** 0.5


@pytest.mark.parametrize("problem", DISTANCES)
def test_the_positions_of_a_batch_hold_the_distances(problem: str) -> None:
    data, rows = examples(problem)
    encoded = encode(rows, vocabulary(data), True)
    batch = collate([encoded[i] for i in range(len(rows))])
    structure = batch["positions"].structure
    reachable = structure.neighbours.double()
    for row, example in enumerate(rows):
        tokens = 1 + example.length  # <s> and the nodes
        assert int(batch["positions"].key_valid[row].sum()) == tokens
        graph = nx.from_numpy_array(reachable[row, :tokens, :tokens].numpy())
        ends = 1 + example.question.index("from"), 1 + example.question.index("to")
        assert example.answer == [str(min(nx.shortest_path_length(graph, *ends), FAR) - 1)]
        assert graph.degree[0] == 1


def test_second_positions_are_the_indices_at_which_symbols_are_written() -> None:
    data, rows = examples("reorder")
    encoded = encode(rows, vocabulary(data), False)
    batch = collate([encoded[i] for i in range(len(rows))])
    for ids, second, example in zip(batch["input_ids"], batch["positions"].reordered, rows, strict=True):
        asked = slice(1, 1 + example.length)
        assert ids[second[asked]].equal(ids[asked])
        after = torch.arange(1 + example.length, len(encoded[0]["input_ids"]))
        assert second[after[:1]].equal(after[:1])


def test_a_language_reads_forwards_and_the_other_backwards() -> None:
    for example in examples("languages")[1]:
        step = 1 if example.positions["language"] == 0 else -1
        assert example.answer == example.question[::step]


def test_target_lengths_are_those_of_the_rows() -> None:
    data, rows = examples("repeat")
    encoded = encode(rows, vocabulary(data), False)
    batch = collate([encoded[i] for i in range(len(rows))])
    assert batch["positions"].target_length.tolist() == encoded.lengths
    assert batch["positions"].key_valid.sum(1).tolist() == encoded.lengths


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_encoding_of_the_catalogue_can_be_trained(name: str) -> None:
    """A task refuses an encoding before the training if it does not supply what the encoding reads."""
    refused = []
    for problem in SUPPLIED:
        path = CONFIGS / f"{problem}.yaml"
        options = "{binary: true, depth: 16}" if name == "tree" else "{}"
        overrides = [f"model.position={name}", f"model.position_options={options}"]
        changes = ["model.changes.num_hidden_layers=2", "model.changes.hidden_size=32"]
        try:
            task("generated").check(load(GeneratedSettings, path, [*overrides, *changes]))
        except (PositionError, ValueError) as error:
            refused.append(f"{problem}: {error}")
        else:
            return
    pytest.fail("\n".join(refused))


@pytest.mark.parametrize("name", ["language_specific", "xl", "ldpe", "graformer"])
def test_a_problem_without_the_field_refuses_the_encoding(name: str, tmp_path: Path) -> None:
    with pytest.raises(PositionError, match=r"language|reordered|target_length|graph"):
        task("generated").check(settings(tmp_path, model={"position": name}))


def test_too_few_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lengths begin at 3; nodes 3 edges apart need 4"):
        settings(tmp_path, data={"problem": "tree_distance", "lengths": [3, 5]})


@pytest.mark.parametrize("problem", [*DISTANCES, "languages", "reorder", "repeat"])
def test_the_same_tokens_have_several_answers(problem: str) -> None:
    """So that an encoding of nothing but the order of tokens cannot do better than guess."""
    data = Data(problem, lengths=(4, 5), longest=5, symbols=2)
    answers = defaultdict(set)
    for example in generate(data, "train", 2000, (4, 5)):
        answers[tuple(example.question)].add(tuple(example.answer))
    single = [question for question, several in answers.items() if len(several) == 1]
    assert len(single) < len(answers) / 3
