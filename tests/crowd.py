"""Requests in a crowd against the same requests alone: the property that all of policy is tested by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tests.fakes import EMPTY, FakeRunner, advance, attend, context_of, draw, key_of, logprobs_of, nothing_past
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.scheduler import Limits, MaskSource, Scheduler
from zerokl.types import (
    Finish,
    Logprobs,
    Pools,
    Progress,
    Request,
    RequestId,
    StatePool,
    StepRunner,
    WindowPool,
)

PLAIN = Pools(0, 1)
"""Full attention only."""


@dataclass
class Answer:
    """Everything that one request was told."""

    tokens: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=Logprobs)
    scores: Logprobs = field(default_factory=Logprobs)
    finish: Finish | None = None
    cached_tokens: int = field(default=0, compare=False)

    def take(self, progress: Progress) -> None:
        assert self.finish is None, f"told something after the end: {progress}"
        if progress.token is not None:
            self.tokens.append(progress.token)
        self.logprobs = self.logprobs.joined(progress.logprobs or Logprobs())
        self.scores = self.scores.joined(progress.scores or Logprobs())
        self.cached_tokens = progress.cached_tokens
        self.finish = progress.finish

    def is_start_of(self, whole: Answer) -> bool:
        """Whether this is `whole` cut short, as an abort may do anywhere."""
        return (
            self.tokens == whole.tokens[: len(self.tokens)]
            and self.logprobs == first_rows(whole.logprobs, self.logprobs.rows)
            and self.scores == first_rows(whole.scores, self.scores.rows)
        )


def first_rows(logprobs: Logprobs, rows: int) -> Logprobs:
    if not rows:
        return Logprobs()
    return Logprobs(
        min(rows, logprobs.rows),
        logprobs.num_top,
        logprobs.num_ids,
        logprobs.chosen[: 4 * rows],
        logprobs.top_ids[: 4 * rows * logprobs.num_top],
        logprobs.top[: 4 * rows * logprobs.num_top],
        logprobs.ids[: 4 * rows * logprobs.num_ids],
    )


def answer_alone(request: Request, context_length: int, mask: MaskSource | None = None, pools: Pools = PLAIN) -> Answer:
    """What `FakeRunner`'s model tells `request`, computed with no cache, no batch and no scheduler.

    Of `pools` only the windows, the page (which is the recurrent layer's chunk) and whether there are states matter.
    """
    tokens, contexts, context, past = list(request.prompt), [], EMPTY, nothing_past(pools)

    def attended(token: int, position: int) -> int:
        made = advance(past, pools, token, position)
        return attend(context, key_of(context_of(context, made, pools), token, position))

    for position, token in enumerate(tokens):
        context = attended(token, position)
        contexts.append(context)
    answer = Answer()
    if request.logprobs and 0 <= request.logprob_start < len(tokens) - 1:
        first = request.logprob_start
        answer.scores = logprobs_of(contexts[first:-1], tokens[first + 1 :], request.logprobs)
    limit = min(request.max_new_tokens, context_length - len(tokens))
    while answer.finish is None and len(answer.tokens) < limit:
        history = (request.prompt, answer.tokens) if request.sampling.needs_history else None
        sampling = request.sampling
        if len(answer.tokens) < request.min_new_tokens and not mask:
            sampling = replace(sampling, logit_bias=tuple((stop, -float("inf")) for stop in request.stop_token_ids))
        token = draw(context, len(tokens), sampling, history, mask(answer.tokens) if mask else None)
        if request.logprobs:
            answer.logprobs = answer.logprobs.joined(logprobs_of([context], [token], request.logprobs))
        answer.tokens.append(token)
        context = attended(token, len(tokens))
        tokens.append(token)
        if token in request.stop_token_ids and len(answer.tokens) > request.min_new_tokens:
            answer.finish = Finish("stop", matched=token)
    answer.finish = answer.finish or Finish("length")
    return answer


@dataclass
class Crowd:
    """An engine, and what it has told each request so far. Checks the cache after every step."""

    engine: Engine
    answers: dict[RequestId, Answer] = field(default_factory=dict)

    def submit(self, request: Request, mask: MaskSource | None = None) -> RequestId:
        self.engine.submit(request, mask)
        self.answers[request.request_id] = Answer()
        return request.request_id

    def step(self) -> list[Progress]:
        told = self.engine.step()
        for progress in told:
            self.answers[progress.request_id].take(progress)
        self.cache.check()
        return told

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def finish_all(self, limit: int = 10_000) -> dict[RequestId, Answer]:
        """Steps until nothing is left, and proves that no page is."""
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, f"no end after {limit} steps: {self.engine.stats}"
        stats = self.cache.stats
        assert stats.leased == 0, f"pages leaked: {stats}"
        assert not any(kind.leased for kind in stats.windows), f"sliding pages leaked: {stats}"
        assert not stats.states or stats.states.leased == stats.states.live_leased == 0, f"slots leaked: {stats}"
        assert all(answer.finish for answer in self.answers.values())
        return self.answers

    def serve(self, *requests: Request) -> list[Answer]:
        """All of them at once, to the end."""
        ids = [self.submit(request) for request in requests]
        self.finish_all()
        return [self.answers[id] for id in ids]

    @property
    def cache(self) -> Cache:
        return self.engine.scheduler.cache

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def runner(self) -> StepRunner:
        return self.engine.runner


def fake_crowd(
    *,
    lag: int = 0,
    num_pages: int = 64,
    page_size: int = 4,
    context_length: int = 64,
    budget: int = 16,
    running: int = 8,
    queued: int = 1000,
    enabled: bool = True,
    windows: tuple[WindowPool, ...] = (),
    states: StatePool | None = None,
    host: Pools | None = None,
) -> Crowd:
    """A crowd over a `FakeRunner`."""
    cache = Cache(num_pages, page_size, enabled, windows=windows, states=states, host=host)
    limits = Limits(
        context_length=context_length,
        max_running_requests=running,
        max_queued_requests=queued,
        chunked_prefill_size=budget,
    )
    runner = FakeRunner(num_pages, page_size, lag, windows, states, host)
    return Crowd(Engine(Scheduler(limits, cache, lag), runner))


def assert_as_alone(
    answers: Mapping[RequestId, Answer],
    requests: Iterable[Request],
    alone: Callable[[Request], Answer],
    cut_short: Sequence[RequestId] = (),
) -> None:
    """Bits: every request was told what it is told alone; those cut short, the start of it."""
    for request in requests:
        answer, expected = answers[request.request_id], alone(request)
        if request.request_id in cut_short:
            assert answer.is_start_of(expected), f"{request} was told {answer}, alone {expected}"
        else:
            assert answer == expected, f"{request} was told {answer}, alone {expected}"
