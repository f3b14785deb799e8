"""CUDA graphs by bucket: captured once, replayed for every step of the bucket, bit-equal to running it eagerly.

A graph reads and writes fixed places, so what differs between steps (ids, pages, work lists) lies in device buffers and
a launch's size depends on the bucket alone. Each graph is replayed once after capture and compared with the eager run:
a library that picks another algorithm inside a capture is found here, not in an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

import torch
from msgspec import Struct, field

from zerokl.errors import EngineError

log = logging.getLogger(__name__)

Outputs = tuple[Any, ...]


class Graphs(Struct):
    """The captured graphs of one runner; they share their memory, since only one runs at a time."""

    stream: Any
    captured: dict[Hashable, tuple[Any, Outputs]] = field(default_factory=dict)
    pool: Any = None
    seconds: float = 0.0
    bytes: int = 0
    missed: list[Hashable] = field(default_factory=list)
    """Buckets for which no memory was left: they run eagerly."""
    is_shared: bool = False
    """Ranks capture the same graphs, or none: memory that is missing is then an error."""

    def capture(
        self,
        key: Hashable,
        run: Callable[[], Outputs],
        prepare: Callable[[], None] | None = None,
        rows: int | None = None,
    ) -> bool:
        """Capture what `run` launches; False if memory doesn't allow it. Raises EngineError if its bits differ.

        `prepare` puts the inputs in place, before each of the two runs; `rows`: how many are no padding.
        """
        began = time.monotonic()
        try:
            with torch.cuda.stream(self.stream):
                if prepare:
                    prepare()
                expected = tuple(output.clone() for output in run())
                self.stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    outputs = run()
                finally:
                    graph.capture_end()
                if prepare:
                    prepare()
                graph.replay()
                self.stream.synchronize()
        except torch.cuda.OutOfMemoryError:
            if self.is_shared:
                raise
            self.missed.append(key)
            return False
        if not all(same_bits(found[:rows], wanted[:rows]) for found, wanted in zip(outputs, expected, strict=True)):
            raise EngineError(f"the captured graph of {key} has other bits than the eager run")
        self.captured[key] = graph, outputs
        self.seconds += time.monotonic() - began
        return True

    def run(self, key: Hashable, run: Callable[[], Outputs]) -> Outputs:
        """The graph of `key` if there is one, else `run` itself; on the current stream, which must be ours."""
        found = self.captured.get(key)
        if found is None:
            return run()
        found[0].replay()
        return found[1]


def same_bits(a: Any, b: Any) -> bool:
    """Equal bytes, so NaNs and signs of zeros count."""
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
