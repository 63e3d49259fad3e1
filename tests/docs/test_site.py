"""The site: what a browser makes of each page, and how far the front page is from what people look for."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from urllib.parse import urldefrag

import pytest

from lab.study import browser

pytestmark = pytest.mark.slow  # the site is built first

ROOT = Path(__file__).parents[2]
PAGES = [
    page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    for page in sorted((ROOT / "docs").rglob("*.md"))
]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("name", PAGES)
def test_a_browser_shows_a_page(page: browser.Page, address: str, name: str) -> None:
    """No error, nothing from elsewhere, no broken image, and nothing that sticks out, on a phone either."""
    page.open(f"{address}/{name}", width=1280)
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith((address, "data:"))] == []
    assert not page.ask("document.body.innerText.includes('--8')"), "a file that the page includes is missing"
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    assert page.ask(broken) == []
    for width in (1280, 390):
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        wide = page.ask("document.documentElement.scrollWidth")
        buttons = "[...document.querySelectorAll('.md-clipboard, .md-code__nav')].some(e => e.offsetParent)"
        assert width > 600 or not page.ask(buttons), "a copy button covers code"
        assert wide <= width, f"{name} is {wide} pixels wide in a window of {width}"


@pytest.mark.parametrize("name", ["clock.html", "far.html", "promises.html", "results.html"])
def test_tables_fit_the_window_of_a_laptop(page: browser.Page, address: str, name: str) -> None:
    page.open(f"{address}/{name}", width=1280)
    cut = """[...document.querySelectorAll('.md-typeset__table')]
        .filter(e => e.scrollWidth > e.parentElement.clientWidth + 1).map(e => e.innerText.slice(0, 40))"""
    assert page.ask(cut) == []


@pytest.mark.parametrize(
    "module",
    [
        "pretrained",
        "encodings",
        "positions",
        "flow",
        "transformer",
        "testing",
        "lab.tasks",
        "lab.training",
        "lab.study.analyses",
    ],
)
def test_the_reference_has_every_public_function_and_class(site: Path, module: str) -> None:
    package = import_module(f"floater.{module}")
    page = (site / "reference" / f"{module.split('.')[-1]}.html").read_text(encoding="utf-8")
    for name in package.__all__:
        value = getattr(package, name)
        homes = [f"floater.{module}", getattr(value, "__module__", "")]
        assert not callable(value) or any(f'id="{home}.{name}"' in page for home in homes), name


@pytest.mark.parametrize("name", ["index.html", "catalogue.html", "far.html", "tutorials/plug.html"])
@pytest.mark.parametrize(("dark", "scheme"), [(True, "slate"), (False, "default")])
def test_pages_follow_the_colours_of_the_system(
    page: browser.Page, address: str, name: str, dark: bool, scheme: str
) -> None:
    page.open(f"{address}/{name}", dark=dark)
    page.ask("localStorage.clear()")  # where the theme keeps the reader's choice
    page.open(f"{address}/{name}", dark=dark)
    assert page.errors == []
    assert page.ask("document.body.getAttribute('data-md-color-scheme')") == scheme
    ratio = """(() => {
        const parts = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
        const light = c => parts(c).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0)
        const text = getComputedStyle(document.querySelector('article p')).color
        const ground = getComputedStyle(document.body).backgroundColor
        const [a, b] = [light(text), light(ground)].sort((x, y) => y - x)
        return (a + .05) / (b + .05) })()"""
    assert page.ask(ratio) > 4.5  # contrast of text, WCAG level AA


@pytest.mark.parametrize(
    ("page_name", "said"),
    [
        ("tutorials/plug.html", "floater.plug(model)"),
        ("tutorials/extend.html", "floater.extend(model"),
        ("far.html", "copy"),
        ("tutorials/encoding.html", "@register"),
        ("performance.html", "ratio"),
        ("faq.html", "left padding"),
    ],
)
def test_what_people_look_for_is_one_click_from_the_front_page(site: Path, page_name: str, said: str) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    body = text[text.index("<article") : text.index("</article")]
    assert page_name in {urldefrag(link).url for link in re.findall(r'href="?([^"\s>]+)', body)}
    plain = re.sub(r"<[^>]+>", "", (site / page_name).read_text(encoding="utf-8"))
    assert said.lower() in plain.lower()


@pytest.mark.parametrize(
    ("words", "page_name"),
    [
        ("classification", "howto/classify.html"),
        ("CSV", "howto/own-data.html"),
        ("fine-tune", "howto/classify.html"),
        ("long documents", "howto/classify.html"),
        ("own pairs", "tutorials/pairs.html"),
        ("own text", "tutorials/text.html"),
    ],
)
def test_search_works_on_files_without_a_server(
    page: browser.Page, site: Path, words: str, page_name: str
) -> None:
    page.open(site / "tutorials" / "plug.html")
    page.ask("document.querySelector('[data-md-component=search-query]').focus()")  # loads the index
    meta = "document.querySelector('.md-search-result__meta').innerText"
    page.wait(f"!{meta}.includes('Initializing')")
    page.ask(
        f"(field => {{ field.value = {words!r}; field.dispatchEvent(new Event('keyup')) }})"
        "(document.querySelector('[data-md-component=search-query]'))"
    )
    page.wait(f"{meta}.includes('matching')")
    links = page.ask("[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
    assert (site / page_name).as_uri() in {urldefrag(link).url for link in links}
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def test_a_page_links_the_previous_and_the_next(site: Path) -> None:
    text = (site / "tutorials" / "plug.html").read_text(encoding="utf-8")
    footer = text[text.index("<footer") :]
    before, after = re.findall(r'href="?([\w./-]+\.html)', footer)[:2]
    assert before != after == "extend.html"


def test_the_catalogue_is_filtered_in_the_page(page: browser.Page, site: Path) -> None:
    page.open(site / "catalogue.html")
    names = "[...document.querySelectorAll('.cards a:not([hidden]) b')].map(name => name.textContent)"
    rows = "[...document.querySelectorAll('article table tbody tr:not([hidden])')].length"
    everything = page.ask(names)
    fill = (
        "(form => {{ form.{0}.value = {1!r}; form.dispatchEvent(new Event('input')) }})"
        "(document.querySelector('#filter'))"
    )
    page.ask(fill.format("structure", "tree"))
    assert set(page.ask(names)) == {"floater_tree", "spr_absolute", "spr_relative", "tree"}
    assert page.ask(rows) == 4
    page.ask(fill.format("q", "point:absolute"))
    assert set(page.ask(names)) == {"spr_absolute", "tree"}
    page.ask("document.querySelector('#filter').reset()")
    page.wait(f"{names}.length == {len(everything)}")
    page.open(f"{(site / 'catalogue.html').as_uri()}?q=llama&point=relative")
    assert "rotary" in page.ask(names)
    assert page.errors == []
