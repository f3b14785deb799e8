"""What every child process does first: logs, and a lifeline that ends it when its supervisor is gone."""

from __future__ import annotations

import logging
import os
import signal
import threading

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
