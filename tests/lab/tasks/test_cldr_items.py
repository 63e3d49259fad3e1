"""Items against hand-written German and French: calendars, clocks, number marks and word order."""

import datetime as dt
import re
import sys
from dataclasses import replace
from decimal import Decimal
from itertools import permutations

import pytest

from floater.errors import install
from floater.lab.tasks.corpora.cldr_items import (
    CORE,
    ITEMS,
    LANGUAGES,
    Inventory,
    pools_of,
)

GERMAN = """Januar Februar März April Mai Juni Juli August September Oktober November Dezember
Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"""
FRENCH = """janvier février mars avril mai juin juillet août septembre octobre novembre décembre
lundi mardi mercredi jeudi vendredi samedi dimanche"""
MONTHS, DAYS = GERMAN.split()[:12], GERMAN.split()[12:]
MOIS, JOURS = FRENCH.split()[:12], FRENCH.split()[12:]

ONE = Inventory(
    territories=("CI",),
    languages=("de",),
    currencies=("USD",),
    units=("volume-cubic-meter",),
    years=range(2026, 2027),
    numbers=(Decimal("1234.5"),),
    draws=20,
)


def pool(kind, source="en", target="de", inventory=CORE, seed=0):
    (items,) = pools_of(source, target, seed, [kind], inventory).kinds
    return items


def swap_marks(text):
    return text.translate(str.maketrans(",.", ".,"))


def parse(text, *layouts):
    for layout in layouts:
        try:
            return layout, dt.datetime.strptime(text, layout)
        except ValueError:
            continue
    raise AssertionError(f"{text!r} is in none of {layouts}")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("territory", {("Côte d’Ivoire", "Côte d’Ivoire")}),
        ("language", {("German", "Deutsch")}),
        ("zone", {("Côte d’Ivoire Time", "Côte d’Ivoire (Ortszeit)")}),
        ("number", {("1,234.5", "1.234,5")}),
        ("unit", {("1,234.5 cubic meters", "1.234,5 Kubikmeter")}),
        ("money", {("$1,234.50", "1.234,50 $"), ("1,234.50 US dollars", "1.234,50 US-Dollar")}),
    ],
)
def test_english_to_german_by_hand(kind, expected):
    assert set(pool(kind, inventory=ONE)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("language", {("Deutsch", "allemand")}),
        ("zone", {("Côte d’Ivoire (Ortszeit)", "heure : Côte d’Ivoire")}),
        ("number", {("1.234,5", "1 234,5")}),
        ("unit", {("1.234,5 Kubikmeter", "1 234,5 mètres cubes")}),
        (
            "money",
            {("1.234,50 $", "1 234,50 $US"), ("1.234,50 US-Dollar", "1 234,50 dollars des États-Unis")},
        ),
    ],
)
def test_german_to_french_by_hand(kind, expected):
    assert set(pool(kind, "de", "fr", ONE)) == expected


def test_locales_are_languages_where_they_are_spoken():
    inventory = replace(ONE, territories=("CH",), languages=("de", "fr"), draws=50)
    assert set(pool("locale", inventory=inventory)) == {
        ("German (Switzerland)", "Deutsch (Schweiz)"),
        ("French (Switzerland)", "Französisch (Schweiz)"),
    }


def test_german_dates_follow_the_calendar():
    seen = set()
    for english, german in pool("date"):
        if quarter := re.fullmatch(r"(\d)(?:st|nd|rd|th) quarter (\d{4})", english):
            assert german == f"{quarter[1]}. Quartal {quarter[2]}"
            seen.add("quarter")
            continue
        # a leap year, so that a month and a day without a year always parse
        text = english if re.search(r"\d{4}", english) else f"{english} in 2000"
        layout, day = parse(text, "%A, %B %d, %Y", "%B %d, %Y", "%B %Y", "%B %d in %Y")
        month, weekday = MONTHS[day.month - 1], DAYS[day.weekday()]
        written = {
            "%A, %B %d, %Y": f"{weekday}, {day.day}. {month} {day.year}",
            "%B %d, %Y": f"{day.day}. {month} {day.year}",
            "%B %Y": f"{month} {day.year}",
            "%B %d in %Y": f"{day.day}. {month}",
        }
        assert german == written[layout]
        seen.add(layout)
    assert len(seen) == 5


def test_french_moments_follow_calendar_and_clock():
    for english, french in pool("datetime", target="fr"):
        layout, when = parse(english, "%A, %B %d, %Y, %I:%M %p", "%B %d, %Y, %I:%M %p")
        day = f"{when.day} {MOIS[when.month - 1]} {when.year}, {when:%H:%M}"
        assert french == (f"{JOURS[when.weekday()]} {day}" if layout.startswith("%A") else day)


