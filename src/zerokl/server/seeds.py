"""The header that names each prompt's seed, so that an unseeded answer can be asked for again."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.server.exchange import Exchange
from zerokl.server.job import Job

HEADER = "x-zerokl-seed"
LONGEST = 4096
"""Characters; a longer header is left out, because clients and proxies refuse long ones."""


def name_seeds(exchange: Exchange, seeds: Sequence[int]) -> None:
    """One seed per prompt, comma-separated."""
    value = ",".join(map(str, seeds))
    if len(value) <= LONGEST:
        exchange.headers.append((HEADER, value))


def name_stream_seeds(exchange: Exchange, jobs: Sequence[Job], n: int, first_seed: int) -> None:
    """The same for a stream, whose head goes out when only one prompt's record has come: the seed of a lone prompt,
    or those that the request itself gave."""
    given = [job.sampling.seed for job in jobs[::n]]
    if len(given) == 1:
        name_seeds(exchange, [first_seed])
    else:
        known = [seed for seed in given if seed is not None]
        if len(known) == len(given):
            name_seeds(exchange, known)
