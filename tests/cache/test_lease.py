"""A lease: what it finds, what it holds, what it leaves behind."""

import pytest

from zerokl.cache import Cache, Lease
from zerokl.cache.tree import PrefixTree
from zerokl.errors import EngineError


def fill(cache: Cache, tokens: list[int], salt: str = "") -> None:
    """Caches all full pages of `tokens`."""
    lease = cache.lease(tokens, 0, salt)
    assert lease.reserve(len(tokens))
    lease.computed(tokens, len(tokens))
    lease.release()
    cache.check()


def hit(cache: Cache, tokens: list[int], limit: int | None = None, salt: str = "") -> int:
    lease = cache.lease(tokens, len(tokens) if limit is None else limit, salt)
    lease.release()
    cache.check()
    return lease.cached_tokens


def cached(cache: Cache, tokens: list[int]) -> int:
    """As `hit`, but nothing is renewed by asking."""
    return len(cache._tree.match("", tokens, len(tokens))) * cache.page_size


def counts(cache: Cache) -> tuple[int, int, int]:
    stats = cache.stats
    return stats.free, stats.cached, stats.leased


def test_lease_released_twice_raises():
    lease = Cache(4, 2).lease([1, 2], 1)
    lease.release()
    with pytest.raises(EngineError, match="given back already"):
        lease.release()


@pytest.mark.parametrize("use", [lambda lease: lease.reserve(1), lambda lease: lease.computed([1], 0)])
def test_a_released_lease_can_not_be_used(use):
    lease = Cache(4, 2).lease([1, 2], 1)
    lease.release()
    with pytest.raises(EngineError, match="given back already"):
        use(lease)


def test_pages_are_free_then_leased_then_cached():
    cache = Cache(4, 2)
    lease = cache.lease([1, 2, 3], 2)
    assert counts(cache) == (4, 0, 0)
    assert lease.reserve(3)
    assert counts(cache) == (2, 0, 2)
    lease.computed([1, 2, 3], 3)
    assert counts(cache) == (2, 0, 2)
    lease.release()
    assert counts(cache) == (3, 1, 0), "the full page stays, the page of one token doesn't"


