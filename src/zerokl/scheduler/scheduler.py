"""Continuous batching as a ragged step: decodes first, then prefills, within one token budget.

No choice made here can move a bit of an answer, so the policy is as plain as it can be:

- Order is priority, then arrival. Decodes take one token each, prefills share what the budget leaves, cut anywhere.
- A request is admitted when there are pages for all of its known tokens, so only decodes can run out of pages. Pages
  of sliding layers come and go with the window, so a prefill may find fewer than it wants: it is cut to what fits.
- Out of pages: the last request in that order gives its pages back and queues again. Nobody takes from those before
  it, and a request that could not fit alone is refused at submit, so the first one always progresses.
- With lag 1 a step is planned while the one before is in flight. Pages go back when no step in flight names them.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import merge
from operator import attrgetter

from msgspec import Struct

from zerokl.cache import Cache
from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.scheduler.counters import Counters, SchedulerStats
from zerokl.scheduler.state import MaskSource, Planned, RequestState
from zerokl.types import Finish, Progress, Request, RequestId, SegmentResult, StepPlan, StepResult

_order = attrgetter("order")


class Limits(Struct, frozen=True, kw_only=True):
    """The numbers of the config that the scheduler goes by."""

    context_length: int
    max_running_requests: int = 256
    max_queued_requests: int = 1024
    """Requests waiting for a place among the running, before submit raises NoRoom."""
    chunked_prefill_size: int = 512
    """Token budget of one step."""


class Scheduler:
    """Owns the queue and every request's progress. One thread calls it; nothing in it blocks."""

    def __init__(self, limits: Limits, cache: Cache, lag: int = 0) -> None:
        if lag not in (0, 1):
            raise ValueError(f"lag is 0 or 1, not {lag}: a plan can name one pending token per request")
        self.limits = limits
        self.cache = cache
        self.lag = lag
        self._states: dict[RequestId, RequestState] = {}
        """Requests that haven't ended."""
        self._waiting: list[RequestState] = []
        self._running: list[RequestState] = []
        self._departing: list[RequestState] = []
        """Neither waiting nor running: their pages come back with the commit of a step in flight."""
        self._in_flight: deque[tuple[int, list[Planned]]] = deque()
        self._refused: tuple[RequestState, tuple[int, ...]] | None = None
        """The last request that found no room, and how much there was of each kind: it looks again when one grows."""
        self._notices: list[Progress] = []
        self._arrivals = 0
        self._counters = Counters()

    # What the owner calls

    def submit(self, request: Request, mask: MaskSource | None = None) -> None:
        """Queues a request. Raises NoRoom if the queue is full, InvalidRequest if it can never fit."""
        state = self._new_state(request, mask)
        limits = self.limits
        places = limits.max_running_requests + limits.max_queued_requests
        if len(self._states) >= places:
            self._counters.refused += 1
            raise NoRoom(f"{len(self._states)} requests are running or queued; the limit is {places}")
        self._arrivals += 1
        self._counters.submitted += 1
        self._states[request.request_id] = state
        insort(self._waiting, state, key=_order)

    def abort(self, request_id: RequestId, finish: Finish | None = None) -> bool:
        """Ends a request now; its pages are free within a step. False if it has ended already or was never here."""
        return self.finish(request_id, finish or Finish("abort", message="aborted"))

    def finish(self, request_id: RequestId, finish: Finish) -> bool:
        """Ends a request from outside (a stop string). The next commit reports `finish`, and nothing after it."""
        state = self._states.get(request_id)
        if state is None:
            return False
        self._notices.append(state.progress(finish=finish))
        self._end(state, finish)
        return True

    def plan(self) -> StepPlan | None:
        """The next step, or None if nothing can run before a commit or a submit."""
        if len(self._in_flight) > self.lag:
            raise EngineError(f"{len(self._in_flight)} steps are in flight; the lag is {self.lag}")
        planned = self._plan_decodes(self.limits.chunked_prefill_size)
        planned += self._plan_prefills(self.limits.chunked_prefill_size - len(planned))
        if not planned:
            if self._states and not self._in_flight and not self._departing:
                raise EngineError(f"no request can progress: {self.stats}, {self.cache.stats}")
            return None
        self._counters.record_step(planned)
        step = self._counters.steps
        self._in_flight.append((step, planned))
        return StepPlan(step, tuple(one.segment for one in planned), self.cache.take_copies())

    def commit(self, result: StepResult) -> list[Progress]:
        """Takes the outcome of the oldest step in flight: what each request got from it, in the plan's order."""
        step, planned = self._in_flight.popleft() if self._in_flight else (0, [])
        if step != result.step or len(planned) != len(result.segments):
            given, expected = (result.step, len(result.segments)), (step, len(planned))
            raise EngineError(f"(step, segments) is {given} in the result and {expected} in the plan")
        progress = self.take_notices()
        for one, segment_result in zip(planned, result.segments, strict=True):
            reported = self._commit_segment(one, segment_result)
            if reported:
                progress.append(reported)
        return progress

    def take_notices(self) -> list[Progress]:
        """The endings that `abort` and `finish` caused and no commit has reported yet."""
        notices, self._notices = self._notices, []
        return notices

    @property
    def has_work(self) -> bool:
        """Whether a step, a commit or a notice is due."""
        return bool(self._states or self._departing or self._in_flight or self._notices)

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(len(self._running), len(self._waiting), len(self._departing), self._counters.copy())

    # Submit

    def check(self, request: Request) -> int:
        """How many outputs it may have. Raises InvalidRequest if it can never fit. Any thread may ask."""
        prompt_length, context_length = len(request.prompt), self.limits.context_length
        if not 0 < prompt_length <= context_length:
            raise InvalidRequest(
                f"the prompt has {prompt_length} tokens; 1 to {context_length} (the context length) are allowed",
                code="context_length_exceeded" if prompt_length else None,
            )
        if request.logprob_start > prompt_length:
            raise InvalidRequest(f"logprob_start is {request.logprob_start}; the prompt has {prompt_length} tokens")
        max_outputs = min(request.max_new_tokens, context_length - prompt_length)
        self._check_fits_alone(prompt_length + max(max_outputs - 1, 0))
        return max_outputs

    def _new_state(self, request: Request, mask: MaskSource | None) -> RequestState:
        max_outputs = self.check(request)
        if request.request_id in self._states:
            raise EngineError(f"request id {request.request_id} is in use")
        return RequestState(request, self._arrivals, max_outputs, mask)

    def _check_fits_alone(self, num_slots: int) -> None:
        """The last output is never run, so a request of n tokens needs n - 1 slots."""
        needed, there = self.cache.pages_for(num_slots), self.cache.num_pages
        if needed > there:
            raise InvalidRequest(
                f"the request needs up to {num_slots} token slots ({needed} cache pages); "
                f"the whole cache has {there * self.cache.page_size} ({there} pages)",
                code="context_length_exceeded",
            )

    # Plan

    def _plan_decodes(self, budget: int) -> list[Planned]:
        planned: list[Planned] = []
        for state in [state for state in self._running if state.is_decoding]:
            if len(planned) == budget:
                break
            if state.lease and not state.leaving and self._make_room(state):
                planned.append(state.plan(1))
        return planned

    def _plan_prefills(self, budget: int) -> list[Planned]:
        """Admits as late as it can: a request that the budget doesn't reach may find more in the cache later."""
        planned: list[Planned] = []
        prefilling = [state for state in self._running if state.num_ready > 0 and not state.is_decoding]
        places = max(self.limits.max_running_requests - len(self._running), 0)
        admitting = True
        for state in merge(prefilling, self._waiting[:places], key=_order):
            if budget == 0:
                break
            if state.lease is None:
                admitting = admitting and self._admit(state)
            if state.lease and not state.leaving and self._make_room(state):
                planned.append(state.plan(self._reserve(state, min(state.num_ready, budget))))
                budget -= len(planned[-1].segment.tokens)
        return planned

    def _reserve(self, state: RequestState, count: int) -> int:
        """Room for the next `count` tokens, or for as many as fit: one at least."""
        assert state.lease is not None
        count = min(count, state.lease.reach - state.planned)
        if count < 1 or not state.lease.reserve(state.planned + count):
            raise EngineError(f"room for {count} tokens was counted and isn't there: {self.cache.stats}")
        return count

    def _admit(self, state: RequestState) -> bool:
        """Moves the head of the queue to the running, if there is room for its tokens."""
        if self._refused and self._refused[0] is state and not self._has_grown(self._refused[1]):
            return False
        first_time = state.cached_tokens is None
        if not state.admit(self.cache):
            self._refused = state, self.cache.rooms
            return False
        self._waiting.remove(state)
        insort(self._running, state, key=_order)
        if first_time:
            self._counters.cached_tokens += state.cached_tokens or 0
        return True

    def _has_grown(self, rooms: tuple[int, ...]) -> bool:
        return any(now > then for now, then in zip(self.cache.rooms, rooms, strict=True))

    def _make_room(self, state: RequestState) -> bool:
        """A slot for the next token, taken from the last in order if need be. False: not before the next commit."""
        assert state.lease is not None
        while not state.lease.reserve(state.planned + 1):
            last = self._running[-1]
            if self._departing or last is state:
                return False
            self._preempt(last)
        return True

    def _preempt(self, state: RequestState) -> None:
        self._counters.preemptions += 1
        self._running.remove(state)
        if state.in_flight:
            self._depart(state)
        else:
            self._requeue(state)

    def _depart(self, state: RequestState) -> None:
        state.leaving = True
        self._departing.append(state)

    def _requeue(self, state: RequestState) -> None:
        state.give_back()
        insort(self._waiting, state, key=_order)

    # Commit

    def _commit_segment(self, one: Planned, result: SegmentResult) -> Progress | None:
        state = one.state
        state.in_flight -= 1
        if state.finish:
            self._counters.dropped_tokens += result.token is not None
            self._settle(state)
            return None
        progress = state.commit(one.segment, result)
        self._counters.sampled_tokens += result.token is not None
        self._counters.scored_tokens += len(one.segment.targets)
        if progress and progress.finish:
            self._end(state, progress.finish)
        self._settle(state)
        return progress

    def _end(self, state: RequestState, finish: Finish) -> None:
        """From here on the request reports nothing and publishes no page."""
        self._counters.finished += 1
        self._counters.aborted += finish.kind == "abort"
        state.finish = finish
        del self._states[state.request.request_id]
        _remove(self._waiting, state)
        _remove(self._running, state)
        if not state.leaving:
            self._depart(state)
        self._settle(state)

    def _settle(self, state: RequestState) -> None:
        """Lets a departing request go once no step in flight names its pages."""
        if not state.leaving or state.in_flight:
            return
        self._departing.remove(state)
        if state.finish:
            state.give_back()
        else:
            self._requeue(state)


def _remove(states: list[RequestState], state: RequestState) -> None:
    if state in states:
        states.remove(state)
