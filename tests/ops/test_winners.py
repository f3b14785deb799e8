"""Tuned schedules: read strictly, used where they were tuned, and never believed before admission has compared them."""

from __future__ import annotations

import json

import pytest

from zerokl.bench.tuned import ROWS, Found, schedules, still_good, streams, streams_of_rows
from zerokl.errors import EngineError
from zerokl.ops import winners
from zerokl.ops.choices import REFERENCE, Choices, Schedule, Shape, Streamed, StreamedRows, candidates, settle

ENTRY = {"rows": 8, "columns": 4096, "depth": 12288, "gated": False, "schedule": [8, 16, 512, True, 2, 4]}


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Makes a file with these winners the package's."""

    def write(*entries) -> None:
        path, read = tmp_path / "winners.json", winners.winners
        path.write_text(winners.written({"gpu": "a test"}, entries))
        monkeypatch.setattr(winners, "winners", lambda: read(path))

    return write


def test_what_ships_can_be_read():
    assert all(entry["rows"] in ROWS for entry in winners.entries())


def test_a_winner_serves_the_rows_up_to_those_it_was_tuned_with(tuned):
    other = ENTRY | {"rows": 1, "schedule": [8, 32, 256, True, 4, 6]}
    tuned(ENTRY, other)
    shape = Shape(8, 4096, 12288)
    assert first(shape) == first(shape._replace(rows=2)) == Schedule(8, 16, 512, True, 2, 4)
    assert first(shape._replace(rows=1)) == Schedule(8, 32, 256, True, 4, 6)
    for elsewhere in (shape._replace(rows=16), shape._replace(depth=4096), shape._replace(gated=True)):
        assert first(elsewhere) != Schedule(8, 16, 512, True, 2, 4)
    assert first(shape._replace(form="nvfp4")) != Schedule(8, 16, 512, True, 2, 4)


def first(shape: Shape):
    return candidates(shape)[0]


def test_a_winner_may_be_a_stream_and_is_then_left_out_where_there_is_a_bias(tuned):
    tuned(ENTRY | {"rows": 64, "schedule": [16, 512, 4, 264, True]})
    shape = Shape(64, 4096, 12288)
    assert first(shape) == Streamed(16, 512, 4, 264, True)
    assert Streamed(16, 512, 4, 264, True) not in candidates(shape._replace(biased=True))


def test_a_winner_may_be_a_stream_of_rows_and_is_then_left_out_where_there_is_a_bias(tuned):
    tuned(ENTRY | {"rows": 64, "schedule": [48, 12, 132, False]})
    shape = Shape(64, 4096, 12288)
    assert first(shape) == StreamedRows(48, 12, 132, False)
    assert StreamedRows(48, 12, 132, False) not in candidates(shape._replace(biased=True))
    assert {StreamedRows(32, 16, 132, False), StreamedRows(32, 16, 132, True)} <= set(streams_of_rows(shape))


def test_a_winner_with_other_bits_is_not_used(tuned):
    """The planted defect: a file that promises a schedule which this machine computes otherwise."""
    tuned(ENTRY)
    wish, choices = Schedule(*ENTRY["schedule"]), Choices()

    def comparing(kind, most):
        return lambda way, rows: (int(way == wish), 100)

    verdicts = settle(choices, [Shape(0, 4096, 12288)], [8], comparing)
    assert verdicts[0].way == wish
    assert [verdict.differing for verdict in verdicts] == [1, 0]
    assert choices.admitted == {Shape(8, 4096, 12288): candidates(Shape(8, 4096, 12288))[1]}
    assert candidates(Shape(8, 4096, 12288))[-1] == REFERENCE


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": [8, 16, 512, True, 2]},
        {"schedule": [8, 16, 500, True, 2, 4]},
        {"schedule": [8, 16, 512, 1, 2, 4]},
        {"schedule": [8, 16, 512, True, 2, 9]},
        {"rows": "8"},
        {"gated": 0},
        {"schedule": [16, 256, 8, 264, 1]},
        {"schedule": [16, 256, 9, 264, True]},
        {"schedule": [40, 12, 132, True]},
        {"schedule": [48, 40, 132, True]},
        {"schedule": [8, 256, 8, 264, True]},
        {"schedule": [16, 250, 8, 264, True]},
    ],
)
def test_a_file_that_makes_no_sense_stops_the_start_with_one_sentence(change, tmp_path):
    path = tmp_path / "winners.json"
    path.write_text(json.dumps({"sm90": {"winners": [ENTRY | change]}}))
    with pytest.raises(
        EngineError, match=r"winners\.json of tuned kernels can't be read .* tune again, or take it away"
    ):
        winners.entries(path)


def test_what_is_tried_fits_the_layer_and_keeps_the_bits_question_open():
    for rows in ROWS:
        every = schedules(rows, 12288, gated=False)
        assert 10 < len(every) == len(set(every))
        for schedule in every:
            winners.check(ENTRY | {"schedule": list(schedule)})
            assert schedule.rows >= rows
        for columns, depth, gated in ((4096, 12288, False), (12288, 4096, True), (151936, 4096, False)):
            ways = streams(rows, columns, depth, gated)
            assert (10 < len(ways) == len(set(ways))) == (rows <= 16)
            for way in ways:
                winners.check(ENTRY | {"schedule": list(way)})


def test_only_a_clear_winner_is_kept_and_layers_tuned_again_lose_their_old_one():
    found = Found("down", Shape(8, 4096, 12288), Schedule(8, 16, 512, True, 2, 4), 97.0, REFERENCE, 100.0, 5, 1)
    assert found.won
    assert not Found("down", found.shape, found.schedule, 98.5, REFERENCE, 100.0, 5, 1).won
    winners.check(found.entry)
    assert still_good([ENTRY, ENTRY | {"rows": 1}], found) == [ENTRY | {"rows": 1}]
    lost = Found("down", found.shape, REFERENCE, 99.0, found.schedule, 99.5, 5, 1)
    assert still_good([ENTRY, ENTRY | {"rows": 1}], lost) == [ENTRY, ENTRY | {"rows": 1}], "it is still the fastest"