@pytest.mark.parametrize("page_size", [1, 2, 64])
def test_a_match_is_whole_pages_of_what_is_cached_and_allowed(page_size):
    length = 3 * page_size + 1
    tokens = list(range(length))
    cache = Cache(8, page_size)
    fill(cache, tokens)
    for limit in range(length + 1):
        assert hit(cache, tokens, limit) == page_size * (min(length, limit) // page_size)
    for shared in range(length):
        other = tokens[:shared] + [-5] * 8
        assert hit(cache, other) == page_size * (shared // page_size)


def test_a_limit_below_zero_or_past_the_end_is_no_error():
    cache = Cache(4, 1)
    fill(cache, [1, 2, 3])
    assert hit(cache, [1, 2, 3], -1) == 0
    assert hit(cache, [1, 2, 3], 99) == 3


def test_a_page_joins_the_tree_as_soon_as_it_is_computed():
    cache = Cache(8, 2)
    first = cache.lease([1, 2, 3, 4], 3)
    assert first.reserve(4)
    first.computed([1, 2, 3, 4], 2)
    second = cache.lease([1, 2, 3, 4], 3)
    assert second.cached_tokens == 2
    assert second.pages == first.pages[:1]
    cache.check()


def test_two_requests_that_compute_the_same_prefix_end_with_one_copy():
    cache = Cache(8, 2)
    first, second = (cache.lease([1, 2, 3, 4, 5], 4) for _ in range(2))
    for lease in (first, second):
        assert lease.reserve(5)
    assert counts(cache) == (2, 0, 6)
    first.computed([1, 2, 3, 4, 5], 4)
    second.computed([1, 2, 3, 4, 5], 2)
    second.computed([1, 2, 3, 4, 5], 5)
    cache.check()
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2], "the page that isn't full is each one's own"
    assert counts(cache) == (4, 0, 4)
    assert cache.stats.merged == 2
    first.release()
    second.release()
    assert counts(cache) == (6, 2, 0)


def test_a_lone_request_can_always_have_every_page_after_a_merge():
    cache = Cache(4, 1)
    first, second = (cache.lease([1, 2, 3], 2) for _ in range(2))
    assert first.reserve(2)
    assert second.reserve(2)
    for lease in (first, second):
        lease.computed([1, 2], 2)
    first.release()
    assert second.reserve(4)
    cache.check()


def test_salts_do_not_share():
    cache = Cache(8, 2)
    fill(cache, [1, 2], salt="a")
    assert hit(cache, [1, 2], salt="b") == 0
    assert hit(cache, [1, 2]) == 0
    assert hit(cache, [1, 2], salt="a") == 2


def test_a_salt_that_is_gone_leaves_nothing_behind():
    cache = Cache(2, 1)
    for salt in range(100):
        fill(cache, [1, 2], salt=str(salt))
    assert len(cache._tree._roots) <= 2


def test_without_use_cache_a_lease_neither_reads_nor_fills():
    cache = Cache(8, 2)
    fill(cache, [1, 2])
    lease = cache.lease([1, 2, 3, 4], 3, use_cache=False)
    assert lease.cached_tokens == 0
    assert lease.reserve(4)
    lease.computed([1, 2, 3, 4], 4)
    lease.release()
    assert counts(cache) == (7, 1, 0)
    assert hit(cache, [1, 2, 3, 4]) == 2
    assert cache.stats.lookups == 2, "only leases that may match are lookups"


def test_a_disabled_cache_keeps_nothing():
    cache = Cache(8, 2, enabled=False)
    fill(cache, [1, 2])
    assert counts(cache) == (8, 0, 0)
    assert hit(cache, [1, 2]) == 0


def test_reserve_says_no_and_changes_nothing():
    cache = Cache(3, 2)
    fill(cache, [1, 2])
    lease = cache.lease([5], 0)
    assert lease.reserve(2)
    assert not lease.reserve(7)
    assert lease.pages == lease.pages[:1]
    assert counts(cache) == (1, 1, 1)
    assert lease.reserve(6)
    assert counts(cache) == (0, 0, 3)
    cache.check()


def test_evicts_the_prefix_given_back_longest_ago_first():
    cache = Cache(3, 1)
    for token in (1, 2, 3):
        fill(cache, [token])
    assert hit(cache, [1]) == 1
    lease = cache.lease([9], 0)
    assert lease.reserve(1)
    assert [cached(cache, [token]) for token in (1, 2, 3)] == [1, 0, 1], "1 was renewed by its hit"
    assert lease.reserve(2)
    assert [cached(cache, [token]) for token in (1, 2, 3)] == [1, 0, 0]


def test_eviction_that_forgets_renewals_turns_it_red(monkeypatch):
    unlock = PrefixTree.unlock
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    monkeypatch.setattr(PrefixTree, "unlock", lambda tree, node, now: unlock(tree, node, node.last_used or now))
    with pytest.raises(AssertionError, match="1 was renewed by its hit"):
        test_evicts_the_prefix_given_back_longest_ago_first()


def test_evicts_a_prefix_from_its_end():
    cache = Cache(4, 1)
    fill(cache, [1, 2, 3])
    lease = cache.lease([9], 0)
    for held, left in ((1, 3), (2, 2), (3, 1), (4, 0)):
        assert lease.reserve(held)
        cache.check()
        assert cached(cache, [1, 2, 3]) == left


def test_a_leased_prefix_is_never_evicted():
    cache = Cache(4, 1)
    fill(cache, [1, 2, 3])
    reader = cache.lease([1, 2, 9], 2)
    taker = cache.lease([7], 0)
    assert taker.reserve(2)
    assert not taker.reserve(3)
    assert reader.pages == cache.lease([1, 2], 2).pages
    cache.check()


def test_lease_with_room_is_all_or_nothing():
    cache = Cache(4, 2)
    fill(cache, [1, 2, 3, 4])
    before = cache.stats
    assert cache.lease_with_room([1, 2, 9], 2, num_tokens=9) is None
    assert cache.stats == before
    cache.check()
    lease = cache.lease_with_room([1, 2, 9], 2, num_tokens=8)
    assert lease is not None
    assert (lease.cached_tokens, len(lease.pages)) == (2, 4)
    cache.check()


def test_the_matched_prefix_does_not_count_as_room_for_the_rest():
    cache = Cache(2, 1)
    fill(cache, [1, 2])
    assert cache.room == 2
    assert cache.lease_with_room([1, 2, 3], 2, num_tokens=3) is None


def test_flush_is_refused_while_a_lease_is_out():
    cache = Cache(4, 1)
    fill(cache, [1, 2])
    lease = cache.lease([1], 1)
    assert not cache.flush()
    assert hit(cache, [1, 2]) == 2
    lease.release()
    assert cache.flush()
    assert counts(cache) == (4, 0, 0)
    assert hit(cache, [1, 2]) == 0
    assert (cache.stats.flushes, cache.stats.evicted) == (1, 0)


def test_computing_past_the_reserved_pages_raises():
    lease = Cache(4, 2).lease([1, 2, 3], 2)
    assert lease.reserve(2)
    with pytest.raises(EngineError, match="3 tokens computed in a lease of 1 pages"):
        lease.computed([1, 2, 3], 3)


def test_stats_say_what_was_hit():
    cache = Cache(8, 2)
    fill(cache, [1, 2, 3, 4])
    hit(cache, [1, 2, 3, 5], 3)
    stats = cache.stats
    assert (stats.lookups, stats.hits, stats.hit_tokens, stats.lookup_tokens, stats.published) == (2, 1, 2, 3, 2)


# `check` itself: each rule is broken once


def broken_cache() -> tuple[Cache, Lease]:
    cache = Cache(8, 1)
    fill(cache, [1, 2, 3])
    lease = cache.lease([1, 2, 9], 2)
    assert lease.reserve(4)
    cache.check()
    return cache, lease


def lose_a_page(cache: Cache, lease: Lease) -> None:
    cache._free.pop()


def free_a_page_twice(cache: Cache, lease: Lease) -> None:
    cache._free.append(cache._free[0])


def free_a_cached_page(cache: Cache, lease: Lease) -> None:
    cache._free.append(lease.pages[0])


def forget_a_lock(cache: Cache, lease: Lease) -> None:
    lease.path[-1].leases = 0


def forget_a_lease(cache: Cache, lease: Lease) -> None:
    del cache._leases[lease.serial]


def swap_a_page(cache: Cache, lease: Lease) -> None:
    lease.pages = (lease.pages[1], lease.pages[0], *lease.pages[2:])


def evict_a_leased_node(cache: Cache, lease: Lease) -> None:
    node = lease.path[-1]
    assert node.parent is not None
    node.parent.children.clear()


def miscount_cached_pages(cache: Cache, lease: Lease) -> None:
    cache._tree.num_unlocked += 1


def forget_an_evictable_leaf(cache: Cache, lease: Lease) -> None:
    cache._tree._oldest.clear()


def use_a_child_after_its_parent(cache: Cache, lease: Lease) -> None:
    lease.release()
    node = next(node for node in cache._tree.nodes() if node.parent and not node.children)
    node.last_used = 99


@pytest.mark.parametrize(
    "defect",
    [
        lose_a_page,
        free_a_page_twice,
        free_a_cached_page,
        forget_a_lock,
        forget_a_lease,
        swap_a_page,
        evict_a_leased_node,
        miscount_cached_pages,
        forget_an_evictable_leaf,
        use_a_child_after_its_parent,
    ],
    ids=lambda defect: defect.__name__,
)
def test_check_sees(defect):
    cache, lease = broken_cache()
    defect(cache, lease)
    with pytest.raises(EngineError, match="cache check"):
        cache.check()
