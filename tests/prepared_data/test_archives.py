"""Archives are unpacked inside their folder, or refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from floater.datasets import archives
from floater.datasets.archives import unpack
from floater.errors import DataError


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


@pytest.mark.parametrize("harm", ["encrypted", "compressed by an unknown method"])
def test_a_zip_that_cannot_be_read_is_named(harm: str, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"one": b"1"})
    content = bytearray(path.read_bytes())
    at = 6 if harm == "encrypted" else 8  # flags and method in the header of a file; 2 more in the directory
    content[at] = content[content.index(b"PK\x01\x02") + 2 + at] = 1 if harm == "encrypted" else 77
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^a\.zip: a broken archive \("):
        unpack(path, tmp_path / "to")


@pytest.mark.parametrize("link", [{"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}])
def test_a_link_that_leads_outside_is_refused(link: dict[str, bytes], tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", {"link": b""}, "w:", linkname="../../secret", **link)
    with pytest.raises(DataError, match="outside its folder"):
        unpack(archive, tmp_path / "to")


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
