"""A real browser for tests: headless Chromium over the pipe of its DevTools protocol, no package needed."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
OPTIONS = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # a container's root user has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]


class Page:
    """A page in a browser, and what went wrong on it.

    Attributes:
        errors: messages of errors, warnings and exceptions, as the console has them.
        requests: addresses that the page asked for.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._buffer = read, write, b""
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a file, or an address, in a window of a size, in light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.errors, self.requests, self._events = [], [], []
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take(until)

    def ask(self, script: str) -> Any:
        """The value of an expression on the page."""
        actual = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in actual, actual["exceptionDetails"]
        return actual["result"].get("value")

    def wait(self, condition: str) -> None:
        """Return when an expression on the page is true."""
        until = time.monotonic() + PATIENCE
        while not self.ask(f"Boolean({condition})"):
            assert time.monotonic() < until, f"not within {PATIENCE} s: {condition}"
            time.sleep(0.05)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            actual = self._take(until)
            if actual.get("id") == number:
                assert "error" not in actual, f"{method}: {actual['error']}"
                result: dict[str, Any] = actual["result"]
                return result

    def _take(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"Chromium was silent for {PATIENCE} s"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value")) for part in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@contextlib.contextmanager
def chromium(home: Path) -> Iterator[Page]:
    """Open a page of this machine's browser, which ends with the block; without one skip the test.

    With NEED_CHROMIUM in the environment the test fails instead.

    Args:
        home: a folder for what it keeps.
    """
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next((path for name in names if (path := shutil.which(name))), None)
    if path is None:
        missing = f"needs Chromium: none of {', '.join(names)} on this machine"
        (pytest.fail if os.environ.get("NEED_CHROMIUM") else pytest.skip)(missing)
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    # the protocol is spoken on descriptors 3 and 4
    shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
    with (home / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, path, *OPTIONS, f"--user-data-dir={home / 'profile'}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=log,
            stderr=log,
            env=os.environ | {"HOME": str(home)},
        )
    os.close(commands)
    os.close(answers)
    try:
        yield Page(from_browser, to_browser)
    finally:
        os.close(to_browser)  # the end of the pipe ends the browser
        os.close(from_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
