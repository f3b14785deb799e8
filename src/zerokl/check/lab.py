"""What a case works with: it asks in some circumstance; the lab compares, predicts cache hits, watches counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

from zerokl.check.answers import Answer, Ask
from zerokl.check.ledger import Comparison, Ledger, Setting
from zerokl.check.outcome import Vacuous
from zerokl.check.prefixes import PrefixModel
from zerokl.check.prompts import Prompts
from zerokl.check.sizes import Sizes
from zerokl.check.targets.base import Can, Counters, Facts, Target


@dataclass(slots=True)
class Tally:
    """What one case has compared and seen so far."""

    name: str
    answers: int = 0
    values: int = 0
    positions: int = 0
    differing: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Why the case is not a pass even if nothing differed."""
    fatal: bool = False
    """The server is gone or the budget spent: no later case can run."""

    def event(self, words: str) -> None:
        if words not in self.events:
            self.events.append(words)

    def fail(self, words: str) -> None:
        if words not in self.failures:
            self.failures.append(words)


class Watch:
    """Counters around a stretch of requests."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.counted = Counters()

    def expect_width(self, width: int, steps: int) -> None:
        """At least `steps` steps decoded exactly `width` requests."""
        seen = self.counted.widths.get(width, 0)
        if seen < steps:
            self._tally.fail(f"{seen} steps of width {width}, expected {steps} or more (widths: {self.counted.widths})")
        else:
            self._tally.event(f"decode steps of width {width}")

    def expect_some(self, name: str, value: int | None) -> None:
        if not value:
            self._tally.fail(f"no {name} was counted")
        else:
            self._tally.event(name)


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
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = target
        self.facts = facts
        self.prompts = prompts
        self.sizes = sizes
        self.seed = seed
        self.ledger = ledger or Ledger()
        self.server = server
        self.tally = Tally("")
        self.not_float32: list[float] = []
        self.num_numbers = 0
        self.on_answer = on_answer
        self._prefixes = PrefixModel(facts.page_size or 1, facts.pool_tokens)
        self._references: dict[Ask, list[Answer]] = {}
        self._number = 0

    # Facts

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

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def greedy(self, ids: Sequence[int], new_tokens: int) -> Ask:
        return Ask(tuple(ids), new_tokens, score_from=0 if self.can(Can.PROMPT_LOGPROBS) else None, top=self.sizes.top)

    # Asking

    async def flush(self) -> None:
        if self.can(Can.FLUSH):
            await self.target.flush()
        self._prefixes.flush()

    async def reference(self, ask: Ask) -> list[Answer]:
        """The answer alone and from a cold cache; asked once per run."""
        if ask not in self._references:
            self._references[ask] = await self.cold(ask)
        return self._references[ask]

    async def cold(self, ask: Ask, how: str = "alone, cold") -> list[Answer]:
        await self.flush()
        return await self.alone(ask, how)

    async def alone(self, ask: Ask, how: str) -> list[Answer]:
        return (await self.together([ask], how))[0]

    async def together(self, asks: Sequence[Ask], how: str) -> list[list[Answer]]:
        """All in one request, so that they reach the server at once."""
        low, high = self._predicted(asks)
        groups = await self.target.ask(asks)
        for place, (group, span) in enumerate(zip(groups, zip(low, high, strict=True), strict=True)):
            self._record(group, Setting(self.tally.name, how, neighbours=len(asks) - 1, place=place), span)
        self._learn(groups)
        return groups

    async def apart(self, asks: Sequence[Ask], how: str, pauses: Sequence[float] = ()) -> list[list[Answer]]:
        """Each on a connection of its own, at the same time or each after its pause."""
        low, high = self._predicted(asks)

        async def one(place: int, ask: Ask) -> list[Answer]:
            await asyncio.sleep(pauses[place] if pauses else 0)
            return (await self.target.ask([ask]))[0]

        groups = await _all(one(place, ask) for place, ask in enumerate(asks))
        for place, (group, span) in enumerate(zip(groups, zip(low, high, strict=True), strict=True)):
            self._record(group, Setting(self.tally.name, how, neighbours=len(asks) - 1, place=place), span)
        self._learn(groups)
        return groups

    async def stream(self, ask: Ask, how: str, on_token: Callable[[int], None] = lambda _: None) -> list[Answer]:
        """Streamed. Other requests may run meanwhile, so a cache hit may be longer than predicted, not shorter."""
        low, _ = self._predicted([ask])
        answers = await self.target.stream(ask, on_token)
        self._record(answers, Setting(self.tally.name, how, stream=True), (low[0], len(ask.ids)))
        self._learn([answers])
        return answers

    async def echo(self, ask: Ask, how: str) -> list[Answer]:
        answers = await self.target.echo(ask)
        self._record(answers, Setting(self.tally.name, how, route="completions"), (0, 0))
        self._learn([answers])
        return answers

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        """Reads the counters before and after; the watch's numbers are there once the block is left."""
        watch = Watch(self.tally)
        before = await self.target.counters()
        yield watch
        watch.counted = (await self.target.counters()).since(before)

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

    def _learn(self, groups: Sequence[Sequence[Answer]]) -> None:
        for answer in (answer for group in groups for answer in group):
            computed = len(answer.text_ids) - 1 if answer.output else len(answer.ask.ids)
            self._prefixes.learn(answer.text_ids, computed)

    def _record(self, answers: Sequence[Answer], setting: Setting, cached: tuple[int, int]) -> None:
        for answer in answers:
            self._number += 1
            self._observe(
                answer,
                replace(
                    setting,
                    number=self._number,
                    server=self.server,
                    cached_tokens=answer.cached_tokens,
                    prompt_tokens=len(answer.ask.ids),
                ),
            )
            self._check_cached(answer, *cached)
        self.on_answer()

    def _observe(self, answer: Answer, setting: Setting) -> None:
        tally = self.tally
        comparison = self.ledger.observe(answer, setting)
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
        if not (self.can(Can.EXACT_CACHED_COUNT) and self._prefixes.certain):
            return
        cached = answer.cached_tokens
        if cached is None or not low <= cached <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            self.tally.fail(f"cached_tokens is {cached}, expected {expected} of {len(answer.ask.ids)}")
        elif low == high and low > 0:
            self.tally.event("cache hits of exactly the predicted length")


async def _all(asked: Iterable[Coroutine[object, object, list[Answer]]]) -> list[list[Answer]]:
    """Runs all; the first error is raised once every other has ended, so that nothing is left running."""
    groups = []
    for result in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        groups.append(result)
    return groups
