"""The GPU's known answers: the bits of a fixed small run of every kernel, by the same rule as the CPU's.

A compiler or a driver that rounds otherwise is a start-up error that names the operation. Attention runs both ways, as
a long tile and in chunks, and both must be there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from zerokl import ops
from zerokl.ops import triton
from zerokl.ops.triton import sample, score
from zerokl.ops.work import CHUNK, LONG_ROWS, SHORT_ROWS, Work, work_lists
from zerokl.runner.known_answers import numbers
from zerokl.runner.known_hybrid_gpu import distances, run_hybrid_operations
from zerokl.runner.known_quantised import some_bytes

ROWS, DEPTH, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 5, 192, 4, 2, 64, 2100
KEYS = 600
"""Two chunks."""


@cache
def known_answers(device: str = "cuda") -> dict[str, str]:
    """{operation: hex sha256 of the bytes that it gives for fixed inputs}."""
    digests: dict[str, str] = {}
    for name, tensors in run_every_operation(device):
        for tensor in tensors:
            data = tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            digests[name] = hashlib.sha256(digests.get(name, "").encode() + data).hexdigest()
    return digests


def run_every_operation(device: str) -> Iterator[tuple[str, list[Any]]]:
    """(name, outputs) of one small call of each operation, or of each of its ways."""

    def wide(seed: int, *shape: int) -> Any:
        return torch.from_numpy(numbers(seed, *shape)).to(device)

    def narrow(seed: int, *shape: int) -> Any:
        return wide(seed, *shape).to(torch.bfloat16)

    x, weight = narrow(1, ROWS, DEPTH), ops.DeviceMatrix(narrow(2, 2 * DEPTH, DEPTH))
    residual = wide(3, ROWS, 2 * DEPTH)
    yield (
        "linear",
        [
            triton.linear(x, weight, None, None, True),
            triton.linear(x, weight, wide(4, 2 * DEPTH), residual, False),
            triton.gated_linear(x * 16, weight, None),
        ],
    )
    for kind in ("nvfp4", "fp8", "fp8_block"):
        packed = packed_weight(kind, device)
        yield f"linear of {kind}", [triton.linear(x, packed, None, None, True), triton.gated_linear(x, packed, None)]
    yield "embedding", [triton.embedding(weight, torch.tensor([0, 17, 95], dtype=torch.int32, device=device))]
    yield "rms_norm", [triton.rms_norm(rows, wide(5, DEPTH), 1e-5) for rows in (x, wide(9, ROWS, DEPTH))]
    yield "swiglu", [triton.swiglu(narrow(6, ROWS, 2 * DEPTH) * 16)]
    positions = torch.tensor([0, 1, 600, 601, 70000], dtype=torch.int32, device=device)
    frequencies = np.array([10000.0 ** (-i / 32) for i in range(32)]).astype(np.float32).astype(np.float64)
    yield "rope_table", list(triton.rope_table(positions, frequencies, 1.0))
    plain, bent = attention_answers(device, narrow)
    yield "attention", plain
    yield "bent attention", bent
    yield "attention of narrow keys", attention_answers(device, narrow, torch.float8_e4m3fn)[0]
    logits = wide(7, ROWS, VOCABULARY) * 30
    sums = score.log_sum(logits)
    top_ids = score.top(logits, 3)
    yield "score", [sums, top_ids, score.logprobs_of(logits, sums, top_ids)]
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.0, 2.0], device=device)
    words = torch.arange(4 * ROWS, dtype=torch.int32, device=device).reshape(ROWS, 4)
    yield "sample", [sample.sample(logits, temperatures, words)]
    yield from run_hybrid_operations(device)


def packed_weight(kind: str, device: str) -> ops.PackedMatrix:
    """Any codes and scales but NaNs; a factor for each output, or a scale for each panel and 128 k."""
    codes = some_bytes(7, 2 * DEPTH, DEPTH)
    codes = np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8)
    each = np.arange(1, 2 * DEPTH + 1).astype(np.float32) / np.float32(7)
    if kind == "nvfp4":
        scales = codes[:, : DEPTH // 16].copy()
        return ops.pack_on_device(kind, codes[:, DEPTH // 2 :].copy(), scales, each, device, divides=False)
    if kind == "fp8":
        return ops.pack_on_device(kind, codes, None, each, device, divides=False)
    blocks = each[: 2 * DEPTH // 16 * 2].reshape(-1, 2).copy()
    return ops.pack_on_device(kind, codes, blocks, None, device, divides=False)


def attention_answers(device: str, narrow: Any, kept: Any = torch.bfloat16) -> tuple[list[Any], list[Any]]:
    """600 keys written through `rotate_and_store`; their last 5 tokens in a long tile, then one by one in chunks.

    Plain, and with a window, a cap and a bias.
    """
    num_pages = -(-KEYS // 64)
    pools = [torch.zeros((num_pages, KV_HEADS, 64, HEAD_SIZE), dtype=kept, device=device) for _ in range(2)]
    scales = (1.0, 1.0) if kept == torch.bfloat16 else (0.03, 0.02)
    table = torch.arange(num_pages, dtype=torch.int32, device=device)[None].contiguous()
    slots = torch.arange(KEYS, dtype=torch.int32, device=device)
    written = ops.Ragged(slots, slots, None, table, 64)  # type: ignore[arg-type]
    turns = triton.rope_table(
        slots, np.array([0.5 ** (i / 4) for i in range(32)]).astype(np.float32).astype(float), 1.0
    )
    qkv = narrow(8, KEYS, (HEADS + 2 * KV_HEADS) * HEAD_SIZE) * 4
    norm = torch.ones(HEAD_SIZE, device=device) * 1.5
    own = ops.LayerKV(pools[0], pools[1], written, scales=scales)
    q = triton.rotate_and_store(qkv, own, turns, HEADS, norm, norm, 1e-6)[-ROWS:].contiguous()
    plain, bent, bias = list(pools), [], distances(ROWS, HEADS, device)
    for count, rows in ((1, ROWS), (ROWS, 1)):
        starts = np.array([KEYS - ROWS + i for i in range(count)], np.int32)
        counts = np.full(count, rows, np.int32)
        for window in (None, 560):
            work = work_of(starts, counts, 0 if count == 1 else 64, device, window)
            seen = ops.Ragged(slots, slots, None, table.repeat(count, 1), 64, work)  # type: ignore[arg-type]
            kv = ops.LayerKV(pools[0], pools[1], seen, scales=scales)
            if window is None:
                plain.append(ops.attention(q, kv, HEAD_SIZE**-0.5))
            else:
                bent.append(ops.attention(q, kv, HEAD_SIZE**-0.5, window=window, softcap=3.0, bias=bias))
    return plain, bent


def work_of(starts: Any, counts: Any, max_parts: int, device: str, window: int | None = None) -> Work:
    """The work of some segments, on the device, with no room to spare."""
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists = work_lists(starts, counts, row_starts, HEADS // KV_HEADS, CHUNK, LONG_ROWS, max_parts, window)
    sizes = np.zeros(8, np.int32)
    sizes[::4] = len(lists.long), len(lists.short)
    parts = (max(1, len(lists.short)), KV_HEADS, SHORT_ROWS)
    on_device = [torch.from_numpy(array).to(device) for array in (sizes, lists.long, lists.short)]
    scratch = [torch.empty(shape, device=device) for shape in (parts, parts, (*parts, HEAD_SIZE))]
    arrived = torch.zeros(parts[:2], dtype=torch.int32, device=device)
    return Work(
        counts=on_device[0],
        long=on_device[1],
        short=on_device[2],
        parts=(scratch[0], scratch[1], scratch[2], arrived),
        long_grid=len(lists.long),
        short_grid=len(lists.short),
        segments=len(counts),
    )
