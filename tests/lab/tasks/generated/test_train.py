"""Training on a generated task: scores that count right, runs that go on, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import pipeline

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.problems import PROBLEMS
from floater.lab.tasks.generated import GeneratedSettings
from floater.lab.tasks.generated.data import collate, encode, generate
from floater.lab.tasks.generated.score import score
from floater.lab.tasks.measurement import Measurement
from helpers import equal_runs, train_killed

from .small import settings, write_config

TASK = task("generated")
train, evaluate, check_test = TASK.train, TASK.evaluate, TASK.check_test


def bins(actual: object) -> list[tuple[int, int]]:
    """The bins of a report; those that were refused, too."""
    names = [line.split()[0] for line in str(actual).splitlines()[1:-1]]
    return [(int(name.split("-")[0]), int(name.split("-")[1])) for name in names]


BEST = {"max_steps": 200, "save_steps": 100, "logging_steps": 50, "average_last": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that reverses two symbols most of the time; read only."""
    folder = tmp_path_factory.mktemp("generated")
    data = {"lengths": [2, 2], "longest": 4, "symbols": 20, "train": 2000}
    return train(settings(folder, "trained", data=data, training=BEST | {"max_tokens": 1024}))


@pytest.fixture(scope="module")
def expressions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on ListOps of a few steps; read only."""
    folder = tmp_path_factory.mktemp("listops")
    return train(
        settings(folder, "expressions", data={"problem": "listops", "lengths": [4, 12], "longest": 30})
    )


def sums(actual: Measurement) -> dict[str, list[float]]:
    return {name: rows.sum(0).tolist() for name, rows in actual.statistics.items()}


def test_exact_match_is_what_greedy_decoding_says_alone(trained: Path) -> None:
    """The score reads the right answer as it goes; here the model says all of it by itself."""
    model, tokenizer, config = TASK.load(trained, "cpu")
    exact, all_exact = [], []
    for lengths in ((2, 2), (3, 4)):
        drawn = generate(config.data, "test", 15, lengths)
        for question, answer, *_ in drawn:
            ids = tokenizer.convert_tokens_to_ids(["<s>", *question, "="])
            said = model.generate(torch.tensor([ids]), max_new_tokens=len(answer) + 1, do_sample=False)
            exact.append(tokenizer.convert_ids_to_tokens(said[0, len(ids) :].tolist()) == [*answer, "</s>"])
        all_exact.append(score(model, encode(drawn, tokenizer, False)).statistics["exact"][:, 0].sum())
    assert sum(exact) == sum(all_exact)
    assert sum(exact[:15]) == all_exact[0]
    assert all_exact[0] > 7, "it has learned something, so that the comparison says something"


def test_the_pipeline_of_transformers_answers_as_greedy_decoding_does(trained: Path) -> None:
    model, tokenizer, config = TASK.load(trained, "cpu")
    answer = pipeline("text-generation", str(trained / "model"), do_sample=False)
    for question, *_ in generate(config.data, "test", 3, (2, 2)):
        ids = tokenizer.convert_tokens_to_ids(["<s>", *question, "="])
        said = model.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)[0]
        words = [
            word for word in tokenizer.convert_ids_to_tokens(said.tolist()) if word not in ("<s>", "</s>")
        ]
        prompt = " ".join([*question, "="])
        assert answer(prompt, max_new_tokens=4)[0]["generated_text"] == " ".join(words)


def test_tokens_are_counted_one_by_one(trained: Path) -> None:
    model, tokenizer, config = TASK.load(trained, "cpu")
    drawn = generate(config.data, "test", 6, (2, 4))
    right, nats, exact = 0, 0.0, 0
    for question, answer, *_ in drawn:
        row = tokenizer.convert_tokens_to_ids(["<s>", *question, "=", *answer, "</s>"])
        with torch.no_grad():
            p = model(torch.tensor([row])).logits[0].softmax(-1)
        slots = range(len(question) + 2, len(row))
        good = [int(p[slot - 1].argmax()) == row[slot] for slot in slots]
        right, exact = right + sum(good), exact + all(good)
        nats -= sum(float(p[slot - 1, row[slot]].log()) for slot in slots)
    actual = sums(score(model, encode(drawn, tokenizer, False), max_tokens=1))
    tokens = sum(len(one.answer) + 1 for one in drawn)
    assert (actual["tokens"], actual["exact"]) == ([right, tokens], [exact, 6])
    assert actual["loss"] == pytest.approx([nats, tokens], rel=1e-4)


def test_listops_is_scored_by_its_class(expressions: Path) -> None:
    model, tokenizer, loaded = TASK.load(expressions, "cpu")
    drawn = generate(loaded.data, "test", 10, (4, 30))
    examples = encode(drawn, tokenizer, True)
    right = 0
    for i, one in enumerate(drawn):
        batch = collate([examples[i]])
        with torch.no_grad():
            right += int(model(batch["input_ids"]).logits[0].argmax()) == int(one.answer[0])
    actual = sums(score(model, examples))
    assert actual["exact"] == actual["tokens"] == [right, 10]
    assert model.config.num_labels == 10


def test_recall_is_scored_at_its_values_alone(tmp_path: Path) -> None:
    data = {"problem": "recall", "lengths": [2, 3], "longest": 6, "symbols": 6, "slots": 2}
    model, tokenizer, config = TASK.load(train(settings(tmp_path, data=data)), "cpu")
    drawn = generate(config.data, "test", 8, (4, 6))
    right = exact = 0
    for question, answer, *_ in drawn:
        row = tokenizer.convert_tokens_to_ids(["<s>", *question, "=", *answer, "</s>"])
        with torch.no_grad():
            first = model(torch.tensor([row])).logits[0].argmax(-1).tolist()
        pairs = {(a, b) for a, b in zip(question[::2], question[1::2], strict=True)}
        slots = [len(question) + 2 + i for i in range(0, len(answer), 2) if tuple(answer[i : i + 2]) in pairs]
        good = [first[slot] == row[slot + 1] for slot in slots]
        right, exact = right + sum(good), exact + all(good)
    actual = sums(score(model, encode(drawn, tokenizer, False)))
    assert actual["tokens"] == [right, sum(one.length for one in drawn)]
    assert actual["exact"] == [exact, 8]


def test_a_test_has_a_bin_for_what_was_trained_on_and_longer_ones(trained: Path, expressions: Path) -> None:
    actual = evaluate(trained)
    assert bins(actual) == [(2, 2), (3, 4)]
    assert str(actual) == str(evaluate(trained))
    assert [int((actual.lengths == 2).sum()), len(actual.lengths)] == [15, 30]
    assert bins(evaluate(trained, bins=(3, 4))) == [(2, 2), (3, 3), (4, 4)]
    assert bins(evaluate(expressions)) == [(4, 12), (13, 24), (25, 30)]


def test_a_bounded_model_is_refused_where_it_ends_and_scored_before(tmp_path: Path) -> None:
    steps = {"max_steps": 2, "save_steps": 2, "average_last": 1}
    data = {"lengths": [3, 5], "longest": 10}
    short = train(
        settings(
            tmp_path, "short", data=data, model={"position": "learned", "max_length": 13}, training=steps
        )
    )
    trained, longer = str(evaluate(short)).splitlines()[1:3]
    assert "refused" not in trained
    assert re.search("refused: .*position", longer)
    long = train(
        settings(tmp_path, "long", data=data, model={"position": "learned", "max_length": 23}, training=steps)
    )
    assert "refused" not in str(evaluate(long))


@pytest.mark.parametrize("position", ["rotary", "floater"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(position: str, tmp_path: Path) -> None:
    model = {"position": position}
    whole = train(settings(tmp_path, "whole", model=model))

    run = train_killed(TASK, settings(tmp_path, "part", model=model))
    assert equal_runs(run, whole)


@pytest.mark.parametrize("position", ["t5", "tupe_r", "rnn", "shaw", "none"])
def test_other_position_models_train(position: str, tmp_path: Path) -> None:
    steps = {"max_steps": 2, "save_steps": 2, "average_last": 1}
    run = train(settings(tmp_path, model={"position": position, "max_length": 100}, training=steps))
    assert "refused" not in str(evaluate(run))


def test_models_that_cannot_serve_are_refused_before_anything_is_written(tmp_path: Path, ahead: str) -> None:
    with pytest.raises(PositionError, match="tree"):
        train(settings(tmp_path, model={"position": "tree"}))
    with pytest.raises(ValueError, match="lets tokens attend to later ones"):
        train(settings(tmp_path, model={"position": ahead}))
    assert not (tmp_path / "run").exists()


def test_a_bin_without_a_question_is_refused_before_the_training(tmp_path: Path) -> None:
    """Two levels of lists of at most three elements have 17 tokens."""
    shallow = {"problem": "listops", "lengths": [4, 15], "max_depth": 3, "max_args": 3}
    with pytest.raises(DataError, match="no ListOps expression of 31 to 60 tokens"):
        check_test(settings(tmp_path, data=shallow))
    check_test(settings(tmp_path, data=shallow), bins=(16,))
    check_test(settings(tmp_path, data=shallow | {"max_depth": 10}))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"data": {"lengths": [5, 3]}}, "lengths are 5 to 3; they must increase"),
        ({"data": {"lengths": [0, 3]}}, "lengths are 0 to 3"),
        ({"data": {"longest": 4}}, "longest is 4; it must be at least the greatest length, 5"),
        ({"data": {"problem": "multiply"}}, "unknown problem 'multiply'; there are: copy, reverse"),
        ({"data": {"symbols": 1}}, "symbols is 1; it must be at least 2"),
        ({"data": {"problem": "listops", "lengths": [1, 3]}}, "the shortest list of ListOps has 4 tokens"),
        ({"data": {"problem": "lego", "lengths": [1, 3]}}, "begin at 1; a chain has at least 2 variables"),
        ({"data": {"problem": "lego"}}, "symbols is 9; the longest test needs 40 different names"),
        ({"data": {"problem": "recall"}}, "symbols is 9; the longest test needs 40 different names"),
        ({"data": {"problem": "passkey"}}, "lengths begin at 3; the key alone has 6 tokens"),
        ({"data": {"problem": "sum", "modulus": 1}}, "modulus is 1; it must be at least 2"),
        ({"data": {"problem": "recall", "slots": 0}}, "slots is 0"),
        (
            {"model": {"position": "learned", "max_length": 12}},
            "'learned' has 12 positions, but a training row may have 13 tokens .*test needs 83",
        ),
        ({"training": {"max_tokens": 12}}, "13 tokens, more than a batch, training.max_tokens 12"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(GeneratedSettings, write_config(tmp_path, "bad", **parts))


def test_the_command_line_trains_tests_and_says_what_is_wrong(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"max_steps": 2, "save_steps": 2, "average_last": 1}
    small = {"position": "learned", "max_length": 14}
    config = write_config(tmp_path, "typed", training=steps, model=small)
    assert main(["train", str(config)]) == 0
    said = capsys.readouterr().err
    assert "400 training examples of 'reverse', lengths 3 to 5" in said
    assert "'learned' has 14 positions and the longest test needs 83" in said
    assert main(["evaluate", str(trained), "--bins", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["length", "examples", "exact", "match", "%", "tokens", "right", "%"]
    assert [line.split()[0] for line in lines[1:3]] == ["2-3", "4-4"]
    assert main(["evaluate", str(trained), "--bins", "4", "--reading", "temperature=true"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(lines)
    assert main(["evaluate", str(trained), "--bins", "4", "--json"]) == 0
    first, second, *_ = json.loads(capsys.readouterr().out)["bins"]
    assert f"{first['exact']:.2f}" == lines[1].split()[2]
    assert (first["lengths"], second["lengths"]) == ([2, 3], [4, 4])
    for wrong, message in (
        (
            ["--reading", "stretch=2"],
            "reading has no 'stretch'; valid: length, interpolate",
        ),
        (["--reading", "group=4:2"], "'sinusoidal' has no bias of them"),
        (["--source", "x"], "generates its own questions; it takes no --source"),
        (["--reference", "x"], "which takes no --reference; it takes --bins, --reading"),
    ):
        assert main(["evaluate", str(trained), *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", str(config), "task=generate"]) == 2
    assert "did you mean 'generated'?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", None])
def test_a_damaged_vocabulary_is_named(
    tmp_path: Path, expressions: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(expressions, run)
    tokenizer = run / "model" / "tokenizer.json"
    tokenizer.unlink() if text is None else tokenizer.write_text(text, encoding="utf-8")
    assert main(["evaluate", str(run)]) == 2
    assert f"floater: {tokenizer.parent} is not as it was written: tokenizer.json" in capsys.readouterr().err
    (tokenizer.parent / "manifest.json").unlink()
    assert main(["evaluate", str(run)]) == 2
    assert f"floater: {tokenizer}: no" in capsys.readouterr().err


def test_a_warm_up_may_be_a_share_of_the_steps(tmp_path: Path) -> None:
    assert settings(tmp_path, "run", training={"warmup_steps": 0.1}).training.warmup_steps == 0.1


SHIPPED = sorted((Path(__file__).parents[4] / "configs" / "generated").glob("*.yaml"))


def test_there_is_a_configuration_for_every_problem() -> None:
    problems = {load(GeneratedSettings, path).data.problem for path in SHIPPED}
    assert problems == set(PROBLEMS)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_configurations_run_as_they_say(path: Path) -> None:
    shipped = load(GeneratedSettings, path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# floater train configs/generated/{path.name}"
    assert shipped.data.most == 8 * shipped.data.lengths[1]
    assert shipped.model.max_length == shipped.data.tokens(shipped.data.lengths[1])
    reach = f"model.max_length={shipped.data.tokens(shipped.data.most)}"
    assert reach in path.read_text(encoding="utf-8")
    load(GeneratedSettings, path, ["model.position=learned", reach])
