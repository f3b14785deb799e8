"""The real server with the default model, as processes, by SGLang's launch line or by ours."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.http.live import FRONTEND

LAUNCHED_AS_SGLANG = ("-m", "zerokl.launch_server", "--model-path", "")
LAUNCHED = ("-c", "from zerokl.cli import main; main()", "serve")


@contextlib.contextmanager
def real_server(*command: str) -> Iterator[str]:
    """Its URL, once it is ready."""
    line = [sys.executable, *command, "--port", "0", "--frontend", FRONTEND.kind]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        assert found, f"the server did not start: {line}"
        yield found.group()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
