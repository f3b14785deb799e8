"""Content around calls: what may still become a mark is held back, and so are blanks, which a call swallows."""

from __future__ import annotations

from zerokl.server.tools.calls import BLANKS


class Content:
    """Text up to a mark. Blanks right before and right after a call are no content."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._held = ""
        self._after_call = False

    def push(self, text: str) -> tuple[str, str | None]:
        """(content that is certain, what follows the mark; None if it hasn't come)"""
        self._held += text
        before, mark, after = self._held.partition(self._mark)
        if mark:
            self._held = ""
            return self._shown(before.rstrip(BLANKS)), after
        certain = len(self._held) - self._partial()
        certain = len(self._held[:certain].rstrip(BLANKS))
        content, self._held = self._held[:certain], self._held[certain:]
        return self._shown(content), None

    def call_ended(self) -> None:
        self._after_call = True

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._shown(held)

    def _shown(self, text: str) -> str:
        if self._after_call:
            text = text.lstrip(BLANKS)
            self._after_call = not text
        return text

    def _partial(self) -> int:
        """How much of the mark the held text ends with."""
        longest = min(len(self._mark) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(self._mark[:size])), 0)
