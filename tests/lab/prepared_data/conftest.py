"""A server of small files on the loopback interface, which can break off, forget and lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from floater.lab.datasets import download

from .serving import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "WAIT", 0.0)
    monkeypatch.setattr(download, "CHUNK", 100)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = state.files.get(self.path)
            state.asked.append(self.headers.get("Range"))
            if content is None:
                self.send_error(404)
                return
            start, fits = 0, self.headers.get("If-Range") in (None, state.etag)
            if (part := self.headers.get("Range")) and state.ranges and fits:
                start = int(part.removeprefix("bytes=").removesuffix("-"))
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if state.etag:
                self.send_header("ETag", state.etag)
            self.end_headers()
            after = state.breaks.pop(0) if state.breaks else None
            self.wfile.write(content[start:][:after])

        def log_message(self, format: str, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()
