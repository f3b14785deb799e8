"""Any sequence of calls against a simple model of the cache that predicts every hit, refusal and eviction exactly.

Two tokens are the whole vocabulary, so prefixes collide all the time. `memory` holds what a device would: it is written
when a lease computes, and read back through each new lease's pages, so a page that is shared wrongly shows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from zerokl.cache import Cache, Lease
from zerokl.cache.tree import PrefixTree

Prefix = tuple[str, tuple[int, ...]]
"""(salt, the tokens of one or more whole pages)."""


@dataclass
class Held:
    """A lease, and what the model knows of it."""

    lease: Lease
    tokens: list[int]
    salt: str | None
    """None: keeps out of the tree."""
    locked: list[Prefix]
    num_pages: int
    written: int
    """Tokens whose keys are in the lease's pages."""


@dataclass
class ModelEntry:
    last_used: int = 0
    locks: int = 0


@dataclass
class ModelCache:
    """Prefixes in a dict, and a scan over all of them for everything."""

    num_pages: int
    page_size: int
    entries: dict[Prefix, ModelEntry] = field(default_factory=dict)
    private: int = 0
    now: int = 0

    def prefix(self, salt: str, tokens: list[int], pages: int) -> Prefix:
        return salt, tuple(tokens[: pages * self.page_size])

    def match(self, salt: str, tokens: list[int], limit: int) -> int:
        pages = 0
        while (pages + 1) * self.page_size <= limit and self.prefix(salt, tokens, pages + 1) in self.entries:
            pages += 1
        return pages

    def parent(self, prefix: Prefix) -> Prefix:
        return prefix[0], prefix[1][: -self.page_size]

    @property
    def free(self) -> int:
        return self.num_pages - self.private - len(self.entries)

    @property
    def cached(self) -> int:
        return sum(not entry.locks for entry in self.entries.values())

    def evict(self) -> None:
        parents = {self.parent(prefix) for prefix in self.entries}
        leaves = [prefix for prefix, entry in self.entries.items() if not entry.locks and prefix not in parents]
        del self.entries[min(leaves, key=lambda prefix: self.entries[prefix].last_used)]

    def lock(self, prefix: Prefix) -> None:
        self.entries[prefix].locks += 1

    def unlock(self, prefix: Prefix) -> None:
        self.entries[prefix].locks -= 1
        if not self.entries[prefix].locks:
            self.entries[prefix].last_used = self.now


tokens_lists = st.lists(st.integers(0, 1), min_size=1, max_size=10)
salts = st.sampled_from(["", "", "", "salt"])


class CacheMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize(page_size=st.integers(1, 3), num_pages=st.sampled_from([1, 3, 6, 10, 200]))
    def start(self, page_size: int, num_pages: int) -> None:
        self.cache = Cache(num_pages, page_size)
        self.model = ModelCache(num_pages, page_size)
        self.memory: dict[tuple[int, int], Prefix] = {}
        """(page, offset) -> the tokens up to and with this one, and their salt (which no device would know)."""
        self.held: list[Held] = []

    @rule(
        target=leases, tokens=tokens_lists, cut=st.integers(0, 3), salt=salts, use_cache=st.sampled_from([1, 1, 1, 0])
    )
    def lease(self, tokens: list[int], cut: int, salt: str, use_cache: int) -> Held:
        limit = len(tokens) - cut
        expected = self.model.match(salt, tokens, limit) if use_cache else 0
        lease = self.cache.lease(tokens, limit, salt, bool(use_cache))
        assert lease.cached_tokens == expected * self.model.page_size
        return self._hold(lease, tokens, salt if use_cache else None, expected)

    @rule(target=leases, tokens=tokens_lists, salt=salts)
    def lease_with_room(self, tokens: list[int], salt: str) -> Held:
        matched = self.model.match(salt, tokens, len(tokens) - 1)
        unlocked = sum(not self.model.entries[self.model.prefix(salt, tokens, n + 1)].locks for n in range(matched))
        missing = self.cache.pages_for(len(tokens)) - matched
        lease = self.cache.lease_with_room(tokens, len(tokens) - 1, salt, num_tokens=len(tokens))
        assert (lease is not None) == (missing <= self.model.free + self.model.cached - unlocked)
        if lease is None:
            return self._nobody()
        assert lease.cached_tokens == matched * self.model.page_size
        held = self._hold(lease, tokens, salt, matched)
        self._grow(held, len(lease.pages))
        return held

    @rule(held=leases, more=st.integers(1, 6))
    def reserve(self, held: Held, more: int) -> None:
        if held.lease.released:
            return
        num_tokens = held.written + more
        pages = self.cache.pages_for(num_tokens)
        expected = pages - held.num_pages <= self.model.free + self.model.cached
        assert held.lease.reserve(num_tokens) == expected
        if expected:
            self._grow(held, pages)

    @rule(held=leases, more=st.integers(1, 6), token=st.integers(0, 1))
    def compute(self, held: Held, more: int, token: int) -> None:
        """Writes the next keys, past the prompt too (decoding), and publishes them."""
        if held.lease.released:
            return
        size = self.model.page_size
        end = min(held.written + more, held.num_pages * size)
        while len(held.tokens) < end:
            held.tokens.append(token)
        for position in range(held.written, end):
            slot = held.lease.pages[position // size], position % size
            self.memory[slot] = held.salt or "", tuple(held.tokens[: position + 1])
        held.lease.computed(held.tokens, end)
        held.written = end
        self._publish(held, end // size)

    @rule(tokens=tokens_lists, salt=salts)
    def touch(self, tokens: list[int], salt: str) -> None:
        """A hit that only renews: what comes between two evictions and decides the second."""
        self.release(self.lease(tokens, 0, salt, 1))

    @rule(tokens=tokens_lists, salt=salts)
    def fill(self, tokens: list[int], salt: str) -> None:
        """A whole request at once."""
        held = self.lease_with_room(tokens, salt)
        if not held.lease.released:
            self.compute(held, len(tokens) - held.written, 0)
            self.release(held)

    @rule(held=consumes(leases))
    def release(self, held: Held) -> None:
        if held.lease.released:
            return
        held.lease.release()
        self.held.remove(held)
        self.model.private -= held.num_pages - len(held.locked)
        self.model.now += 1
        for prefix in held.locked:
            self.model.unlock(prefix)

    @rule()
    def flush(self) -> None:
        expected = not self.held
        assert self.cache.flush() == expected
        if expected:
            self.model.entries.clear()

    @invariant()
    def adds_up_as_the_model_says(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        stats = self.cache.stats
        expected = self.model.free, self.model.cached, self.model.num_pages - self.model.free - self.model.cached
        assert (stats.free, stats.cached, stats.leased) == expected

    @invariant()
    def every_lease_reads_its_own_tokens(self) -> None:
        for held in getattr(self, "held", ()):
            size = self.model.page_size
            for position in range(held.written):
                salt, tokens = self.memory[held.lease.pages[position // size], position % size]
                assert tokens == tuple(held.tokens[: position + 1])
                assert salt == (held.salt or "")

    def _hold(self, lease: Lease, tokens: list[int], salt: str | None, matched: int) -> Held:
        locked = [self.model.prefix(salt or "", tokens, pages + 1) for pages in range(matched)]
        for prefix in locked:
            self.model.lock(prefix)
        held = Held(lease, list(tokens), salt, locked, matched, matched * self.model.page_size)
        self.held.append(held)
        return held

    def _nobody(self) -> Held:
        """A lease that is given back already: rules skip it."""
        lease = self.cache.lease([0], 0, use_cache=False)
        lease.release()
        self.model.now += 1
        return Held(lease, [], None, [], 0, 0)

    def _grow(self, held: Held, pages: int) -> None:
        missing = max(pages - held.num_pages, 0)
        while self.model.free < missing:
            self.model.evict()
        self.model.private += missing
        held.num_pages += missing

    def _publish(self, held: Held, pages: int) -> None:
        if held.salt is None:
            return
        for index in range(len(held.locked), pages):
            prefix = self.model.prefix(held.salt, held.tokens, index + 1)
            self.model.entries.setdefault(prefix, ModelEntry())
            self.model.private -= 1
            self.model.lock(prefix)
            held.locked.append(prefix)


SETTINGS = settings(max_examples=80, stateful_step_count=30, deadline=None, derandomize=True, database=None)
TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = SETTINGS


# Planted defects: the machine turns red without any help from cache.check()


def match_one_page_too_few(patch: pytest.MonkeyPatch) -> None:
    match = PrefixTree.match
    patch.setattr(PrefixTree, "match", lambda *args: match(*args)[:-1])


def match_past_the_limit(patch: pytest.MonkeyPatch) -> None:
    match = PrefixTree.match
    patch.setattr(PrefixTree, "match", lambda tree, salt, tokens, limit: match(tree, salt, tokens, len(tokens)))


def match_across_salts(patch: pytest.MonkeyPatch) -> None:
    match, root = PrefixTree.match, PrefixTree.root
    patch.setattr(PrefixTree, "match", lambda tree, salt, *rest: match(tree, "", *rest))
    patch.setattr(PrefixTree, "root", lambda tree, salt: root(tree, ""))


def evict_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    evict = PrefixTree.evict

    def newest(tree: PrefixTree):
        tree._oldest.sort(key=lambda entry: (-entry[0], entry[1]))
        return evict(tree)

    patch.setattr(PrefixTree, "evict", newest)


def leak_the_page_of_a_merge(patch: pytest.MonkeyPatch) -> None:
    publish = Lease._publish

    def leak(lease: Lease, index: int, key: bytes) -> None:
        merged = lease._cache._merged
        publish(lease, index, key)
        if lease._cache._merged > merged:
            lease._cache._free.pop()

    patch.setattr(Lease, "_publish", leak)


def flush_under_leases(patch: pytest.MonkeyPatch) -> None:
    def flush(cache: Cache) -> bool:
        while cache._evict_one():
            pass
        return True

    patch.setattr(Cache, "flush", flush)


@pytest.mark.parametrize(
    "defect",
    [
        match_one_page_too_few,
        match_past_the_limit,
        match_across_salts,
        evict_the_newest_first,
        leak_the_page_of_a_merge,
        flush_under_leases,
    ],
    ids=lambda defect: defect.__name__,
)
def test_the_machine_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(CacheMachine, settings=settings(SETTINGS, max_examples=1000, phases=[Phase.generate]))
