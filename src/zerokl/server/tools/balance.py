"""Where a JSON object or array ends, found as the text comes and looking at each character once."""

from __future__ import annotations


class Balance:
    """Shown a value from its first bracket on. Brackets inside strings don't count."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """How many of these further characters belong to the value; None: all, and it goes on."""
        for place, char in enumerate(text):
            if self._in_string:
                self._step_in_string(char)
            elif char == '"':
                self._in_string = True
            elif char in "[{":
                self._depth += 1
            elif char in "]}":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None

    def _step_in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
