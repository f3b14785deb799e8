"""The engine as a process: sockets on one side, the loop on the other, and queues between them.

    frontends ─▶ reading threads ─▶ inbox ─▶ loop: submit, abort, finish, step ─▶ outbox ─▶ text thread ─▶ frontends
                 (intake: checks,   ▲          ▲                                               │
                  seeds, defaults)  │          └──────────── a stop string ended it ───────────┘
                       └─ grammar threads (a request with a grammar, until it is compiled)

The loop runs on the main thread and never touches a socket or a tokenizer. The text thread never waits for a socket
(`Connection.send` only queues) nor for the loop, so the loop may wait for it. Each request that was taken ends in
exactly one record with `done`, unless its frontend is gone.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType

from msgspec import Struct
from msgspec.structs import replace

from zerokl.engine.controls import Controls
from zerokl.engine.grammar import GrammarMask
from zerokl.engine.intake import Intake
from zerokl.engine.ledger import Entry, Ledger
from zerokl.engine.loop import Engine, EngineStats
from zerokl.errors import CallerError, InvalidRequest, NoRoom
from zerokl.types import Finish, Progress, Request, RequestId
from zerokl.wire.frames import Frame, WireError, encode
from zerokl.wire.messages import Abort, Done, Heartbeat, Hello, Submit, ToEngine
from zerokl.wire.records import Record, encode_step
from zerokl.wire.server import Connection, WireServer

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
GRAMMAR_THREADS = 2
"""So that one grammar that takes long doesn't keep all others waiting."""
MAX_STEPS_BEHIND = 64
"""How far the text may lag the loop before the loop waits."""


class Refusal(Struct, frozen=True):
    """A request that the scheduler did not take."""

    request_id: RequestId
    error: CallerError | NoRoom


Outcome = Progress | Refusal


