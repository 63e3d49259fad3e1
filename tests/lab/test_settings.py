"""Settings: what a file and overrides mean, and what a person reads after a slip."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floater.lab.settings import SettingsError, convert, describe, dump, load
from floater.lab.settings.yaml_format import Dumper, NotYamlError, parse
from helpers import undocumented


@dataclass(frozen=True)
class Data:
    """Texts.

    Attributes:
        source: Text files, one sentence a line, read in the order given; the words of a line are those that
            the tokenizer finds.
        vocabulary: File of the vocabulary.
        limit: Most sentences read; null reads all.
    """

    source: list[str]
    vocabulary: Path = Path("vocab.json")
    limit: int | None = None


@dataclass(frozen=True)
class Position:
    """Position information.

    Attributes:
        name: Encoding.
        layers: All, or the indices of some.
        options: Options of the encoding.
    """

    name: Literal["floater", "learned"] = "floater"
    layers: str | list[int] = "all"
    options: dict[str, Any] = field(default_factory=lambda: {"delta": 0.5})


@dataclass(frozen=True)
class Training:
    """Optimisation.

    Attributes:
        lr: Peak learning rate.
        warmup: Updates of warm-up.
        betas: Decay rates of Adam.
        milestones: Updates at which the rate falls.
        amp: Mixed precision.
        clip: Largest norm of a gradient.
    """

    unit: ClassVar[str] = "update"
    lr: float = 1e-3
    warmup: int = 4000
    betas: tuple[float, float] = (0.9, 0.98)
    milestones: tuple[int, ...] = ()
    amp: bool = False
    clip: Optional[float] = None  # noqa: UP045 - the older spelling is read too

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr must be positive,\nnot {self.lr}")


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        data: The texts.
        position: How positions enter.
        training: How it learns.
        seed: Seed of every random number.
    """

    data: Data
    position: Position = field(default_factory=Position)
    training: Training = field(default_factory=lambda: Training(warmup=7))
    seed: int = 0


