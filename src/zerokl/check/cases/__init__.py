"""The cases, one file per idea, in the order in which they run: what others build on comes first."""

from __future__ import annotations

from zerokl.check.cases import (
    abort_storm,
    aborts,
    branches,
    chunks,
    continued,
    conversations,
    crowd,
    echo,
    edges,
    jitter,
    lengths,
    mixture,
    number_format,
    order,
    pressure,
    repeats,
    rescoring,
    restart,
    stops,
    storm,
    streams,
    sweep,
    transplants,
    turns,
    twins,
    update,
)
from zerokl.check.cases.arrivals import ARRIVALS, LONG_PREFILL
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.evictions import EVICTIONS, SECOND_TIER
from zerokl.check.cases.sampled import N_SAMPLES, SAMPLED
from zerokl.check.cases.warm import WARM_DECODE, WARM_PREFIX

CASES: tuple[Case, ...] = (
    repeats.CASE,
    rescoring.CASE,
    continued.CASE,
    WARM_PREFIX,
    WARM_DECODE,
    turns.CASE,
    branches.CASE,
    edges.CASE,
    twins.CASE,
    transplants.CASE,
    conversations.CASE,
    crowd.CASE,
    order.CASE,
    mixture.CASE,
    ARRIVALS,
    LONG_PREFILL,
    jitter.CASE,
    aborts.CASE,
    abort_storm.CASE,
    pressure.CASE,
    storm.CASE,
    EVICTIONS,
    SECOND_TIER,
    chunks.CASE,
    lengths.CASE,
    sweep.CASE,
    streams.CASE,
    stops.CASE,
    SAMPLED,
    N_SAMPLES,
    echo.CASE,
    update.CASE,
    restart.CASE,
    number_format.CASE,
)

__all__ = ["CASES", "Case", "Cost"]
