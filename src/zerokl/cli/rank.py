"""A rank beside the engine: `python -m zerokl.cli.rank PLACES`, started by `zerokl.parallel`, or `zerokl serve` under
torchrun.
"""

from __future__ import annotations

import logging
import os
import sys

from zerokl.cli.process import set_up_logs
from zerokl.config import Config
from zerokl.parallel import machines
from zerokl.parallel.launch import joined
from zerokl.runner.rank import serve_rank

log = logging.getLogger(__name__)


def main(places: str) -> int:
    group, channel, store = joined(places)
    set_up_logs(f"rank {group.rank}", "info")
    try:
        return serve_rank(group, channel, store)
    except Exception:
        log.exception("this rank ends")
        return 1


def place_here(config: Config) -> machines.Place:
    """Which rank torchrun says that this process is. Raises ConfigError."""
    return machines.place_of(os.environ, config.tp)


def follow(config: Config, place: machines.Place) -> int:
    """A rank that torchrun started: until rank 0's server ends. Raises ConfigError."""
    from zerokl import checkpoints

    set_up_logs(f"rank {place.rank}", config.log_level)
    model = str(checkpoints.find(config.model, config.revision))
    log.info("looking for rank 0 of %d on %s", place.size, place.host)
    follower = machines.follow(place)
    try:
        return serve_rank(follower.group, follower.channel, follower.store, model, follower.status)
    except Exception:
        log.exception("this rank ends")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
