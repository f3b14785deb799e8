"""Time and ids of answers, which a test clock freezes so that whole bodies can be compared."""

from __future__ import annotations

import os
import time


class Clock:
    def __init__(self, frozen_at: int | None = None) -> None:
        self._frozen_at = frozen_at

    def now(self) -> int:
        """Unix time in seconds."""
        return int(time.time()) if self._frozen_at is None else self._frozen_at

    def elapsed(self, since: float) -> float:
        """Seconds since a `time.perf_counter()`."""
        return time.perf_counter() - since if self._frozen_at is None else 0.0

    def new_id(self, prefix: str = "") -> str:
        return prefix + (os.urandom(16).hex() if self._frozen_at is None else "0" * 32)
