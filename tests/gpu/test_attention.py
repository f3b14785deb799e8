"""Attention: near float64, and the same bits however rows are tiled, cut, placed and accompanied."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.gpu.device import INTERPRETED, normal, relative_error, same
from tests.gpu.paged import Pool, attend, exact, pool_of

kernels = importlib.import_module("zerokl.ops.triton.attention")
groups = importlib.import_module("zerokl.ops.triton.attention_groups")

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


WINDOW = 70 if INTERPRETED else 600


def bent(how: str, rows: int) -> dict:
    """What an architecture does to scores: of rows 0 .. rows - 1 of a sequence."""
    profile = normal(91, 6, 100 if INTERPRETED else 900, dtype=torch.float32)
    bias = normal(90, rows, HEADS, 6), profile
    return {
        "window": {"window": WINDOW},
        "softcap": {"softcap": 2.0},
        "bias": {"bias": bias},
        "all": {"window": WINDOW, "softcap": 3.0, "bias": bias},
    }[how]


def rows_of(how: dict, rows) -> dict:
    """The same for chosen rows."""
    return how | ({"bias": (how["bias"][0][rows].contiguous(), how["bias"][1])} if "bias" in how else {})


@pytest.mark.parametrize("how", ["window", "softcap", "bias", "all"])
def test_windows_caps_and_biases_are_near_float64_in_every_cut(how):
    pool, (q,) = made("gaussian", [LONGEST])
    given = bent(how, LONGEST)
    whole = attend(q, pool, [(0, 0, LONGEST)], **given)
    assert relative_error(whole, exact(q, pool, [(0, 0, LONGEST)], **given)) < (1e-5 if INTERPRETED else 6e-3)
    cut = LONGEST * 5 // 9
    suffix = attend(q[cut:], pool, [(0, cut, LONGEST - cut)], **rows_of(given, slice(cut, None)))
    assert same(suffix, whole[cut:]), "a suffix behind a cached prefix"
    ends = [0, 1, 63, 64, WINDOW - 1, WINDOW, 127, 128, LONGEST - 1, *([] if INTERPRETED else [511, 512, 1111, 1112])]
    single = [(0, end, 1) for end in ends]
    assert same(attend(q[ends], pool, single, **rows_of(given, ends)), whole[ends]), "single tokens"
    assert same(attend(q[ends], pool, single, max_parts=0, **rows_of(given, ends)), whole[ends]), "the long way"
    few = attend(q[100:104], pool, [(0, 100, 4)], **rows_of(given, slice(100, 104)))
    assert same(few, whole[100:104]), "a few tokens in one short tile"


def test_what_lies_before_the_window_is_never_looked_at():
    """Its pages are gone: the page table says -1 there, and whoever has them now has written NaN."""
    pool, (q,) = made("gaussian", [LONGEST])
    last = LONGEST - 3
    expected = attend(q[last:], pool, [(0, last, 3)], window=WINDOW)
    gone = (last - WINDOW + 1) // 64
    assert gone > 0
    for page in pool.tables[0, :gone].tolist():
        pool.k[page], pool.v[page] = float("nan"), float("nan")
    pool.tables[0, :gone] = -1
    assert same(attend(q[last:], pool, [(0, last, 3)], window=WINDOW), expected)
    assert same(attend(q[last:], pool, [(0, last, 3)], window=WINDOW, max_parts=0), expected)


def test_another_window_is_seen():
    pool, (q,) = made("gaussian", [LONGEST])
    single = [(0, LONGEST - 1, 1)]
    assert not same(attend(q[-1:], pool, single, window=WINDOW), attend(q[-1:], pool, single, window=WINDOW + 1))


@pytest.mark.device
@pytest.mark.parametrize("tile", [(16, 1, 3), (64, 4, 2), (64, 4, 4), (128, 4, 2), (128, 8, 2), (128, 8, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_long_tiles_of_any_shape_give_the_same_bits(kind, tile, monkeypatch):
    pool, (q,) = made(kind, [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(groups, "serves", lambda *_: False)
    monkeypatch.setattr(kernels, "LONG", kernels.Tile(*tile))
    assert same(attend(q, pool, [(0, 0, LONGEST)]), whole)


@pytest.mark.device
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_short_tiles_of_any_warps_give_the_same_bits(warps, monkeypatch):
    pool, (q,) = made("rising", [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "SHORT", kernels.Tile(16, warps, 2))
    single = [(0, place, 1) for place in range(0, LONGEST, 7)]
    assert same(attend(q[::7], pool, single), whole[::7])


@pytest.mark.device
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 2, 16), (4, 1, 32), (6, 2, 64), (8, 1, 256)])
def test_heads_of_any_size_give_the_same_bits_in_long_tiles_and_in_short_ones(heads, key_heads, size):
    """Of few columns: warps can't share a row there, and a sum that relied on it was another one."""
    pool, q = pool_of([LONGEST], key_heads, size, seed=3), normal(31, LONGEST, heads, size) * 2
    for window in (None, 513):
        whole = attend(q, pool, [(0, 0, LONGEST)], window=window)
        single = [(0, place, 1) for place in range(0, LONGEST, 3)]
        assert same(attend(q[::3], pool, single, window=window), whole[::3])