class EngineProcess:
    """Everything around one engine. `run` returns the exit status when the engine was told to end, or failed."""

    def __init__(self, engine: Engine, intake: Intake, hello: Hello, path: str | Path) -> None:
        self.engine = engine
        self.intake = intake
        self.ledger = Ledger()
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._outbox: queue.Queue[tuple[int, Sequence[Outcome]] | None] = queue.Queue(MAX_STEPS_BEHIND)
        self._server = WireServer(path, lambda: hello, self._receive, self._lost)
        self._controls = Controls(self)
        self._text_thread = threading.Thread(target=self._write_texts, name="text", daemon=True)
        self._compilers = ThreadPoolExecutor(GRAMMAR_THREADS, "grammar")
        self._compiling: set[RequestId] = set()
        """Open requests that the engine doesn't know yet. Only the loop's thread touches it."""
        self._step = 0
        self._figures = Heartbeat(0, 0, 0)
        self._figures_due = 0.0
        self._step_began: float | None = None
        """None between steps."""
        self._ended = threading.Event()
        self._drained_by = float("inf")
        self._failure: BaseException | None = None

    # ---- the loop, on the thread that calls `run`

    def run(self) -> int:
        """Serve until drained. 0: as told. 1: something of ours broke, and every open request was told so."""
        self._server.start()
        self._text_thread.start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            while not (self.engine.draining and not self.engine.has_work and not self._compiling):
                self._turn()
        except Exception as error:  # noqa: BLE001 - the last line of defence: say it everywhere, then end
            self._fail(error)
        self._ended.set()
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._outbox.put(None)
        self._text_thread.join()
        self._server.close()
        if self._failure is not None:
            return 1
        self.engine.close()
        return 0

    def _turn(self) -> None:
        """What came in, then one step, then what is due."""
        self._take_inbox()
        if self.engine.has_work:
            self._step_began = time.monotonic()
            outcomes = self.engine.step()
            self._step_began = None
            self._step += 1
            if outcomes:
                self._outbox.put((self._step, outcomes))
        now = time.monotonic()
        self._controls.settle(now)
        if now >= self._figures_due:
            self._figures_due = now + HEARTBEAT_S
            self._figures = figures(self._step, self.engine.stats)
        if now >= self._drained_by:
            self._drained_by = float("inf")
            self.abort_all(Finish("abort", None, "the server is shutting down", 503))
        if self._failure is not None:
            raise self._failure

    def _take_inbox(self) -> None:
        """Everything that waits; with nothing to do, wait for the first until something is due."""
        try:
            if not self.engine.has_work:
                self._inbox.get(timeout=max(0.0, self._next_due() - time.monotonic()))()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def _next_due(self) -> float:
        return min(self._figures_due, self._controls.next_due)

    def _submit(self, request: Request, mask: GrammarMask | None = None) -> None:
        try:
            self.engine.submit(request, mask)
        except (InvalidRequest, NoRoom) as error:
            self._outbox.put((self._step, [Refusal(request.request_id, error)]))

    def _submit_compiled(self, request: Request, outcome: GrammarMask | InvalidRequest | NoRoom) -> None:
        """With its grammar, unless it was aborted while that was compiled."""
        if request.request_id not in self._compiling:
            return
        self._compiling.remove(request.request_id)
        if isinstance(outcome, GrammarMask):
            self._submit(request, outcome)
        else:
            self._outbox.put((self._step, [Refusal(request.request_id, outcome)]))

    def abort(self, request_id: RequestId, finish: Finish | None = None) -> bool:
        """End one open request, which the engine may not know yet. False: it has ended."""
        if request_id not in self._compiling:
            return self.engine.abort(request_id, finish)
        self._compiling.remove(request_id)
        ended = Progress(request_id, finish=finish or Finish("abort", message="aborted"))
        self._outbox.put((self._step, [ended]))
        return True

    def abort_all(self, finish: Finish) -> int:
        """End every open request; how many there were."""
        return sum(self.abort(request_id, finish) for request_id in self.ledger.open_requests())

    def drain(self, timeout_s: float) -> None:
        """Take nothing more, finish what is here; after the timeout abort the rest."""
        log.info("draining for at most %g s", timeout_s)
        self.engine.drain()
        self._drained_by = min(self._drained_by, time.monotonic() + timeout_s)

    def _fail(self, error: Exception) -> None:
        """The engine broke: its answers can't be trusted any more, so all end here."""
        self._failure = error
        log.critical("the engine failed and stops: %s", error.__cause__ or error, exc_info=error)
        refusal = ours("the engine failed")
        self._outbox.put((self._step, [Refusal(request_id, refusal) for request_id in self.ledger.open_requests()]))

    # ---- from any thread

    def call(self, what: Callable[[], object]) -> None:
        """Run it on the loop's thread, between steps. Safe in a signal handler."""
        self._inbox.put(what)

    def fail(self, error: Exception) -> None:
        """Something that the engine needs is gone: the loop ends as if its step had failed."""
        if self._failure is None:
            self._failure = error
            self.call(lambda: None)

    # ---- the connections' reading threads

    def _receive(self, connection: Connection, frame: Frame[ToEngine]) -> None:
        message = frame.message
        if isinstance(message, Submit):
            self._take(connection, message, frame.ints(message.prompt, "i").tolist())
        elif isinstance(message, Abort):
            self._abort(connection, message)
        else:
            self.call(partial(self._controls.take, connection, message))

    def _take(self, connection: Connection, submit: Submit, prompt: list[int]) -> None:
        try:
            request, text = self.intake.take(submit, prompt)
        except InvalidRequest as error:
            connection.send(encode_step(0, [refusal_record(submit.rid, error)]))
            return
        except Exception:  # ours, but one request's: the others of this connection go on
            log.exception("a request could not be taken in")
            connection.send(encode_step(0, [refusal_record(submit.rid, ours("the request could not be taken in"))]))
            return
        self.ledger.add(request.request_id, Entry(connection, text))
        if text.mask is None:
            self.call(partial(self._submit, request))
        else:
            self.call(partial(self._compiling.add, request.request_id))
            self._compilers.submit(self._compile, request, text.mask)

    def _abort(self, connection: Connection, message: Abort) -> None:
        request_id = self.ledger.find(connection, message.rid)
        if request_id is not None:
            self.call(partial(self.abort, request_id, Finish("abort", None, message.message)))

    def _lost(self, connection: Connection) -> None:
        requests = self.ledger.requests_of(connection)
        log.info("connection %d is gone with %d open requests", connection.number, len(requests))
        for request_id in requests:
            self.call(partial(self.abort, request_id))

    # ---- the heartbeat's thread

    def _beat(self) -> None:
        """A step may take long, and that is no death: it is told how long it has taken."""
        while not self._ended.wait(HEARTBEAT_S):
            began = self._step_began
            busy_ms = 0 if began is None else int(1000 * (time.monotonic() - began))
            self._server.broadcast(encode(replace(self._figures, busy_ms=busy_ms)))

    # ---- the grammar threads

    def _compile(self, request: Request, mask: GrammarMask) -> None:
        if self.ledger.get(request.request_id) is None:
            return  # aborted, and told so, while it waited here
        outcome: GrammarMask | InvalidRequest | NoRoom = mask
        try:
            mask.compile()
        except InvalidRequest as error:
            outcome = error
        except Exception:  # ours, but one request's
            log.exception("a grammar could not be compiled")
            outcome = ours("the grammar could not be compiled")
        self.call(partial(self._submit_compiled, request, outcome))

    # ---- the text thread

    def _write_texts(self) -> None:
        """Until None. A failure here is the engine's; the queue is still emptied, so that the loop can't hang."""
        while (work := self._outbox.get()) is not None:
            try:
                self._write_step(*work)
            except Exception as error:  # noqa: BLE001 - handed to the loop, which ends
                self.fail(error)

    def _write_step(self, step: int, outcomes: Sequence[Outcome]) -> None:
        records: dict[Connection, list[Record]] = {}
        for outcome in outcomes:
            entry = self.ledger.get(outcome.request_id)
            if entry is None:
                continue
            record = self._record(entry, outcome)
            if record is not None:
                records.setdefault(entry.connection, []).append(record)
                if record.done is not None:
                    self.ledger.remove(outcome.request_id)
        for connection, of_connection in records.items():
            send_step(connection, step, of_connection)

    def _record(self, entry: Entry, outcome: Outcome) -> Record | None:
        if isinstance(outcome, Refusal):
            return refusal_record(entry.text.rid, outcome.error, entry.text.num_tokens)
        try:
            record = entry.text.advance(outcome)
        except Exception:  # ours, but one request's: no other shares its text
            log.exception("the text of request %d could not be made", outcome.request_id)
            self.call(partial(self.engine.abort, outcome.request_id))
            return refusal_record(entry.text.rid, ours("the text could not be made"), entry.text.num_tokens)
        if entry.text.stopped is not None and outcome.finish is None:
            self.call(partial(self.engine.finish, outcome.request_id, entry.text.stopped))
        return record