GOOD = "data:\n  source: [a.txt]\n"


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(text, *overrides, cls=Run):
        Path("config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(cls, "config.yaml", overrides)

    return read


@pytest.fixture
def complaint(read):
    def complaint(text, *overrides, cls=Run):
        with pytest.raises(SettingsError) as caught:
            read(text, *overrides, cls=cls)
        message = str(caught.value)
        assert "\n" not in message
        assert caught.value.__suppress_context__
        return message

    return complaint


def test_defaults_file_and_overrides_in_rising_order(read):
    run = read(
        GOOD + "training: {lr: 2, amp: true}\nseed: 1\n", "seed=2", "seed=3", "training.milestones=[1, 2]"
    )
    assert run == Run(
        Data(["a.txt"]), training=Training(lr=2.0, amp=True, milestones=(1, 2), warmup=7), seed=3
    )
    assert type(run.training.lr) is float


def test_every_type_is_reached_by_an_override(read):
    run = read(
        GOOD,
        "data.source=[a.txt,b.txt]",
        "data.vocabulary=../v.json",
        "data.limit=5",
        "data.limit=null",
        "position.name=learned",
        "position.layers=[0, 2]",
        "training.betas=[0, 1e-7]",
        "training.amp=true",
        "training.clip=1",
    )
    assert run.data == Data(["a.txt", "b.txt"], Path("../v.json"), None)
    assert run.position == Position("learned", [0, 2])
    assert run.training == Training(1e-3, 7, (0.0, 1e-7), (), True, 1.0)


def test_overrides_alone_may_fill_a_required_section(read):
    assert read("# nothing yet\n", "data.source=[a.txt]") == read(GOOD)


def test_an_override_of_a_section_keeps_its_other_keys(read):
    run = read(GOOD + "training: {amp: true}\n", "training={lr: 2}")
    assert run.training == Training(lr=2.0, amp=True, warmup=7)


@pytest.mark.parametrize("text", ["3e-4", "3E-4", "3.e-4", "0.3e-3", ".3e-3", "+3e-4", "300e-6", "0.0003"])
def test_a_number_with_an_exponent_is_a_number_everywhere(read, text):
    run = read(
        GOOD, f"training.lr={text}", f"position.options.rate={text}", f"training.betas=[{text}, {text}]"
    )
    # Each text names the same decimal number, so the nearest double is the same.
    assert (run.training.lr, run.position.options["rate"], run.training.betas) == (3e-4, 3e-4, (3e-4, 3e-4))


def test_a_file_replaces_a_free_form_dict_and_an_override_changes_one_key(read):
    assert read(GOOD).position.options == {"delta": 0.5}
    assert read(GOOD, "position.options.field.width=4").position.options == {
        "delta": 0.5,
        "field": {"width": 4},
    }
    text = GOOD + "position: {options: {solver: {name: rk4, steps: 2}}}\n"
    assert read(text).position.options == {"solver": {"name": "rk4", "steps": 2}}
    run = read(text, "position.options.solver.steps=3", "position.options.x=[1, null]")
    assert run.position.options == {"solver": {"name": "rk4", "steps": 3}, "x": [1, None]}


def test_an_override_leaves_what_shares_a_yaml_anchor_alone(read):
    run = read(GOOD + "position: {options: {a: &a {x: 1}, b: *a}}\n", "position.options.a.x=2")
    assert run.position.options == {"a": {"x": 2}, "b": {"x": 1}}


def test_a_section_derives_its_own_defaults_from_what_is_given(read):
    @dataclass(frozen=True)
    class Schedule:
        steps: int = 100
        warmup: int | None = None

        def __post_init__(self) -> None:
            if self.warmup is None:
                object.__setattr__(self, "warmup", self.steps // 10)

    @dataclass(frozen=True)
    class Outer:
        schedule: Schedule = field(default_factory=Schedule)

    assert read("", "schedule.steps=50", cls=Outer).schedule.warmup == 5


@dataclass(frozen=True)
class Older:
    """Settings of which a former version had one key more.

    Attributes:
        data: A section that had it.
    """

    data: Data = field(default_factory=lambda: Data(["a"]), metadata={"removed": ("depth",)})


def test_a_key_of_a_former_version_may_be_there_without_a_value(read, complaint):
    assert read("data: {limit: 3, depth: null}", cls=Older) == Older(Data(["a"], limit=3))
    assert "unknown key 'data.depth'" in complaint("data: {depth: 2}", cls=Older)
    assert "unknown key 'data.width'" in complaint("data: {width: null}", cls=Older)


def test_defaults_are_not_shared_between_loads(read):
    read(GOOD).position.options["delta"] = 1.0
    assert read(GOOD).position.options == {"delta": 0.5}


def test_quoted_text_stays_text(read):
    options = {"a": "null", "b": "1", "c": "[1, 2]", "d": {"e": "3e-4"}}
    run = read(GOOD + f"position: {{layers: '[1]', options: {options}}}\n")
    assert run.position == Position(layers="[1]", options=options)


@pytest.mark.parametrize(("text", "value"), [("'1'", "1"), ("1", 1.0), ("1e-7", 1e-7), ("fast", "fast")])
def test_a_union_keeps_the_type_as_written(read, text, value):
    @dataclass(frozen=True)
    class Either:
        rate: float | str

    got = read("", f"rate={text}", cls=Either).rate
    assert (got, type(got)) == (value, type(value))


def test_a_merge_key_is_not_a_repeated_key(read):
    text = "data: &d {source: [a], limit: 3}\nposition: {options: {<<: *d, limit: 4}}\n"
    assert read(text).position.options == {"source": ["a"], "limit": 4}


# A reader's checks: the whole message, as the command prints it.
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainig: {lr: 1}", "config.yaml: unknown key 'trainig'; did you mean 'training'?"),
        (
            "training: {warmpu: 3}",
            "config.yaml: unknown key 'training.warmpu'; did you mean 'training.warmup'?",
        ),
        ("lr: 3", "config.yaml: unknown key 'lr'; did you mean 'training.lr'?"),
        ("zzz: 3", "config.yaml: unknown key 'zzz'; the keys are 'data', 'position', 'training', 'seed'"),
        (
            "position: {zzz: 3}",
            "config.yaml: unknown key 'position.zzz'; "
            "the keys are 'position.name', 'position.layers', 'position.options'",
        ),
        ("1: 3", "config.yaml: unknown key '1'; the keys are 'data', 'position', 'training', 'seed'"),
        ("training: {lr: fast}", "config.yaml: 'training.lr' must be float, not 'fast'"),
        ("training: {lr: }", "config.yaml: 'training.lr' must be float, not null"),
        ("training: {lr: true}", "config.yaml: 'training.lr' must be float, not True"),
        ("training: {warmup: 1.5}", "config.yaml: 'training.warmup' must be int, not 1.5"),
        ("training: {amp: 1}", "config.yaml: 'training.amp' must be bool, not 1"),
        ("training: {clip: [1]}", "config.yaml: 'training.clip' must be float | null, not [1]"),
        ("training: {milestones: [1, b]}", "config.yaml: 'training.milestones[1]' must be int, not 'b'"),
        ("training: {betas: [1]}", "config.yaml: 'training.betas' must be tuple[float, float], not [1]"),
        ("training: 3", "config.yaml: 'training' must be mapping, not 3"),
        ("training:", "config.yaml: 'training' must be mapping, not null"),
        ("data: {source: a.txt}", "config.yaml: 'data.source' must be list[str], not 'a.txt'"),
        (
            "data: {source: [no]}",
            "config.yaml: line 1: no can mean false or a text; write false, or 'no' in quotes",
        ),
        ("data: {vocabulary: 3}", "config.yaml: 'data.vocabulary' must be Path, not 3"),
        ("data: {limit: many}", "config.yaml: 'data.limit' must be int | null, not 'many'"),
        (
            "position: {name: flaoter}",
            "config.yaml: 'position.name' must be one of 'floater', 'learned', not 'flaoter'",
        ),
        ("position: {layers: [a]}", "config.yaml: 'position.layers' must be str | list[int], not ['a']"),
        ("position: {options: 3}", "config.yaml: 'position.options' must be dict[str, Any], not 3"),
        (
            "position: {options: {1: 2}}",
            "config.yaml: 'key of position.options' must be str, not 1; quote it if a text is meant",
        ),
        ("seed: 1", "config.yaml: missing required key 'data.source'"),
        ("training: {lr: -1}\ndata: {source: []}", "config.yaml: training: lr must be positive, not -1.0"),
        ("- 1", "config.yaml: the top level must be a mapping of keys, not [1]"),
        ("seed: 1\nseed: 1\n", "config.yaml: line 2: duplicate key 'seed'"),
        ("position:\n  options:\n    a: {b: 1, b: 2}\n", "config.yaml: line 3: duplicate key 'b'"),
        ("training: {lr: 1}\ntraining.lr: 2", "config.yaml: duplicate key 'training.lr'"),
        ("seed: 1\ndata: [1\n", "config.yaml: line 3: while parsing a flow sequence, "),
        ("seed: 1\n\tdata: 2\n", "config.yaml: line 2: while scanning "),
        ("seed: 1\n---\nseed: 2\n", "config.yaml: line 2: expected a single document"),
        ("seed: !!python/name:os.system 1", "config.yaml: line 1: could not determine a constructor"),
        (b"data: {source: [\xe4]}", "config.yaml: not text in UTF-8 (position 16)"),
    ],
)
def test_message_on_a_file(complaint, text, message):
    got = complaint(text)
    assert got == message or (got.startswith(message) and "line" in message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.warmpu=3", "unknown key 'training.warmpu'; did you mean 'training.warmup'?"),
        ("trainng.lr=3", "unknown key 'trainng.lr'; did you mean 'training.lr'?"),
        ("lr=3", "unknown key 'lr'; did you mean 'training.lr'?"),
        ("data.seed=3", "unknown key 'data.seed'; did you mean 'seed'?"),
        ("data.warmpu=3", "unknown key 'data.warmpu'; did you mean 'training.warmup'?"),
        ("training.lr.x=3", "unknown key 'training.lr.x'; did you mean 'training.lr'?"),
        ("training.lr=fast", "'training.lr' must be float, not 'fast'"),
        ("training.warmup=1e3", "'training.warmup' must be int, not 1000.0"),
        ("training", "expected key=value"),
        ("=3", "expected key=value"),
        ("position.options.=3", "expected key=value"),
        ("position.options={a: 1, a: 2}", "duplicate key 'a'"),
        ("position.options={a:1}", "'a:1' needs a space after the colon: a: 1"),
    ],
)
def test_message_on_an_override(complaint, override, message):
    assert complaint(GOOD, override) == f"override '{override}': {message}"


