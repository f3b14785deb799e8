"""The frontend process: `python -m zerokl.cli.frontend RUN_FOLDER LISTENER LIFELINE`, started by the supervisor."""

from __future__ import annotations

import gc
import socket
import sys
from pathlib import Path

from zerokl.cli.process import hold_lifeline, set_up_logs
from zerokl.cli.run_folder import await_config
from zerokl.server.run import serve


def main(run_folder: str, listener: str, lifeline: str) -> None:
    hold_lifeline(int(lifeline))
    config = await_config(Path(run_folder))
    set_up_logs("frontend", config.log_level)
    gc.freeze()
    serve(config, Path(run_folder), socket.socket(fileno=int(listener)))


if __name__ == "__main__":
    main(*sys.argv[1:])
