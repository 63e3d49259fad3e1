"""Files of settings that would fill the memory or take the time of the process that reads them."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from floater.lab.settings import SettingsError, load
from floater.lab.settings.yaml_format import MAX_BYTES


@dataclass(frozen=True)
class Run:
    source: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "aliases of aliases": (BOMB, "line 5: more than 100,000 values"),
    "an alias of itself": ("a: &a [*a]", "line 1: an alias stands for what it is in"),
    "a deep list": ("seed: " + "[" * 900, "line 1: nested more than 40 deep"),
    "deep mappings": ("a: " * 1 + "{a: " * 900, "line 1: nested more than 40 deep"),
    "a deep block": ("\n".join(" " * i + "a:" for i in range(900)), "line 40: nested more than 40 deep"),
    "a long number": ("seed: " + "9" * 100_000, "line 1: a number of more than 1024 bits"),
    "a long hexadecimal number": ("seed: 0x" + "f" * 100_000, "line 1: a number of more than 1024 bits"),
    "a long number of base 60": ("seed: " + ":".join(["59"] * 9000), "'seed' must be int, not '59:59:"),
    "a large file": ("# " + "x" * MAX_BYTES, "more than 1,048,576 bytes: these are not settings"),
    "code": ("seed: !!python/object/apply:os.getpid []", "could not determine a constructor"),
    "a flag that is none": ("seed: !!bool maybe", "line 1: 'maybe' is not a valid bool"),
    "no digits": ("seed: !!int ''", "line 1: '' is not a valid int"),
    "a time that is none": ("seed: !!timestamp noon", "line 1: 'noon' is not a valid timestamp"),
    "a day that is none": ("seed: !!timestamp 2024-02-31", "line 1: '2024-02-31' is not a valid timestamp"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path, name: str) -> None:
    text, reason = HOSTILE[name]
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(reason)) as error:
        load(Run, tmp_path / "file.yaml")
    assert len(str(error.value)) < 400


def test_a_device_is_no_file_of_settings() -> None:
    with pytest.raises(SettingsError, match="/dev/zero: more than 1,048,576 bytes"):
        load(Run, "/dev/zero")


def test_an_alias_within_the_limits_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("source: &files [a, b]\noptions: {also: *files}")
    read = load(Run, tmp_path / "file.yaml")
    assert read.options["also"] == read.source == ["a", "b"]
