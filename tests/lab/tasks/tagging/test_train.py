"""Training a tagger: that trees are of use, runs that go on, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification

from floater.encodings import PositionError, catalogue
from floater.lab.cli import main
from floater.lab.settings import SettingsError, load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.conllu import read_conllu
from floater.lab.tasks.tagging import TaggingSettings, collate, encode
from helpers import equal_runs, train_killed

from .small import conllu, settings, write_config, write_treebank

TASK = task("tagging")
train, evaluate, check = TASK.train, TASK.evaluate, TASK.check


def test_a_tagger_over_trees_learns_what_no_word_says(trained: Path, folder: Path) -> None:
    """Tags are depths in the tree: words alone leave a guess, the tree says it."""
    over_trees = json.loads((trained / "result.json").read_text())
    options = {"position": "sinusoidal", "position_options": {}}
    training = {"max_steps": 250, "save_steps": 125, "average_last": 0}
    plain = train(settings(folder, "plain", model=options, training=training))
    assert over_trees["accuracy"] > 97
    assert json.loads((plain / "result.json").read_text())["accuracy"] < 75
    assert over_trees["steps"] == 250


def test_the_result_is_that_of_counting_by_hand(trained: Path, folder: Path) -> None:
    model, vocabulary, _ = TASK.load(trained, "cpu")
    sentences = read_conllu(folder / "valid.conllu")
    actual = evaluate(trained, folder / "valid.conllu")
    examples = encode(sentences, vocabulary)
    right, nats, words = 0, 0.0, 0
    for i, sentence in enumerate(sentences):
        batch = collate([examples[i]], structured=True)
        with torch.no_grad():
            p = model(batch["input_ids"], positions=batch["positions"]).logits[0].softmax(-1)
        for row, said, correct in zip(p, actual.lines[i].split(), sentence.tags, strict=True):
            assert said == vocabulary.tags[int(row.argmax())]
            right += said == correct
            nats -= float(row[vocabulary.tags.index(correct)].log())
            words += 1
    assert f"({right} of {words} words)\nno unknown words" in str(actual)
    assert "accuracy_unknown" not in actual.scores
    assert actual.scores["loss"] == pytest.approx(nats / words, abs=6e-5)
    assert actual.scores["accuracy"] == pytest.approx(100 * right / words, abs=6e-3)
    result = json.loads((trained / "result.json").read_text())
    assert actual.scores.items() <= result.items()


def test_unknown_words_and_tags_count(trained: Path) -> None:
    model, vocabulary, _ = TASK.load(trained, "cpu")
    sentence = read_conllu(trained.parent / "valid.conllu")[0]
    sentence.words[0], sentence.tags[0] = "omega", "NEW"
    actual = TASK.score(None, model, vocabulary, encode([sentence], vocabulary))
    assert actual.scores["accuracy"] < 100
    assert "unknown words 0.00 (0 of 1 words)" in str(actual)


def test_the_final_model_is_an_auto_model_with_the_names_of_the_tags(trained: Path) -> None:
    model = AutoModelForTokenClassification.from_pretrained(trained / "model")
    assert model.config.id2label == {0: "D0", 1: "D1", 2: "D2"}
    ours = TASK.load(trained / "model", "cpu")[0].state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("position", ["tree", "floater"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(folder: Path, position: str) -> None:
    model = {"position": position, "position_options": {}}
    whole = train(settings(folder, f"whole-{position}", model=model))

    part = settings(folder, f"part-{position}", model=model)
    assert equal_runs(train_killed(TASK, part), whole)


ROWS = [name for name, model in catalogue().items() if hasattr(model, "needs")]


@pytest.mark.parametrize("position", ROWS)
def test_every_row_over_trees_and_graphs_trains(folder: Path, position: str) -> None:
    model = {"position": position, "position_options": {}}
    training = {"max_steps": 2, "save_steps": 2, "average_last": 1}
    run = train(settings(folder, f"row-{position}", model=model, training=training))
    log = json.loads((run / "log.json").read_text())
    assert len([entry for entry in log if "loss" in entry]) == 2
    saved = json.loads((run / "model" / "config.json").read_text())
    # left, right, root and an unknown one
    assert saved["position_options"].get("labels", 4) == 4


@pytest.mark.parametrize("position", ["ldpe", "noisy_length"])
def test_what_can_serve_no_sentence_is_refused_before_data_are_read(tmp_path: Path, position: str) -> None:
    """There is no treebank in the directory."""
    with pytest.raises(PositionError, match="task 'tagging': "):
        check(settings(tmp_path, model={"position": position, "position_options": {}}))


@pytest.mark.parametrize("position", [*ROWS, ["tree", "alibi"], "sinusoidal", "floater", "learned"])
def test_what_can_serve_passes_and_draws_no_number(tmp_path: Path, position: str | list[str]) -> None:
    config = settings(tmp_path, model={"position": position, "position_options": {}})
    before = torch.get_rng_state()
    check(config)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sentence_past_the_horizon_of_random_times_is_refused_before_the_training(tmp_path: Path) -> None:
    for name, count in (("train", 200), ("valid", 20)):
        write_treebank(tmp_path, name, count, seed=0)
    longest = max(len(sentence.words) for sentence in read_conllu(tmp_path / "train.conllu"))
    model = {"position": "sinusoidal", "position_options": {}, "max_length": 2}
    parts = {"model": model | {"times": {"mode": "stretch", "max_scale": 1.5}}}
    with pytest.raises(
        PositionError, match=f"training sentence: a text of {longest} tokens does not fit below"
    ):
        train(settings(tmp_path, **parts))
    assert not (tmp_path / "run" / "log.json").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"position_options": {"depth": 0}}}, "branching 2 and depth 0 must be at least 1"),
        ({"model": {"position": "tre"}}, "unknown position model 'tre'; did you mean 'tree'"),
        ({"training": {"average_last": 3}}, "average_last is 3, but only 2 checkpoints are kept"),
        ({"data": {"min_count": 0}}, "data: min_count is 0; it must be at least 1"),
        (
            {
                "model": {"position": "floater", "position_options": {}},
                "training": {"flow": {"update_every": 3}},
            },
            "training.save_steps is 4; with flow.update_every 3",
        ),
    ],
)
def test_settings_that_cannot_be_used(
    folder: Path, parts: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load(TaggingSettings, write_config(folder, "bad", **parts))


def test_the_command_line_trains_and_evaluates(
    folder: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(folder, "typed", training={"max_steps": 2, "save_steps": 2, "average_last": 1})
    assert main(["train", str(config), "training.learning_rate=1e-3"]) == 0
    assert re.search(r"^steps +2$", capsys.readouterr().out, re.MULTILINE)
    assert (folder / "typed" / "config.yaml").read_text().count("learning_rate: 0.001\n") == 1
    tags = folder / "tags.txt"
    source = ["--source", str(folder / "valid.conllu")]
    assert main(["evaluate", str(trained), *source, "--output", str(tags)]) == 0
    said = capsys.readouterr().out
    assert re.match(r"accuracy \d+\.\d\d \(\d+ of \d+ words\)\nno unknown words\n$", said)
    lines = tags.read_text().splitlines()
    assert [len(line.split()) for line in lines] == [
        len(sentence.words) for sentence in read_conllu(folder / "valid.conllu")
    ]


def test_what_a_person_gets_wrong_is_one_line_and_nothing_is_written(
    folder: Path, trained: Path, said: Callable[..., str]
) -> None:
    config = str(write_config(folder, "new"))
    assert "unknown task 'taging'; did you mean 'tagging'?" in said("train", config, "task=taging")
    assert "none.conllu: cannot be read" in said("train", config, "data.train=none.conllu")
    assert "more than training.max_tokens, 3" in said("train", config, "training.max_tokens=3")
    wide = folder / "wide.conllu"
    wide.write_text(conllu([(["a", "b", "c", "d"], ["X"] * 4, [-1, 0, 0, 0])]))
    assert said("train", config, f"data.valid={wide}") == (
        "a validation sentence: tree 0: node 3 is child 3 of its parent; branching is 2"
    )
    loop = folder / "loop.conllu"
    loop.write_text(conllu([(["a", "b"], ["X"] * 2, [1, 0])]))
    assert said("train", config, f"data.train={loop}").startswith(f"{loop}, sentence 1: it has no root")
    learned = ["model.position=learned", "model.position_options={}", "model.max_length=4"]
    assert said("train", config, *learned).startswith("a training sentence: ")
    source = ["--source", str(folder / "valid.conllu")]
    assert "takes no --reference" in said("evaluate", str(trained), *source, "--reference", "a")
    other = str(write_config(folder, "trained", training={"seed": 9}))
    assert "holds a run with other settings" in said("train", other)


def test_the_shipped_configuration_is_one() -> None:
    path = Path(__file__).parents[4] / "configs" / "tagging" / "ud_ewt.yaml"
    shipped = load(TaggingSettings, path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# floater train configs/tagging/ud_ewt.yaml run={shipped.run}"
    load(TaggingSettings, path, ["model.position=sinusoidal", "model.position_options={}"])
