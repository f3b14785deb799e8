"""What child processes do first: logs, a lifeline that ends them when their supervisor is gone, open files enough."""

from __future__ import annotations

import logging
import os
import resource
import signal
import threading

MOST_FILES = 65_536
FORMAT = "%(asctime)s %(levelname)s {role}: %(message)s"


def set_up_logs(role: str, level: str) -> None:
    """One line per event on standard error, saying which process speaks."""
    logging.basicConfig(level=level.upper(), format=FORMAT.format(role=role), datefmt="%H:%M:%S", force=True)


def hold_lifeline(descriptor: int) -> None:
    """The supervisor holds the pipe's other end: when it is closed, even by SIGKILL, this process ends itself."""

    def watch() -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def raise_file_limit() -> None:
    """As many open files as may be had: each connection is one, and many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
