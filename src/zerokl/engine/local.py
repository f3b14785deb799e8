"""The engine in the caller's process: the same loop and the same text, stepped by whoever waits for an answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType

from msgspec import Struct, field

from zerokl.engine.intake import Intake
from zerokl.engine.loop import Engine
from zerokl.engine.text import RequestText
from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.types import Finish, Progress, Request, RequestId
from zerokl.wire.messages import Submit
from zerokl.wire.records import Record

CLOSE_S = 5.0


class Ticket(Struct):
    """One request on its way, and the records that nobody has taken yet."""

    place: int
    request: Request
    text: RequestText
    records: deque[Record] = field(default_factory=deque)


class LocalEngine:
    """Several threads may run requests at once: each steps the engine for all."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self.engine = engine
        self.intake = intake
        self._lock = threading.Lock()
        self._tickets: dict[RequestId, Ticket] = {}
        self._unwanted: deque[Ticket] = deque()
        """Of iterators that were left early. Whoever has the lock next ends them: an iterator may be left by the
        garbage collector, in the middle of a step of the same thread."""
        self._failure: BaseException | None = None
        self._is_closed = False

    def run(self, asked: Sequence[tuple[Submit, Sequence[int]]]) -> Iterator[tuple[int, Record]]:
        """Run requests together; gives (request's place, record) as they come, each request's in order.

        Raises InvalidRequest, before anything runs, for the first that can't be taken. Left early, it aborts the rest.
        """
        waiting = deque(self._tickets_of(asked))
        live: dict[int, Ticket] = {}
        try:
            while waiting or live:
                with interrupts_wait(), self._lock:
                    self._end_unwanted()
                    self._submit(waiting, live)
                    if not any(ticket.records for ticket in live.values()):
                        self._step()
                for ticket in list(live.values()):
                    while ticket.records:
                        record = ticket.records.popleft()
                        if record.done is not None:
                            del live[ticket.place]
                        yield ticket.place, record
        finally:
            self._unwanted.extend(live.values())
            if self._lock.acquire(blocking=False):
                try:
                    self._end_unwanted()
                finally:
                    self._lock.release()

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False if something runs. What nobody wants any more is ended first."""
        with interrupts_wait(), self._lock:
            self._end_unwanted()
            while self.engine.has_work and not self._tickets and self._failure is None:
                self._step()
            return self.engine.flush_cache()

    def close(self) -> None:
        """Ends what the runner has started, after the step that another thread is in. Safe to call again.

        A step that doesn't end is not waited for, nor the one that a signal's handler has interrupted to call this.
        """
        is_between_steps = self._lock.acquire(timeout=CLOSE_S)
        try:
            if not self._is_closed:
                self._is_closed = True
                self.engine.close()
        finally:
            if is_between_steps:
                self._lock.release()

    def _tickets_of(self, asked: Sequence[tuple[Submit, Sequence[int]]]) -> Iterator[Ticket]:
        tickets = []
        for place, (submit, prompt) in enumerate(asked):
            try:
                ticket = Ticket(place, *self.intake.take(submit, prompt))
                self.engine.check(ticket.request)
                if ticket.text.mask is not None:
                    ticket.text.mask.compile()
                tickets.append(ticket)
            except InvalidRequest as error:
                raise named(error, place, len(asked)) from None
        return iter(tickets)

    def _submit(self, waiting: deque[Ticket], live: dict[int, Ticket]) -> None:
        """As many as there is room for; the others wait here."""
        if self._is_closed:
            raise EngineError("this LLM was closed")
        if self._failure is not None:
            raise EngineError("the engine failed before and can't be used any more") from self._failure
        while waiting:
            ticket = waiting[0]
            try:
                self.engine.submit(ticket.request, ticket.text.mask)
            except NoRoom:
                if not self.engine.has_work:
                    raise
                return
            self._tickets[ticket.request.request_id] = live[ticket.place] = waiting.popleft()

    def _step(self) -> None:
        try:
            outcomes = self.engine.step()
            for outcome in outcomes:
                self._advance(outcome)
        except BaseException as error:
            self._failure = error
            raise

    def _advance(self, progress: Progress) -> None:
        ticket = self._tickets.get(progress.request_id)
        if ticket is None:
            return
        record = ticket.text.advance(progress)
        if ticket.text.stopped is not None and progress.finish is None:
            self.engine.finish(progress.request_id, ticket.text.stopped)
        if record is not None:
            ticket.records.append(record)
            if record.done is not None:
                del self._tickets[progress.request_id]

    def _end_unwanted(self) -> None:
        """Their last step is reported to nobody."""
        while self._unwanted:
            request_id = self._unwanted.popleft().request.request_id
            if self._tickets.pop(request_id, None) is not None:
                self.engine.abort(request_id, Finish("abort", message="no longer wanted"))


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C ends what is asked and not the engine: it is raised behind the step. A second one is raised at once."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def named(error: InvalidRequest, place: int, count: int) -> InvalidRequest:
    """The error with its prompt's place, if there are several and it is about the prompt."""
    text = f"prompt {place}: {error}" if count > 1 and (error.param == "prompt" or error.code) else str(error)
    return InvalidRequest(text, param=error.param, code=error.code, status=error.status)