@pytest.mark.device
def test_plain_loads_and_bulk_copies_give_the_same_bits(monkeypatch):
    pool, (q,) = made("peaked", [LONGEST])
    whole = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "BULK", False)
    assert same(attend(q, pool, [(0, 0, LONGEST)]), whole)
    assert same(attend(q[-1:], pool, [(0, LONGEST - 1, 1)]), whole[-1:])


@pytest.mark.device
@pytest.mark.parametrize(
    ("heads", "key_heads", "size"),
    [(32, 8, 128), (28, 4, 128), (8, 8, 128), (6, 2, 64), (9, 3, 64)],  # groups of 4, 7, 1 and 3
)
def test_groups_that_share_what_is_copied_give_the_general_kernels_bits(heads, key_heads, size, monkeypatch):
    """Texts of one block and of many, suffixes, tiles across the end of a chunk; free slots hold NaN."""
    pool = pool_of([LONGEST, 130, 1024, 577, 64, 1], key_heads, size, seed=5)
    segments = [(0, 0, LONGEST), (1, 65, 65), (2, 511, 513), (3, 496, 81), (4, 0, 64), (5, 0, 1), (2, 900, 7)]
    q = normal(41, sum(count for _, _, count in segments), heads, size) * 2
    monkeypatch.setattr(groups, "serves", lambda *_: False)
    general = attend(q, pool, segments, max_parts=0)
    monkeypatch.setattr(groups, "serves", lambda *_: True)
    assert same(attend(q, pool, segments, max_parts=0), general)
    monkeypatch.setattr(groups, "processors", lambda _: 3)
    assert same(attend(q, pool, segments, max_parts=0), general), "programs that take many units in turn"


@pytest.mark.device
@pytest.mark.parametrize("factor", [2.0**-110, 2.0**-72, 2.0**104])
def test_groups_divide_as_ieee_says_where_sums_are_tiny_or_huge(factor, monkeypatch):
    pool, (q,) = made("gaussian", [LONGEST])
    pool.v[:] = pool.v * factor
    found = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(groups, "serves", lambda *_: False)
    general = attend(q, pool, [(0, 0, LONGEST)])
    assert 0 < general.abs().max() < float("inf")
    assert same(found, general)


def test_another_cut_of_the_keys_is_seen(monkeypatch):
    """The planted defect: chunks of another size, as a kernel would have that cuts a context by how long it is."""
    monkeypatch.setattr(kernels, "CHUNK", 64)
    pool, (q,) = made("gaussian", [LONGEST])
    cut = attend(q, pool, [(0, 0, LONGEST)])
    monkeypatch.setattr(kernels, "CHUNK", 128)
    assert not same(cut, attend(q, pool, [(0, 0, LONGEST)]))
