"""Items of the built-in corpus: dates, times, money, measures and names in the format of the CLDR.

An item is a random value, formatted in two languages by `babel`, which ships the CLDR.
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from random import Random
from typing import Any

from floater.errors import install

Format = Callable[[Any], str]  # function from a babel locale to the text of a value

LANGUAGES = ("de", "en", "fr")  # any two distinct ones make a pair

Pair = tuple[str, str]  # the same text in the source and in the target language

ITEMS = (  # kinds of items in a sentence
    *("date", "datetime", "interval", "language", "locale", "money", "number"),
    *("percent", "relative", "territory", "time", "unit", "zone"),
)


@dataclass(frozen=True)
class Inventory:
    """CLDR codes and values that items are generated from, as in `CORE`.

    Args:
        territories: ISO 3166 codes.
        languages: ISO 639 codes.
        currencies: ISO 4217 codes.
        units: CLDR unit identifiers, such as "length-kilometer".
        years: range of the years of dates.
        numbers: values of numbers, amounts of money and measures.
        draws: number of values sampled of each kind per seed; all sentences of a seed are made from these.
    """

    territories: tuple[str, ...]
    languages: tuple[str, ...]
    currencies: tuple[str, ...]
    units: tuple[str, ...]
    years: range
    numbers: tuple[Decimal, ...]
    draws: int = 500


_TERRITORIES = """
    AR AT AU BE BG BR CA CH CL CN CO CU CY DE DK EC EE EG ES FI FR GB GR HR HU IE IL IN IS IT JP KE KR LT LU
    LV MA MT MX MY NG NL NO NZ PE PH PL PT RO RS SE SG SI SK TH TN TR UA US ZA
"""
_LANGUAGES = """
    ar bg ca cs da de el en es et eu fi fr ga he hi hr hu hy id is it ja ko lt lv nl no pl pt ro ru sk sl sq
    sr sv th tr uk vi zh
"""
_UNITS = """
    area-square-kilometer duration-hour duration-minute length-kilometer length-light-year mass-kilogram
    length-nautical-mile speed-kilometer-per-hour temperature-celsius volume-cubic-meter volume-liter