def test_a_value_that_an_override_breaks_is_reported_once_all_is_known(complaint):
    assert complaint(GOOD, "training.lr=0") == "config.yaml: training: lr must be positive, not 0.0"


@pytest.mark.parametrize(
    ("path", "why"), [("none.yaml", "No such file or directory"), (".", "Is a directory")]
)
def test_message_on_an_unreadable_path(tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=f"^{re.escape(path)}: {why}$"):
        load(Run, path)


def test_a_section_inside_a_union_is_refused():
    @dataclass(frozen=True)
    class Outer:
        inner: Training | None = None

    with pytest.raises(TypeError, match=r"'inner'.*whole type"):
        describe(Outer)


scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
free = st.recursive(scalar, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)
runs = st.builds(
    Run,
    st.builds(Data, st.lists(st.text()), st.text().map(Path), st.none() | st.integers(-(10**30), 10**30)),
    st.builds(
        Position,
        st.sampled_from(["floater", "learned"]),
        st.text() | st.lists(st.integers()),
        st.dictionaries(st.text(), free, max_size=3),
    ),
    st.builds(
        Training,
        st.floats(min_value=0, exclude_min=True),
        st.integers(),
        st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
        st.lists(st.integers()).map(tuple),
        st.booleans(),
        st.none() | st.floats(allow_nan=False),
    ),
    st.integers(),
)


