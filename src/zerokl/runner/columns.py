"""Logprobs of rows of logits on the GPU, and their way to the host as columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from zerokl.errors import EngineError
from zerokl.ops.triton import score
from zerokl.runner.wanted import Wanted
from zerokl.types import Logprobs, LogprobSpec


class Columns(Struct, frozen=True):
    """Logprobs of consecutive rows that are wanted alike; pinned host tensors that the device still fills."""

    run: int
    spec: LogprobSpec
    chosen: Any
    top_ids: Any
    top: Any
    ids: Any


def score_runs(wanted: Wanted, first: int, last: int, logits: Any, targets: Any) -> list[Columns]:
    """The logprobs that rows first .. last - 1 of a step are to be told, copied to the host as they come."""
    runs = [
        (number, run.spec, max(first, run.bounds[0]) - first, min(last, run.bounds[-1]) - first)
        for number, run in enumerate(wanted.runs)
    ]
    runs = [run for run in runs if run[2] < run[3]]
    if not runs:
        return []
    log_sums = score.log_sum(logits)
    columns = []
    for number, spec, start, stop in runs:
        part, sums = logits[start:stop], log_sums[start:stop]
        chosen = score.logprobs_of(part, sums, targets[start:stop, None].clamp(min=0).long())
        top_ids = score.top(part, min(spec.num_top, part.shape[1]))
        ids = device_ids(spec.ids, part.device).expand(len(part), len(spec.ids))
        found = (chosen, top_ids.int(), score.logprobs_of(part, sums, top_ids), score.logprobs_of(part, sums, ids))
        columns.append(Columns(number, spec, *map(to_host, found)))
    return columns


def logprobs_of(columns: Columns) -> Logprobs:
    """Raises EngineError where a row has none."""
    chosen = columns.chosen.numpy()
    if np.isnan(chosen).any():
        raise EngineError("logits of a row hold a NaN, a +inf or nothing but -inf")
    return Logprobs(
        len(chosen),
        columns.top_ids.shape[1],
        len(columns.spec.ids),
        chosen.tobytes(),
        columns.top_ids.numpy().tobytes(),
        columns.top.numpy().tobytes(),
        columns.ids.numpy().tobytes(),
    )


def to_host(tensor: Any) -> Any:
    """A pinned copy that is there when the stream has got so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


@lru_cache(64)
def device_ids(ids: tuple[int, ...], device: Any) -> Any:
    """Uploaded once; a request asks for the same ids at every step."""
    return torch.tensor(ids, dtype=torch.int64, device=device)
