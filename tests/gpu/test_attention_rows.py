"""Single tokens turned, stored and attended in one kernel: the bits of the two kernels that it stands for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, normal, same
from zerokl import ops
from zerokl.ops.work import CHUNK, LONG_ROWS, SHORT_ROWS, Work, work_lists

rows = importlib.import_module("zerokl.ops.triton.attention_rows")
rope = importlib.import_module("zerokl.ops.triton.rope")
general = importlib.import_module("zerokl.ops.triton.attention")

pytestmark = pytest.mark.device

EDGES = [0, 1, 62, 63, 64, 65, 127, 128, 191, 192, 255, 256, 447, 448, 511, 512, 513, 575, 576, 1023, 1024, 1500]
SHAPES = [(32, 8, 128, True), (12, 2, 128, False), (9, 3, 64, False), (6, 6, 64, True)]
"""Query heads, key heads, size, whether heads are normalised: groups of 4, 6, 3 and 1."""
SCALE, PADDING = 0.127, 2


@dataclass
class Step:
    """Tokens at some positions of sequences whose earlier keys are cached."""

    qkv: Any
    k: Any
    v: Any
    turns: Any
    norms: tuple[Any, Any]
    heads: int
    ragged: ops.Ragged

    def kv(self) -> ops.LayerKV:
        """On pools of its own."""
        return ops.LayerKV(self.k.clone(), self.v.clone(), self.ragged)


def work_of(positions: list[int], group: int, key_heads: int, size: int) -> Work:
    count = len(positions)
    starts, ends = np.array(positions, np.int32), np.arange(count + 1, dtype=np.int32)
    lists = work_lists(starts, np.ones(count, np.int32), ends, group, CHUNK, LONG_ROWS, 4096)
    sizes = np.array([0, 0, 0, 0, len(lists.short), 0, 0, 0], np.int32)
    garbage = np.full((PADDING, lists.short.shape[1]), -(2**20), np.int32)
    parts = (len(lists.short), key_heads, SHORT_ROWS)
    nan = [torch.full(shape, float("nan"), device=DEVICE) for shape in (parts, parts, (*parts, size))]
    short = torch.from_numpy(np.concatenate((lists.short, garbage))).to(DEVICE)
    return Work(
        counts=torch.from_numpy(sizes).to(DEVICE),
        long=short[:0],
        short=short,
        parts=(nan[0], nan[1], nan[2], torch.zeros(parts[:2], dtype=torch.int32, device=DEVICE)),
        long_grid=0,
        short_grid=len(lists.short) + PADDING,
        segments=count + PADDING,
        is_single=True,
    )


def step_at(positions: list[int], heads: int, key_heads: int, size: int, normed: bool, seed: int = 0) -> Step:
    """Slots that nobody has filled hold NaN, but the values' in a page that is begun are 0."""
    pages = [position // 64 + 1 for position in positions]
    free = np.random.default_rng(seed).permutation(sum(pages) + 2).tolist()
    k, v = (normal(seed + i, len(free), key_heads, 64, size) for i in (1, 2))
    table, slots = torch.zeros((len(pages), max(pages)), dtype=torch.int32), []
    for i, (position, count) in enumerate(zip(positions, pages, strict=True)):
        table[i, :count] = torch.tensor([free.pop() for _ in range(count)])
        last, offset = int(table[i, count - 1]), position % 64
        k[last, :, offset:] = float("nan")
        v[last, :, offset:] = 0.0 if offset else float("nan")
        slots.append(last * 64 + offset)
    for page in free:
        k[page], v[page] = float("nan"), float("nan")
    at = torch.tensor([*positions, *[-1] * PADDING], dtype=torch.int32, device=DEVICE)
    to = torch.tensor([*slots, *[-1] * PADDING], dtype=torch.int32, device=DEVICE)
    turns = rope.rope_table(at, 1e6 ** (-np.arange(size // 2) * 2 / size), 1.0)
    norms = tuple(normal(seed + i, size, dtype=torch.float32) for i in (3, 4)) if normed else (None, None)
    qkv = normal(seed + 5, len(at), (heads + 2 * key_heads) * size) * 3
    work = work_of(positions, heads // key_heads, key_heads, size)
    return Step(qkv, k, v, turns, norms, heads, ops.Ragged(at, to, None, table.to(DEVICE), 64, work))


def by_two(step: Step) -> tuple[Any, Any, Any]:
    """(what heads saw, keys, values) by the general kernels."""
    kv = step.kv()
    q = rope.turned_and_stored(step.qkv, kv, step.turns, step.heads, *step.norms, 1e-6)
    return general.attention(q, kv, SCALE)[:-PADDING], kv.k, kv.v


def by_one(step: Step, cut: Any = rows.CUT) -> tuple[Any, Any, Any]:
    kv = step.kv()
    y = rows.attend_rows(step.qkv, kv, step.turns, step.heads, *step.norms, 1e-6, SCALE, cut)
    assert not kv.ragged.work.parts[3].any(), "counters are left at zero"
    return y[:-PADDING], kv.k, kv.v


def all_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_one_kernel_has_the_bits_of_two(shape):
    together = step_at(EDGES, *shape)
    assert not by_two(together)[0].isnan().any()
    assert all_same(by_one(together), by_two(together)), "all in one step"
    for position in (0, 63, 140, 512, 1100):
        alone = step_at([position], *shape, seed=position)
        assert all_same(by_one(alone), by_two(alone)), position


@pytest.mark.parametrize("cut", [(2, 2, 96), (3, 3, 128), (4, 4, 168)])
def test_no_cut_of_the_kernel_moves_a_bit(cut, monkeypatch):
    step = step_at([*EDGES, *range(130, 1400, 97)], *SHAPES[0])
    expected = by_two(step)
    assert all_same(by_one(step, rows.Cut(*cut)), expected)
    monkeypatch.setattr(rows, "processors", lambda _: 24)
    assert all_same(by_one(step, rows.Cut(*cut)), expected), "programs that take many items in turn"


def test_a_cached_key_that_differs_is_seen():
    """The planted defect: one number of one key, as a copy would have that came from another page."""
    step = step_at([140, 700], *SHAPES[0])
    expected = by_two(step)[0]
    step.k[step.ragged.page_table[1, 3], 2, 17, 5] += 1
    assert not same(by_one(step)[0][1], expected[1])
    assert same(by_one(step)[0][0], expected[0])


def test_what_the_kernel_ahead_writes_is_waited_for():
    """Steps in a graph, each behind a norm that lets it in early: a projection read too soon is another's."""
    step = step_at([5, 140, 600], *SHAPES[0])
    gain = torch.ones(step.qkv.shape[1], device=DEVICE)
    inputs = [normal(50 + i, *step.qkv.shape, dtype=torch.float32) for i in range(6)]
    steps = [replace(step, qkv=ops.rms_norm(x, gain, 1e-6)) for x in inputs]
    expected, kvs = [by_two(one) for one in steps], [step.kv() for _ in steps]

    def run() -> list[Any]:
        return [
            rows.attend_rows(ops.rms_norm(x, gain, 1e-6), kv, step.turns, step.heads, *step.norms, 1e-6, SCALE)
            for x, kv in zip(inputs, kvs, strict=True)
        ]

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen = run()
    for _ in range(10):
        for y in seen:
            y.fill_(float("nan"))
        graph.replay()
        for y, kv, one in zip(seen, kvs, expected, strict=True):
            assert all_same((y[:-PADDING], kv.k, kv.v), one)


def test_windows_take_the_general_kernels():
    """A layer that puts its turning off and then sees a window has not lost it."""
    step = step_at([140, 700], *SHAPES[0])
    kv, other = step.kv(), step.kv()
    late = rope.rotate_and_store(step.qkv, kv, step.turns, step.heads, *step.norms, 1e-6)
    assert isinstance(late, rope.Unturned)
    q = rope.turned_and_stored(step.qkv, other, step.turns, step.heads, *step.norms, 1e-6)
    expected = general.attention(q, other, SCALE, window=100)
    assert all_same((general.attention(late, kv, SCALE, window=100)[:-PADDING], kv.k), (expected[:-PADDING], other.k))
