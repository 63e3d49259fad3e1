"""Sentences of the built-in corpus: lengths, distinctness, word order, splits and files."""

import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from floater.lab.tasks.corpora.cldr import BINS, bin_name, sample_pairs, split, tokens, write
from floater.lab.tasks.corpora.cldr_items import CORE, ITEMS, LANGUAGES, pools_of

SMALL = replace(CORE, draws=40)
DIRECTIONS = list(permutations(LANGUAGES, 2))


def pairs(count, source="en", target="de", seed=0, *, min_tokens=3, max_tokens=79, mean_tokens=None, **items):
    pools = pools_of(source, target, seed, **{"items": ITEMS, "inventory": CORE, **items})
    return sample_pairs(pools, count, f"{seed}/pairs", (min_tokens, max_tokens), mean_tokens, set())


def anchors(pair):
    """Positions, on both sides, of the words found exactly once on each."""
    here, there = (tokens(text) for text in pair)
    once = [word for word, n in Counter(here).items() if n == 1 and there.count(word) == 1]
    return [here.index(word) for word in once], [there.index(word) for word in once]


def test_tokens_are_words_and_marks():
    assert tokens("1er trimestre ; Côte d’Ivoire (10:05)") == [
        *("1er", "trimestre", ";", "Côte", "d", "’", "Ivoire"),
        *("(", "10", ":", "05", ")"),
    ]


def test_bins_are_those_of_the_paper():
    assert BINS == ((80, 100), (100, 120), (120, 140), (140, None))


@settings(max_examples=40)
@given(
    direction=st.sampled_from(DIRECTIONS),
    seed=st.integers(-5, 2**40),
    low=st.integers(3, 250),
    width=st.integers(0, 60),
    items=st.sets(st.sampled_from([kind for kind in ITEMS if kind != "datetime"]), min_size=3),
)
def test_sentences_are_distinct_clean_and_of_the_length_asked_for(direction, seed, low, width, items):
    source, target = direction
    options = {"source": source, "target": target, "seed": seed, "inventory": SMALL, "items": sorted(items)}
    limits = {"min_tokens": low, "max_tokens": low + 12 + width}
    parts_ = pairs(8, **options, **limits)
    assert len({here for here, _ in parts_}) == 8
    assert all(low <= len(tokens(here)) <= low + 12 + width for here, _ in parts_)
    assert all(text and text == " ".join(text.split()) for pair in parts_ for text in pair)
    # both sides list as many groups, whatever the language
    assert all(here.count(";") == there.count(";") for here, there in parts_)
    assert pairs(5, **options, **limits) == parts_[:5]


@pytest.mark.parametrize("length", [3, 4, 7, 50, 79, 80, 250])
def test_one_length_alone_can_be_asked_for(length):
    parts_ = pairs(20, min_tokens=length, max_tokens=length)
    assert {len(tokens(here)) for here, _ in parts_} == {length}


def test_seed_decides_the_text():
    assert pairs(20, seed=1) == pairs(20, seed=1)
    assert not set(pairs(20, seed=1)) & set(pairs(20, seed=2))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_source_sentence_has_one_translation(direction):
    source, target = direction
    translations = defaultdict(set)
    for seed in range(3):
        for here, there in pairs(1000, source=source, target=target, seed=seed, max_tokens=12):
            translations[here].add(there)
    assert all(len(actual) == 1 for actual in translations.values())


def test_words_change_their_order():
    # currency signs, months alike in both languages and the marks around them move
    actual = [positions for pair in pairs(300, min_tokens=10) if len((positions := anchors(pair))[0]) > 1]
    assert len(actual) > 200
    moved = [kendalltau(*positions).statistic < 1 for positions in actual]
    assert sum(moved) / len(moved) > 0.5


def test_order_decides_the_translation():
    bags = defaultdict(list)
    for here, there in pairs(1500, items=["territory"], max_tokens=3):
        bags[tuple(sorted(tokens(here)))].append(there)
    shared = [targets for targets in bags.values() if len(targets) > 1]
    assert len(shared) > 50
    assert all(len(set(targets)) == len(targets) for targets in shared)


def test_lists_end_with_the_conjunction_of_their_language():
    for target, conjunctions in {"de": ("und", "oder"), "fr": ("et", "ou")}.items():
        for here, there in pairs(100, target=target, items=["language"], min_tokens=6, max_tokens=30):
            for source_word, target_word in zip(("and", "or"), conjunctions, strict=True):
                assert tokens(here).count(source_word) == tokens(there).count(target_word)


