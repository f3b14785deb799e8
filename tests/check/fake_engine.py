"""A stand-in for an engine: its logits are a hash of the tokens *as read back from its page memory*, in real batches.

It has pages, a prefix tree, chunked prefill, continuous batching and counters, so questions about hits, widths
and cuts have true answers. One planted `defect` at a time makes it wrong in the way that real engines are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tests.check.defects import WRONG_ROWS, At

VOCAB = 128
IDS = np.arange(VOCAB, dtype=np.uint64)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SMALL_POOLS = {"resumed": 500, "resumed_late": 700, "evicted_hit": 500, "host_copy": 500}


def mix(state: int, word: int) -> int:
    """One step of a 64-bit hash."""
    value = (
        state ^ (word + 0x9E3779B97F4A7C15 + ((state << 6) & 0xFFFFFFFFFFFFFFFF) + (state >> 2))
    ) & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def spread(state: int) -> np.ndarray:
    """Uniform numbers in (0, 1) for every id."""
    with np.errstate(over="ignore"):
        value = (IDS + np.uint64(state)) * GOLDEN
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


@lru_cache(maxsize=100_000)
def logprobs(state: int, *, wrong: bool, other_way: bool) -> np.ndarray:
    """The row of a state; nobody writes into it, so all who have this state share it."""
    logits = (spread(state) * 9.0).astype(np.float32)
    if wrong:
        logits = logits + np.float32(2e-5) * spread(state ^ 5).astype(np.float32)
    largest = logits.max()
    odds = np.exp(logits - largest)
    row = np.log(odds / odds.sum()) if other_way else logits - (largest + np.log(odds.sum()))
    row.flags.writeable = False
    return row


@dataclass
class FakeRequest:
    prompt: list[int]
    new_tokens: int
    score_from: int = -1
    temperature: float = 0.0
    seed: int = 0
    stream: int = 0
    use_cache: bool = True
    seeded: bool = True
    salt: str = ""
    stop: int | None = None
    top: int = 0
    number: int = 0
    output: list[int] = field(default_factory=list)
    scores: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """(token, row) of prompt positions after score_from."""
    rows: list[np.ndarray] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    done: bool = False
    preempted: bool = False
    stale: bool = False
    hashes: list[tuple[int, int]] = field(default_factory=list)
    """By position: what the hash of a row's keys would be if no page were anybody else's; and of its last page."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output

    @property
    def stopped(self) -> bool:
        return self.stop in self.output

    @property
    def decoding(self) -> bool:
        return bool(self.output) and self.computed == len(self.known) - 1


