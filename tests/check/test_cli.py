"""The command over a real socket: exit status, first line, JSON."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner, Result

from tests.check.fake_engine import FakeEngine
from tests.check.fake_server import FakeServer
from zerokl.check.cases import CASES
from zerokl.check.cli import check, seconds


@contextmanager
def serving(defect: str) -> Iterator[str]:
    """The URL of a fake server that listens on a free local port."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = FakeServer(FakeEngine(defect))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(check, arguments, catch_exceptions=False)


def verdict_line(result: Result) -> str:
    return next(line for line in result.stdout.splitlines() if "values differ" in line)


@pytest.mark.parametrize(("defect", "exit_code", "verdict"), [("", 0, "equal"), ("stream_drops", 1, "different")])
def test_exit_status_and_json_tell_the_verdict(tmp_path: Path, defect: str, exit_code: int, verdict: str) -> None:
    path = tmp_path / "report.json"
    with serving(defect) as url:
        result = invoke(url, "--quick", "--cases", "streams,repeats", "--json", str(path))
    report = json.loads(path.read_text())
    assert result.exit_code == exit_code
    assert (report["schema"], report["verdict"], report["exit_code"]) == ("zerokl.check/1", verdict, exit_code)
    assert [case["name"] for case in report["cases"]] == ["repeats", "streams"]
    assert report["totals"]["values"] > 100
    assert verdict_line(result).startswith("0 of " if not defect else f"{report['totals']['differing']} of ")
    assert bool(report["divergences"]) == bool(defect)


def test_difference_is_shown_with_both_sides_and_its_position(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with serving("log_softmax") as url:
        result = invoke(url, "--quick", "--cases", "rescoring", "--json", str(path))
    (first, *_) = json.loads(path.read_text())["divergences"]
    item = next(item for item in first["differences"] if item["kind"] == "logprob")
    assert {item["first_phase"], item["other_phase"]} == {"decoded", "scored"}
    assert item["first"]["bits"] != item["other"]["bits"]
    for words in ("alone, cold", "scored by prefill", f"{first['positions'][0]}", item["first"]["bits"]):
        assert words in result.stdout


def test_nobody_listening_exits_2_with_one_line() -> None:
    result = invoke("http://127.0.0.1:9", "--quick")
    assert result.exit_code == 2
    assert "could not run: http://127.0.0.1:9 does not answer" in result.stdout


def test_unknown_case_names_those_that_exist() -> None:
    result = CliRunner().invoke(check, ["http://x", "--cases", "warm"])
    assert result.exit_code == 2
    assert "no case 'warm'; there are: repeats, rescoring" in result.output


def test_budget_is_a_time_in_seconds_or_minutes() -> None:
    assert [seconds(None, None, text) for text in ("90", "90s", "1.5m")] == [90.0, 90.0, 90.0]  # type: ignore[arg-type]
    result = CliRunner().invoke(check, ["http://x", "--budget", "soon"])
    assert "'soon' is no time; 90, 90s and 15m are" in result.output


def test_list_names_every_case() -> None:
    assert [line.split()[0] for line in invoke("--list").stdout.splitlines()] == [case.name for case in CASES]


def test_workflow_in_the_docs_uses_options_that_exist() -> None:
    workflow = (Path(__file__).parents[2] / "docs" / "checker" / "github-actions.yml").read_text()
    (command,) = re.findall(r"zerokl check http.*?(?:\n\n)", workflow, re.DOTALL)
    used = set(re.findall(r"--[a-z-]+", command)) | {"--baseline"}
    assert len(used) >= 7
    assert used <= {name for parameter in check.params for name in parameter.opts}