@pytest.mark.parametrize("mean", [10.0, 25.0, 41.0, 60.0])
def test_mean_length_is_the_one_asked_for(mean):
    lengths = [len(tokens(here)) for here, _ in pairs(2000, mean_tokens=mean, min_tokens=3, max_tokens=79)]
    # deviation at most 22, so 0.5 of standard error; sentences end up to a token short on average
    assert statistics.mean(lengths) == pytest.approx(mean, abs=2.5)


def test_even_lengths_fill_the_range():
    lengths = Counter(len(tokens(here)) // 10 for here, _ in pairs(2000, min_tokens=10, max_tokens=79))
    # 2000 / 7 = 286 expected in each ten; 5 standard deviations are 78
    assert all(200 < lengths[ten] < 370 for ten in range(1, 8))


@pytest.fixture(scope="module")
def parts():
    return split(train=2000, valid=100, test=50, seed=3)


def test_split_fills_every_bin(parts):
    sizes = {name: len(part) for name, part in parts.items()}
    assert sizes == {
        "train": 2000,
        "valid": 100,
        "test": 50,
        **{f"test_{bin_name(*limits)}": 50 for limits in BINS},
    }
    for name in ("train", "valid", "test"):
        lengths = [len(tokens(here)) for here, _ in parts[name]]
        assert min(lengths) >= 3
        assert max(lengths) <= 79
    for low, high in BINS:
        lengths = [len(tokens(here)) for here, _ in parts[f"test_{bin_name(low, high)}"]]
        stop = 251 if high is None else high
        assert all(low <= length < stop for length in lengths)
        assert statistics.mean(lengths) == pytest.approx((low + stop) / 2, abs=15)  # even, not at one end


def test_split_repeats_no_source(parts):
    sources = [here for part in parts.values() for here, _ in part]
    assert len(set(sources)) == len(sources)


def test_long_sentences_are_made_of_training_words(parts):
    vocabulary = {word for pair in parts["train"] for text in pair for word in tokens(text)}
    running = [word for pair in parts["test_140_up"] for text in pair for word in tokens(text)]
    # all but the rarest values, such as the one singular of a unit
    assert sum(word not in vocabulary for word in running) < len(running) / 1000


def test_test_sets_do_not_depend_on_the_size_of_the_training_set(parts):
    other = split(train=10, valid=5, test=50, seed=3)
    assert all(other[name] == part for name, part in parts.items() if name.startswith("test"))


def test_files_are_aligned_utf8_lines(tmp_path, parts):
    paths = write(tmp_path / "new" / "folder", parts, source="en", target="de")
    assert set(paths) == set(parts)
    assert {path.name for path in paths["test_80_100"]} == {"test_80_100.en", "test_80_100.de"}
    for name, files in paths.items():
        sides = [path.read_bytes().decode("utf-8").split("\n") for path in files]
        assert all(side.pop() == "" for side in sides)
        assert list(zip(*sides, strict=True)) == parts[name]


def test_write_refuses_what_would_not_align(tmp_path):
    with pytest.raises(ValueError, match=r"a sentence is one line, got 'a\\nb'"):
        write(tmp_path, {"train": [("a\nb", "c")]}, source="en", target="de")
    with pytest.raises(ValueError, match="source and target must differ, both are 'en'"):
        write(tmp_path, {"train": [("a", "b")]}, source="en", target="en")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "pl"}, "language must be one of de, en, fr, got 'pl'"),
        ({"items": ["poem"]}, "items must be some of date, .* got poem"),
        ({"count": -1}, "count must be 0 or more, got -1"),
        ({"min_tokens": 0}, "1 <= min <= max, got 0 to 79"),
        ({"min_tokens": 9, "max_tokens": 8}, "1 <= min <= max, got 9 to 8"),
        ({"mean_tokens": 79}, "mean_tokens must lie between 3 and 79, got 79"),
        ({"mean_tokens": float("nan")}, "mean_tokens must lie between 3 and 79, got nan"),
        (
            {"count": 100, "items": ["language"], "min_tokens": 1, "max_tokens": 1},
            "made only 42 of 100 distinct sentences of 1 to 1 tokens",
        ),
        (
            {"items": ["datetime"], "min_tokens": 3, "max_tokens": 6},
            "made only 0 of 5 distinct sentences of 3 to 6 tokens",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pairs(**{"count": 5, **options})