def test_times_are_read_on_two_clocks():
    for english, german in pool("time"):
        assert german == f"{dt.datetime.strptime(english, '%I:%M %p'):%H:%M}"


def test_german_marks_of_numbers_are_the_english_ones_exchanged():
    assert all(german == swap_marks(english) for english, german in pool("number"))
    assert all(german == swap_marks(english).replace("%", " %") for english, german in pool("percent"))


def test_ago_comes_last_in_english_and_first_in_german():
    for english, german in pool("relative"):
        number, unit = re.search(r"(\d+) (day|week|month|year)", english).groups()
        stem = {"day": "Tag", "week": "Woche", "month": "Monat", "year": "Jahr"}[unit]
        assert re.fullmatch(
            rf"{'vor' if english.endswith(' ago') else 'in'} {number} {stem}(e|n|en)?", german
        )


def test_intervals_put_the_month_before_the_days_or_after():
    actual = 0
    for english, german in pool("interval"):
        if same_month := re.fullmatch(r"[A-Z][a-z]+ (\d+) – (\d+), (\d{4})", english):
            actual += 1
            first, last, year = same_month.groups()
            assert re.fullmatch(rf"{first}\.–{last}\. \S+ {year}", german)
    assert actual > 10


@pytest.mark.parametrize(("source", "target"), list(permutations(LANGUAGES, 2)))
def test_core_items_translate_one_to_one(source, target):
    pools = [pools_of(source, target, seed, ITEMS, CORE) for seed in range(3)]
    rows = {row for drawn in pools for kind in drawn.kinds for row in kind}
    assert len({here for here, _ in rows}) == len({there for _, there in rows}) == len(rows)


def test_a_text_of_two_meanings_keeps_one():
    # German has one word for the country Fiji and its language, Fijian
    inventory = replace(ONE, territories=("FJ",), languages=("fj",))
    kinds = ["language", "territory"]
    language, country = ("Fijian", "Fidschi"), ("Fiji", "Fidschi")
    assert pools_of("en", "de", 0, kinds, inventory).kinds == ((language,), (country,))
    assert pools_of("de", "en", 0, kinds, inventory).kinds == ((language[::-1],),)


def test_currency_codes_stand_apart_from_the_amount():
    inventory = replace(ONE, currencies=("CHF",))
    assert set(pool("money", "en", "fr", inventory)) == {
        ("CHF 1,234.50", "1 234,50 CHF"),
        ("1,234.50 Swiss francs", "1 234,50 francs suisses"),
    }


def test_spaces_are_plain():
    texts = [text for kind in pools_of("fr", "en", 0, ITEMS, CORE).kinds for row in kind for text in row]
    assert all(text == text.strip() and "  " not in text for text in texts)
    assert {char for text in texts for char in text if char.isspace()} == {" "}


def test_values_of_a_kind_do_not_depend_on_the_other_kinds():
    every = pools_of("en", "de", 4, ITEMS, CORE).kinds[ITEMS.index("money")]
    assert every == pool("money", seed=4)
    assert every != pool("money", seed=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("xx", "de", 0, ITEMS, CORE), "language must be one of de, en, fr, got 'xx'"),
        (("en", "EN", 0, ITEMS, CORE), "language must be one of de, en, fr, got 'EN'"),
        (("en", "en", 0, ITEMS, CORE), "source and target must differ, both are 'en'"),
        (("en", "de", 0, ["date", "poem"], CORE), "items must be some of date, .*zone, got poem"),
        (("en", "de", 0, [], CORE), "items must be some of date, .*zone, got none"),
    ],
)
def test_refusals_name_what_is_valid(arguments, message):
    with pytest.raises(ValueError, match=message):
        pools_of(*arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"territories": ("CI", "QQ")}, "inventory territories must be codes of the CLDR, got 'QQ'"),
        ({"currencies": ("usd",)}, "inventory currencies must be codes of the CLDR, got 'usd'"),
        ({"units": ()}, r"inventory needs units, got \(\)"),
        ({"draws": 0}, "inventory needs draws, got 0"),
        ({"languages": ("ja",)}, "a territory where one of its languages is spoken"),
        ({"units": ("length-cubit",)}, "length-cubit"),
    ],
)
def test_an_inventory_that_cannot_be_written_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pools_of("en", "de", 0, ["locale", "unit"], replace(ONE, **{"languages": ("fr",), **changes}))


def test_missing_babel_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ImportError, match=re.escape(install("lab"))):
        pools_of("en", "de", 0, ITEMS, CORE)
