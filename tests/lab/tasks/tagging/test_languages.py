"""Files by language, and second positions by a reordering of the trees."""

import random
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.lab.settings import SettingsError
from floater.lab.tasks import task
from floater.lab.tasks.corpora.conllu import Sentence, head_order
from floater.lab.tasks.tagging import collate, encode
from floater.lab.text.vocabulary import Vocabulary

from .small import SIZES, conllu, settings, tree

TASK = task("tagging")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Two languages with the same words: a tag is the language and says nothing else."""
    folder, draw = tmp_path_factory.mktemp("languages"), random.Random(0)
    paths: dict[str, dict[str, str]] = {}
    for split, count in (("train", 60), ("valid", 20)):
        for language in ("en", "de"):
            lengths = [draw.randint(1, 7) for _ in range(count)]
            rows = [(["word"] * n, [language.upper()] * n, tree(n, draw)) for n in lengths]
            path = folder / f"{language}-{split}.conllu"
            path.write_text(conllu(rows), encoding="utf-8")
            paths.setdefault(split, {})[language] = str(path)
    return paths


def run(folder: Path, data: dict[str, Any], position: str = "language_specific", **parts: Any) -> Any:
    model = {"position": position, "position_options": {}, "changes": {**SIZES, "dropout": 0.0}}
    return settings(folder, position, data=data, model=model, **parts)


def test_a_tagger_knows_the_language_of_each_file(tmp_path: Path, files: dict[str, dict[str, str]]) -> None:
    training = {"max_steps": 40, "save_steps": 40, "average_last": 0, "learning_rate": 1e-2}
    config = run(tmp_path, files, training=training)
    assert {str(Path(path).name) for path in config.files_read()["data.train"]} == {
        "en-train.conllu",
        "de-train.conllu",
    }
    trained = TASK.train(config)
    for language, other in (("en", "de"), ("de", "en")):
        file = files["valid"][language]
        assert TASK.evaluate(trained, file, language=language).scores["accuracy"] == 100.0
        assert TASK.evaluate(trained, file, language=other).scores["accuracy"] == 0.0
    with pytest.raises(DataError, match=r"needs a language: de, en \(--language\)"):
        TASK.evaluate(trained, files["valid"]["en"])
    with pytest.raises(DataError, match="language is 'fr'; the run has de, en"):
        TASK.evaluate(trained, files["valid"]["en"], language="fr")


def test_the_tables_are_as_many_as_languages(tmp_path: Path, files: dict[str, dict[str, str]]) -> None:
    data = {"train": files["train"] | {"fr": files["train"]["de"]}, "valid": files["valid"]}
    config = run(tmp_path, data)
    splits = TASK.read(config)
    assert [sentence.language for sentence in splits.train[::60]] == ["de", "en", "fr"]
    model = TASK.prepare(config, tmp_path, splits).model
    assert [len(p) for name, p in model.named_parameters() if "position.table" in name] == [3]


@pytest.mark.parametrize("final", [True, False])
def test_heads_follow_or_precede_what_they_govern_and_subtrees_stay_together(final: bool) -> None:
    draw = random.Random(1)
    for _ in range(50):
        parents = tree(draw.randint(1, 12), draw)
        at = head_order(parents, final=final)
        assert sorted(at) == list(range(len(parents)))

        def governed(word: int, parents: list[int] = parents) -> set[int]:
            return {word}.union(*(governed(i) for i, parent in enumerate(parents) if parent == word))

        for word, parent in enumerate(parents):
            span = {at[i] for i in governed(word)}
            assert max(span) - min(span) + 1 == len(span)
            assert at[word] == (max(span) if final else min(span))
            later = [i for i in range(word) if parents[i] == parent]
            assert all(at[sibling] < at[word] for sibling in later)


def test_batches_hold_languages_and_second_positions() -> None:
    sentences = [
        Sentence(["John", "saw", "dogs"], ["N", "V", "N"], [1, -1, 1], ["a", "root", "b"], "de"),
        Sentence(["Go"], ["V"], [-1], ["root"], "en"),
    ]
    vocabulary = Vocabulary.of([s.words for s in sentences], "NV", ["a"], min_count=1, suffix=0)
    examples = encode(sentences, vocabulary, languages=["en", "de"], reordering="head_final")
    for structured in (False, True):
        positions = collate([examples[0], examples[1]], structured=structured)["positions"]
        assert positions.language.tolist() == [[1, 1, 1], [0, 0, 0]]
        assert positions.reordered.tolist() == [[0, 2, 1], [0, 0, 0]]
        assert (positions.structure is not None) == structured
        assert positions.query.tolist() in ([[0, 1, 2]], [[0, 1, 2], [0, 1, 2]])
    initial = encode(sentences, vocabulary, languages=["en", "de"], reordering="head_initial")
    assert initial[0]["reordered"] == [1, 0, 2]


def test_second_positions_are_those_of_the_trees(tmp_path: Path, files: dict[str, dict[str, str]]) -> None:
    data = {name: part["en"] for name, part in files.items()} | {"reordering": "head_final"}
    config = run(tmp_path, data, "xl_heads")
    assert TASK.check(config) is None
    sentence = TASK.read(config).train[0]
    assert TASK.encode(config, Vocabulary.of([["word"]], ["EN"], [], min_count=1, suffix=0), [sentence])[0][
        "reordered"
    ] == head_order(sentence.parents, final=True)
    without = Path(data["train"]).with_name("without.conllu")
    without.write_text("1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"sentence 1: it has a word without a head \(HEAD is _\)"):
        TASK.read_test(config, without)


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        ("language_specific", {}, "reads the field 'language' of positions; give files by language"),
        ("xl", {}, "'xl' reads the field 'reordered' of positions; set data.reordering=head_final"),
        ("sinusoidal", {"reordering": "head_final"}, "position model 'sinusoidal' does not read"),
        ("sinusoidal", {"reordering": "final"}, "head_final"),
        ("sinusoidal", {"valid": {"en": "b"}}, "train and valid must both be a file, or both files by"),
        ("sinusoidal", {"train": {"en": "a"}, "valid": {"de": "b"}}, "has the language 'de'; train has en"),
        ("sinusoidal", {"train": {}, "valid": {}}, r"data.train is \{\}; it must name a file"),
    ],
)
def test_settings_that_do_not_fit(
    tmp_path: Path, position: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        run(tmp_path, {"train": "a", "valid": "b", **changes}, position)


def test_a_run_of_one_file_has_no_language(tmp_path: Path, files: dict[str, dict[str, str]]) -> None:
    config = run(tmp_path, {name: part["en"] for name, part in files.items()}, "sinusoidal")
    with pytest.raises(DataError, match=r"language is 'en'; the run has none: data\.train is one file"):
        TASK.read_test(config, files["valid"]["en"], "en")
