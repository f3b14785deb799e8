"""The engine in the caller's process: the same loop and the same text, stepped by whoever waits for an answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from zerokl.engine.intake import Intake
from zerokl.engine.loop import Engine
from zerokl.engine.text import RequestText
from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.types import Finish, Progress, Request, RequestId
from zerokl.wire.messages import Submit
from zerokl.wire.records import Record


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
        self._failure: Exception | None = None

    def run(self, asked: Sequence[tuple[Submit, Sequence[int]]]) -> Iterator[tuple[int, Record]]:
        """Run requests together; gives (request's place, record) as they come, each request's in order.

        Raises InvalidRequest, before anything runs, for the first that can't be taken. Left early, it aborts the rest.
        """
        waiting = deque(self._tickets_of(asked))
        live: dict[int, Ticket] = {}
        try:
            while waiting or live:
                with self._lock:
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
            with self._lock:
                for ticket in live.values():
                    self._forget(ticket)

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False if something runs."""
        with self._lock:
            return self.engine.flush_cache()

    def _tickets_of(self, asked: Sequence[tuple[Submit, Sequence[int]]]) -> Iterator[Ticket]:
        tickets = []
        for place, (submit, prompt) in enumerate(asked):
            try:
                ticket = Ticket(place, *self.intake.take(submit, prompt))
                if ticket.text.mask is not None:
                    ticket.text.mask.compile()
                tickets.append(ticket)
            except InvalidRequest as error:
                raise named(error, place, len(asked)) from None
        return iter(tickets)

    def _submit(self, waiting: deque[Ticket], live: dict[int, Ticket]) -> None:
        """As many as there is room for; the others wait here."""
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
            except InvalidRequest as error:
                raise named(error, ticket.place, len(waiting) + len(live)) from None
            self._tickets[ticket.request.request_id] = live[ticket.place] = waiting.popleft()

    def _step(self) -> None:
        try:
            outcomes = self.engine.step()
            for outcome in outcomes:
                self._advance(outcome)
        except Exception as error:
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

    def _forget(self, ticket: Ticket) -> None:
        """End a request whose records nobody wants; its last step is reported to nobody."""
        if self._tickets.pop(ticket.request.request_id, None) is not None:
            self.engine.abort(ticket.request.request_id, Finish("abort", message="no longer wanted"))


def named(error: InvalidRequest, place: int, count: int) -> InvalidRequest:
    """The error with its prompt's place, if there are several and it is about the prompt."""
    text = f"prompt {place}: {error}" if count > 1 and (error.param == "prompt" or error.code) else str(error)
    return InvalidRequest(text, param=error.param, code=error.code, status=error.status)
