"""Documents of sentences: what positions they get, what is padded, training, and what is refused."""

import json
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, dump, load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.documents import Document, read_documents
from floater.lab.tasks.documents import DocumentsSettings, collate, encode
from floater.lab.tasks.measurement import METRICS
from floater.lab.text.vocabulary import Vocabulary
from floater.lab.training.run_trainer import RunTrainer
from floater.transformer.documents import DocumentsConfig, FloaterForDocuments, sentence_positions
from helpers import write_run_config

TASK = task("documents")
check, evaluate = TASK.check, TASK.evaluate
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[4] / "shared" / "data"))
ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs" / "documents").glob("*.yaml"))


def model(**options: Any) -> FloaterForDocuments:
    torch.manual_seed(0)
    config = DocumentsConfig(vocab_size=30, num_labels=2, dropout=0.0, training_length=8, **SIZES, **options)
    built = FloaterForDocuments(config).eval()
    for flow in getattr(built.encoder.position, "flows", ()):
        torch.nn.init.normal_(flow.start)
    return built


BATCH = collate(
    [
        {"sentences": [[5, 6, 7, 8], [9], [3, 4]], "label": 1},
        {"sentences": [[10, 11, 12], [13, 2, 2, 2, 2, 2]], "label": 0},
    ]
)


def test_a_sentence_stands_as_far_after_the_one_before_as_that_one_is_long() -> None:
    lengths, mask = torch.tensor([[4, 1, 2], [3, 6, 4]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    placed = sentence_positions(lengths, mask, 2.0)
    assert placed.query.tolist() == [[0.0, 2.0, 2.5], [0.0, 1.5, 4.5]]
    equal = torch.full((2, 3), 7)
    whole = sentence_positions(equal, torch.ones(2, 3), 7.0).query
    assert torch.equal(whole, sentence_positions(equal, torch.ones(2, 3), None).query.double().expand(2, 3))


@pytest.mark.parametrize("position_source", ["length", "index"])
@torch.no_grad()
def test_documents_are_read_alone_and_padding_changes_nothing(position_source: str) -> None:
    built = model(position_source=position_source, sentence_length=2.5)
    together = built(BATCH["words"], BATCH["sentences"]).logits
    alone = [
        built(BATCH["words"][:3, :4], torch.tensor([[0, 1, 2]])).logits,
        built(BATCH["words"][3:], torch.tensor([[0, 1]])).logits,
    ]
    torch.testing.assert_close(together, torch.cat(alone))


@torch.no_grad()
def test_a_sentence_vector_is_the_mean_over_its_words_encoded_alone() -> None:
    built = model()
    vectors = built.sentence_vectors(BATCH["words"], BATCH["words"] != 0)
    for row, vector in zip(BATCH["words"], vectors, strict=True):
        ids = row[row > 0]
        torch.testing.assert_close(built.sentence_vectors(ids[None], ids[None] != 0)[0], vector)


@torch.no_grad()
def test_random_times_and_the_reading_are_those_of_sentences() -> None:
    """Words have an encoding of their own, which need not read them."""
    built = model(position="floater_relative", times={"mode": "stretch", "relative": True})
    assert built.encoder.times is not None
    assert built.words.times is None
    with torch.no_grad():
        plain = model(position="alibi", position_source="index")
        grouped = model(position="alibi", position_source="index", reading={"group": [1, 2]})
        words = BATCH["words"], BATCH["words"] != 0
        assert torch.equal(plain.sentence_vectors(*words), grouped.sentence_vectors(*words))


def test_lengths_matter_to_the_clock_of_lengths_only() -> None:
    """The same sentence vectors, but the first sentence one word longer: only positions can tell."""
    for position_source, same in (("length", False), ("index", True)):
        built = model(position_source=position_source)
        built.words.forward = lambda x, positions: torch.ones_like(x)  # type: ignore[method-assign]
        built.encoder.norm = torch.nn.Identity()
        short, long = ([[5] * n, [6], [7, 8]] for n in (2, 5))
        logits = [
            built(batch["words"], batch["sentences"]).logits
            for batch in (collate([{"sentences": s, "label": 0}]) for s in (short, long))
        ]
        assert torch.allclose(*logits, atol=1e-6) == same


def test_every_parameter_learns() -> None:
    built = model(position_source="length", position="floater")
    built(**BATCH).loss.backward()
    for name, parameter in built.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of 60 documents, and its zip: good ones say "fine", bad ones "dull"."""
    built, draw = tmp_path_factory.mktemp("documents"), random.Random(0)
    for i in range(60):
        label, telling = (("good", "fine"), ("bad", "dull"))[i % 2]
        (built / "films" / label).mkdir(parents=True, exist_ok=True)
        lines = [" ".join(draw.choices(["a", "b", "c", "d", "e"], k=draw.randint(1, 9))) for _ in range(4)]
        lines[draw.randrange(4)] += f" {telling}"
        (built / "films" / label / f"{i}.txt").write_text("\n".join(lines) + "\n\n")
    shutil.make_archive(str(built / "films"), "zip", built, "films")
    return built


def write_config(folder: Path, name: str = "run", **parts: Any) -> Path:
    config = {
        "task": "documents",
        "data": {"train": str(folder / "films.zip"), "min_count": 2, "max_words": 6},
        "model": {"max_length": 16, "changes": SIZES},
        "training": {
            "learning_rate": 1e-2,
            "warmup_steps": 3,
            "max_tokens": 200,
            "max_steps": 60,
            "save_steps": 30,
            "eval_steps": 30,
            "average_last": 1,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def test_a_directory_and_its_zip_are_the_same_documents(folder: Path) -> None:
    ours, theirs = read_documents(folder / "films"), read_documents(folder / "films.zip")
    assert ours == theirs
    assert len(ours) == 60
    assert {d.label for d in ours} == {"good", "bad"}
    assert all(len(d.sentences) == 4 for d in ours)


def test_a_zip_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for label in ("good", "bad"):
            archive.writestr(f"{label}/1.txt", bytes(2**26))
    with pytest.raises(DataError, match=r"bomb.zip: it unpacks to 134,217,728 bytes, too many for a text"):
        read_documents(tmp_path / "bomb.zip")


def test_lines_end_alike_in_a_directory_and_its_zip(tmp_path: Path) -> None:
    for label in ("good", "bad"):
        (tmp_path / "films" / label).mkdir(parents=True)
        (tmp_path / "films" / label / "1.txt").write_bytes(b"a b\rc\r\nd\n")
    shutil.make_archive(str(tmp_path / "films"), "zip", tmp_path, "films")
    assert read_documents(tmp_path / "films") == read_documents(tmp_path / "films.zip")


def test_a_damaged_archive_is_named(tmp_path: Path, folder: Path) -> None:
    """Whatever byte is wrong: it is refused in a line, or, where no text is hit, read."""
    whole = (folder / "films.zip").read_bytes()
    refused = 0
    for cut in range(0, len(whole), len(whole) // 40):
        broken = bytearray(whole)
        broken[cut] ^= 0xFF
        (tmp_path / "films.zip").write_bytes(broken)
        try:
            read_documents(tmp_path / "films.zip")
        except DataError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_any_damage_of_an_archive_is_an_error_of_one_line(tmp_path: Path, method: int) -> None:
    file, draw, messages = tmp_path / "d.zip", random.Random(0), set[str]()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("neg/1.txt", "pos/1.txt"):
            archive.writestr(name, "a b c\n" * 20)
    whole = file.read_bytes()
    for _ in range(200):
        broken = bytearray(whole)
        for _ in range(draw.choice((1, 2, 4))):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        file.write_bytes(broken)
        try:
            read_documents(file)
        except DataError as error:
            messages.add(str(error))
    assert messages
    assert not any("()" in message or "\n" in message for message in messages)


@pytest.mark.parametrize("zipped", [False, True])
def test_what_systems_leave_beside_documents_is_none(
    tmp_path: Path, zipped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    words = {"pos/1.txt": "a b", "neg/1.txt": "c"}
    left = (
        "pos/.ipynb_checkpoints/1-checkpoint.txt",
        "__MACOSX/pos/._1.txt",
        "neg/._1.txt",
        ".git/pos/1.txt",
    )
    source = tmp_path / ".hidden" / "d"  # the folder itself may be hidden
    for name, text in (words | dict.fromkeys(left, "x")).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    (source / "maybe").mkdir()
    if zipped:
        source = Path(shutil.make_archive(str(tmp_path / "d"), "zip", source))
    with caplog.at_level("INFO", logger="floater"):
        documents = read_documents(source)
    assert {document.id: " ".join(document.sentences[0]) for document in documents} == words
    assert "4 hidden or system files are skipped" in caplog.text
    assert zipped or "folders without a document are not labels: maybe" in caplog.text


def test_folders_of_labels_and_documents_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "all" / "pos").mkdir(parents=True)
    (tmp_path / "all" / "pos" / "1.txt").write_text("a b\n")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "pos").symlink_to(tmp_path / "all" / "pos")
    assert [document.id for document in read_documents(tmp_path / "some")] == ["pos/1.txt"]
    (tmp_path / "all" / "pos" / "2.txt").symlink_to(tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match=r"pos/2\.txt: cannot be read \(No such file"):
        read_documents(tmp_path / "some")


def test_the_tokens_of_a_batch_are_its_words() -> None:
    trainer = RunTrainer.__new__(RunTrainer)
    assert trainer.tokens_of(BATCH) == 4 + 1 + 2 + 3 + 6


def test_long_sentences_become_several_and_no_word_is_lost(folder: Path) -> None:
    documents = read_documents(folder / "films.zip")
    words = [sentence for document in documents for sentence in document.sentences]
    vocabulary = Vocabulary.of(words, {each.label for each in documents}, min_count=1, suffix=0)
    examples = encode(documents, vocabulary, max_words=3)
    for document, example in zip(documents, examples.rows, strict=True):
        words = [id for words in example["sentences"] for id in words]
        assert words == vocabulary.ids([w for sentence in document.sentences for w in sentence])
        assert max(map(len, example["sentences"])) <= 3


def test_training_on_the_command_line_tells_good_films(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(write_config(folder))]) == 0
    run, labels = folder / "run", folder / "labels.txt"
    actual = json.loads((run / "result.json").read_text())
    capsys.readouterr()
    source = ["--source", str(folder / "films.zip")]
    assert main(["evaluate", str(run), *source, "--part", "test", "--output", str(labels)]) == 0
    said = capsys.readouterr().out
    score = evaluate(run, folder / "films", "test")
    assert said == f"{score}\n"
    assert list(score.lines) == labels.read_text().split()
    assert 5 < len(score.lines) < 20
    assert score.scores["accuracy"] > 80
    assert actual["accuracy"] > 80
    assert score.score("accuracy") == pytest.approx(score.scores["accuracy"], abs=0.005)
    losses = {METRICS[name].label: score.score(name) for name in score.metrics if "loss" in name}
    assert losses == {"loss (nats/document)": pytest.approx(score.scores["loss"], abs=5e-5)}
    built, vocabulary, _ = TASK.load(run, "cpu")
    assert vocabulary.tags == ["bad", "good"]
    assert built.config.id2label == {0: "bad", 1: "good"}
    examples = encode(read_documents(folder / "films"), vocabulary, 6)
    assert 3 < built.config.sentence_length < 6
    right = 0
    for example in examples.rows:
        batch = collate([example])
        with torch.no_grad():
            right += int(built(batch["words"], batch["sentences"]).logits.argmax()) == example["label"]
    assert evaluate(run, folder / "films").statistics["accuracy"][:, 0].sum() == right


def test_a_test_table_may_have_one_label_and_each_row_has_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    few = {"max_steps": 1, "save_steps": 1, "eval_steps": 1}
    config = {"train": str(folder / "films"), "min_count": 2, "max_words": 6}
    assert main(["train", str(write_config(tmp_path, data=config, training=few))]) == 0
    run, table, lines = tmp_path / "run", tmp_path / "test.csv", tmp_path / "lines.txt"

    def evaluated(text: str) -> int:
        table.write_text(f"text,label\n{text}")
        capsys.readouterr()
        return main(["evaluate", str(run), "--source", str(table), "--output", str(lines)])

    assert evaluated("a fine b,good\n") == 0
    assert "of 1 documents" in capsys.readouterr().out
    assert evaluated("a fine b,good\n,good\nb dull,bad\n  ,bad\n") == 0
    assert "2 rows without a word are skipped" in caplog.text
    assert [bool(line) for line in lines.read_text().split("\n")] == [True, False, True, False, False]
    assert evaluated("a,good\n" + '"' + "long\n" * 3000 + '",other\n') == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("test.csv, line 3, column 'label': 'other' is none of bad, good")
    )
    (tmp_path / "new" / "other").mkdir(parents=True)
    (tmp_path / "new" / "other" / "1.txt").write_text("a")
    with pytest.raises(DataError, match=r"new: the label of other/1.txt is none of bad, good"):
        evaluate(run, tmp_path / "new")
    assert evaluated(",good\n") == 2
    assert "test.csv: there is no text in it" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"there is no document LABEL/NAME.txt in it"):
        read_documents(tmp_path / "new" / "other")


def test_a_label_of_no_training_document_is_named(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(30)]
    settings = load(DocumentsSettings, write_config(tmp_path, data={"train": str(tmp_path / "t.csv")}))
    row = settings.data.part([Document(f"rare {i}", "c", []) for i in range(99)], "valid")[0].id
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in [*rows, (row, "c")]))
    with pytest.raises(
        DataError, match=r"t.csv: none of the \d+ training documents has the label 'c'; lower"
    ):
        TASK.read(settings)


@pytest.mark.parametrize(("space", "warned"), [("", True), (" ", False)])
def test_text_without_spaces_between_words_is_said(
    tmp_path: Path, space: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    words = [("今天", "天气", "很", word, str(n)) for n in range(20) for word in "好坏"]
    rows = [f"{space.join(each)},{each[3]}" for each in words]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    TASK.read(load(DocumentsSettings, write_config(tmp_path, data={"train": str(tmp_path / "t.csv")})))
    assert ("t.csv: the text has no spaces between words" in caplog.text) == warned


def test_two_documents_of_one_id_are_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for label in ("good", "bad"):
            (tmp_path / part / label).mkdir(parents=True)
            (tmp_path / part / label / "1.txt").write_text(f"{part} {label}\n")
    with pytest.raises(DataError, match=r"test/bad/1.txt and .*train/bad/1.txt would both be bad/1.txt"):
        read_documents(tmp_path)
    archive = shutil.make_archive(str(tmp_path / "films"), "zip", tmp_path)
    with pytest.raises(DataError, match=r"would both be bad/1.txt"):
        read_documents(archive)
    assert len(read_documents(tmp_path / "train")) == 2


def test_what_a_person_gets_wrong_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(folder, "new"))
    for changes, message in (
        (["data.train=none.zip"], "none.zip: cannot be read (No such file or directory)"),
        (["data.valid_share=0.0001"], "none of the 60 examples is for 'valid', with data.valid_share"),
        (["training.max_tokens=9"], "more than training.max_tokens, 9; raise that"),
        (["model.position=learned"], "a training document: 'learned' counts tokens; real positions need"),
        (
            ["model.position=learned", "model.position_source=index", "model.max_length=3"],
            "'learned' ends at position 2",
        ),
    ):
        assert main(["train", config, *changes]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert not (folder / "new").exists()
    (folder / "one" / "only").mkdir(parents=True)
    (folder / "one" / "only" / "1.txt").write_text("a b\n")
    assert main(["train", config, f"data.train={folder / 'one'}"]) == 2
    assert "all 1 documents have the label 'only'; a training needs two" in capsys.readouterr().err
    (folder / "one" / "only" / "2.txt").write_text("\n")
    with pytest.raises(DataError, match=r"document only/2\.txt has no word"):
        read_documents(folder / "one")
    for flow in (["training.save_steps=3"], ["training.save_strategy=epoch", "training.save_steps=null"]):
        with pytest.raises(SettingsError, match=r"with flow\.update_every 2 it must be a multiple"):
            load(
                DocumentsSettings,
                config,
                [
                    "model.word_position=floater",
                    "training.flow.update_every=2",
                    "training.average_last=1",
                    *flow,
                ],
            )
    with pytest.raises(SettingsError, match="leave nothing for training"):
        load(DocumentsSettings, config, ["data.test_share=0.9"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "tree"}, "task 'documents': 'tree' reads a tree"),
        ({"position": "ldpe", "position_source": "index"}, "task 'documents': no target_length"),
        ({"position": "learned"}, "task 'documents': 'learned' counts tokens"),
        ({"word_position": "tree"}, "task 'documents': 'tree' reads a tree"),
    ],
)
def test_what_can_serve_no_document_is_refused_before_data_are_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """There is no film in the directory."""
    with pytest.raises(PositionError, match=message):
        check(load(DocumentsSettings, write_config(tmp_path, model=changes)))


@pytest.mark.parametrize("position_source", ["index", "length"])
def test_what_can_serve_passes_and_draws_no_number(tmp_path: Path, position_source: str) -> None:
    built = load(DocumentsSettings, write_config(tmp_path, model={"position_source": position_source}))
    before = torch.get_rng_state()
    check(built)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word_position": "tre"}, "word_position: unknown position model 'tre'; did you mean 'tree'"),
        (
            {"word_position": "floater", "word_position_options": {"delta": "x"}},
            "word_position: delta is 'x'; it must be a finite number",
        ),
    ],
)
def test_a_word_level_that_cannot_be_built_is_no_setting(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load(DocumentsSettings, write_config(tmp_path, model=changes))


@pytest.mark.skipif(not (DATA / "nltk").is_dir(), reason="the film reviews are not here")
def test_the_film_reviews_of_nltk() -> None:
    documents = read_documents(DATA / "nltk" / "movie_reviews.zip")
    assert len(documents) == 2000
    assert sum(document.label == "pos" for document in documents) == 1000
    words = sum(len(sentence) for document in documents for sentence in document.sentences)
    assert words / 2000 == pytest.approx(746, abs=1)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configurations_are_some(path: Path, tmp_path: Path) -> None:
    shipped = load(DocumentsSettings, path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# floater train configs/documents/{path.name} run={shipped.run}"
    (tmp_path / "config.yaml").write_text(dump(shipped), encoding="utf-8")
    assert load(DocumentsSettings, tmp_path / "config.yaml") == shipped


@torch.no_grad()
def test_a_mask_of_words_is_that_of_padding() -> None:
    built = model()
    words, mask = BATCH["words"].clone(), (BATCH["words"] != 0).long()
    words[mask == 0] = 5
    expected = built(BATCH["words"], BATCH["sentences"]).logits
    assert torch.equal(built(words, BATCH["sentences"], attention_mask=mask).logits, expected)
    with pytest.raises(ValueError, match="padding must be on the right"):
        built(words, BATCH["sentences"], attention_mask=mask.flip(1))
    with pytest.raises(TypeError, match="does not take position_ids"):
        built(words, BATCH["sentences"], position_ids=torch.arange(3))
