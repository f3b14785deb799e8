"""Which way computes a product: what is tried in which order, and that nothing is used which was not admitted."""

from __future__ import annotations

import pytest

from zerokl.errors import EngineError
from zerokl.ops.choices import (
    BLOCKS,
    EACH_LEAF,
    GATED_GROUPS,
    LEAF_GROUPS,
    LIBRARY,
    NORMED,
    NORMED_GATED,
    ONE_ROW_TABLE,
    PROCESSORS,
    REFERENCE,
    TILES,
    BlockGroups,
    Choices,
    OneRow,
    Packed,
    Relay,
    Schedule,
    Shape,
    Streamed,
    StreamedRows,
    WarpRow,
    candidates,
    fallback,
    normed,
    reference_of,
    settle,
    streamed,
    streamed_rows,
    tuned,
)

BUCKETS = (1, 8, 16, 32, 64, 256, 1024, 8192)
KINDS = [
    Shape(0, 6144, 4096),
    Shape(0, 4096, 12288, added=True),
    Shape(0, 12288, 4096, gated=True),
    Shape(0, 1536, 576, gated=True, biased=True),
    Shape(0, 151936, 4096, wide=True),
]


def differing_if(bad):
    """A comparison with a machine on which what `bad` names has other bits."""
    return lambda kind, most: lambda way, rows: (rows * kind.columns if bad(way, rows) else 0, rows * kind.columns)


def everywhere(choices: Choices) -> set:
    return {choices.of(kind._replace(rows=rows)) for kind in KINDS for rows in BUCKETS}


def test_every_shape_has_a_schedule_of_ours_behind_the_library_and_the_reference_last():
    for kind in KINDS:
        for rows in BUCKETS:
            shape = kind._replace(rows=rows)
            ways = candidates(shape)
            assert ways[-2:] == [fallback(shape), REFERENCE]
            others = [way for way in ways if not isinstance(way, Schedule)]
            assert others == ways[:-2], "in front of them"
            assert [way for way in ways if isinstance(way, Streamed)] == [*tuned(shape), *streamed(shape)]
            assert bool(streamed(shape)) == (rows <= 8 and not kind.biased)
            assert bool(streamed_rows(shape)) == (8 < rows <= 64 and not kind.biased)
            assert (LIBRARY in ways) == (rows > 24 or (kind.gated and rows > 16)) & (not kind.biased)


