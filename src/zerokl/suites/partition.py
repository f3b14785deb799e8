"""Cut a suite into shards of about equal time, the same way on every machine; and the times to cut by."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from zerokl.errors import ConfigError
from zerokl.suites.registration import Registration

KEPT_RUNS = 3
"""Measured times kept per file; only if all of them are off by `OFF` does the estimate get a warning."""
OFF = 2.0


@dataclass(frozen=True, slots=True)
class Shard:
    registrations: tuple[Registration, ...]
    seconds: float


def partition(
    registrations: Sequence[Registration], num_shards: int, seconds: Mapping[Registration, float]
) -> list[Shard]:
    """Longest first, each to the lightest shard so far (ties: the first): at most 4/3 - 1/(3m) of the optimum.

    Depends on the names and times alone, not on the order given. Every registration is in exactly one shard.
    """
    if num_shards < 1:
        raise ConfigError(f"there must be at least 1 shard, not {num_shards}")
    shards: list[list[Registration]] = [[] for _ in range(num_shards)]
    loads = [0.0] * num_shards
    for one in sorted(registrations, key=lambda one: (-seconds[one], one.file, one.suite, one.backend)):
        lightest = loads.index(min(loads))
        shards[lightest].append(one)
        loads[lightest] += seconds[one]
    return [Shard(tuple(shard), load) for shard, load in zip(shards, loads, strict=True)]


def shards_needed(total_s: float, limit_s: float) -> int:
    """Enough shards that each stays under the limit, with 15 % to spare for an uneven cut."""
    return max(1, math.ceil(1.15 * total_s / limit_s))


class Times:
    """Measured seconds by file and suite, from earlier runs; shards agree because they read the same file."""

    def __init__(self, content: bytes = b"{}") -> None:
        try:
            self._runs: dict[str, list[float]] = {str(k): list(map(float, v)) for k, v in orjson.loads(content).items()}
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"the measured times are not a JSON object of lists: {error}") from None
        self.digest = hashlib.sha256(content).hexdigest()[:12]

    @classmethod
    def load(cls, path: Path | None) -> Times:
        return cls(path.read_bytes()) if path and path.exists() else cls()

    def seconds(self, registrations: Sequence[Registration]) -> dict[Registration, float]:
        return {one: median(self._runs.get(_key(one)) or [one.est_time]) for one in registrations}

    def add(self, one: Registration, seconds: float) -> None:
        self._runs[_key(one)] = [*self._runs.get(_key(one), []), round(seconds, 2)][-KEPT_RUNS:]

    def warnings(self, registrations: Sequence[Registration]) -> list[str]:
        """Estimates that three runs in a row found off by a factor of two (a second more or less is no news)."""
        found = []
        for one in registrations:
            runs = self._runs.get(_key(one), [])
            if len(runs) >= KEPT_RUNS and all(_off(run, one.est_time) for run in runs):
                found.append(f"{one.file}: est_time is {one.est_time:g} s, measured {median(runs):.1f} s")
        return found

    def content(self) -> bytes:
        return orjson.dumps(self._runs, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def _key(one: Registration) -> str:
    return f"{one.file} {one.suite}"


def _off(measured: float, estimate: float) -> bool:
    return abs(measured - estimate) > 1.0 and not estimate / OFF <= measured <= estimate * OFF
