"""The frontends of one server: which, on which socket, and how each is started."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerokl.cli.supervisor import Child, python
from zerokl.config import Config, chosen_frontend
from zerokl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Front:
    """A frontend's kind, "python" or "rust", and the socket on which it will answer."""

    kind: str
    listener: socket.socket

    def child(self, run_folder: Path, lifeline: int) -> Child:
        descriptor = self.listener.fileno()
        command = python("zerokl.cli.frontend", self.kind, str(run_folder), str(descriptor), str(lifeline))
        return Child("frontend" if self.kind == "python" else "rust frontend", command, (descriptor, lifeline))

    @property
    def address(self) -> tuple[str, int]:
        """Where this machine reaches it, which may be bound to every address."""
        host, port = self.listener.getsockname()[:2]
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def listening(config: Config) -> list[Front]:
    """The frontends' sockets, bound before anything slow happens. With both, Rust has the port after Python's."""
    if (kind := chosen_frontend(config)) != "both":
        return [Front(kind, listen(config.host, config.port))]
    first = Front("python", listen(config.host, config.port))
    with closed_on_error(first.listener):
        return [first, Front("rust", listen(config.host, config.port and first.address[1] + 1))]


def listen(host: str, port: int) -> socket.socket:
    """The socket that a frontend process will accept on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigError(f"can't listen on {host}:{port}: {reason}") from error
    except OverflowError as error:  # the port after the last
        raise ConfigError(f"can't listen on {host}:{port}: {error}") from error
    listener.set_inheritable(True)
    return listener


@contextlib.contextmanager
def closed_on_error(listener: socket.socket) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        listener.close()
        raise
