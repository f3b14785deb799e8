"""The engine process: `python -m zerokl.cli.engine RUN_FOLDER LIFELINE`, started by the supervisor."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from zerokl.cli.process import hold_lifeline, set_up_logs
from zerokl.cli.run_folder import await_config
from zerokl.config import chosen_frontend
from zerokl.engine.build import build_process
from zerokl.errors import ZeroklError
from zerokl.wire.meeting import DRAIN_S, ENGINE_SOCKET

log = logging.getLogger(__name__)


def main(run_folder: str, lifeline: str) -> int:
    folder = Path(run_folder)
    hold_lifeline(int(lifeline))
    config = await_config(folder)
    set_up_logs("engine", config.log_level)
    try:
        process = build_process(config, folder, folder / ENGINE_SOCKET, battery=chosen_frontend(config) != "python")
    except ZeroklError as error:  # said in one line; anything else is a bug and keeps its traceback
        log.error("%s", error)
        return 1
    from zerokl.engine.process import serve_signals  # loaded while weights were read

    serve_signals(process, DRAIN_S)
    return process.run()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