class FakeEngine:
    def __init__(
        self,
        defect: str = "",
        *,
        page: int = 16,
        chunk: int = 48,
        strength: int = 1,
        slots: int = 64,
        pool: int | None = None,
        two_tiers: bool = False,
    ) -> None:
        self.defect, self.page, self.chunk, self.strength, self.slots = defect, page, chunk, strength, slots
        self.pool = pool or SMALL_POOLS.get(defect, 100_000)
        """Tokens that running requests may hold, where the youngest gives way; and tokens of prefixes that are kept."""
        self.second_tier: dict[tuple[object, ...], int] | None = {} if two_tiers or defect == "host_copy" else None
        """As `tree`, but the last page's hash; None: the server has one tier."""
        self.memory: dict[int, int] = {}
        """Page id -> hash of what was written into it so far."""
        self.tree: dict[tuple[object, ...], int] = {}
        """Salt and tokens of a chain of full pages -> the last page's id."""
        self.free: list[int] = []
        self.next_page = 0
        self.waiting: list[FakeRequest] = []
        names = "steps chunked_prefills mixed_steps preemptions submitted finished aborted evicted loaded"
        self.counters = dict.fromkeys(names.split(), 0)
        self.widths: dict[int, int] = {}
        self.tokens = {"prefill": 0, "decode": 0}
        self.spoiled: set[tuple[object, ...]] = set()
        """What the defect has changed, each thing once: the same row of the same text may be wrong many times."""
        self.weights = 0
        self.hung_up = False
        """A request that had decoded was aborted, and none has come since."""
        self.flushed = False
        self.starts = 1
        self._task: asyncio.Task[None] | None = None

    # The outside

    def submit(self, request: FakeRequest) -> None:
        self.counters["submitted"] += 1
        request.number = self.counters["submitted"]
        self.waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._loop())

    async def finished(self, request: FakeRequest) -> FakeRequest:
        while not request.done:
            await request.changed.wait()
            request.changed.clear()
        return request

    def abort(self, request: FakeRequest) -> None:
        if request not in self.waiting:
            return
        self.waiting.remove(request)
        request.done = True
        self.hung_up = self.hung_up or bool(request.output)
        self.counters["aborted"] += 1
        if self.defect == "aborted_page":
            for pages in range(request.computed // self.page, len(request.prompt) // self.page):
                self.tree.setdefault((request.salt, *request.prompt[: (pages + 1) * self.page]), self._allocate())
        kept = set(self.tree.values())
        freed = request.pages
        if self.defect == "abort_frees_others" and self.waiting:
            freed = [*freed, *self.waiting[0].pages]
        self.free += [page for page in freed if page not in kept or freed is not request.pages]

    def flush(self) -> bool:
        if self.waiting:
            return False
        self.flushed = True
        self.tree.clear()
        self.free.clear()
        self.memory.clear()
        if self.second_tier:
            self.second_tier.clear()
        return True

    def restart(self) -> None:
        """As a process that is started again: nothing is left but the weights' files."""
        self.flush()
        self.starts += 1
        self.widths.clear()
        self.counters = dict.fromkeys(self.counters, 0)

    def load(self, weights: int) -> None:
        """Other weights; keys of the old ones are worth nothing any more."""
        self.weights = weights
        if self.defect != "old_weights":
            self.flush()

    def flush_first_tier(self) -> None:
        self._evict(0)

    # Steps

    async def _loop(self) -> None:
        while self.waiting:
            for _ in range(3):  # arrivals and readers get their turn, as they do while a real step runs
                await asyncio.sleep(0)
            self._step()

    def _step(self) -> None:
        self._preempt()
        budget = self.chunk
        plan: list[tuple[FakeRequest, int]] = []
        for request in sorted(self.waiting[: self.slots], key=lambda one: not one.decoding):
            count = min(budget, len(request.known) - request.computed) if request.pages or request.computed else 0
            if not request.pages:
                if plan and self._held() + len(request.known) + 1 > self.pool:
                    break
                self._admit(request)
                count = min(budget, len(request.known) - request.computed)
            if count > 0:
                plan.append((request, count))
                budget -= count
        decodes = sum(request.decoding for request, _ in plan)
        self._count(plan, decodes)
        ages = len({len(request.output) for request, _ in plan if request.decoding})
        for slot, (request, count) in enumerate(plan):
            self._run(request, count, slot, decodes, mixed=decodes < len(plan), ages=ages)
        self.waiting = [request for request in self.waiting if not request.done]

    def _count(self, plan: Sequence[tuple[FakeRequest, int]], decodes: int) -> None:
        self.counters["steps"] += 1
        self.counters["mixed_steps"] += 0 < decodes < len(plan)
        self.counters["chunked_prefills"] += sum(
            request.computed + count < len(request.known) for request, count in plan
        )
        if decodes:
            self.widths[decodes] = self.widths.get(decodes, 0) + 1

    def _held(self) -> int:
        return sum(len(one.known) + 1 for one in self.waiting if one.pages)

    def _preempt(self) -> None:
        """The youngest request gives its pages back and computes everything anew when it fits again."""
        held = [request for request in self.waiting[: self.slots] if request.pages]
        while len(held) > 1 and sum(len(one.known) + 1 for one in held) > self.pool:
            youngest = held.pop()
            kept = set(self.tree.values())
            self.free += [page for page in youngest.pages if page not in kept]
            youngest.pages, youngest.computed = [], 0
            youngest.preempted = True
            self.counters["preemptions"] += 1
            self.waiting.remove(youngest)
            self.waiting.append(youngest)

    def _admit(self, request: FakeRequest) -> None:
        limit = len(request.prompt) - 1
        if request.score_from >= 0:
            limit = min(limit, request.score_from)
        matched: list[int] = []
        while request.use_cache and (len(matched) + 1) * self.page <= limit:
            key = (request.salt, *request.prompt[: (len(matched) + 1) * self.page])
            if key not in self.tree and not self._load(key):
                break
            matched.append(self.tree[key])
        if self.defect == "match_one_more" and matched and (len(matched) + 1) * self.page <= limit:
            parent = (request.salt, *request.prompt[: len(matched) * self.page])
            wrong = [
                page
                for key, page in self.tree.items()
                if len(key) == len(parent) + self.page and key[: len(parent)] == parent
            ]
            matched += wrong[:1]
        if self.defect == "every_64" and matched and len(request.prompt) % 64 == 0:
            matched[-1] = matched[0]
        request.pages = matched
        request.computed = request.cached = len(matched) * self.page
        request.stale, self.hung_up = self.hung_up, False
        request.stale |= self.defect == "after_flush" and self.flushed
        self.flushed = False
        if self.defect == "page_hash" and request.use_cache:
            self._match_anywhere(request, limit)
        if self.defect == "unfinished_page":
            self._take_over(request, limit)
        if request.preempted:
            request.cached = 0  # what an answer reports is the first admission's; here always none
        if self.defect == "cached_count" and matched:
            request.cached += self.page

    def _match_anywhere(self, request: FakeRequest, limit: int) -> None:
        """Pages by their own ids. Keys know what was before them; the hash of a page here doesn't, so it is changed."""
        pages = {key[-self.page :]: page for key, page in self.tree.items()}
        while (len(request.pages) + 1) * self.page <= limit:
            start = len(request.pages) * self.page
            page = pages.get(tuple(request.prompt[start : start + self.page]))
            if page is None:
                break
            request.pages.append(self._allocate())
            self.memory[request.pages[-1]] = mix(self.memory[page], 1)
        request.computed = request.cached = len(request.pages) * self.page

    def _take_over(self, request: FakeRequest, limit: int) -> None:
        """The pages of a request with the same beginning count as computed once they are planned."""
        for other in self.waiting:
            if other is request or not other.pages or other.output:
                continue
            pages = request.computed // self.page
            while (pages + 1) * self.page <= min(limit, len(other.prompt) - 1):
                end = (pages + 1) * self.page
                if other.prompt[:end] != request.prompt[:end]:
                    break
                pages += 1
            while len(request.pages) < pages:
                request.pages.append(self._allocate())
            request.computed = request.cached = pages * self.page

    def _load(self, key: tuple[object, ...]) -> bool:
        if not self.second_tier or key not in self.second_tier:
            return False
        page = self.tree[key] = self._allocate()
        self.memory[page] = self.second_tier[key] ^ (self.defect == "host_copy")
        self.counters["loaded"] += 1
        return True

    def _evict(self, kept_pages: int) -> None:
        """The oldest prefixes go, but for those that a request reads."""
        read = {page for request in self.waiting for page in request.pages}
        for key in [key for key, page in self.tree.items() if page not in read]:
            if len(self.tree) <= kept_pages:
                break
            page = self.tree[key] if self.defect == "evicted_hit" else self.tree.pop(key)
            if self.second_tier is not None:
                self.second_tier[key] = self.memory[page]
            self.free.append(page)
            self.counters["evicted"] += 1

    def _allocate(self) -> int:
        if self.free:
            page = self.free.pop(0)
        else:
            page, self.next_page = self.next_page, self.next_page + 1
        self.memory[page] = 0
        return page

    def _run(self, request: FakeRequest, count: int, slot: int, decodes: int, *, mixed: bool, ages: int) -> None:
        decoding = request.decoding
        cut = request.computed > request.cached and not decoding
        for offset, token in enumerate(request.known[request.computed : request.computed + count]):
            position = request.computed + offset
            if position % self.page == 0:
                request.pages.append(self._allocate())
            page = request.pages[position // self.page]
            changed = VOCAB * 3 if decoding and self.defect == "decoded_page" else 0
            self.memory[page] = mix(self.memory[page], token + 1009 * self.weights + changed)
            last = position == len(request.known) - 1
            scored = 0 <= request.score_from <= position < len(request.prompt) - 1
            if last or scored:
                at = At(position, slot, decodes, ages, decoding, mixed, first_of_chunk=cut and offset == 0)
                wrong = self._is_wrong(request, at)
                row = self._row(request, position, decoding, wrong)
                if scored:
                    request.scores.append((request.prompt[position + 1], row))
                if last and request.new_tokens:
                    request.rows.append(row)
                    request.output.append(self._draw(request, row, position, slot))
        request.computed += count
        self.tokens["decode" if decoding else "prefill"] += count
        self._keep(request)
        seen = request.output[:-1] if self.defect == "late_stop" and decodes > 1 else request.output
        full = len(request.output) == request.new_tokens and request.computed >= len(request.prompt)
        if request.stopped and request.stop not in seen:
            self._spoil(request, "end", len(request.known) - 1)
        if full or request.stop in seen:
            request.done = True
            self.counters["finished"] += 1
            kept = set(self.tree.values())
            self.free += [page for page in request.pages if page not in kept or self.defect == "stale_page"]
        request.changed.set()

    def _keep(self, request: FakeRequest) -> None:
        for pages in range(request.cached // self.page, request.computed // self.page):
            key = (request.salt, *request.known[: (pages + 1) * self.page])
            self.tree.setdefault(key, request.pages[pages])
        self._evict(self.pool // self.page)

    # Numbers

    def _row(self, request: FakeRequest, position: int, decoding: bool, wrong: bool) -> np.ndarray:
        state = 17
        for page in request.pages[: position // self.page + 1]:
            state = mix(state, self.memory[page])
        if wrong or state != self._own(request, position):
            self._spoil(request, "row", position)
        other_way = decoding and self.defect == "log_softmax" and self._strikes(request, position)
        if other_way:
            self._spoil(request, "row", position)
        return logprobs(state, wrong=wrong, other_way=other_way)

    def _is_wrong(self, request: FakeRequest, at: At) -> bool:
        rule = WRONG_ROWS.get(self.defect)
        return rule is not None and rule(self, request, at) and self._strikes(request, at.position)

    def _strikes(self, request: FakeRequest, position: int) -> bool:
        """A defect of strength n shows in one of n rows that have its cause: which ones depends on their content, as
        with kernels that round differently, or on the request where nothing repeats."""
        content = request.number if self.defect == "every_fifth" else self.memory[request.pages[position // self.page]]
        return self.strength <= 1 or mix(content, position) % self.strength == 0

    def _spoil(self, request: FakeRequest, what: str, position: int) -> None:
        """Known by the text that it is about."""
        self.spoiled.add((what, self._own(request, position), request.stream))

    def _own(self, request: FakeRequest, position: int) -> int:
        """The state of this row, had every page been filled by the request itself."""
        hashes = request.hashes
        for number in range(len(hashes), position + 1):
            before = hashes[number - number % self.page - 1][0] if number >= self.page else 17
            memory = hashes[-1][1] if number % self.page else 0
            memory = mix(memory, request.known[number] + 1009 * self.weights)
            hashes.append((mix(before, memory), memory))
        return hashes[position][0]

    def _draw(self, request: FakeRequest, row: np.ndarray, position: int, slot: int) -> int:
        temperature = request.temperature
        if self.defect == "greedy_draws" and temperature == 0:
            temperature = next((one.temperature for one in self.waiting if one.temperature), 0.0)
            if temperature:
                self._spoil(request, "draw", position)
        if temperature == 0:
            return int(np.argmax(row))
        if self.defect == "after_temperature" and temperature != 1:
            odds = np.exp(row / np.float32(temperature))
            request.rows[-1] = np.log(odds / odds.sum())
            self._spoil(request, "row", position)
        seed = slot if self.defect == "seed_by_slot" else request.seed
        if self.defect == "unseeded_draws" and any(not one.seeded for one in self.waiting):
            seed += 1
        if seed != request.seed:
            self._spoil(request, "draw", position)
        noise = -np.log(-np.log(spread(mix(mix(mix(7, seed), request.stream), position))))
        return int(np.argmax(row / np.float32(temperature) + noise))
