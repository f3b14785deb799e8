"""Starts the engine and its frontends, watches them, restarts what dies, and takes both down in order.

starting ──▶ ready ──▶ (engine died: restart; the frontend answers 503 until it is back) ──▶ ready
   └── a child died before ever being ready: give up          signal ──▶ frontend drains ──▶ engine ends
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType

log = logging.getLogger(__name__)

DRAIN_S = 35.0
"""How long the frontend may take to end its open requests; its own limit is 30 s."""
END_S = 10.0
RESTART_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
"""Each death before the server was well again doubles the pause, so that what can't work any more doesn't spin."""
POLL_S = 0.02
QUIET = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's BLAS is never called, but its threads spin for 25 ms each when numpy is loaded."""


@dataclass(slots=True)
class Child:
    """One process: how it is started, and the one that runs now."""

    name: str
    command: Sequence[str]
    descriptors: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Until it is gone; kills it if it takes too long."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %g s and is killed", self.name, timeout_s)
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Inside `with`, the children run; `watch` keeps them running. Afterwards they are gone, whatever happened."""

    def __init__(self, engine: Child, *frontends: Child) -> None:
        self.engine = engine
        self.frontends = frontends
        self._events: queue.SimpleQueue[tuple[Child, int] | int | None] = queue.SimpleQueue()
        """A death and its status; the number of a start after which all were ready; None: a signal."""
        self._starts = 0
        self._watching = False
        self._ending = False
        self._ended = threading.Event()
        self._ready = False
        """It has worked once."""
        self._pause_s = RESTART_PAUSE_S

    def __enter__(self) -> Supervisor:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take_signal)
        self._start(self.engine)
        for frontend in self.frontends:
            self._start(frontend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The frontends first: they let open requests end, and for that they need the engine."""
        for frontend in self.frontends:
            frontend.signal(signal.SIGTERM)
        for frontend in self.frontends:
            frontend.wait(DRAIN_S)
        self.engine.signal(signal.SIGTERM)
        self.engine.wait(END_S)

    def watch(self, is_ready: Callable[[], bool], on_ready: Callable[[], object]) -> int:
        """Until a signal: 0. Or until a child failed before `is_ready` was true once: 1."""
        self._watching = True
        self._wait_for(is_ready)
        while not self._ending:
            event = self._events.get()
            if event is None:
                break
            if isinstance(event, tuple):
                if not self._restart(*event):
                    return 1
                self._wait_for(is_ready)
            elif event == self._starts:
                self._pause_s = RESTART_PAUSE_S
                if not self._ready:
                    self._ready = True
                    on_ready()
        return 0

    def _wait_for(self, is_ready: Callable[[], bool]) -> None:
        """Asks on a thread of its own, as a frontend that isn't there yet may take seconds to answer."""
        start = self._starts

        def ask() -> None:
            while start == self._starts and not self._ending:
                if is_ready():
                    self._events.put(start)
                    return
                time.sleep(POLL_S)

        threading.Thread(target=ask, name="ready", daemon=True).start()

    def _restart(self, child: Child, status: int) -> bool:
        """False: it never worked, so starting it again would not help."""
        if not self._ready:
            log.error("the %s ended with status %d before the server was ready", child.name, status)
            return False
        log.warning("the %s ended with status %d; starting it again", child.name, status)
        if not self._ended.wait(self._pause_s):
            self._start(child)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def _start(self, child: Child) -> None:
        """In a session of its own, so that Ctrl-C reaches the supervisor alone and the order of ending is ours."""
        process = subprocess.Popen(
            child.command, pass_fds=child.descriptors, start_new_session=True, env=QUIET | os.environ
        )
        child.process = process
        self._starts += 1
        threading.Thread(target=lambda: self._events.put((child, process.wait())), daemon=True).start()

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        """The first ends in order; a second one does not wait. Before `watch` it ends whatever the caller is doing."""
        if not self._watching:
            raise SystemExit(128 + number)
        if self._ending:
            for child in (*self.frontends, self.engine):
                child.signal(signal.SIGKILL)
        self._ending = True
        self._ended.set()
        self._events.put(None)


def lifeline() -> tuple[int, int]:
    """(read end for the children, write end that only this process holds)."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    return read, write


def python(module: str, *arguments: str) -> list[str]:
    """A command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
