"""HTTP by hand, for what clients hide: chunks, half requests, connections that end early."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True)
class Raw:
    """One connection."""

    socket: socket.socket
    data: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        named = {"host": "test", "content-length": str(len(body))} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def read_head(self) -> None:
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(line.split(": ", 1) for line in lines)

    def chunks(self) -> list[bytes]:
        """All chunks of the answer, as the server cut them."""
        found = []
        while (chunk := self.chunk()) != b"":
            found.append(chunk)
        return found

    def chunk(self) -> bytes:
        while b"\r\n" not in self.data:
            self._more()
        size, self.data = self.data.split(b"\r\n", 1)
        length = int(size, 16)
        while len(self.data) < length + 2:
            self._more()
        chunk, self.data = self.data[:length], self.data[length + 2 :]
        return chunk

    def read_body(self) -> bytes:
        while len(self.data) < int(self.headers["content-length"]):
            self._more()
        return self.data

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        received = self.socket.recv(65536)
        assert received, f"the server hung up after {self.data!r}"
        self.data += received


def connect(url: str) -> Raw:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return Raw(socket.create_connection((parts.hostname, parts.port), timeout=20))


def posted(url: str, path: str, body: Any) -> Raw:
    """A connection whose answer's head has been read."""
    raw = connect(url)
    raw.send("POST", path, json.dumps(body).encode())
    raw.read_head()
    return raw


def frames(text: str) -> list[Any]:
    """The JSON of each `data:` frame of a whole stream, and [DONE] at its end."""
    parts = text.split("\n\n")
    assert parts[-1] == ""
    assert parts[-2] == "data: [DONE]"
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
