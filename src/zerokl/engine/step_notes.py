"""What each step ran, as a line of JSON in the file that ZEROKL_STEP_NOTES names. Off without it.

`zerokl suite --repeat` sets it, so that a test that gave both results shows what ran with it,
whoever started the engine.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from zerokl.config import environment
from zerokl.runner.buckets import TOKEN_BUCKETS, bucket_of
from zerokl.types import StepPlan, StepRunner


class StepNotes:
    """Appends whole lines, so several engines may share the file."""

    def __init__(self, path: Path, has_graphs: bool) -> None:
        self._file = path.open("ab", buffering=0)
        self._has_graphs = has_graphs
        self._newest = -1

    def note(self, plan: StepPlan) -> None:
        """`cached`: prompt tokens that requests began behind. Ids grow, so a resumed request isn't counted again."""
        lengths = [len(segment.tokens) for segment in plan.segments]
        began = [segment for segment in plan.segments if segment.request_id > self._newest]
        self._newest = max([self._newest, *(segment.request_id for segment in began)])
        line = {
            "running": len(lengths),
            "decode_width": lengths.count(1),
            "batch_tokens": sum(lengths),
            "cached_tokens": sum(segment.start for segment in began),
        }
        if self._has_graphs:
            line["graph_bucket"] = bucket_of(sum(lengths), TOKEN_BUCKETS)
        self._file.write(orjson.dumps(line) + b"\n")


def notes_asked_for(runner: StepRunner) -> StepNotes | None:
    """A runner with a capacity pads its steps to buckets."""
    path = environment("ZEROKL_STEP_NOTES")
    return StepNotes(Path(path), hasattr(runner, "capacity")) if path else None
