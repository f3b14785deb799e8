"""Run a command with a time limit and end everything that it started, also what moved to a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "ZEROKL_SUITE_JOB"
"""Set in the environment of each job, inherited by all that it starts: that is how they are found again."""

PATIENCE_S = 5.0
"""Between the polite signal and the other one."""


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int | None
    """None: it could not be started."""
    seconds: float
    timed_out: bool = False
    left_processes: int = 0


def run(command: Sequence[str], *, cwd: Path, log: Path, limit_s: float) -> Ended:
    """Output goes to `log`. Returns within the limit and `PATIENCE_S`, and nothing of the job is left running."""
    mark = uuid.uuid4().hex
    started = time.monotonic()
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: mark},
                start_new_session=True,
            )
        except OSError as error:
            output.write(f"could not start: {error}\n".encode())
            return Ended(None, 0.0)
        timed_out, finished = False, False
        try:
            process.wait(limit_s)
            finished = True
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:  # an interrupt of the runner ends the job too
            left = _end_all(process, mark)
    return Ended(process.returncode, time.monotonic() - started, timed_out, left if finished else 0)


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
