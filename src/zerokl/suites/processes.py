"""Run a command with a time limit and end everything that it started, also what moved to a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

MARK = "ZEROKL_SUITE_JOB"
"""Set in the environment of each job, inherited by all that it starts: that is how they are found again."""

NOTHING: Mapping[str, str] = MappingProxyType({})
PATIENCE_S = 5.0
"""Between the polite signal and the other one."""


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int | None
    """None: it could not be started."""
    seconds: float
    timed_out: bool = False
    left_processes: int = 0


class Jobs:
    """The jobs of one run, on whatever threads, so that an interrupted run can end them all."""

    def __init__(self) -> None:
        self._marks: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(
        self, command: Sequence[str], *, cwd: Path, log: Path, limit_s: float, environment: Mapping[str, str] = NOTHING
    ) -> Ended:
        """Output goes to `log`. Returns within the limit and `PATIENCE_S`, and nothing of the job is left running."""
        mark = uuid.uuid4().hex
        started = time.monotonic()
        with log.open("ab") as output, self._lock:
            if self._stopped:
                return Ended(None, 0.0)
            try:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment, MARK: mark},
                    start_new_session=True,
                )
            except OSError as error:
                output.write(f"could not start: {error}\n".encode())
                return Ended(None, 0.0)
            self._marks[mark] = process
        timed_out = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        left = _end_all(process, mark)
        del self._marks[mark]
        return Ended(process.returncode, time.monotonic() - started, timed_out, 0 if timed_out else left)

    def stop(self) -> None:
        """Ends what runs, and lets nothing start any more."""
        with self._lock:
            self._stopped = True
            running = dict(self._marks)
        for mark, process in running.items():
            _end_all(process, mark)


def _end_all(process: subprocess.Popen[bytes], mark: str) -> int:
    """How many were still there besides `process` itself."""
    first = _of_job(mark) - {process.pid}
    for number, alarm in enumerate((signal.SIGTERM, signal.SIGKILL)):
        alive = _of_job(mark) | ({process.pid} if process.poll() is None else set())
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, alarm)
        if not alive or _gone(process, mark, PATIENCE_S if number == 0 else 1.0):
            break
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return len(first)


def _gone(process: subprocess.Popen[bytes], mark: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while process.poll() is None or _of_job(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _of_job(mark: str) -> set[int]:
    """Living processes with the job's mark; where there is no /proc, none (the process group is all we have)."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found
