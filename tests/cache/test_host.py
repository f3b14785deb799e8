"""The host tier's integers: what is kept, what makes way, and in which order copies are listed."""

from __future__ import annotations

import pytest

from tests.cache.test_lease import fill
from zerokl.cache import Cache
from zerokl.cache.host import HostShelf
from zerokl.errors import EngineError
from zerokl.types import Copy, Pools


def cache_of(num_pages: int, host_pages: int) -> Cache:
    return Cache(num_pages, 1, host=Pools(host_pages, 1))


def listed(cache: Cache) -> list[tuple[int, int, bool]]:
    copies = cache.take_copies()
    assert all(isinstance(copy, Copy) and copy.kind == "full" for copy in copies)
    return [(copy.source, copy.target, copy.to_host) for copy in copies]


def test_a_page_leaves_with_its_leaf_first_and_comes_back_with_its_root_first():
    cache = cache_of(3, 3)
    fill(cache, [1, 2, 3])
    pages = [node.page for node in cache._tree.match("", [1, 2, 3], 3)]
    cache.flush_device()
    cache.check()
    assert listed(cache) == [(page, place, True) for place, page in enumerate(reversed(pages))]
    lease = cache.lease([1, 2, 3, 4], 3)
    assert lease.cached_tokens == 3
    cache.check()
    assert listed(cache) == [(place, page, False) for place, page in zip((2, 1, 0), lease.pages, strict=True)]
    assert listed(cache) == [], "each copy is given once"


def test_a_page_that_the_host_has_is_evicted_without_another_copy():
    cache = cache_of(2, 2)
    fill(cache, [1, 2])
    cache.flush_device()
    cache.lease([1, 2], 2).release()
    cache.take_copies()
    cache.flush_device()
    cache.check()
    assert listed(cache) == []


def test_spare_copies_make_way_before_the_only_ones():
    cache = cache_of(4, 2)
    fill(cache, [1])
    fill(cache, [2])
    cache.flush_device()
    cache.lease([2], 1).release()  # now on both sides
    fill(cache, [3, 4, 5])
    cache.lease([2], 1).release()
    lease, told = cache.lease([9], 0), []
    for held in range(3):
        assert lease.reserve(held)
        cache.check()
        told += [(kind.free, kind.spare, kind.dropped) for kind in cache.stats.host]
    assert told == [(0, 1, 0), (0, 0, 0), (0, 0, 1)]


def drop_a_leaf_below_what_is_being_loaded() -> Cache:
    """Two pages come back while the host is full: the first that makes way hangs below them."""
    cache = cache_of(3, 3)
    fill(cache, [1, 2, 3])
    cache.flush_device()
    fill(cache, [7, 8, 9])
    lease = cache.lease([1, 2], 2)
    cache.check()
    assert lease.cached_tokens == 2
    return cache


def test_what_is_being_loaded_is_not_dropped():
    cache = drop_a_leaf_below_what_is_being_loaded()
    assert cache.lease([7, 8, 9], 1).cached_tokens == 1, "its root's page is still on the device"


def load_what_fills_the_host() -> None:
    """Nothing can make way, so what leaves the device meanwhile is forgotten."""
    cache = cache_of(3, 2)
    fill(cache, [1, 2])
    cache.flush_device()
    fill(cache, [7, 8, 9])
    lease = cache.lease([1, 2], 2)
    cache.check()
    assert (lease.cached_tokens, cache.stats.cached) == (2, 1)


def test_what_is_being_loaded_does_not_make_way():
    load_what_fills_the_host()


def test_not_holding_what_is_being_loaded_turns_it_red(monkeypatch):
    monkeypatch.setattr(HostShelf, "hold", lambda shelf, node: None)
    with pytest.raises((AssertionError, EngineError)):
        load_what_fills_the_host()


def test_an_evicted_page_that_is_computed_again_is_taken_back_without_a_copy():
    cache = cache_of(4, 4)
    fill(cache, [1, 2])
    cache.flush_device()
    cache.take_copies()
    lease = cache.lease([1, 2], 0)  # may not match: scores are owed
    assert lease.reserve(2)
    lease.computed([1, 2], 2)
    lease.release()
    cache.check()
    assert listed(cache) == []
    (told,) = cache.stats.host
    assert (told.spare, cache.stats.cached) == (2, 2)


def test_a_lease_that_does_not_fit_the_device_is_refused_and_nothing_has_changed():
    cache = cache_of(2, 4)
    fill(cache, [1, 2])
    cache.flush_device()
    cache.take_copies()
    assert cache.lease([9], 0).reserve(1)
    before = cache.stats
    assert cache.lease_with_room([1, 2, 3], 2, num_tokens=3) is None
    with pytest.raises(EngineError, match="no room for a lease of 2 cached pages"):
        cache.lease([1, 2], 2)
    assert cache.stats == before
    cache.check()


# `check` itself


def lose_a_host_place(cache: Cache) -> None:
    cache.host[0]._free.pop()


def forget_a_droppable_copy(cache: Cache) -> None:
    cache.host[0]._lone.clear()


def keep_a_node_without_any_page(cache: Cache) -> None:
    shelf = cache.host[0]
    node = next(iter(shelf._lone.values()))
    shelf._release(node)


@pytest.mark.parametrize(
    "defect",
    [lose_a_host_place, forget_a_droppable_copy, keep_a_node_without_any_page],
    ids=lambda defect: defect.__name__,
)
def test_check_sees(defect):
    cache = cache_of(4, 6)
    fill(cache, [1, 2])
    cache.flush_device()
    cache.check()
    defect(cache)
    with pytest.raises(EngineError, match="cache check"):
        cache.check()
