"""Recorded answers survive the file, and are met by the server that gave them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.check.fake_engine import FakeEngine
from tests.check.fake_server import FakeServer, InProcess
from tests.check.test_cli import serving
from zerokl.check.checking import Options
from zerokl.check.golden import load
from zerokl.check.outcome import CouldNotRun
from zerokl.check.recording import record_answers, record_command, replay_answers, replay_command
from zerokl.check.run import Report


def options(defect: str = "") -> Options:
    return Options(
        "http://fake", transports={"http://fake": InProcess(FakeServer(FakeEngine(defect)))}, max_new_tokens=12
    )


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    assert asyncio.run(record_answers(options(), path)) == len(path.read_text().splitlines()) - 1
    return path


def replayed(answers: Path, defect: str = "") -> Report:
    return asyncio.run(replay_answers(options(defect), answers))


def test_the_same_server_answers_the_same_today(answers: Path) -> None:
    report = replayed(answers)
    assert (report.exit_code, report.differing) == (0, 0)
    assert report.values > 1000


def test_a_server_that_changed_differs(answers: Path) -> None:
    assert replayed(answers, "log_softmax").exit_code == 1
    assert replayed(answers, "seed_by_slot").exit_code == 1


def test_recording_keeps_every_bit(answers: Path) -> None:
    again = answers.with_name("again.jsonl")
    asyncio.run(record_answers(options(), again))
    assert answers.read_text().splitlines()[1:] == again.read_text().splitlines()[1:]
    assert load(answers).answers == load(again).answers


def test_one_changed_bit_in_the_file_is_a_difference(answers: Path) -> None:
    lines = answers.read_text().splitlines()
    assert lines[1].count('"rows"') == 1
    entry = load(answers).answers[0][1][0].rows[0]
    assert entry.logprob is not None
    lines[1] = lines[1].replace(f'"{entry.logprob:08x}"', f'"{entry.logprob ^ 1:08x}"')
    answers.write_text("\n".join(lines))
    report = replayed(answers)
    assert report.exit_code == 1
    assert {comparison.differences[0].position for comparison in report.divergent()} == {entry.position}


@pytest.mark.parametrize("content", ["", '{"schema":"other/1"}', '{"schema":"zerokl.golden/1"}\n{"ask":3}', "nonsense"])
def test_file_that_is_no_recording_could_not_run(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(CouldNotRun, match=r"bad\.jsonl"):
        load(path)


def test_commands_record_and_replay(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with serving("") as url:
        recorded = CliRunner().invoke(record_command, [url, "-o", str(path), "--max-new-tokens", "8"])
        assert recorded.exit_code == 0
        result = CliRunner().invoke(replay_command, [str(path), url])
    assert result.exit_code == 0
    assert "0 of " in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk is full")
def test_a_full_disk_is_named(answers: Path) -> None:
    with serving("") as url:
        for command in (
            (record_command, [url, "-o", "/dev/full", "--max-new-tokens", "8"]),
            (replay_command, [str(answers), url, "--json", "/dev/full"]),
        ):
            error = CliRunner().invoke(*command).exception
            assert isinstance(error, OSError)
            assert (error.filename, error.strerror) == ("/dev/full", "No space left on device")
