"""What a user sees of a download: on a terminal a bar and its stages, elsewhere one log line per stage."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


@contextmanager
def watched(title: str, folder: Path, total_bytes: int) -> Iterator[None]:
    """Show how the files under `folder` grow by `total_bytes`, whoever writes them, until the block ends."""
    log.info("%s", title)
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    before, done = _bytes_under(folder), threading.Event()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total_bytes)

        def poll() -> None:
            while not done.wait(POLL_SECONDS):
                progress.update(task, completed=min(max(_bytes_under(folder) - before, 0), total_bytes))

        thread = threading.Thread(target=poll, daemon=True, name="download-progress")
        thread.start()
        try:
            yield
            progress.update(task, completed=total_bytes)
        finally:
            done.set()
            thread.join()


@contextmanager
def stage(title: str) -> Iterator[None]:
    """A step of a second or so: a spinner while it runs."""
    log.info("%s", title)
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{title} ..."):
        yield


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:  # moved away between the two looks
            continue
    return total
