"""Properties of every task and of its settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from floater import PositionError
from floater.lab.settings import SettingsError, make
from floater.lab.tasks import Task, registry, task
from floater.lab.training.files import seal
from helpers import undocumented


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_every_setting_is_explained(name: str) -> None:
    assert undocumented(task(name).Settings) == []


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_settings_name_their_task(name: str) -> None:
    """A configuration may leave it out only where it is the default of all."""
    assert task(name).name == name
    assert task(name).Settings.__dataclass_fields__["task"].default == name


def test_a_task_that_is_not_there_is_named_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="here: unknown task 'tagger'; did you mean 'tagging'"):
        task("tagger", "here")


def test_an_unfinished_task_is_named_with_what_it_lacks() -> None:
    with pytest.raises(SettingsError, match=r"^the task 'unfinished' lacks metric, collate$"):

        @registry.register("unfinished")
        class Unfinished(Task):
            Settings = SimpleNamespace

            def make_processor(self, settings: Any, train: Any) -> Any: ...
            def encode(
                self, settings: Any, processor: Any, examples: Any, *, training: bool = False
            ) -> Any: ...
            def build(self, settings: Any, processor: Any, train: Any) -> Any: ...
            def score(self, settings: Any, model: Any, processor: Any, examples: Any) -> Any: ...


@pytest.mark.parametrize("name", [{}, [], 3, None])
def test_a_task_that_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(SettingsError, match=r"here: unknown task .*; there are: translation"):
        task(name, "here")


@pytest.mark.parametrize("name", ["translation", "language_modeling", "events", "documents"])
def test_a_task_without_trees_refuses_an_encoding_of_them_before_data_are_read(
    name: str, tmp_path: Path
) -> None:
    """There are no data in the directory."""
    pair = {"train_source": "a", "train_target": "b", "valid_source": "c", "valid_target": "d"}
    data = {"translation": pair, "language_modeling": {"train": "a", "valid": "b"}}.get(name, {"train": "a"})
    tree = {"run": str(tmp_path / "run"), "data": data, "model": {"preset": "tiny", "position": "tree"}}
    settings = make(task(name).Settings, tree | {"training": {"max_tokens": 4096}}, "mine.yaml")
    with pytest.raises(PositionError, match="'tree' reads a tree, and there is none"):
        task(name).check(settings)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("documents", {"train": "a"}),
        ("events", {"train": "a"}),
        ("generated", {"problem": "copy"}),
        ("image_classification", {}),
        ("tagging", {"train": "a", "valid": "b"}),
    ],
)
def test_every_task_takes_a_list_of_position_encodings(name: str, data: dict[str, str]) -> None:
    model = {"preset": "tiny", "position": ["sinusoidal", "alibi"]}
    config = make(task(name).Settings, {"run": "run", "data": data, "model": model}, "mine.yaml")
    assert config.model.position == "compose"


QUESTIONS: dict[str, dict[str, Any]] = {
    "translation": {"data": {"builtin": 50}},
    "language_modeling": {"data": {"train": "a", "valid": "v"}},
    "generated": {"data": {"problem": "copy"}},
    "tagging": {"data": {"train": "a", "valid": "v"}},
    "documents": {"data": {"train": "a"}},
    "events": {"data": {"train": "a", "columns": {"type": "type"}}},
    "glue": {"data": {"task": "RTE", "folder": "glue"}, "model": {"path": "bert"}},
    "classification": {"data": {"train": "a"}, "model": {"path": "bert"}},
    "race": {"data": {"train": "a", "valid": "v"}, "model": {"path": "bert"}},
    "masked_lm": {"data": {"train": "a", "valid": "v"}, "model": {"path": "bert"}},
    "causal_lm": {"data": {"train": "a", "valid": "v"}, "model": {"path": "gpt2"}},
}


@pytest.mark.parametrize(
    ("name", "metric", "test", "change", "same"),
    [
        ("translation", "bleu", {}, "data.vocabulary_size=900", True),
        ("translation", "loss", {}, "data.moses=true", False),
        ("translation", "bleu", None, "data.max_tokens=9", True),
        ("translation", "bleu", None, "data.builtin=60", False),
        ("language_modeling", "loss", {}, "data.block=64", True),
        ("language_modeling", "loss", {}, "data.valid=w", True),
        ("language_modeling", "loss", None, "data.valid=w", False),
        ("language_modeling", "loss", {}, "objective=masked", False),
        ("language_modeling", "loss", {}, "data.documents=line", False),
        ("generated", "exact", {"bins": [9]}, "data.train=9", True),
        ("generated", "exact", {"bins": [9]}, "data.lengths=[1, 15]", False),
        ("generated", "exact", {"bins": [9]}, "data.longest=128", True),
        ("generated", "exact", {"bins": [9]}, "data.symbols=9", False),
        ("generated", "exact", {"bins": [9]}, "data.seed=9", False),
        ("generated", "exact", None, "data.lengths=[1, 15]", False),
        ("tagging", "accuracy", {}, "data.valid=w", True),
        ("tagging", "accuracy", None, "data.valid=w", False),
        ("documents", "accuracy", {"part": "test"}, "data.split_seed=9", False),
        ("events", "nll", None, "data.time_per_position=2", True),
        ("events", "nll", None, "data.unit=60", False),
        ("glue", "accuracy", None, "data.task=MRPC", False),
        ("glue", "accuracy", None, "plug.options={}", True),
        ("race", "accuracy", None, "data.max_length=256", True),
        ("classification", "accuracy", {"part": "test"}, "data.long=parts", True),
        ("classification", "accuracy", {"part": "test"}, "data.split_seed=9", False),
        ("classification", "accuracy", {"source": "t.csv"}, "data.train=b", True),
        ("masked_lm", "loss", None, "masking.rate=0.3", False),
        ("causal_lm", "loss", None, "data.train=b", True),
    ],
)
def test_a_task_says_which_settings_change_what_a_score_is_of(
    name: str, metric: str, test: dict[str, Any] | None, change: str, same: bool
) -> None:
    kind, tree = task(name).Settings, {"run": "run"} | QUESTIONS[name]
    actual = [task(name).question(make(kind, tree, "here", of), metric, test) for of in ([], [change])]
    assert (actual[0] == actual[1]) == same


@pytest.mark.parametrize("name", ["translation", "language_modeling", "masked_lm", "causal_lm"])
def test_losses_per_token_are_of_the_vocabulary(name: str, tmp_path: Path) -> None:
    """As of one that is trained on another text, or of the tokenizer of another checkpoint."""
    actual = []
    for i, vocabulary in enumerate(["a", "a", "b"]):
        folder = tmp_path / str(i) / "vocabulary"
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(vocabulary)
        seal(folder)
        settings = make(task(name).Settings, {"run": str(folder.parent)} | QUESTIONS[name], "here")
        actual.append([task(name).question(settings, metric, None) for metric in ("loss", "bleu")])
    (one, bleu), (same, _), (other, bleu_of_other) = actual
    assert one == same != other
    assert name != "translation" or bleu == bleu_of_other


def test_no_setting_of_the_data_of_a_new_task_is_overlooked() -> None:
    one, other = (SimpleNamespace(data={"train": "a", "level": level}) for level in (1, 2))
    new = task("glue")  # which leaves nothing out
    assert new.question(one, "accuracy", {}) == new.question(one, "accuracy", {})
    assert new.question(one, "accuracy", {}) != new.question(other, "accuracy", {})