@settings(max_examples=60)
@given(run=runs)
@example(run=Run(Data(["3e-4", "1e5", "null", "2024-01-01", "\x85", "=", "<<", "é\U0001f600", " a\n b "])))
@example(
    run=Run(
        Data([]), Position(layers="1", options={"<<": {}, "a.b": "~", "": [[], {}, "1e3", 1e300], ":": ""})
    )
)
def test_dump_reads_back_equal(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    text = dump(run)
    path.write_text(text, encoding="utf-8", newline="")
    back = load(Run, path)
    # repr tells 1 from 1.0 and True, and -0.0 from 0.0, which compare equal.
    assert (back, repr(back)) == (run, repr(run))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("010", 10), ("008", 8), ("+5", 5), ("-007", -7), ("1_000", 1000), ("-12_345_678", -12345678)],
        *[("0x10", 16), ("0o10", 8), ("0b11", 3), ("0", 0), ("1e3", 1000.0), (".5", 0.5), ("-.5", -0.5)],
        *[("+.5e1", 5.0), ("5.", 5.0), ("1.5E-3", 0.0015), (".inf", math.inf), ("0e400", 0.0)],
        *[("12:30", "12:30"), ("1:30:00", "1:30:00"), ("2026-01-01", "2026-01-01"), ("1.2.3", "1.2.3")],
        *[("1_0", "1_0"), ("2026_01", "2026_01"), ("0x", "0x"), ("=", "="), ("e5", "e5"), ("1e", "1e")],
        *[("true", True), ("FALSE", False), ("~", None), ("null", None), ("", None), ("None", "None")],
        *[("y", "y"), ("N", "N"), ("nO", "nO"), ("'no'", "no"), ('"010"', "010"), ("\u0663", "\u0663")],
    ],
)
def test_plain_scalars_are_what_people_mean(text, value):
    """Decimal is decimal; times, dates and versions are texts."""
    assert (parse(text), type(parse(text))) == (value, type(value))
    nested = parse(f"a: [{text or '~'}, {{b: {text}}}]")
    assert nested == {"a": [value, {"b": value}]}


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off"])
@pytest.mark.parametrize("key", ["{}", "[en, {}]", "a: {{b: {}}}", "{}: 1"])
def test_a_word_that_is_a_boolean_to_some_is_refused(word, key):
    boolean = "true" if word.lower() in ("yes", "on") else "false"
    with pytest.raises(
        NotYamlError, match=f"^{word} can mean {boolean} or a text; write {boolean}, or '{word}'"
    ):
        parse(key.format(word))


