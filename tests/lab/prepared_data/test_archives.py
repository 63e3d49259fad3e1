"""Archives are unpacked inside their folder, or refused."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.datasets import archives
from floater.lab.datasets.archives import unpack


def tar(path: Path, members: dict[str, bytes], mode: str = "w:gz", **kind: object) -> Path:
    with tarfile.open(path, mode) as packed:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in kind.items():
                setattr(info, key, value)
            packed.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz", "a.tar.bz2"])
def test_what_was_packed_is_there(name: str, tmp_path: Path) -> None:
    members = {"in/one.txt": b"1", "two.txt": b"2"}
    modes = {"a.tar": "w:", "a.tgz": "w:gz", "a.tar.bz2": "w:bz2"}
    path = tmp_path / name
    archive = tar(path, members, modes[name]) if name in modes else zipped(path, members)
    assert written(unpack(archive, tmp_path / "to")) == members.keys()
    assert (tmp_path / "to/in/one.txt").read_bytes() == b"1"


EVIL = ["../evil.txt", "in/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:\\evil.txt"]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("make", [zipped, tar])
def test_a_member_that_would_leave_the_folder_does_not(
    name: str, make: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path
) -> None:
    archive = make(tmp_path / "evil.bin", {"good.txt": b"1", name: b"2"})
    said = []
    try:
        unpack(archive, tmp_path / "deep/to")
    except DataError as error:
        said.append(str(error).partition(" (")[0])
    assert said in ([], ["evil.bin: it would write outside its folder"])
    assert said or make is tar  # what tar makes of a backslash, or of a leading slash, stays inside
    assert {path for path in written(tmp_path) if not path.startswith("deep/to/")} == {"evil.bin"}


def test_zip_members_that_leave_the_folder_are_refused_before_any_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="outside its folder"):
        unpack(zipped(tmp_path / "a.zip", {"good.txt": b"1", "../b": b"2"}), tmp_path / "to")
    assert not written(tmp_path / "to")


def test_a_zip_larger_than_the_disk_is_refused_before_any_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path / "a.zip", {"one": bytes(10**6)})
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**5))
    with pytest.raises(DataError, match=r"^a\.zip: it unpacks to 1,000,000 bytes, and 100,000 are free$"):
        unpack(path, tmp_path / "to")
    assert not written(tmp_path / "to")


@pytest.mark.parametrize("harm", ["encrypted", "compressed by an unknown method", "cut off at its start"])
def test_a_zip_that_cannot_be_read_is_named(harm: str, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"one": b"1"})
    content = bytearray(path.read_bytes())
    at = 6 if harm == "encrypted" else 8  # flags and method in the header of a file; 2 more in the directory
    content[at] = content[content.index(b"PK\x01\x02") + 2 + at] = 1 if harm == "encrypted" else 77
    path.write_bytes(content if "cut off" not in harm else zipped(path, {"one": b"1"}).read_bytes()[20:])
    with pytest.raises(DataError, match=r"^a\.zip: a broken archive \("):
        unpack(path, tmp_path / "to")


SPECIAL = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"V"]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("target", ["../../secret", "good.txt"])
def test_only_files_and_directories_are_unpacked_from_a_tar(kind: bytes, target: str, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", {"link": b""}, "w:", linkname=target, type=kind)
    with pytest.raises(DataError, match=r"'link' is neither a file nor a directory"):
        unpack(archive, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_only_files_and_directories_are_unpacked_from_a_zip(kind: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("good.txt", b"1")
        info = zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        packed.writestr(info, b"../secret")
    with pytest.raises(DataError, match=r"'link' is neither a file nor a directory"):
        unpack(tmp_path / "a.zip", tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_a_long_chain_of_links_does_not_lead_outside(tmp_path: Path) -> None:
    """CVE-2025-4517: Python's filter compares a path that `realpath` cut off."""
    deep, archive = "d" * 247, tmp_path / "a.tar"
    path, step = "", "abcdefghijklmnop"
    with tarfile.open(archive, "w:") as packed:

        def add(name: str, kind: bytes, target: str = "", content: bytes = b"") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(content)
            packed.addfile(info, io.BytesIO(content))

        for letter in step:
            add(f"{path}{deep}", tarfile.DIRTYPE)
            add(f"{path}{letter}", tarfile.SYMTYPE, deep)
            path += f"{deep}/"
        long = "/".join(step) + "/" + "l" * 254
        add(long, tarfile.SYMTYPE, "../" * len(step))
        add("escape", tarfile.SYMTYPE, f"{long}/../../secret.txt")
        add("hard", tarfile.LNKTYPE, "escape")
        add("hard", tarfile.REGTYPE, content=b"overwritten")
    (tmp_path / "secret.txt").write_text("mine")
    with pytest.raises(DataError, match="neither a file nor a directory"):
        unpack(archive, tmp_path / "to/deep")
    assert (tmp_path / "secret.txt").read_text() == "mine"


MEMBERS = st.tuples(
    st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
    st.lists(st.sampled_from(["a", "b", "A", ".", "..", ""]), min_size=1, max_size=3).map("/".join),
    st.sampled_from(["a", "..", "../..", "../outside.txt", "a/b"]),
)


