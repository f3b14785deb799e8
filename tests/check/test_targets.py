"""Each adapter reads its server's answers; what a server can't be asked is listed, never passed."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from tests.check.fake_engine import FakeEngine
from tests.check.fake_peers import FakeChat, FakeLlamaCpp, FakeOpenAI, FakeSGLang, FakeVLLM
from tests.check.fake_server import FakeServer, InProcess
from zerokl.check.checking import Options, run_check
from zerokl.check.clues import Kind
from zerokl.check.outcome import Status
from zerokl.check.run import Report

pytestmark = pytest.mark.slow

PEERS: dict[str, Any] = {
    "zerokl": FakeServer,
    "sglang": FakeSGLang,
    "vllm": FakeVLLM,
    "llama.cpp": FakeLlamaCpp,
    "openai": FakeOpenAI,
    "chat": FakeChat,
}
IMPOSSIBLE = {
    "zerokl": {"update"},
    "sglang": {"samples", "echo"},
    "vllm": {"chunks", "echo", "update"},
    "llama.cpp": {"rescoring", "chunks", "lengths", "sweep", "samples", "echo", "update", "stops"},
    "openai": {
        "rescoring",
        "continued",
        "jitter",
        "warm-prefix",
        "warm-decode",
        "branches",
        "window-turns",
        "edges",
        "conversations",
        "abort-storm",
        "twins",
        "transplants",
        "stops",
        "chunks",
        "lengths",
        "sweep",
        "update",
        "samples",
        "echo",
    },
    "chat": {
        "rescoring",
        "continued",
        "jitter",
        "warm-prefix",
        "warm-decode",
        "branches",
        "window-turns",
        "edges",
        "conversations",
        "abort-storm",
        "twins",
        "transplants",
        "stops",
        "chunks",
        "lengths",
        "sweep",
        "update",
        "samples",
        "echo",
        "number-format",
    },
}


NEED_ANOTHER_START = {"pressure", "storm", "evictions", "second-tier", "restart"}
"""Possible on some servers, but not as they are started here."""


def run(kind: str, defect: str = "", *cases: str) -> Report:
    engine = FakeEngine(defect, slots=4 if kind == "llama.cpp" else 64)
    transports = {"http://peer": InProcess(PEERS[kind](engine))}
    options = Options("http://peer", cases=cases, transports=transports, max_new_tokens=16, diagnose=False)
    return asyncio.run(run_check(options, Console(file=io.StringIO())))


@pytest.mark.parametrize("kind", PEERS)
def test_clean_peer_is_detected_and_equal_in_every_case_that_is_possible(kind: str) -> None:
    report = run(kind)
    assert report.facts.kind == kind
    impossible = {result.case.name for result in report.results if result.status is Status.NOT_POSSIBLE}
    assert impossible == IMPOSSIBLE[kind] | NEED_ANOTHER_START
    left = {result.case.name: (result.status, result.reason) for result in report.results}
    assert {name: found for name, found in left.items() if found != (Status.EQUAL, "") and name not in impossible} == {}
    assert report.exit_code == 0
    assert report.values > 2000


@pytest.mark.parametrize("kind", PEERS)
def test_defect_is_seen_through_every_wire_format(kind: str) -> None:
    assert run(kind, "batch_size", "crowd").exit_code == 1


@pytest.mark.parametrize("kind", ["zerokl", "sglang", "vllm", "llama.cpp"])
@pytest.mark.parametrize(("defect", "case"), [("log_softmax", "continued"), ("stale_page", "warm-prefix")])
def test_prefill_and_cache_defects_are_seen_where_ids_are_known(kind: str, defect: str, case: str) -> None:
    assert run(kind, defect, case).exit_code == 1


def test_impossible_case_says_what_the_server_lacks() -> None:
    (result,) = run("chat", "", "rescoring").results
    assert result.reason == "needs a server that scores prompts and names tokens by id in its answers"


def test_run_in_which_nothing_was_possible_is_no_pass() -> None:
    assert run("chat", "", "rescoring").exit_code == 2


def test_rows_whose_texts_collide_are_left_out() -> None:
    """Ids 60 and 61 have one text on this peer; with whole vocabularies in play some rows lose an entry."""
    report = run("openai", "", "repeats")
    assert report.exit_code == 0


def test_two_servers_meet_request_by_request() -> None:
    servers = {"http://a": FakeServer(FakeEngine()), "http://b": FakeServer(FakeEngine("log_softmax"))}
    transports = {url: InProcess(server) for url, server in servers.items()}
    options = Options("http://a", against="http://b", cases=("repeats",), transports=transports)
    report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    assert [(result.case.name, result.status.value) for result in report.results] == [
        ("repeats", "equal"),
        ("against", "different"),
    ]
    assert "http://b" in report.divergent()[0].setting.describe()


def test_two_equal_servers_are_equal() -> None:
    servers = {"http://a": FakeServer(FakeEngine()), "http://b": FakeVLLM(FakeEngine())}
    transports = {url: InProcess(server) for url, server in servers.items()}
    options = Options("http://a", against="http://b", cases=("repeats",), transports=transports)
    report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    assert report.exit_code == 0
    assert report.results[-1].tally.values > 200


class WarmSuffix(FakeEngine):
    """What is computed after a cached prefix comes out a little different, every time in the same way."""

    def _is_wrong(self, request, *circumstances):  # type: ignore[no-untyped-def]
        return request.cached > 0


def test_server_that_tells_nothing_of_its_cache_is_not_called_unrepeatable_for_using_it() -> None:
    app = FakeOpenAI(WarmSuffix(page=4))
    options = Options("http://peer", cases=("repeats", "streams"), transports={"http://peer": InProcess(app)})
    report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    assert report.exit_code == 1
    (diagnosis,) = report.diagnoses
    assert diagnosis.kind is Kind.SHAPE
    assert any("perhaps cached" in one.setting.describe() for one in report.divergent())


def test_cache_that_nobody_counts_is_acquitted_where_warm_answers_agree() -> None:
    app = FakeOpenAI(FakeEngine("batch_size"))
    options = Options("http://peer", cases=("repeats", "crowd"), transports={"http://peer": InProcess(app)})
    (diagnosis,) = asyncio.run(run_check(options, Console(file=io.StringIO()))).diagnoses
    assert (diagnosis.kind, diagnosis.confidence) == (Kind.BATCH, "high")
