"""What a case works with: it asks in some circumstance; the lab compares, predicts cache hits, watches counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from statistics import median

from zerokl.check.answers import Answer, Ask
from zerokl.check.ledger import Ledger, Setting
from zerokl.check.logs import Log
from zerokl.check.outcome import Vacuous
from zerokl.check.prefixes import PrefixModel
from zerokl.check.prompts import Prompts
from zerokl.check.sizes import Sizes
from zerokl.check.tally import Span, Tally, Watch
from zerokl.check.targets.base import Can, Facts, Target, TwoTiers

SHARED_BEGINNING = 4
"""Ids that two texts begin with alike to make one think that the second was cached."""
USUAL_WINDOWS, USUAL_TAPS = (512,), 4
"""Where the server doesn't say what its layers see."""
SETTLING_ANSWERS, LONGEST_SETTLING_S = 8, 10.0
WARM_BY_TIME = 0.6
"""Where no count of cached tokens exists: a warm prompt's answer must take less than this part of the cold one's."""


class Lab:
    """One server, the ledger of all its values, and the tally of the case that is running."""

    def __init__(
        self,
        target: Target,
        facts: Facts,
        prompts: Prompts,
        sizes: Sizes,
        *,
        seed: int,
        ledger: Ledger | None = None,
        server: str = "",
    ) -> None:
        self.target = target
        self.facts = facts
        self.prompts = prompts
        self.sizes = sizes
        self.seed = seed
        self.ledger = Ledger() if ledger is None else ledger
        self.server = server
        self.tally = Tally("")
        self.references: dict[Ask, list[Answer]] = {}
        self.not_float32: list[float] = []
        self.num_numbers = 0
        self._answer_s: list[float] = []
        """What answers took, alone and cold."""
        self.num_unrecorded = 0
        """Requests whose answers nobody looks at."""
        self.restart: Callable[[], Awaitable[None]] | None = None
        """Starts the server anew; returns once the command is done, whether or not the server answers yet."""
        self.other_weights = ""
        """As the server would be asked to load them."""
        self.epoch = 0
        """How often the server was started anew, or its weights exchanged."""
        self.log: Log | None = None
        """The server's, where it can be read."""
        self.edges: list[int] = []
        """Lengths of prompts from which on the bits are others."""
        self.on_answer: Callable[[], None] = lambda: None
        room = facts.pool_tokens if facts.kept_tokens is None else facts.kept_tokens
        self._prefixes = PrefixModel(facts.page_size or 1, room, facts.cache_page or 0)
        self._watch: Watch | None = None
        self._number = 0
        self._flushed = False

    # Facts

    @property
    def num_answers(self) -> int:
        return self._number

    @property
    def widest(self) -> int:
        """As many requests as the server runs at a time."""
        return self.facts.max_running or 10_000

    def can(self, ability: Can) -> bool:
        return ability in self.target.abilities

    @property
    def page(self) -> int:
        """The unit of prompt lengths: a page of the cache, or as many small ones as make 16 tokens."""
        size = self.facts.page_size or 16
        return size * -(-16 // size)

    @property
    def chunk(self) -> int:
        return self.facts.chunk or 512

    @property
    def window(self) -> int:
        """Of the layers that see farthest among those with a window; a page, if no layer has one that fits."""
        windows = USUAL_WINDOWS if self.facts.windows is None else self.facts.windows
        return max((one for one in windows if 2 * one + 6 * self.page < self.facts.context), default=self.page)

    @property
    def taps(self) -> int:
        """Tokens around a boundary that are worth a try each: as many as a short convolution sees."""
        return USUAL_TAPS if self.facts.taps is None else max(self.facts.taps, 1)

    @property
    def usual_answer_s(self) -> float:
        """What an answer took, alone and cold: in the middle, since one stall of the machine says nothing."""
        return median(self._answer_s) if self._answer_s else 0.0

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def greedy(self, ids: Sequence[int], new_tokens: int) -> Ask:
        return Ask(tuple(ids), new_tokens, score_from=0 if self.can(Can.PROMPT_LOGPROBS) else None, top=self.sizes.top)

    # Asking

    async def flush(self) -> None:
        if self.can(Can.FLUSH):
            await self.target.flush()
            self._prefixes.flush()
            self._flushed = True

    def new_epoch(self) -> None:
        """The server is another than before, and its cache is empty."""
        self.epoch += 1
        self._prefixes.flush()

    def may_be_cached(self, asks: Iterable[Ask]) -> None:
        """By clients that hung up: all of it, a part, or nothing."""
        for ask in asks:
            self._prefixes.learn(ask.ids, len(ask.ids))
        self._prefixes.unsure = True

    async def unrecorded(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answers that are no business of the ledger."""
        self.num_unrecorded += len(asks)
        return [group[0] for group in await self.target.ask(asks)]

    async def settle(self) -> None:
        """Time for a server that answers on although its client is gone, so that who comes next is alone."""
        if not self.can(Can.COUNTERS):
            await asyncio.sleep(min(LONGEST_SETTLING_S, SETTLING_ANSWERS * self.usual_answer_s))

    async def flush_first_tier(self) -> None:
        """Of a cache with two: all that is cached is then on the second."""
        assert isinstance(self.target, TwoTiers), "the case needs Can.TWO_TIERS"
        await self.target.flush_first_tier()

    async def reference(self, ask: Ask) -> list[Answer]:
        """The answer alone and from a cold cache; asked once per run."""
        if ask not in self.references:
            self.references[ask] = await self.cold(ask)
        return self.references[ask]

    async def cold(self, ask: Ask, how: str = "alone, cold") -> list[Answer]:
        """Cold where the cache can be emptied; where it can't, whatever the server makes of it."""
        await self.flush()
        started = time.monotonic()
        answers = await self.alone(ask, how)
        self._answer_s.append(time.monotonic() - started)
        return answers

    async def alone(self, ask: Ask, how: str) -> list[Answer]:
        return (await self.together([ask], how))[0]

    async def together(self, asks: Sequence[Ask], how: str, *, neighbours: int = 0) -> list[list[Answer]]:
        """All at once, in one request where the server takes lists; besides `neighbours` that run already."""
        if len(asks) > 1 and self.can(Can.STREAM) and not self.can(Can.COUNTERS):
            return await self._in_streams(asks, how)
        low, high = self._predicted(asks)
        return self._recorded(
            await self.target.ask(asks), Setting(self.tally.name, how, neighbours=neighbours), low, high
        )

    async def apart(self, asks: Sequence[Ask], how: str, pauses: Sequence[float] = ()) -> list[list[Answer]]:
        """Each on a connection of its own, all at once or each after its pause in seconds."""
        if self.can(Can.STREAM) and not self.can(Can.COUNTERS):
            return await self._in_streams(asks, how, pauses)
        low, high = self._predicted(asks)
        waits = pauses or [0.0] * len(asks)
        groups = await all_of(_after(wait, self._first_of, ask) for wait, ask in zip(waits, asks, strict=True))
        return self._recorded(groups, Setting(self.tally.name, how), low, high)

    async def stream(
        self, ask: Ask, how: str, on_token: Callable[[int], None] = lambda _: None, *, neighbours: int = 0
    ) -> list[Answer]:
        """Streamed, while `neighbours` others run: a cache hit may then be longer than predicted, not shorter."""
        low, _ = self._predicted([ask])
        answers = await self._timed_stream(ask, on_token)
        setting = Setting(self.tally.name, how, stream=True, neighbours=neighbours)
        return self._recorded([answers], setting, low, [len(ask.ids)])[0]

    async def echo(self, ask: Ask, how: str) -> list[Answer]:
        answers = await self.target.echo(ask)
        return self._recorded([answers], Setting(self.tally.name, how, route="completions"), [0], [0])[0]

    async def _in_streams(self, asks: Sequence[Ask], how: str, pauses: Sequence[float] = ()) -> list[list[Answer]]:
        """Streams show by their times that they met; what can't be streamed (prompt scores) is sent beside them."""
        low, high = self._predicted(asks)

        def one(ask: Ask) -> Awaitable[list[Answer]]:
            return self._first_of(ask) if ask.score_from is not None else self._timed_stream(ask, lambda _: None)

        waits = pauses or [0.0] * len(asks)
        groups = await all_of(_after(wait, one, ask) for wait, ask in zip(waits, asks, strict=True))
        return self._recorded(groups, Setting(self.tally.name, how), low, high)

    async def _first_of(self, ask: Ask) -> list[Answer]:
        return (await self.target.ask([ask]))[0]

    async def _timed_stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        span = Span()
        if self._watch is not None:
            self._watch.spans.append(span)
        return await self.target.stream(ask, span.timing(on_token))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        """Reads the counters before and after; the watch's numbers are there once the block is left."""
        counting = self.can(Can.COUNTERS)
        self._watch = watch = Watch(self.tally, counting=counting, widest=self.widest)
        before = await self.target.counters()
        try:
            yield watch
        finally:
            self._watch = None
        watch.counted = (await self.target.counters()).since(before)

    # Events

    def happened(self, condition: bool, event: str, otherwise: str) -> None:
        """The event that the case is about; without it the case is no pass."""
        if condition:
            self.tally.event(event)
        else:
            self.tally.fail(otherwise)

    def require(self, condition: bool, reason: str) -> None:
        """A precondition: without it there is no point in going on."""
        if not condition:
            raise Vacuous(reason)

    def expect_hit(self, answers: Sequence[Answer], at_least: int) -> None:
        """Every one of these took `at_least` tokens or more from the cache, by the server's own count."""
        cached = [answer.cached_tokens or 0 for answer in answers]
        self.happened(
            min(cached) >= at_least,
            "cached tokens reused",
            f"{min(cached)} tokens came from the cache, the case needs {at_least}",
        )

    def expect_cached(self, answers: Sequence[Answer], tokens: Sequence[int], event: str) -> None:
        """Exactly so many tokens of each came from the cache, where the count can be predicted; else at least so many
        if any are expected."""
        for answer, expected in zip(answers, tokens, strict=True):
            cached = answer.cached_tokens or 0
            right = cached == expected if self.can(Can.EXACT_CACHED_COUNT) else cached >= min(expected, 1)
            self.happened(right, event, f"{event}: cached_tokens is {cached}, expected {expected}")

    async def expect_hit_by_time(self, ask: Ask) -> None:
        """Where no count exists: a long prompt, asked again, must be answered much sooner."""
        cold, warm = await self._seconds(ask), min([await self._seconds(ask) for _ in range(2)])
        self.happened(
            warm < WARM_BY_TIME * cold,
            f"cache hits by time only: {1000 * warm:.0f} ms against {1000 * cold:.0f} ms cold",
            f"no count of cached tokens, and a repeated prompt took {1000 * warm:.0f} ms against {1000 * cold:.0f} ms",
        )

    async def _seconds(self, ask: Ask) -> float:
        started = time.monotonic()
        await self.target.ask([ask])
        return time.monotonic() - started

    # Comparing

    def _predicted(self, asks: Sequence[Ask]) -> tuple[list[int], list[int]]:
        """Cached tokens of each ask: at least, and at most (a neighbour that runs first may leave more)."""
        low = [self._prefixes.predict(ask) for ask in asks]
        if len(asks) == 1 and asks[0].samples == 1:
            return low, low
        shared = self._prefixes.copy()
        for ask in asks:
            shared.learn(ask.ids, len(ask.ids))
        return low, [shared.predict(ask) for ask in asks]

    def _recorded(
        self, groups: Sequence[Sequence[Answer]], setting: Setting, low: Sequence[int], high: Sequence[int]
    ) -> list[list[Answer]]:
        setting, self._flushed = replace(setting, first=self._flushed), False
        for place, group in enumerate(groups):
            for answer in group:
                neighbours = max(setting.neighbours, len(groups) - 1, answer.ask.samples - 1)
                perhaps = answer.cached_tokens is None and low[place] >= SHARED_BEGINNING
                self._observe(answer, replace(setting, neighbours=neighbours, place=place, perhaps_cached=perhaps))
                self._check_cached(answer, low[place], high[place])
            self.on_answer()
        for answer in (answer for group in groups for answer in group):
            computed = len(answer.text_ids) - 1 if answer.output else len(answer.ask.ids)
            self._prefixes.learn(answer.text_ids, computed)
        return [list(group) for group in groups]

    def _observe(self, answer: Answer, setting: Setting) -> None:
        self._number += 1
        setting = replace(
            setting,
            number=self._number,
            epoch=self.epoch,
            server=self.server,
            cached_tokens=answer.cached_tokens,
            prompt_tokens=len(answer.ask.ids),
            temperature=answer.ask.temperature,
            top=answer.ask.top,
        )
        tally = self.tally
        comparison = self.ledger.observe(
            answer,
            setting,
            scaled=not self.can(Can.RAW_LOGPROBS),
            unseeded_repeats=self.can(Can.UNSEEDED_REPEATS),
        )
        tally.answers += 1
        tally.values += comparison.values
        tally.positions += comparison.positions
        tally.differing += comparison.differing
        tally.comparisons.append(comparison)
        self.not_float32 += answer.not_float32
        self.num_numbers += sum((row.logprob is not None) + len(row.top) for row in answer.rows)
        for problem in answer.problems:
            tally.fail(f"{setting.describe()}: {problem}")

    def _check_cached(self, answer: Answer, low: int, high: int) -> None:
        """Once something may have been evicted, a hit may be shorter, but still not longer than what was computed."""
        if not self.can(Can.EXACT_CACHED_COUNT):
            return
        cached = answer.cached_tokens
        low = low if self._prefixes.certain else 0
        if cached is None or not low <= cached <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            self.tally.fail(f"cached_tokens is {cached}, expected {expected} of {len(answer.ask.ids)}")
        elif low == high and low > 0:
            self.tally.event("cache hits of exactly the predicted length")


async def _after(seconds: float, send: Callable[[Ask], Awaitable[list[Answer]]], ask: Ask) -> list[Answer]:
    await asyncio.sleep(seconds)
    return await send(ask)


async def all_of(asked: Iterable[Awaitable[list[Answer]]]) -> list[list[Answer]]:
    """Awaits all; the first error is raised once every other has ended, so that nothing is left running."""
    groups = []
    for result in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        groups.append(result)
    return groups
