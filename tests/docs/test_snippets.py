"""The snippets and commands of the pages: they run, and print what the pages show."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from floater.encodings import registry as encodings
from floater.lab.cli.parser import parse
from floater.lab.settings import load, read
from floater.lab.study.settings import StudySettings
from floater.lab.tasks import registry

ROOT = Path(__file__).parents[2]
SNIPPETS = runpy.run_path(str(ROOT / "docs" / "scripts" / "snippets.py"))
PLACEHOLDER = r"[A-Z]{3}|\.\.\.|\$"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


SLOW = ("compare.md", "events.md", "serve.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in SNIPPETS["pages"]()
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_snippets_of_a_page_print_what_it_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registry.names():
        registry.task(name)  # imported now, not by a page whose tasks are forgotten after it
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(encodings, "_CATALOGUE", dict(encodings._CATALOGUE))
    with SNIPPETS["workplace"]():
        assert SNIPPETS["run"](page) == page.read_text(encoding="utf-8"), "run `make docs`"


def test_a_page_without_snippets_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n", encoding="utf-8")
    assert SNIPPETS["run"](page) == "# A page\n"


def commands(page: Path) -> list[str]:
    """Return the commands in the console blocks and indented blocks of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + indented
    actual = (re.search(r"(?:^|-m )(floater|make) .*", line.split("#")[0]) for line in lines)
    return [match.group().removeprefix("-m ") for match in actual if match]


@pytest.mark.parametrize(
    ("page", "command"),
    [(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in commands(page)],
)
def test_a_command_of_a_page_is_valid(page: str, command: str) -> None:
    """Its options, its configuration and its settings exist; [ ] stand around what may be left out."""
    words = shlex.split(re.split(r" [|<>&]", re.sub(r" \[([^\]=]+=.*?)\](?= |$)", r" \1", command))[0])
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        names = re.findall(r"^([\w-]+)(?::| \?=)", makefile, re.MULTILINE)  # targets and variables
        assert {word.partition("=")[0] for word in words[1:]} <= set(names)
        return
    if "--help" in words:
        return
    inputs = parse(words[1:])
    config = str(getattr(inputs, "config", ""))
    if config.startswith("configs/") and not re.search(PLACEHOLDER, config):
        path, overrides = ROOT / config, [o for o in inputs.overrides if not re.search(PLACEHOLDER, o)]
        if words[1] == "study":
            load(StudySettings, path, overrides)
        else:
            registry.from_config(read(path), str(path), overrides)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commits_that_a_page_names_exist(page: Path) -> None:
    """Measurements can be repeated. Those in two pages are of other repositories."""
    if page.name in ("compared.md", "serve.md"):
        return
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("needs the history of the repository")
    named = re.findall(
        r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7}\b", page.read_text(encoding="utf-8")
    )
    asked = "\n".join(f"{commit}^{{commit}}" for commit in named)
    actual = subprocess.run(
        [*git, "cat-file", "--batch-check"], input=asked, capture_output=True, text=True, check=True
    )
    unknown = [line for line in actual.stdout.splitlines() if not re.fullmatch(r"[0-9a-f]+ commit \d+", line)]
    assert not unknown, f"{page.name}: {unknown}"


@pytest.mark.parametrize("name", ["results.md", "performance.md", "far.md"])
def test_every_table_has_a_command_beside_it_and_a_commit_in_the_provenance(name: str) -> None:
    """In its section; what a section says of how it was run holds for the sections beneath."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    *sections, provenance = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    sections = [section for section in sections if not section.startswith("## Withdrawn\n")]
    assert provenance.startswith("## Provenance\n")
    rows = [line[2:-2].split(" | ") for line in provenance.splitlines() if line.startswith("| ")]
    commit = r"[0-9a-f]{7}((, | to | applied to )[0-9a-f]{7})?"
    assert all(re.fullmatch(commit, row[-1]) for row in rows[1:]), name
    named = {row[0] for row in rows}
    for section in sections:
        titles = re.findall(r"^##+ (.*)$", section, re.MULTILINE)
        if re.search(r"^\|---", section, re.MULTILINE):
            ways = r"\b(floater (train|study|evaluate)|make demo|python benchmarks/|Measured by hand)"
            assert re.search(ways, section), titles[0]
            assert named & {*titles} or re.search(r"\| [0-9a-f]{7} \|", section), titles[0]


@pytest.mark.parametrize("name", ["results.md", "far.md", "clock.md", "protocol.md"])
def test_the_provenance_names_a_command_for_each_section(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    lines = text.split("\n## Provenance\n")[1].splitlines()
    head, _, *rows = [line[2:-2].split(" | ") for line in lines if line.startswith("|")]
    assert head == ["section", "command", "runs", "commit"]
    titles = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    for section, command, runs, commit in rows:
        assert runs
        assert re.fullmatch(r"[0-9a-f]{7}( to [0-9a-f]{7})?", commit)
        if section:
            assert section in titles
            assert command.strip()


def paragraphs(page: Path) -> list[str]:
    """Return the paragraphs and list items of a page, without tables, code and HTML."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    actual = []
    for block in re.split(r"\n\s*\n", text):
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block):
            lines = [line for line in item.splitlines() if not re.match(r"\s*[|<]|\$\$", line)]
            actual.append(" ".join(lines))
    return actual


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_paragraph_is_longer_than_ninety_words(page: Path) -> None:
    long = [paragraph for paragraph in paragraphs(page) if len(paragraph.split()) > 90]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_attributes_stand_beside_their_image(page: Path) -> None:
    """The site prints those that a line break separates from it, or that have one."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert re.findall(r"\]\([^)]*\)(?:\s*\n\s*\{|[^\S\n]+\{ ?[.#:]|\{[^}\n]*\n).*", text) == []


@pytest.mark.parametrize("name", ["results.md", "performance.md", "far.md"])
def test_a_page_of_results_opens_with_a_figure_and_three_sentences(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    _, figure, caption, sentences, *_ = text.split("\n\n")
    assert "<img" in figure
    assert caption.startswith("*")
    assert len(re.findall(r"[.?!](?=\s|$)", sentences)) == 3


@pytest.mark.parametrize(
    "name", ["results.md", "performance.md", "far.md", "clock.md", "protocol.md", "evidence.md"]
)
def test_variants_have_no_suffixes(name: str) -> None:
    text = re.sub(
        r"^```.*?^```$|^    .*$", "", (ROOT / "docs" / name).read_text(encoding="utf-8"), flags=re.M | re.S
    )
    parts = "cross|input|random|tail|twice|stretched|second|zero|logn|clock|free|unclipped"
    suffix = rf"-(?:{parts}|lr\de\d|\d000)\b"
    assert re.findall(rf"`[\w-]*{suffix}[\w-]*`|\| \w+{suffix}", text) == []
