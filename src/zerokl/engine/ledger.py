"""Which open request belongs to which frontend, under which of its rids."""

from __future__ import annotations

import threading

from msgspec import Struct

from zerokl.engine.text import RequestText
from zerokl.types import RequestId
from zerokl.wire.server import Connection


class Entry(Struct, frozen=True):
    """One open request."""

    connection: Connection
    text: RequestText


class Ledger:
    """From a request's intake to its last record. Reading threads add, the text thread removes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[RequestId, Entry] = {}
        self._ids: dict[tuple[int, int], RequestId] = {}

    def add(self, request_id: RequestId, entry: Entry) -> None:
        """The frontend's rid must be free; a frontend that reuses a live one loses the older from sight."""
        with self._lock:
            self._entries[request_id] = entry
            self._ids[entry.connection.number, entry.text.rid] = request_id

    def remove(self, request_id: RequestId) -> None:
        with self._lock:
            entry = self._entries.pop(request_id)
            self._ids.pop((entry.connection.number, entry.text.rid), None)

    def get(self, request_id: RequestId) -> Entry | None:
        return self._entries.get(request_id)

    def find(self, connection: Connection, rid: int) -> RequestId | None:
        return self._ids.get((connection.number, rid))

    def requests_of(self, connection: Connection) -> list[RequestId]:
        with self._lock:
            return [request_id for request_id, entry in self._entries.items() if entry.connection is connection]

    def open_requests(self) -> list[RequestId]:
        with self._lock:
            return list(self._entries)