def figures(step: int, stats: EngineStats) -> Heartbeat:
    """What a heartbeat tells besides that it beats."""
    scheduler, cache = stats.scheduler, stats.cache
    return Heartbeat(
        step,
        scheduler.running,
        scheduler.queued,
        stats.draining,
        0,
        cache.leased,
        cache.cached,
        cache.num_pages,
        scheduler.counters.prefill_tokens,
        scheduler.counters.sampled_tokens,
        cache.lookup_tokens,
        cache.hit_tokens,
        scheduler.counters.preemptions,
        **{f"stopped_{stop}": count for stop, count in cache.stopped.items()},
        lost_tokens=cache.lost_tokens,
    )


def ours(what: str) -> NoRoom:
    """What a client hears of a fault that is not its own: never a traceback."""
    return NoRoom(f"{what}; the engine's log says why", code="engine_failed", status=500)


def refusal_record(rid: int, error: CallerError | NoRoom, num_tokens: int = 0) -> Record:
    """The last record of a request that did not run, or not to its end."""
    status, code, param = 400, None, None
    if isinstance(error, InvalidRequest):
        status, code, param = error.status, error.code, error.param
    elif isinstance(error, NoRoom):
        status, code = error.status, error.code
    return Record(rid, done=Done(0, "abort", num_tokens, None, None, str(error), status, code, param))


def send_step(connection: Connection, step: int, records: Sequence[Record]) -> None:
    """As one frame; one each if that is longer than a frame may be; refused if one alone is."""
    try:
        connection.send(encode_step(step, records))
    except WireError as error:
        if len(records) > 1:
            for record in records:
                send_step(connection, step, [record])
        else:
            too_long = InvalidRequest(f"the answer is too long: {error}", status=413)
            connection.send(encode_step(step, [refusal_record(records[0].rid, too_long)]))


def serve_signals(process: EngineProcess, drain_s: float) -> None:
    """SIGTERM drains; SIGINT (Ctrl-C) aborts what is open and ends."""

    def drain(number: int, frame: FrameType | None) -> None:
        process.call(partial(process.drain, drain_s))

    def stop(number: int, frame: FrameType | None) -> None:
        process.call(partial(process.drain, 0.0))

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, stop)
