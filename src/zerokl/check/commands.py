"""A shell command of the user's, run while the checker goes on: the one that restarts the server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

from zerokl.check.outcome import CouldNotRun

LINES_SHOWN = 3


def shell(command: str) -> Callable[[], Awaitable[None]]:
    """Each call runs `command` to its end; raises CouldNotRun with its last words if that isn't a success.

    What it leaves running in the background may keep its output open, so that goes to a file, which nobody waits for.
    """

    async def run() -> None:
        with tempfile.TemporaryFile() as words:
            process = await asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=words, stderr=words
            )
            if await process.wait():
                words.seek(0)
                last = words.read().decode(errors="replace").strip().splitlines()[-LINES_SHOWN:]
                raise CouldNotRun(f"the restart command ended with {process.returncode}: {' / '.join(last)}")

    return run
