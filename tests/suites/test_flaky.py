"""A test that gives both results is found by repeating it, called a bug, and its cause is named: planted ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.suites.project import write_project
from zerokl.suites.cli import suite
from zerokl.suites.flaky import find_flaky
from zerokl.suites.results import TestRun

pytestmark = pytest.mark.slow

PLANTED = """
import itertools, random
import pytest
draws = random.Random(11)
starts = itertools.count()

@pytest.fixture(scope="module")
def server():
    yield next(starts)

def test_same_bits(conditions, server):
    assert server == 0, "a repeat must not start the server anew"
    batch, cached = draws.choice([1, 2, 4, 8]), 64 * draws.randrange(5)
    turn = next(starts)
    if turn % 20 == 13:
        batch = 7                         # the width whose kernel sums in another order
    conditions.note(batch_width=batch, cached_tokens=cached, running=draws.randrange(1, 9), turn=turn)
    assert batch != 7, "bits differ"

def test_steady(): pass
"""


def test_a_one_in_twenty_flake_is_found_and_its_cause_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    write_project(tmp_path, {"test_planted.py": PLANTED})
    arguments = ["--project", str(tmp_path), "rerun", "test_planted.py", "--repeat", "60"]
    result = CliRunner().invoke(suite, [*arguments, "--reports", str(tmp_path / "reports")], catch_exceptions=False)
    (row,) = json.loads((tmp_path / "reports" / "summary.json").read_text())["results"]
    assert (row["status"], result.exit_code) == ("flaky: a bug", 1)
    (found,) = row["flaky"]
    assert found["test"] == "tests/test_planted.py::test_same_bits"
    assert (found["passed"], found["failed"], found["cause"]) == (57, 3, "batch_width")
    assert {"value": "7", "passed": 0, "failed": 3} in found["conditions"][0]["rows"]
    assert "flaky: a bug: tests/test_planted.py::test_same_bits failed 3 of 60 runs" in result.output
    assert "batch_width  <- suspect" in result.output
    assert row["counts"] == {"passed": 117, "failed": 3}


UNNOTED = """
import itertools, random
from msgspec.structs import replace
import pytest
from tests.http.live import live
from zerokl.engine.fake_model import FakeRunner, FakeStep

draws, turns = random.Random(5), itertools.count()
sound = FakeRunner.submit

def planted(runner, plan):
    done = sound(runner, plan)
    if len(plan.segments) == 7:           # the width whose kernel sums in another order
        first, *rest = done.outcome.segments
        first = replace(first, token=97)
        done = FakeStep(replace(done.outcome, segments=(first, *rest)))
    return done

@pytest.fixture(scope="module")
def server():
    FakeRunner.submit = planted
    with live() as running:
        yield running

def test_same_bits(server):
    width = 7 if next(turns) % 20 == 13 else draws.choice([1, 2, 4, 8])
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    crowd = [f"prompt {i} " * draws.choice([1, 20]) for i in range(1, width)]
    answers = server.generate(text=[*crowd, "mine"], sampling_params=params)
    alone = server.generate(text="mine", sampling_params=params)
    assert [one["output_ids"] for one in answers if one["output_ids"][0] == 97] == []
    assert answers[-1]["output_ids"] == alone["output_ids"]
"""


def test_what_engines_ran_is_noted_unasked_and_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    write_project(tmp_path, {"test_unnoted.py": UNNOTED})
    arguments = ["--project", str(tmp_path), "rerun", "test_unnoted.py", "--repeat", "60"]
    result = CliRunner().invoke(suite, [*arguments, "--reports", str(tmp_path / "reports")], catch_exceptions=False)
    (row,) = json.loads((tmp_path / "reports" / "summary.json").read_text())["results"]
    assert (row["status"], result.exit_code) == ("flaky: a bug", 1), result.output
    (found,) = row["flaky"]
    assert (found["passed"], found["failed"]) == (57, 3)
    assert found["cause"] in ("running", "decode_width")
    assert {row["name"] for row in found["conditions"]} == {"running", "decode_width", "batch_tokens", "cached_tokens"}
    assert {"value": "7", "passed": 0, "failed": 3} in found["conditions"][0]["rows"]


def runs(outcomes: str, **conditions: list[int]) -> list[TestRun]:
    return [
        TestRun(
            "t",
            number,
            "passed" if outcome == "." else "failed",
            conditions={k: v[number] for k, v in conditions.items()},
        )
        for number, outcome in enumerate(outcomes)
    ]


def test_no_cause_is_named_where_no_condition_tells_more_than_chance() -> None:
    (one,) = find_flaky(runs("....F.....", width=[1, 2, 1, 2, 1, 2, 1, 2, 1, 2], turn=list(range(10))))
    assert one.cause == ""
    assert next(found for found in one.conditions if found.name == "turn").chance == 1.0


def test_a_value_seen_only_in_failures_is_the_cause_beside_noise() -> None:
    width = [8, 8, 8, 3, 8, 8, 3, 8, 3, 8, 8, 8]
    (one,) = find_flaky(runs("...F..F.F...", noise=[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2], width=width))
    assert one.cause == "width"
    assert one.conditions[0].rows == (("3", 0, 3), ("8", 9, 0))


def test_always_red_and_always_green_are_not_flaky() -> None:
    assert find_flaky(runs("FFF")) == []
    assert find_flaky(runs("...")) == []
