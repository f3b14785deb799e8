"""The engine's end of the wire: a Unix socket, per connection one thread that reads and one that writes.

Nobody who has something to send ever waits for a socket: `Connection.send` appends to a queue and returns. A frontend
that stops reading is hung up on, after `STALL_S` without progress or `MAX_QUEUED_BYTES` waiting, and whoever owns its
requests hears `lost`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from zerokl.wire.frames import Frame, WireError, encode, engine_side_reader
from zerokl.wire.messages import Hello, ToEngine

log = logging.getLogger(__name__)

STALL_S = 30.0
MAX_QUEUED_BYTES = 512 * 2**20
"""Two of the longest answers seen in practice; a frontend that is this far behind is not coming back."""
RECEIVE_BYTES = 1 << 18


class Connection:
    """One frontend. Its number names it in logs and keys its requests."""

    def __init__(self, number: int, peer: socket.socket, *, stall_s: float, max_queued_bytes: int) -> None:
        self.number = number
        self.open = True
        self._socket = peer
        self._stall_s = stall_s
        self._max_queued_bytes = max_queued_bytes
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"wire-write-{number}", daemon=True)

    def send(self, frame: bytes) -> None:
        """Queue a frame; returns at once. After the connection is lost, nothing happens."""
        with self._lock:
            self._queued_bytes += len(frame)
            too_much = self._queued_bytes > self._max_queued_bytes
        if too_much:
            self.close(f"{self._queued_bytes} bytes wait for a frontend that does not read")
        elif self.open:
            self._queue.put(frame)

    def close(self, why: str = "") -> None:
        """Hang up. What is queued is lost; the reading thread wakes and reports it."""
        with self._lock:
            if not self.open:
                return
            self.open = False
        if why:
            log.warning("connection %d closed: %s", self.number, why)
        self._queue.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self, timeout_s: float) -> None:
        """Send what is queued, then hang up."""
        self._queue.put(None)
        self._writer.join(timeout_s)
        self.close()

    def start(self, receive: Callable[[Connection, Frame[ToEngine]], None], lost: Callable[[Connection], None]) -> None:
        """Start both threads."""
        reader = threading.Thread(target=self._read, args=(receive, lost), name=f"wire-read-{self.number}", daemon=True)
        self._writer.start()
        reader.start()

    def _write(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                self._send_all(frame)
            except TimeoutError:
                return self.close(f"no byte taken for {self._stall_s:g} s")
            except OSError:
                return self.close()
            with self._lock:
                self._queued_bytes -= len(frame)
        return None

    def _send_all(self, frame: bytes) -> None:
        """`sendall`, but its time limit is per progress, not for the whole frame."""
        view = memoryview(frame)
        while view:
            view = view[self._socket.send(view) :]

    def _read(self, receive: Callable[[Connection, Frame[ToEngine]], None], lost: Callable[[Connection], None]) -> None:
        reader = engine_side_reader()
        try:
            while received := self._receive():
                for frame in reader.feed(received):
                    receive(self, frame)
        except WireError as error:
            log.warning("connection %d sent what is no message: %s", self.number, error)
        except OSError:
            pass
        finally:
            self.close()
            lost(self)
            self._socket.close()

    def _receive(self) -> bytes:
        while True:
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                if not self.open:
                    return b""


class WireServer:
    """Listens at a path and greets each frontend. The callbacks run on the connections' reading threads."""

    def __init__(
        self,
        path: str | Path,
        hello: Callable[[], Hello],
        receive: Callable[[Connection, Frame[ToEngine]], None],
        lost: Callable[[Connection], None],
        *,
        stall_s: float = STALL_S,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self.path = Path(path)
        self._hello = hello
        self._receive = receive
        self._lost = lost
        self._stall_s = stall_s
        self._max_queued_bytes = max_queued_bytes
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._listener: socket.socket | None = None
        self._closing = False

    @property
    def connections(self) -> list[Connection]:
        """Those open now."""
        with self._lock:
            return list(self._connections)

    def start(self) -> None:
        """Bind and accept. A socket file that a dead engine left is replaced."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        self.path.chmod(0o600)
        listener.listen(16)
        self._listener = listener
        threading.Thread(target=self._accept, name="wire-accept", daemon=True).start()

    def broadcast(self, frame: bytes) -> None:
        """To all frontends."""
        for connection in self.connections:
            connection.send(frame)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop accepting, send what is queued, hang up on all, remove the socket file."""
        self._closing = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self.connections:
            connection.finish(timeout_s)
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        assert self._listener is not None
        number = 0
        while not self._closing:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            peer.settimeout(self._stall_s)
            connection = Connection(number, peer, stall_s=self._stall_s, max_queued_bytes=self._max_queued_bytes)
            connection.send(encode(self._hello()))
            with self._lock:
                self._connections.append(connection)
            connection.start(self._receive, self._forget)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.remove(connection)
        self._lost(connection)