"""

CORE = Inventory(
    territories=tuple(_TERRITORIES.split()),
    languages=tuple(_LANGUAGES.split()),
    currencies=("AUD", "CHF", "EUR", "GBP", "USD"),
    units=tuple(_UNITS.split()),
    years=range(1990, 2030),
    numbers=(
        *(Decimal(n) / 2 for n in range(1, 40)),
        *map(Decimal, (*range(20, 100), *range(100, 1000, 100), *range(1000, 10_000, 500))),
    ),
)
"""Short names and few digits, so that a small model learns the text in minutes."""


def load_babel() -> Any:
    """Import babel with the modules used here; the message of an `ImportError` explains how to install it."""
    try:
        import babel
        import babel.dates
        import babel.lists
        import babel.localedata
        import babel.numbers
        import babel.units
    except ImportError as error:
        raise ImportError(f"the built-in corpus needs babel: {install('lab')}") from error
    return babel


def formats(inventory: Inventory) -> dict[str, Callable[[Random], Format]]:
    """Return for each kind of item a function that samples a value and returns its `Format`.

    Args:
        inventory: CLDR codes and values to sample from.

    Returns:
        A dict of the functions by kind, in the order of `ITEMS`.

    Raises:
        ImportError: if babel is missing.
        ValueError: if a field of the inventory is empty, or it has a code that the CLDR does not name.

    Example:
        >>> from random import Random
        >>> write = formats(CORE)["language"](Random(0))
        >>> [write(load_babel().Locale(language)) for language in ("de", "en", "fr")]
        ['Litauisch', 'Lithuanian', 'lituanien']
    """
    babel = load_babel()
    dates, numbers = babel.dates, babel.numbers
    for field in fields(inventory):
        if not (values := getattr(inventory, field.name)):
            raise ValueError(f"inventory needs {field.name}, got {values!r}")
    for name in ("territories", "languages", "currencies"):
        if unknown := set(getattr(inventory, name)) - set(getattr(babel.Locale("en"), name)):
            raise ValueError(f"inventory {name} must be codes of the CLDR, got {min(unknown)!r}")
    regional = sorted(
        (language, territory)
        for identifier in babel.localedata.locale_identifiers()
        for language, _, territory in [identifier.partition("_")]
        if language in inventory.languages and territory in inventory.territories
    )

    def moment(rng: Random) -> dt.datetime:
        day = dt.datetime(rng.choice(inventory.years), 1, 1) + dt.timedelta(days=rng.randrange(365))
        return day + dt.timedelta(minutes=5 * rng.randrange(288))

    def date(rng: Random) -> Format:
        day, style = moment(rng), rng.choice(("long", "full", "yMMMM", "MMMMd", "yQQQQ"))
        if style in ("long", "full"):
            return lambda locale: str(dates.format_date(day, style, locale))
        return lambda locale: str(dates.format_skeleton(style, day, locale=locale))

    def time(rng: Random) -> Format:
        when = moment(rng)
        return lambda locale: str(dates.format_time(when.time(), "short", locale=locale))

    def datetime(rng: Random) -> Format:
        when, style = moment(rng), rng.choice(("long", "full"))

        def write_datetime(locale: Any) -> str:
            pattern = str(dates.get_datetime_format(style, locale)).replace("'", "")
            hour = dates.format_time(when.time(), "short", locale=locale)
            return pattern.format(hour, dates.format_date(when, style, locale))

        return write_datetime

    def interval(rng: Random) -> Format:
        start, style = moment(rng).date(), rng.choice(("hours", "yMMMd", "yMMMEd", "yMMMM"))
        end = start + dt.timedelta(days=rng.randint(1, 20) + 30 * (style == "yMMMM"))
        hours = [dt.time(n // 12, 5 * (n % 12)) for n in sorted(rng.sample(range(288), 2))]

        def write_interval(locale: Any) -> str:
            if style != "hours":
                return str(dates.format_interval(start, end, style, locale=locale))
            clock = "hm" if "h" in locale.time_formats["short"].pattern else "Hm"
            return str(dates.format_interval(*hours, clock, locale=locale))

        return write_interval

    def relative(rng: Random) -> Format:
        unit, days = rng.choice((("day", 1), ("week", 7), ("month", 30), ("year", 365)))
        delta = dt.timedelta(days=days * rng.choice((-1, 1)) * rng.randint(1, 20))
        # the threshold keeps the unit: 10 days stay days
        return lambda locale: str(dates.format_timedelta(delta, unit, math.inf, True, locale=locale))

    def money(rng: Random) -> Format:
        value, currency = rng.choice(inventory.numbers), rng.choice(inventory.currencies)
        style = rng.choice(("standard", "name"))

        def write_money(locale: Any) -> str:
            text = numbers.format_currency(value, currency, locale=locale, format_type=style)
            # the CLDR separates a currency code from its amount (CHF 5.00); babel does not
            return re.sub(r"(?<=[^\W\d])(?=\d)", " ", text)

        return write_money

    def number(rng: Random) -> Format:
        value = rng.choice(inventory.numbers)
        return lambda locale: str(numbers.format_decimal(value, locale=locale))

    def percent(rng: Random) -> Format:
        value = Decimal(rng.randint(1, 200)) / 200
        return lambda locale: str(numbers.format_percent(value, locale=locale, decimal_quantization=False))

    def unit(rng: Random) -> Format:
        value, name = rng.choice(inventory.numbers), rng.choice(inventory.units)
        return lambda locale: str(babel.units.format_unit(value, name, locale=locale))

    def territory(rng: Random) -> Format:
        code = rng.choice(inventory.territories)
        return lambda locale: str(locale.territories[code])

    def language(rng: Random) -> Format:
        code = rng.choice(inventory.languages)
        return lambda locale: str(locale.languages[code])

    def locale(rng: Random) -> Format:
        if not regional:
            raise ValueError("inventory must have a territory where one of its languages is spoken")
        named = babel.Locale(*rng.choice(regional))
        return lambda locale: str(named.get_display_name(locale))

    def zone(rng: Random) -> Format:
        code = rng.choice(inventory.territories)
        return lambda locale: str(locale.zone_formats["region"] % locale.territories[code])

    functions = (
        *(date, datetime, interval, language, locale, money, number),
        *(percent, relative, territory, time, unit, zone),
    )
    return dict(zip(ITEMS, functions, strict=True))


@dataclass(frozen=True)
class Pools:
    """Items in two locales of babel, source first, with a list of pairs for each kind."""

    locales: tuple[Any, Any]
    kinds: tuple[tuple[Pair, ...], ...]


def pools_of(source: str, target: str, seed: int, items: Sequence[str], inventory: Inventory) -> Pools:
    """Sample the items of a seed, and format them in two languages.

    A source text has one translation: a later value with the same source text but another translation is
    excluded.

    Args:
        source: source language, one of `LANGUAGES`.
        target: target language, another of `LANGUAGES`.
        seed: seed of the values; the values of a kind do not depend on the languages or the other kinds.
        items: kinds of items, from `ITEMS`.
        inventory: CLDR codes and values that items are generated from.

    Returns:
        The pools of the kinds `items`, in the order of `ITEMS`.

    Raises:
        ImportError: if babel is missing.
        ValueError: if a language, kind or code is unknown, the languages are the same, or there is no kind.

    Example:
        >>> pools_of("en", "de", 0, ["relative"], CORE).kinds[0][0]
        ('20 years ago', 'vor 20 Jahren')
    """
    for language in (source, target):
        if language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
    if source == target:
        raise ValueError(f"source and target must differ, both are {source!r}")
    unknown = [kind for kind in items if kind not in ITEMS]
    if unknown or not items:
        raise ValueError(f"items must be some of {', '.join(ITEMS)}, got {', '.join(unknown) or 'none'}")
    locales = (load_babel().Locale(source), load_babel().Locale(target))
    translation: dict[str, str] = {}
    kinds = []
    for kind, draw in formats(inventory).items():
        rng = Random(f"{seed}/{kind}")
        pool: dict[Pair, None] = {}
        for _ in range(inventory.draws if kind in items else 0):
            in_locale = draw(rng)
            here, there = (" ".join(in_locale(locale).split()) for locale in locales)
            if translation.setdefault(here, there) == there:
                pool[here, there] = None
        if pool:
            kinds.append(tuple(pool))
    return Pools(locales, tuple(kinds))
