"""How long a match and an insert take in a large prefix tree: 1,000,000 cached tokens, 10,000 branches.

    python benchmarks/cache/prefix_tree.py

100 trunks of 56 pages, 100 branches each of one page and a token: 15,600 pages of 64 tokens, 998,400 tokens. A match
asks for one branch's 3,648 tokens; an insert is a whole request with a new branch, at a full pool, so it evicts too.
Times are this thread's own, so a busy machine doesn't count. Ends with 1 if a median or 99th percentile is above 1 ms.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator

from zerokl.cache import Cache
from zerokl.types import StatePool, WindowPool

PAGE, TRUNKS, TRUNK_PAGES, BRANCHES = 64, 100, 56, 100
PAGES = TRUNKS * (TRUNK_PAGES + BRANCHES)
SAMPLES = 2000
LIMIT_S = 1e-3


def tokens_of(trunk: int, branch: int) -> list[int]:
    own = random.Random(trunk)
    return [own.randrange(50_000) for _ in range(TRUNK_PAGES * PAGE)] + [trunk * 1_000_000 + branch] * (PAGE + 1)


def request(cache: Cache, tokens: list[int]) -> None:
    """Match, reserve, run and give back."""
    lease = cache.lease_with_room(tokens, len(tokens) - 1, num_tokens=len(tokens))
    assert lease is not None
    lease.reserve(len(tokens))
    lease.state_use(lease.cached_tokens, len(tokens))
    lease.computed(tokens, len(tokens))
    lease.release()


def filled(cache: Cache) -> Cache:
    for trunk in range(TRUNKS):
        trunk_tokens = tokens_of(trunk, 0)[: TRUNK_PAGES * PAGE]
        for branch in range(BRANCHES):
            request(cache, [*trunk_tokens, *[trunk * 1_000_000 + branch] * (PAGE + 1)])
    return cache


def seconds(work: Callable[[list[int]], None], prompts: Iterator[list[int]]) -> list[float]:
    found = []
    for tokens in prompts:
        began = time.thread_time()
        work(tokens)
        found.append(time.thread_time() - began)
    return sorted(found)


def prompts(first_branch: int) -> Iterator[list[int]]:
    for number in range(SAMPLES):
        yield tokens_of(number % TRUNKS, first_branch + number // TRUNKS)


def measure(cache: Cache) -> dict[str, list[float]]:
    filled(cache)
    stats = cache.stats
    assert stats.cached == PAGES, stats

    def match(tokens: list[int]) -> None:
        found = cache.lease(tokens, len(tokens) - 1)
        assert found.cached_tokens == (TRUNK_PAGES + 1) * PAGE, found.cached_tokens
        found.release()

    times = {"match": seconds(match, prompts(0))}
    times["insert"] = seconds(lambda tokens: request(cache, tokens), prompts(1000))
    assert cache.stats.evicted >= SAMPLES
    return times


def caches() -> dict[str, Cache]:
    room = PAGES + 1  # a request has its last token's page as well
    windows, states = [WindowPool(512, room)], StatePool(PAGE, 4, room)
    return {
        "full attention": Cache(room, PAGE),
        "with a window and states": Cache(room, PAGE, windows=windows, states=states),
    }


def main() -> int:
    slow = 0
    print(f"{'cache':<26}{'call':<8}{'median ms':>10}{'p99 ms':>10}{'worst ms':>10}")
    for name, cache in caches().items():
        for call, times in measure(cache).items():
            median, p99, worst = statistics.median(times), times[int(0.99 * len(times))], times[-1]
            slow += max(median, p99) > LIMIT_S
            print(f"{name:<26}{call:<8}{1e3 * median:>10.3f}{1e3 * p99:>10.3f}{1e3 * worst:>10.3f}")
    return min(slow, 1)


if __name__ == "__main__":
    raise SystemExit(main())
