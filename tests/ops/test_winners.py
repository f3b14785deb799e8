"""Tuned schedules: read strictly, used where they were tuned, and never believed before admission has compared them."""

from __future__ import annotations

import json

import pytest

from zerokl.bench.tuned import ROWS, Found, schedules, still_good
from zerokl.errors import EngineError
from zerokl.ops import winners
from zerokl.ops.choices import REFERENCE, Choices, Schedule, Shape, candidates, fallback, settle

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
    assert fallback(shape) == fallback(shape._replace(rows=2)) == Schedule(8, 16, 512, True, 2, 4)
    assert fallback(shape._replace(rows=1)) == Schedule(8, 32, 256, True, 4, 6)
    for elsewhere in (shape._replace(rows=16), shape._replace(depth=4096), shape._replace(gated=True)):
        assert fallback(elsewhere) != Schedule(8, 16, 512, True, 2, 4)


def test_a_winner_with_other_bits_is_not_used(tuned):
    """The planted defect: a file that promises a schedule which this machine computes otherwise."""
    tuned(ENTRY)
    wish, choices = Schedule(*ENTRY["schedule"]), Choices()

    def comparing(kind, most):
        return lambda way, rows: (int(way == wish), 100)

    verdicts = settle(choices, [Shape(0, 4096, 12288)], [8], comparing)
    assert [verdict.way for verdict in verdicts] == [wish, REFERENCE]
    assert choices.admitted == {Shape(8, 4096, 12288): REFERENCE}
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


def test_only_a_clear_winner_is_kept_and_layers_tuned_again_lose_their_old_one():
    found = Found("down", Shape(8, 4096, 12288), Schedule(8, 16, 512, True, 2, 4), 97.0, REFERENCE, 100.0, 5, 1)
    assert found.won
    assert not Found("down", found.shape, found.schedule, 98.5, REFERENCE, 100.0, 5, 1).won
    winners.check(found.entry)
    assert still_good([ENTRY, ENTRY | {"rows": 1}], [found.shape], [8]) == [ENTRY | {"rows": 1}]
