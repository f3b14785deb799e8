"""The whole engine: plan, submit, commit. Policy on one side, numerics on the other, and one queue between them."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct, to_builtins

from zerokl.cache import CacheStats
from zerokl.engine.step_notes import notes_asked_for
from zerokl.errors import EngineError, NoRoom
from zerokl.scheduler import MaskSource, Scheduler, SchedulerStats
from zerokl.types import Finish, Pending, Progress, Request, RequestId, StepPlan, StepRunner


class EngineStats(Struct, frozen=True):
    """For /server_info: what is there now, and counts since the start."""

    draining: bool
    scheduler: SchedulerStats
    cache: CacheStats

    def as_dict(self) -> dict[str, Any]:
        """JSON values: requests and counters at the top level, pages under "cache"."""
        now = to_builtins(self.scheduler)
        counters = now.pop("counters")
        counters["decode_widths"] = {str(width): steps for width, steps in counters["decode_widths"].items()}
        return {"draining": self.draining, **now, **counters, "cache": to_builtins(self.cache)}


class Engine:
    """Runs requests. One thread owns it; `submit`, `abort` and `finish` are called between steps.

    Every request that was submitted ends in exactly one Progress with a `finish`, whatever ended it.
    """

    def __init__(self, scheduler: Scheduler, runner: StepRunner) -> None:
        if scheduler.lag != runner.lag:
            raise ValueError(f"the scheduler plans for lag {scheduler.lag}, the runner has {runner.lag}")
        self.scheduler = scheduler
        self.runner = runner
        self.draining = False
        self._pending: deque[tuple[StepPlan, Pending]] = deque()
        self._notes = notes_asked_for(runner)

    def submit(self, request: Request, mask: MaskSource | None = None) -> None:
        """Queues a request. Raises NoRoom (queue full: 429; draining: 503), InvalidRequest if it can never fit."""
        if self.draining:
            raise NoRoom("the server is shutting down", code="draining", status=503)
        self.scheduler.submit(request, mask)

    def check(self, request: Request) -> None:
        """Raises InvalidRequest if it can never fit. Any thread may ask."""
        self.scheduler.check(request)

    def abort(self, request_id: RequestId, finish: Finish | None = None) -> bool:
        """Ends a request; the next step reports it, and its pages are free then. False: it isn't here (any more)."""
        return self.scheduler.abort(request_id, finish)

    def finish(self, request_id: RequestId, finish: Finish) -> bool:
        """Ends a request for a reason that only its text shows. As `abort`."""
        return self.scheduler.finish(request_id, finish)

    def step(self) -> list[Progress]:
        """One step, and what the step before it (or itself, with lag 0) did for each request.

        Raises EngineError, with the plan's shape, if the runner fails: the engine must not be used after that.
        """
        plan = self.scheduler.plan()
        if plan:
            self._submit(plan)
        if len(self._pending) > (self.runner.lag if plan else 0):
            return self._commit()
        return self.scheduler.take_notices()

    def close(self) -> None:
        """Ends what the runner has started. Nothing can be run afterwards."""
        close = getattr(self.runner, "close", None)
        if close is not None:
            close()

    def drain(self) -> None:
        """From now on nothing is taken in; what is here goes on. Done when `has_work` is False."""
        self.draining = True

    def flush_cache(self) -> bool:
        """Forgets every cached prefix. False, and nothing has changed, while anything runs or waits."""
        return not self.has_work and self.scheduler.cache.flush()

    def flush_device_cache(self) -> None:
        """Evicts what nobody needs now to the host tier, or forgets it if there is none. For tests of that tier."""
        self.scheduler.cache.flush_device()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to report."""
        return bool(self._pending) or self.scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        return EngineStats(self.draining, self.scheduler.stats, self.scheduler.cache.stats)

    def _submit(self, plan: StepPlan) -> None:
        if self._notes is not None:
            self._notes.note(plan)
        try:
            self._pending.append((plan, self.runner.submit(plan)))
        except Exception as error:
            raise EngineError(f"{error} (submit failed: {_shape(plan)})") from error

    def _commit(self) -> list[Progress]:
        plan, pending = self._pending.popleft()
        try:
            result = pending.result()
        except Exception as error:
            raise EngineError(f"{error} (run failed: {_shape(plan)})") from error
        return self.scheduler.commit(result)


def _shape(plan: StepPlan) -> str:
    """A plan without its tokens, which are the client's and don't belong in a log."""
    segments = (f"request {s.request_id} [{s.start}, {s.start + len(s.tokens)})" for s in plan.segments)
    return f"step {plan.step}: {', '.join(segments)}"
