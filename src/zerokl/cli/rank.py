"""A rank beside the engine: `python -m zerokl.cli.rank PLACES`, started by `zerokl.parallel`."""

from __future__ import annotations

import logging
import sys

from zerokl.cli.process import set_up_logs
from zerokl.parallel.launch import joined
from zerokl.runner.rank import serve_rank

log = logging.getLogger(__name__)


def main(places: str) -> int:
    group, channel, port = joined(places)
    set_up_logs(f"rank {group.rank}", "info")
    try:
        return serve_rank(group, channel, port)
    except Exception:
        log.exception("this rank ends")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
