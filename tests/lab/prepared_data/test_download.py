"""Downloads are whole and checked, or there is one line of why not."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.datasets.catalogue import File
from floater.lab.datasets.download import fetch

from .serving import Server

CONTENT = bytes(range(256)) * 40


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def refused(*args: object) -> str:
    with pytest.raises(DataError) as told:
        fetch(*args)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    file = File((server.serve("a.bin", CONTENT),), len(CONTENT), sha256(CONTENT), "someone")
    for _ in range(2):
        assert fetch(file, tmp_path, {}).read_bytes() == CONTENT
    assert server.asked == [None]
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_damaged_file_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    file = File((server.serve("a.bin", CONTENT),), len(CONTENT), sha256(CONTENT), "someone")
    (tmp_path / "a.bin").write_bytes(CONTENT[:-1])
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT


@pytest.mark.parametrize("hash", [None, sha256(CONTENT)])
def test_a_connection_that_breaks_is_resumed_where_it_broke(
    server: Server, tmp_path: Path, hash: str | None
) -> None:
    server.breaks = [1000, 500]
    file = File((server.serve("a.bin", CONTENT),), hash=hash, says="someone")
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_second_call_resumes_what_the_first_has_kept(server: Server, tmp_path: Path) -> None:
    server.breaks = [1000, 0]
    file = File((server.serve("a.bin", CONTENT),), hash=sha256(CONTENT), says="someone")
    assert "breaks off, now after 1,000 bytes; the same command resumes" in refused(file, tmp_path, {})
    assert not (tmp_path / "a.bin").exists()
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=1000-"


def test_parts_of_two_versions_are_never_joined(server: Server, tmp_path: Path) -> None:
    server.breaks = [1000, 0]
    file = File((server.serve("a.bin", CONTENT),))
    refused(file, tmp_path, {})
    server.etag = '"second"'
    server.serve("a.bin", CONTENT[::-1])
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT[::-1]


def test_without_versions_and_checksum_a_part_is_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.etag, server.breaks = None, [1000]
    file = File((server.serve("a.bin", CONTENT),))
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT
    assert server.asked == [None, None]


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, [1000]
    file = File((server.serve("a.bin", CONTENT),), hash=sha256(CONTENT), says="someone")
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT


def test_a_part_that_is_the_whole_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    file = File((server.serve("a.bin", CONTENT),), hash=sha256(CONTENT), says="someone")
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT


@pytest.mark.parametrize("etag", ['"first"', None])
def test_a_part_longer_than_the_file_is_downloaded_again(
    server: Server, tmp_path: Path, etag: str | None
) -> None:
    server.etag = etag
    (tmp_path / "a.bin.part").write_bytes(CONTENT * 2)
    file = File((server.serve("a.bin", CONTENT),), len(CONTENT), sha256(CONTENT), "someone")
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT
    assert server.asked == [f"bytes={2 * len(CONTENT)}-", None]


def test_another_checksum_is_refused_and_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    file = File((server.serve("a.bin", CONTENT),), hash=sha256(b"other"), says="the authors")
    message = refused(file, tmp_path, {})
    assert sha256(b"other").partition(":")[2] in message
    assert sha256(CONTENT).partition(":")[2] in message
    assert message.endswith("The known one is that of the authors.")
    assert os.listdir(tmp_path) == []


def test_a_checksum_that_nobody_states_is_recorded_and_holds_from_then_on(
    server: Server, tmp_path: Path
) -> None:
    file, recorded = File((server.serve("a.bin", CONTENT),)), dict[str, str]()
    fetch(file, tmp_path, recorded).unlink()
    assert recorded == {file.urls[0]: sha256(CONTENT)}
    server.serve("a.bin", CONTENT[:-1])
    assert "of the first download" in refused(file, tmp_path, recorded)


def test_the_next_address_is_taken_where_one_has_nothing(server: Server, tmp_path: Path) -> None:
    file = File(
        (f"{server.url}/gone/a.bin", server.serve("a.bin", CONTENT)), None, sha256(CONTENT), "someone"
    )
    assert fetch(file, tmp_path, {}).read_bytes() == CONTENT


def test_a_server_that_has_no_such_file_is_named(server: Server, tmp_path: Path) -> None:
    assert refused(File((f"{server.url}/a.bin",)), tmp_path, {}) == (
        f"{server.url}/a.bin: the server answers: 404 Client Error: Not Found"
    )


def test_offline_is_said_in_a_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.bin"
        message = refused(File((url,)), tmp_path, {})
    assert message == f"127.0.0.1 cannot be reached (is this machine offline?); what is needed is {url}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_said_in_a_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    message = refused(File((server.serve("a.bin", CONTENT),)), tmp_path, {})
    assert message == (
        f"{tmp_path}: No space left on device; what was downloaded is kept, and the same command resumes"
    )
    assert not (tmp_path / "a.bin").exists()
