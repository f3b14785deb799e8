"""Attention: near float64, and the same bits however rows are tiled, cut, placed and accompanied."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.gpu.device import INTERPRETED, normal, relative_error, same
from tests.gpu.paged import Pool, attend, exact, pool_of

kernels = importlib.import_module("zerokl.ops.triton.attention")

HEADS, KEY_HEADS, SIZE = (6, 2, 16) if INTERPRETED else (32, 8, 128)
LONGEST = 140 if INTERPRETED else 1500
KINDS = ("gaussian", "peaked", "rising")


def made(kind: str, lengths: list[int]) -> tuple[Pool, list[torch.Tensor]]:
    """A pool, and each sequence's queries: with flat scores, with few large ones, with the largest at the end."""
    direction = normal(77, SIZE)

    def rising(k, sequence):
        return k + direction * torch.linspace(0, 1, len(k), device=k.device, dtype=k.dtype)[:, None, None]

    pool = pool_of(lengths, KEY_HEADS, SIZE, bend=rising if kind == "rising" else None)
    queries = [normal(200 + i, length, HEADS, SIZE) for i, length in enumerate(lengths)]
    if kind == "peaked":
        queries = [q * 4 for q in queries]
    return pool, [q + direction for q in queries] if kind == "rising" else queries


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_near_float64(kind):
    segments = [(0, 0, LONGEST), (1, 100, 1), (2, 0, 1), (1, 63, 4), (3, 5, 60)]
    pool, queries = made(kind, [LONGEST, 101, 1, 65])
    q = torch.cat([queries[sequence][start : start + count] for sequence, start, count in segments])
    assert relative_error(attend(q, pool, segments), exact(q, pool, segments)) < (1e-5 if INTERPRETED else 6e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_cuts_and_places_give_the_same_bits(kind):
    pool, (q,) = made(kind, [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    cut = LONGEST * 5 // 9
    assert same(attend(q[cut:], pool, [(0, cut, LONGEST - cut)]), whole[cut:]), "a suffix behind a cached prefix"
    ends = [0, 1, 63, 64, 127, 128, LONGEST - 1, *([] if INTERPRETED else [511, 512, 1023, 1024, 1025])]
    rows = q[ends]
    alone = attend(rows, pool, [(0, end, 1) for end in ends])
    assert same(alone, whole[ends]), "single tokens in chunks"
    assert same(attend(rows, pool, [(0, end, 1) for end in ends], max_parts=0), alone), "without room for parts"
    assert same(attend(rows, pool, [(0, end, 1) for end in ends], padding=37), alone), "with more padding"
    few = attend(q[10:14], pool, [(0, 10, 4)])
    assert same(few, whole[10:14]), "a few tokens in one short tile"


@pytest.mark.device
@pytest.mark.parametrize("tile", [(16, 1, 3), (64, 4, 2), (64, 4, 4), (128, 4, 2), (128, 8, 2), (128, 8, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_long_tiles_of_any_shape_give_the_same_bits(kind, tile, monkeypatch):
    pool, (q,) = made(kind, [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "LONG", kernels.Tile(*tile))
    assert same(attend(q, pool, [(0, 0, LONGEST)], tile_rows=tile[0]), whole)


@pytest.mark.device
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_short_tiles_of_any_warps_give_the_same_bits(warps, monkeypatch):
    pool, (q,) = made("rising", [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "SHORT", kernels.Tile(16, warps, 2))
    single = [(0, place, 1) for place in range(0, LONGEST, 7)]
    assert same(attend(q[::7], pool, single), whole[::7])


@pytest.mark.device
def test_plain_loads_and_bulk_copies_give_the_same_bits(monkeypatch):
    pool, (q,) = made("peaked", [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "BULK", False)
    assert same(attend(q, pool, [(0, 0, LONGEST)]), whole)
    assert same(attend(q[-1:], pool, [(0, LONGEST - 1, 1)]), whole[-1:])


def test_another_cut_of_the_keys_is_seen(monkeypatch):
    """The planted defect: chunks of another size, as a kernel would have that cuts a context by how long it is."""
    monkeypatch.setattr(kernels, "CHUNK", 64)
    pool, (q,) = made("gaussian", [LONGEST])
    cut = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "CHUNK", 128)
    assert not same(cut, attend(q, pool, [(0, 0, LONGEST)]))