def test_every_processor_streams_as_many_outputs_as_every_other():
    """48, 32, 48 and 192 of them: one tile a processor, two of gate and up, six of the head."""
    for kind, columns, turns in ((KINDS[0], 48, 1), (KINDS[1], 32, 1), (KINDS[2], 48, 2), (KINDS[4], 192, 6)):
        (way,) = streamed_rows(kind._replace(rows=64))
        assert isinstance(way, StreamedRows)
        assert (way.columns, -(-kind.columns // way.columns) <= turns * way.programs) == (columns, True)


def test_leaves_are_streamed_if_there_are_2_4_or_8_equal_ones_of_whole_steps():
    def ways(*ends: int) -> list:
        return streamed_rows(Shape(64, 4096, ends[-1], added=True, ends=ends))

    assert ways(512, 1024)
    assert ways(*range(64, 513, 64))
    assert ways(512)
    assert not ways(512, 1024, 1536)
    assert not ways(512, 1536)
    assert not ways(80, 160)


def test_leaves_of_many_rows_are_summed_by_groups_of_warps_where_that_kernel_has_room_for_them():
    def in_groups(*ends: int, **shape: bool) -> bool:
        return LEAF_GROUPS in candidates(Shape(512, 4096, ends[-1], ends=ends, **shape))

    assert in_groups(2048, 4096, added=True)
    assert in_groups(2048, 4096, wide=True)
    assert not in_groups(2048, 4096)
    assert in_groups(*range(512, 4097, 512))
    assert in_groups(*range(1024, 4097, 1024))
    assert in_groups(128, 256, added=True)
    assert not in_groups(64, 128, added=True)
    assert not in_groups(1024, 4096, added=True)
    assert not in_groups(2048, 4096, added=True, biased=True)


def test_one_row_of_a_packed_weight_has_a_warp_for_each_of_2_4_or_8_equal_leaves_of_whole_copies():
    def first(rows: int, form: str, *ends: int) -> object:
        return candidates(Shape(rows, 4096, ends[-1], added=True, ends=ends, form=form))[0]

    eight = range(512, 4097, 512)
    assert all(isinstance(first(1, form, *eight), WarpRow) for form in ("nvfp4", "nvfp4/", "fp8"))
    assert isinstance(first(1, "nvfp4", 512, 1024), WarpRow)
    odd = [(8, "nvfp4", *eight), (1, BLOCKS, *eight), (1, "nvfp4", 512, 1536), (1, "nvfp4", 512, 1024, 1536)]
    assert [first(*shape) for shape in odd] == [EACH_LEAF] * 4
    assert first(1, "nvfp4", 64, 128) == EACH_LEAF


def test_a_schedules_step_divides_the_depth_or_is_masked_at_64():
    for depth in (64, 96, 576, 1536, 4096, 12288):
        for rows in BUCKETS:
            step = fallback(Shape(rows, 4096, depth)).depth
            assert depth % step == 0 or step == 64


def test_the_best_candidate_is_admitted_where_all_have_the_bits():
    choices = Choices()
    verdicts = settle(choices, KINDS, BUCKETS, differing_if(lambda way, rows: False))
    assert len(verdicts) == len(KINDS) * len(BUCKETS), "one comparison each"
    for kind in KINDS:
        for rows in BUCKETS:
            assert choices.of(kind._replace(rows=rows)) == candidates(kind._replace(rows=rows))[0]
    assert {LIBRARY, GATED_GROUPS} <= everywhere(choices)


def test_a_library_that_splits_k_at_some_sizes_is_not_used_there_and_is_elsewhere():
    """The planted defect: its bits depend on the exact number of rows."""
    choices = Choices()
    verdicts = settle(choices, KINDS, BUCKETS, differing_if(lambda way, rows: way == LIBRARY and rows == 256))
    assert {verdict.shape.rows for verdict in verdicts if verdict.differing} == {256}
    for kind in KINDS:
        assert choices.of(kind._replace(rows=256)) == fallback(kind._replace(rows=256))
    assert choices.of(KINDS[0]._replace(rows=1024)) == LIBRARY


def test_a_product_that_normalises_is_one_row_alone_and_its_plain_kind_is_admitted_too():
    choices, plain = Choices(), Shape(0, 12288, 4096, gated=True)
    verdicts = settle(choices, [plain._replace(normed=True)], BUCKETS, differing_if(lambda way, rows: False))
    assert {v.shape for v in verdicts if v.shape.normed} == {plain._replace(rows=1, normed=True)}
    assert {v.shape.rows for v in verdicts if not v.shape.normed} == set(BUCKETS)
    assert choices.of(plain._replace(rows=1, normed=True)) == NORMED_GATED


@pytest.mark.parametrize(
    "other", [{"rows": 8}, {"biased": True}, {"added": True}, {"wide": True}, {"depth": 4032}, {"form": "fp8"}]
)
def test_no_other_product_normalises(other):
    shape = Shape(1, 6144, 4096, normed=True)
    assert normed(shape) == [NORMED]
    assert normed(shape._replace(**other)) == []


def test_tiles_that_differ_leave_the_gated_product_to_the_library():
    choices = Choices()
    settle(choices, KINDS, BUCKETS, differing_if(lambda way, rows: way in (TILES, GATED_GROUPS)))
    assert not {TILES, GATED_GROUPS} & everywhere(choices)
    assert choices.of(KINDS[2]._replace(rows=8192)) == LIBRARY


def test_a_machine_where_nothing_has_the_bits_does_not_start():
    with pytest.raises(EngineError, match="no way to compute"):
        settle(Choices(), KINDS, BUCKETS, differing_if(lambda way, rows: rows == 16))


def test_a_shape_that_nobody_admitted_never_reaches_the_library():
    choices = Choices()
    settle(choices, KINDS[:1], BUCKETS, differing_if(lambda way, rows: False))
    for shape in (Shape(63, 6144, 4096), Shape(64, 6144, 4096, biased=True), Shape(8192, 512, 512, gated=True)):
        assert choices.of(shape) == fallback(shape)
        assert shape in choices.seen, "the next start knows of it"


@pytest.mark.parametrize("form", ["nvfp4", "nvfp4/", "fp8", BLOCKS])
@pytest.mark.parametrize("gated", [False, True])
def test_codes_are_read_for_few_rows_and_unpacked_for_many(form, gated):
    few = [candidates(Shape(rows, 4096, 4096, gated, form=form)) for rows in (2, 8, 9, 16, 17, 64)]
    assert all(isinstance(ways[0], Packed) for ways in few)
    assert [ways[0].rows for ways in few] == [8, 8, 16, 16, 32, 32]
    assert not any(isinstance(way, Packed) for way in candidates(Shape(96, 4096, 4096, gated, form=form)))
    assert not any(isinstance(way, Packed) for way in candidates(Shape(1, 4096, 4096, gated)))
    assert all(ways[-1] == reference_of(Shape(1, 4096, 4096, form=form)) for ways in few)


@pytest.mark.parametrize("form", ["nvfp4", "nvfp4/", "fp8", BLOCKS])
@pytest.mark.parametrize(("columns", "depth"), [(4096, 12288), (4096, 4096), (6144, 4096)])
def test_one_row_has_ways_of_its_own_where_its_copies_are_whole(form, columns, depth):
    ways = candidates(Shape(1, columns, depth, form=form))
    expected = {"fp8": [OneRow, Packed], BLOCKS: [Packed, Schedule]}.get(form, [Relay, OneRow, Packed])
    assert [type(way) for way in ways[: len(expected)]] == expected
    assert all(columns // (16 * way.panels) <= PROCESSORS for way in ways if isinstance(way, Relay))
    for odd in (Shape(1, columns + 8, depth, form=form), Shape(1, columns, depth + 16, form=form)):
        assert not any(isinstance(way, OneRow | Relay) for way in candidates(odd))
    for other in (Shape(1, columns, depth, True, form=form), Shape(1, columns, depth, biased=True, form=form)):
        assert not any(isinstance(way, Relay) for way in candidates(other))


def test_a_relay_is_for_outputs_that_its_programs_cover_at_once():
    assert any(isinstance(way, Relay) for way in candidates(Shape(1, 16 * 3 * PROCESSORS, 4096, form="nvfp4")))
    assert not any(isinstance(way, Relay) for way in candidates(Shape(1, 16 * 4 * PROCESSORS, 4096, form="nvfp4")))


@pytest.mark.parametrize("gated", [False, True])
def test_many_rows_by_blocks_have_ways_of_their_own_where_tiles_are_whole(gated):
    def ways(*shape: int, biased: bool = False, form: str = BLOCKS) -> list[BlockGroups]:
        found = candidates(Shape(*shape, gated, biased, form=form))
        return [way for way in found if isinstance(way, BlockGroups)]

    assert [way.passes for way in ways(1024, 4096, 4096)] == [2, 1]
    assert [way.passes for way in ways(8192, 4096, 4096)] == ([1, 2] if gated else [2, 1])
    assert [way.passes for way in ways(1024, 4096 + (64 if gated else 128), 4096)] == [1]
    assert not ways(1024, 4096 + 16, 4096)
    assert not ways(1024, 4096, 4096 + 64)
    assert not ways(256, 4096, 4096)
    assert not ways(1024, 4096, 4096, biased=True)
    assert not ways(1024, 4096, 4096, form="fp8")


def test_a_team_never_writes_registers_of_products_on_their_way():
    """See `one_row_code.step_block`: fewer than three tiles gave wrong bits."""
    ways = [way for table in ONE_ROW_TABLE.values() for way in table]
    assert all(way.tiles > 2 or way.teams == 2 for way in ways)
    assert all(way.panels == 4 for *_, way in ONE_ROW_TABLE.values()), "a gated program has gate and up"


def test_sums_that_are_scaled_by_blocks_are_left_to_schedules_that_end_them_there():
    for rows in (1, 64, 1024):
        ways = candidates(Shape(rows, 4096, 4096, form=BLOCKS))
        assert LIBRARY not in ways
        assert all(way.depth == 128 for way in ways if isinstance(way, Schedule))
        assert all(way.tiles == 2 for way in ways if isinstance(way, Packed))
