"""What the server's prefix cache must hold, so that the count of cached tokens can be predicted, not just admired.

Whole pages of the tokens whose keys were computed stay cached; a request reuses the longest chain of them, but computes
at least one token, and starts no later than the position from which it wants scores:

    cached_tokens = page * floor(min(match, len - 1, score_from) / page)

The last output token's keys are never computed, so a finished request leaves len(prompt) + len(output) - 1 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from zerokl.check.answers import Ask
from zerokl.check.ledger import history_digests


@dataclass(slots=True)
class PrefixModel:
    """An exact model of the cache, as long as nothing was evicted and nobody else uses the server."""

    page_size: int
    """What a hit is a multiple of."""
    capacity_tokens: int | None = None
    cache_page: int = 0
    """If the cache's pages are smaller than `page_size`."""
    unsure: bool = False
    """Somebody whose answers nobody saw may have left, or not left, what is learned here."""
    _pages: set[bytes] = field(default_factory=set)
    _kept: set[bytes] = field(default_factory=set)

    def flush(self) -> None:
        self.unsure = False
        self._pages.clear()
        self._kept.clear()

    @property
    def certain(self) -> bool:
        """False once the cache may have had to evict something, or nobody knows how much was computed."""
        return not self.unsure and (self.capacity_tokens is None or self.kept_tokens <= self.capacity_tokens // 2)

    @property
    def kept_tokens(self) -> int:
        return len(self._kept) * (self.cache_page or self.page_size)

    def learn(self, ids: Sequence[int], computed: int) -> None:
        """The first `computed` of `ids` have keys now."""
        digests = history_digests(ids[:computed])
        self._pages.update(digests[self.page_size :: self.page_size])
        size = self.cache_page or self.page_size
        self._kept.update(digests[size::size])

    def predict(self, ask: Ask) -> int:
        """Tokens that this request must find cached."""
        limit = len(ask.ids) - 1
        if ask.score_from is not None:
            limit = min(limit, ask.score_from)
        digests = history_digests(ask.ids)
        pages = 0
        while (pages + 1) * self.page_size <= limit and digests[(pages + 1) * self.page_size] in self._pages:
            pages += 1
        return pages * self.page_size

    def copy(self) -> PrefixModel:
        return replace(self, _pages=set(self._pages), _kept=set(self._kept))
