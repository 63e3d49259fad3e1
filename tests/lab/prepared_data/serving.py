"""Settings of the server of small files, and its record of requests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Server:
    """Files by path, and how they are served.

    Args:
        files: their contents.
        breaks: after how many bytes the connection breaks, answer by answer; None never.
        ranges: whether parts of a file can be asked for.
        etag: what each version is called, or None.
        asked: ranges of the requests, in their order; None for whole files.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks: list[int | None] = field(default_factory=list)
    ranges: bool = True
    etag: str | None = '"first"'
    asked: list[str | None] = field(default_factory=list)

    def serve(self, name: str, content: bytes) -> str:
        """Offer a file; returns its address."""
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"