@pytest.mark.parametrize("text", ["1e400", "-1.5e999", "1e-400", "-0.1e-999"])
def test_numbers_that_floats_do_not_hold_are_refused(text):
    with pytest.raises(NotYamlError, match="is beyond the range of floating-point numbers"):
        parse(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"), [(int, "010", 10), (float, "1_000", 1000.0), (bool, "false", False)]
)
def test_a_quoted_number_is_read_as_a_plain_one(kind, text, value):
    assert convert(kind, text, "x") == value
    for wrong in ("12:30", "no", "1_0", ""):
        with pytest.raises(SettingsError, match=f"'x' must be {kind.__name__}, not '{wrong}'"):
            convert(kind, wrong, "x")


@given(text=st.text() | st.from_regex(r"[-+.0-9_:xobeEyYnNaftrul~]{1,8}", fullmatch=True))
def test_a_written_text_is_a_text_to_every_reader_of_yaml(text):
    written = yaml.dump({"a": text, text: 1}, Dumper=Dumper)
    assert parse(written.encode()) == {"a": text, text: 1}
    assert yaml.safe_load(written) == {"a": text, text: 1}


def test_dump_is_in_field_order_and_names_what_it_cannot_write():
    text = dump(Run(Data(["a.txt"])))
    assert re.findall(r"^\w+", text, re.M) == ["data", "position", "training", "seed"]
    with pytest.raises(SettingsError, match=r"no YAML form for <object"):
        dump(Run(Data([]), Position(options={"a": object()})))


def test_describe_tells_key_type_default_and_meaning():
    text = describe(Run)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [re.split(r" {2,}", line) for line in lines if not line.startswith(" ")]
    assert rows == [
        ["data", "mapping"],
        ["data.source", "list[str]", "required"],
        ["data.vocabulary", "Path", "vocab.json"],
        ["data.limit", "int | null", "null"],
        ["position", "mapping"],
        ["position.name", "one of 'floater', 'learned'", "floater"],
        ["position.layers", "str | list[int]", "all"],
        ["position.options", "dict[str, Any]", "{delta: 0.5}"],
        ["training", "mapping"],
        ["training.lr", "float", "0.001"],
        ["training.warmup", "int", "7"],
        ["training.betas", "tuple[float, float]", "[0.9, 0.98]"],
        ["training.milestones", "tuple[int, ...]", "[]"],
        ["training.amp", "bool", "false"],
        ["training.clip", "float | null", "null"],
        ["seed", "int", "0"],
    ]
    source = " ".join(lines[lines.index("    The texts.") + 2 :][:2]).split()
    assert " ".join(source).startswith("Text files, one sentence a line, read in the order given; the words")
    assert undocumented(Run) == []


def test_undocumented_names_nested_keys_and_reads_inherited_meanings():
    @dataclass(frozen=True)
    class Longer(Training):
        """Adds one.

        Args:
            lr (float): Another meaning.
        """

        decay: float = 0.0

    @dataclass(frozen=True)
    class Outer:
        training: Longer

    assert undocumented(Outer) == ["training", "training.decay"]
    assert "Another meaning." in describe(Outer)
    assert "Peak learning rate." not in describe(Outer)
    assert "Updates of warm-up." in describe(Outer)
