"""Every data set, small, from a server on the loopback interface to what its task reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow
import pytest
from pyarrow import parquet

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.datasets import Dataset, datasets, preparation, prepare
from floater.lab.datasets.preparation import BUILD
from floater.lab.datasets.translation import tokenised
from floater.lab.tasks.corpora.glue import TASKS, read_examples
from floater.lab.tasks.corpora.race import read_race
from floater.lab.tasks.language_modeling.data import read_documents
from floater.lab.text.bpe import load_bpe
from floater.lab.training.lock import file_lock

from .serving import Server


def tarred(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    prepared = io.BytesIO()
    with tarfile.open(fileobj=prepared, mode=mode) as packed:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return prepared.getvalue()


def zipped(members: dict[str, str]) -> bytes:
    prepared = io.BytesIO()
    with zipfile.ZipFile(prepared, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return prepared.getvalue()


def served(name: str, server: Server, contents: dict[str, bytes]) -> Dataset:
    """A data set of the catalogue whose files have these contents and their checksums, here."""
    files = []
    for file in datasets()[name].files:
        content = contents[file.name]
        hash = None if file.hash is None else f"sha256:{hashlib.sha256(content).hexdigest()}"
        url = server.serve(file.name, content)
        files.append(replace(file, urls=(url,), bytes=len(content), hash=hash))
    return replace(datasets()[name], files=tuple(files))


def wikitext(server: Server) -> Dataset:
    texts = {f"wikitext-2-raw/wiki.{part}.raw": f" = {part} = \n" for part in ("train", "valid", "test")}
    return served("wikitext2", server, {"wikitext-2-raw-v1.zip": zipped(texts)})


def test_wikitext_is_unpacked_where_configurations_name_it(server: Server, tmp_path: Path) -> None:
    prepared = prepare(wikitext(server), tmp_path)
    assert prepared == tmp_path / "wikitext2"
    assert {path.name for path in prepared.iterdir()} == {
        *(f"wiki.{part}.raw" for part in ("train", "valid", "test")),
        "sources.json",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext2"]
    told = json.loads((prepared / "sources.json").read_text())
    assert told["files"][0]["stated by"].startswith("huggingface/datasets@")
    prepare(wikitext(server), tmp_path)
    assert len(server.asked) == 1


def test_what_was_stopped_is_not_there_and_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        (tmp_path / ".wikitext2.unfinished/made/wiki.train.raw").write_text("half")
        raise KeyboardInterrupt

    wanted = wikitext(server)
    with monkeypatch.context() as patch:
        patch.setitem(BUILD, "wikitext2", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(wanted, tmp_path)
    assert not (tmp_path / "wikitext2").exists()
    assert (prepare(wanted, tmp_path) / "wiki.train.raw").read_text() == " = train = \n"
    assert len(server.asked) == 1  # the download was kept


def test_downloads_that_a_call_killed_at_its_end_has_left_are_removed(server: Server, tmp_path: Path) -> None:
    prepared = prepare(wikitext(server), tmp_path)
    (tmp_path / ".wikitext2.unfinished/downloads").mkdir(parents=True)
    assert prepare(wikitext(server), tmp_path) == prepared
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext2"]


def test_a_broken_archive_leaves_nothing_that_looks_whole(server: Server, tmp_path: Path) -> None:
    whole = zipped({"wiki.train.raw": "text"})
    wanted = served("wikitext2", server, {"wikitext-2-raw-v1.zip": whole[: len(whole) // 2]})
    with pytest.raises(DataError, match="a broken archive"):
        prepare(wanted, tmp_path)
    assert not (tmp_path / "wikitext2").exists()


def test_what_is_in_the_way_stays(server: Server, tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2/mine.txt").touch()
    with pytest.raises(DataError, match=r"mine.txt is a file; --to takes a directory"):
        prepare("wikitext2", tmp_path / "wikitext2/mine.txt")
    with pytest.raises(DataError, match="was not made by `floater data`"):
        prepare(wikitext(server), tmp_path)
    assert (tmp_path / "wikitext2/mine.txt").exists()


def test_a_second_process_is_refused(server: Server, tmp_path: Path) -> None:
    work = tmp_path / ".wikitext2.unfinished"
    work.mkdir()
    with file_lock(work / "lock", "it"), pytest.raises(DataError, match="is in use by process"):
        prepare(wikitext(server), tmp_path)


def test_what_another_process_has_just_made_is_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wikitext(server)

    def late(path: Path, what: str) -> AbstractContextManager[None]:
        monkeypatch.setattr(preparation, "file_lock", file_lock)
        prepare(wanted, tmp_path)
        path.parent.mkdir()
        return file_lock(path, what)

    monkeypatch.setattr(preparation, "file_lock", late)
    assert (prepare(wanted, tmp_path) / "wiki.train.raw").read_text() == " = train = \n"
    assert len(server.asked) == 1


def test_a_checksum_that_another_process_overwrites_is_still_known(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wikitext(server)
    wanted = replace(wanted, files=(replace(wanted.files[0], hash=None),))
    build = BUILD["wikitext2"]

    def other(*args: object) -> None:
        (tmp_path / "data.lock.json").write_text("{}")
        build(*args)  # type: ignore[arg-type]

    monkeypatch.setitem(BUILD, "wikitext2", other)
    told = json.loads((prepare(wanted, tmp_path) / "sources.json").read_text())
    assert told["files"][0]["hash"].startswith("sha256:")


@pytest.mark.parametrize("text", ["[1]", '{"url": 1}', "{"])
def test_recorded_checksums_that_are_none_are_named(server: Server, tmp_path: Path, text: str) -> None:
    (tmp_path / "data.lock.json").write_text(text)
    with pytest.raises(DataError, match=r"data\.lock\.json"):
        prepare(wikitext(server), tmp_path)


def test_too_little_space_is_said_before_the_download(server: Server, tmp_path: Path) -> None:
    wanted = wikitext(server)
    huge = replace(wanted, files=(replace(wanted.files[0], bytes=10**18),))
    with pytest.raises(DataError, match=r"GB are free, and 1000000000\.0 GB are to come"):
        prepare(huge, tmp_path)
    assert not server.asked


def test_race_has_splits_of_two_levels(server: Server, tmp_path: Path) -> None:
    passage = {
        "article": "Rome.",
        "questions": ["Where?"],
        "options": [["a", "b", "c", "d"]],
        "answers": ["B"],
    }
    members = {
        f"RACE/{split}/{level}/1.txt": json.dumps(passage).encode()
        for split in ("train", "dev", "test")
        for level in ("middle", "high")
    }
    prepared = prepare(served("race", server, {"RACE.tar.gz": tarred(members)}), tmp_path)
    assert [len(read_race(prepared / split)) for split in ("train", "dev", "test")] == [2, 2, 2]
    assert len(read_race(prepared / "test/high")) == 1


def glue_files() -> Iterator[tuple[str, bytes]]:
    folders = {"QQP-clean": "QQP", "QNLIv2": "QNLI"}
    for file in datasets()["glue"].files:
        if file.name.endswith(".zip"):
            stem = file.name.removesuffix(".zip")
            name = folders.get(stem, stem)
            task = TASKS[name]
            if name == "CoLA":
                rows = ["gj04\t1\t\tHe left."]
            else:
                label = "1.5" if not task.labels else task.labels[0]
                rows = [
                    "\t".join((*task.texts, task.label)),
                    "\t".join((*("one" for _ in task.texts), label)),
                ]
            text = "\n".join(rows) + "\n"
            splits = ("train", "test", *task.valid)
            yield file.name, zipped({f"{name}/{split}.tsv": text for split in splits})
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = ["1\t10\t11\tOne.\tOne!\r\n", '0\t12\t13\t"Two" said.\tThree.\r\n']
    yield "msr_paraphrase_train.txt", f"\ufeff{head}{''.join(rows)}".encode()
    yield "msr_paraphrase_test.txt", f"\ufeff{head}{rows[0]}".encode()
    yield "mrpc_dev_ids.tsv", b"12\t13\n"


def test_every_task_of_glue_is_read_from_what_was_made(server: Server, tmp_path: Path) -> None:
    prepared = prepare(served("glue", server, dict(glue_files())), tmp_path)
    for task in TASKS.values():
        for split in ("train", *task.valid):
            assert len(read_examples(prepared / task.name / f"{split}.tsv", task)) == 1
    dev = read_examples(prepared / "MRPC/dev.tsv", TASKS["MRPC"])
    assert (dev.texts, dev.labels) == ((['"Two" said.'], ["Three."]), [0])
    assert read_examples(prepared / "MRPC/train.tsv", TASKS["MRPC"]).labels == [1]
    assert (prepared / "MRPC/test.tsv").read_text().splitlines()[1] == "0\t10\t11\tOne.\tOne!"


WORDS = {
    "en": "the cat sat well-known on mats under red roofs and saw green hills",
    "de": "die Katze saß wohl-bekannt auf Matten unter roten Dächern und sah grüne Hügel",
    "fr": "le chat était bien-aimé sur des nattes sous toits et voyait des collines",
}


def corpus(language: str, lines: int) -> list[str]:
    """Lines with as many words in each language, but for the last."""
    random = Random(0)
    prepared = [" ".join(random.choices(WORDS[language].split(), k=6)) + "." for _ in range(lines - 1)]
    return [*prepared, "No." if language == "en" else WORDS[language]]


def wmt(target: str, lines: int) -> dict[str, bytes]:
    pair = f"{target}-en"
    text = {language: "\n".join(corpus(language, lines)).encode() + b"\n" for language in ("en", target)}

    def sides(name: str) -> dict[str, bytes]:
        return {f"{name}.{language}": text[language] for language in text}

    segments = '<doc><seg id="1"> It’s a “well-known” cat. </seg>\n<seg id="2">Yes.</seg>\n</doc>'.encode()
    test = "deen" if target == "de" else "fren"
    packed = {f"giga-fren.release2.fixed.{name}.gz": gzip.compress(text[name]) for name in text}
    return {
        "training-parallel-europarl-v7.tgz": tarred(sides(f"training/europarl-v7.{pair}")),
        "training-parallel-commoncrawl.tgz": tarred(sides(f"commoncrawl.{pair}")),
        "training-parallel-nc-v9.tgz": tarred(sides(f"training/news-commentary-v9.{pair}")),
        "training-parallel-un.tgz": tarred(sides(f"un/undoc.2000.{pair}")),
        "training-giga-fren.tar": tarred(packed, "w:"),
        "test-full.tgz": tarred(
            {
                f"test-full/newstest2014-{test}-src.en.sgm": segments,
                f"test-full/newstest2014-{test}-ref.{target}.sgm": segments,
            }
        ),
    }


def test_wmt14_is_tokenised_divided_and_cleaned(server: Server, tmp_path: Path) -> None:
    prepared = prepare(served("wmt14_en_de", server, wmt("de", 150)), tmp_path)
    parts = {path.name: path.read_text().splitlines() for path in prepared.iterdir() if path.is_file()}
    # 450 lines, of which every 100th validates and the last of each corpus has too few words
    whole = [tokenised(line, "en") for line in corpus("en", 150) * 3]
    assert parts["valid.en"] == [line for n, line in enumerate(whole, 1) if n % 100 == 0 and n % 150]
    assert parts["train.en"] == [line for n, line in enumerate(whole, 1) if n % 100 and n % 150]
    assert len(parts["train.de"]) == len(parts["train.en"]) == 444
    assert "well @-@ known" in " ".join(parts["train.en"])
    assert parts["newstest2014.en"] == ["It’s a “well-known” cat.", "Yes."]
    tokenizer = load_bpe(prepared / "vocabulary")
    assert tokenizer.tokenize("well @-@ known cat") == ["Ġwell", "Ġ@-@", "Ġknown", "Ġcat"]


def test_the_french_corpora_are_all_there(server: Server, tmp_path: Path) -> None:
    prepared = prepare(served("wmt14_en_fr", server, wmt("fr", 300)), tmp_path)
    whole = [tokenised(line, "fr") for line in corpus("fr", 300) * 5]
    assert (prepared / "train.fr").read_text().splitlines() == [
        line for n, line in enumerate(whole, 1) if n % 1333 and n % 300
    ]
    assert (prepared / "valid.fr").read_text().splitlines() == [whole[1332]]


def test_a_corpus_whose_sides_differ_is_refused(server: Server, tmp_path: Path) -> None:
    files = wmt("de", 20)
    pair = {f"commoncrawl.de-en.{language}": b"One.\n" * n for n, language in enumerate(("en", "de"), 1)}
    files["training-parallel-commoncrawl.tgz"] = tarred(pair)
    with pytest.raises(DataError, match=r"train.en and train.de have different numbers of lines"):
        prepare(served("wmt14_en_de", server, files), tmp_path)


ARTICLE = (
    "History\nMr. Smith went to Washington on a long train, and it was very late. “Nobody” was there…\n"
    "| a | table | of | numbers | which | is | no | text | at | all | and | long | enough | to | be | one |\n"
)


def test_wikipedia_and_books_become_sentences_of_documents(server: Server, tmp_path: Path) -> None:
    table = pyarrow.table({"text": [ARTICLE, ARTICLE, "Short."]})
    others = [
        f"{ARTICLE}Number {'x' * n} is another article, which has a length that is enough for it."
        for n in range(1, 199)
    ]
    more = pyarrow.table({"text": others})
    contents = {}
    for number in range(41):
        prepared = io.BytesIO()
        parquet.write_table((table, more)[number] if number < 2 else table.slice(0, 0), prepared)
        contents[f"train-{number:05}-of-00041.parquet"] = prepared.getvalue()
    books = {"books_large_p1.txt": b"he said it 's late .\n* * *\nHe left .\n"}
    contents["bookcorpus.tar.bz2"] = tarred(books, "w:bz2")
    folder = prepare(served("wiki_books", server, contents), tmp_path)
    train = read_documents(str(folder / "train.txt"), "blank line")
    assert train[0] == [
        "mr . smith went to washington on a long train , and it was very late .",
        '" nobody " was there . . .',
    ]
    # the second article repeats the first, the third has no text; the 200th of all validates
    assert train[-1] == ["he said it 's late .", "he left ."]
    assert len(train) == 1 + 197 + 1
    assert len(read_documents(str(folder / "valid.txt"), "blank line")) == 1
    recorded = json.loads((tmp_path / "data.lock.json").read_text())
    assert len(recorded) == 41


def test_multi30k_and_squad_are_kept_as_they_are(server: Server, tmp_path: Path) -> None:
    for name in ("multi30k", "squad"):
        contents = {file.name: file.name.encode() for file in datasets()[name].files}
        prepared = prepare(served(name, server, contents), tmp_path)
        assert {
            path.name: path.read_bytes() for path in prepared.iterdir() if path.name in contents
        } == contents


def test_every_data_set_can_be_made_and_every_checksum_says_whose_it_is() -> None:
    assert datasets().keys() == BUILD.keys()
    for each in datasets().values():
        for file in each.files:
            assert (file.hash is None) == (file.says is None)
            assert all(url.startswith("http") for url in file.urls)


def test_the_command_lists_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    for each in datasets().values():
        assert each.name in said
        assert each.license in said


def test_the_command_names_what_is_near(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "wikitex2", "--to", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "floater: there is no data set 'wikitex2'; did you mean 'wikitext2'?\n"
    )
    assert not list(tmp_path.iterdir())
