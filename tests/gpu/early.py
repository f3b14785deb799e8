"""Kernels that begin before the one ahead has ended: what they read must be what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tests.gpu.device import DEVICE, normal, same
from zerokl import ops
from zerokl.ops.choices import REFERENCE, Way
from zerokl.ops.triton.chain import empty
from zerokl.ops.triton.ways import compute


def waits_for_the_kernel_ahead(
    ways: Iterable[Way],
    rows: int,
    weights: Sequence[Any] = (),
    ends: tuple[int, ...] = (),
    reference: Way = REFERENCE,
) -> None:
    """Norm, product, norm, product, in a graph: each input is written just before, by a kernel that lets others in."""
    x, gain = normal(1, rows, 1024, dtype=torch.float32), torch.ones(1024, device=DEVICE)
    weights = weights or [(normal(2 + i, 1024, 1024) / 32).contiguous() for i in range(6)]

    def run(way: Way) -> torch.Tensor:
        found = x
        for w in weights:
            narrow = ops.rms_norm(found, gain, 1e-6)
            found = compute(way, narrow, w, empty(narrow, 1024, torch.float32), ends=ends)
        return found

    expected = run(reference)
    for way in ways:
        run(way)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run(way)
        for _ in range(20):
            found.fill_(float("nan"))
            graph.replay()
            assert same(found, expected), way