@given(st.lists(MEMBERS, max_size=5), st.sampled_from(["w:", "w:gz"]))
def test_members_of_any_names_stay_inside_or_are_refused(
    members: list[tuple[bytes, str, str]], mode: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "outside.txt").write_text("mine")
        with tarfile.open(root / "a.tar", mode) as packed:  # type: ignore[call-overload]
            for kind, name, target in members:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, target
                info.size = 1 if kind == tarfile.REGTYPE else 0
                packed.addfile(info, io.BytesIO(b"x"))
        files = [str(PurePosixPath(name)) for kind, name, _ in members if kind == tarfile.REGTYPE]
        try:
            unpack(root / "a.tar", root / "deep/to")
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 (what is refused is for other tests)
        else:
            assert written(root / "deep/to") == set(files)
            assert len({name.lower() for name in files}) == len(files)
            assert all(kind in (tarfile.REGTYPE, tarfile.DIRTYPE) for kind, _, _ in members)
        assert written(root) - {f"deep/to/{name}" for name in files} == {"a.tar", "outside.txt"}
        assert (root / "outside.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "names",
    [
        ("a.txt", "a.txt"),
        ("a.txt", "A.TXT"),
        ("in/./a", "in/a"),
        ("é", "e\u0301"),
        ("a", "a/b"),
        ("a/b", "a"),
    ],
)
@pytest.mark.parametrize("make", ["zip", "tar"])
def test_a_file_is_written_once(names: tuple[str, str], make: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    if make == "zip":
        with zipfile.ZipFile(path, "w") as packed, warnings.catch_warnings(action="ignore"):
            for name in names:
                packed.writestr(name, name)
    else:
        with tarfile.open(path, "w:gz") as tarred:
            for name in names:
                info = tarfile.TarInfo(name)
                tarred.addfile(info)
    with pytest.raises(DataError, match=r"^a\.bin: .*( twice, or| is a file and a directory$)"):
        unpack(path, tmp_path / "to")


def test_directories_may_be_named_again_and_be_there(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as packed:
            for directory in ("in", "in/", "./in"):
                info = tarfile.TarInfo(directory)
                info.type = tarfile.DIRTYPE
                packed.addfile(info)
            packed.addfile(tarfile.TarInfo(f"in/{name}.txt"))
        unpack(tmp_path / f"{name}.tar", tmp_path / "to")
    assert written(tmp_path / "to") == {"in/one.txt", "in/two.txt"}


def bomb(path: Path, kind: str) -> Path:
    """Write a small archive that unpacks to 8 MiB or more."""
    size = 1 << 23
    if kind == "zip":
        return zipped(path, {"zeros": bytes(size)})
    if kind in ("w:gz", "w:bz2", "w:xz"):
        return tar(path, {"zeros": bytes(size)}, kind)
    with gzip.open(path, "w") as out:
        info = tarfile.TarInfo("name")
        if kind == "header":
            info.type, info.size = tarfile.XHDTYPE, size
            out.write(info.tobuf() + bytes(size))
        elif kind == "members":
            info.type = tarfile.DIRTYPE
            out.write(info.tobuf() * (size >> 9))
        elif kind == "after the end":
            out.write(bytes(size))
        elif kind == "sparse":
            info.pax_headers = {
                "GNU.sparse.size": str(1 << 40),
                "GNU.sparse.numblocks": "1",
                "GNU.sparse.map": "0,0",
            }
            out.write(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    return path


@pytest.mark.parametrize(
    "kind", ["zip", "w:gz", "w:bz2", "w:xz", "header", "members", "after the end", "sparse"]
)
def test_a_small_archive_does_not_fill_the_disk(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    path = bomb(tmp_path / "a.bin", kind)
    reason = "a header has 8,388,608 bytes" if kind == "header" else "it unpacks to .* 100 times its own$"
    with pytest.raises(DataError, match=rf"^a\.bin: .*{reason}"):
        unpack(path, tmp_path / "to")
    there = [file.stat().st_size for file in (tmp_path / "to").rglob("*")]
    most = max(1 << 20, 100 * path.stat().st_size)
    assert sum(there) <= most
    assert len(there) <= most >> 9


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_a_tar_larger_than_the_disk_is_refused(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar(tmp_path / "a.tar", {"one": bytes(10**5), "two": bytes(10**6)}, mode)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**5))
    with pytest.raises(DataError, match=r"^a\.tar: it unpacks to 1,100,000 bytes, and 100,000 are free$"):
        unpack(path, tmp_path / "to")
    assert written(tmp_path / "to") == {"one"}


@pytest.mark.parametrize("harm", ["damaged", "cut off before", "cut off within"])
def test_a_damaged_header_is_not_the_end_of_a_tar(harm: str, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", {"one": b"1", "two": b"2"}, "w:")
    content = bytearray(path.read_bytes())
    content[1024] ^= 1  # the header of the second file
    path.write_bytes(content if harm == "damaged" else content[: 1024 if harm == "cut off before" else 1100])
    with pytest.raises(DataError, match=r"^a\.tar: a broken archive \(a header is damaged, or the end"):
        unpack(path, tmp_path / "to")


@pytest.mark.parametrize(
    ("mode", "harm"),
    [
        (mode, harm)
        for mode in ("w:", "w:gz", "w:bz2", "w:xz", "zip")
        for harm in ("truncated", "overwritten", "text")
        if (mode, harm) != ("w:", "overwritten")  # a tar alone has no checksum of contents
    ],
)
def test_a_broken_archive_is_named(mode: str, harm: str, tmp_path: Path) -> None:
    noise = bytes((7 * i * i + i // 3) % 256 for i in range(20_000))  # so that it cannot be packed small
    path = tmp_path / "a.bin"
    _ = zipped(path, {"one": noise}) if mode == "zip" else tar(path, {"one": noise}, mode)
    whole = path.read_bytes()
    half = len(whole) // 2
    changes = {
        "truncated": whole[:half],
        "overwritten": whole[:half] + b"\0" * 200 + whole[half + 200 :],
        "text": b"<html>not found</html>",
    }
    path.write_bytes(changes[harm])
    with pytest.raises(DataError, match=r"^a\.bin: a broken archive \(") as told:
        unpack(path, tmp_path / "to")
    assert "\n" not in str(told.value)
