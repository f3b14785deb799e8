"""A frontend process: `python -m zerokl.cli.frontend KIND RUN_FOLDER LISTENER LIFELINE`, started by the supervisor."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

from zerokl.cli.process import hold_lifeline, raise_file_limit, set_up_logs
from zerokl.cli.run_folder import TOKENIZER, await_config, await_file
from zerokl.errors import CheckpointError

log = logging.getLogger(__name__)


def main(kind: str, run_folder: str, listener: str, lifeline: str) -> int:
    hold_lifeline(int(lifeline))
    raise_file_limit()
    serve = serve_rust if kind == "rust" else serve_python
    return serve(Path(run_folder), int(listener))


def serve_python(run_folder: Path, listener: int) -> int:
    import socket

    from zerokl.server.run import serve  # loaded while the model is still looked for

    config = await_config(run_folder)
    set_up_logs("frontend", config.log_level)
    await_file(run_folder / TOKENIZER)
    gc.freeze()
    try:
        serve(config, run_folder, socket.socket(fileno=listener))
    except CheckpointError as error:  # said in one line
        log.error("%s", error)
        return 1
    return 0


def serve_rust(run_folder: Path, listener: int) -> int:
    """Everything from here on is Rust's; this interpreter only waits."""
    from zerokl._native import HttpServer

    set_up_logs("frontend", await_config(run_folder).log_level)
    await_file(run_folder / TOKENIZER)
    try:
        HttpServer(str(run_folder), listener).run(signals=True)
    except RuntimeError as error:  # said in one line
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
