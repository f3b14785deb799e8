"""A server that fails, stops, lies or truncates never gets a pass; the reason is said in words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.check.conftest import RunCheck
from tests.check.fake_engine import FakeEngine, FakeRequest
from zerokl.check import wire
from zerokl.check.commands import shell
from zerokl.check.outcome import CouldNotRun, Status

pytestmark = pytest.mark.slow

PROBES = 10
"""HTTP requests before the first case starts: facts, tokenizer, rates."""


def from_request(number: int, trouble: str, path: str = "/generate") -> Callable[[str, int], str]:
    return lambda asked, count: trouble if count >= number and (asked == path or trouble == "dead") else ""


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("500", "answered 500: told to answer 500"),
        ("html", "not valid JSON"),
        ("nan", "not valid JSON"),
        ("null", "None is not a logprob"),
        ("truncated", "completion_tokens says 32, but 31 came"),
        ("dead", "does not answer"),
    ],
)
def test_trouble_makes_the_case_could_not_run_and_says_why(run_fake: RunCheck, trouble: str, words: str) -> None:
    report = run_fake("", "repeats", trouble=from_request(PROBES + 2, trouble))
    (result,) = report.results
    assert result.status is Status.COULD_NOT_RUN
    assert words in result.reason
    assert report.exit_code == 2


def test_dead_server_stops_every_later_case(run_fake: RunCheck) -> None:
    def dies(path: str, count: int) -> str:
        return "dead" if count > 42 else ""

    report = run_fake(trouble=dies)
    assert report.exit_code == 2
    assert {result.status for result in report.results[3:]} == {Status.COULD_NOT_RUN}
    assert all("does not answer" in result.reason for result in report.results[3:])
    assert report.requests < 60


def test_server_that_was_never_there_is_one_clear_error(run_fake: RunCheck) -> None:
    with pytest.raises(CouldNotRun, match="http://fake does not answer"):
        run_fake(trouble=lambda path, count: "dead")


def test_429_is_retried_until_there_is_room(run_fake: RunCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_PAUSE_S", 0.001)
    report = run_fake("", "repeats", trouble=lambda path, count: "429" if count in (14, 15, 18) else "")
    assert report.exit_code == 0
    assert report.retries == 3


def test_429_without_end_could_not_run(run_fake: RunCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(wire, "LONGEST_PAUSE_S", 0.01)
    report = run_fake("", "repeats", trouble=from_request(PROBES + 2, "429"))
    assert report.results[0].reason.startswith("/generate answered 429")


def test_spent_budget_leaves_later_cases_could_not_run(run_fake: RunCheck) -> None:
    report = run_fake(max_requests=60)
    assert report.requests == 60
    assert report.exit_code == 2
    assert report.results[-2].reason == "the budget of 60 requests is spent"
    assert report.results[0].status is Status.EQUAL


class NoCache(FakeEngine):
    """Never finds a prefix, and says so truthfully."""

    def _keep(self, request: object) -> None:
        self.tree.clear()


class OneAtATime(FakeEngine):
    """Takes a request only when the one before it is done."""

    def _step(self) -> None:
        waiting, self.waiting = self.waiting, self.waiting[:1]
        super()._step()
        self.waiting = self.waiting[:1] + waiting[1:] if self.waiting else waiting[1:]


class NoCounters(FakeEngine):
    """Counts nothing."""

    def _count(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("engine", "cases", "words"),
    [
        (NoCache(), ("warm-prefix", "warm-decode", "branches"), "cached_tokens is 0, expected"),
        (OneAtATime(), ("crowd", "order", "sampled"), "steps of width"),
        (OneAtATime(), ("arrivals",), "the widest step was 1, not 2"),
        (OneAtATime(), ("long-prefill",), "did not fall into the decode"),
        (NoCounters(), ("crowd", "order"), "0 steps of width"),
        (NoCounters(), ("chunks",), "no chunked prefills was counted"),
        (FakeEngine(chunk=4096), ("chunks",), "no chunked prefills was counted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FakeEngine) else None,
)
def test_case_whose_event_never_happened_is_no_pass(
    run_fake: RunCheck, engine: FakeEngine, cases: tuple[str, ...], words: str
) -> None:
    report = run_fake("", *cases, engine=engine)
    assert [result.status for result in report.results] == [Status.COULD_NOT_RUN] * len(cases)
    assert all(words in result.reason for result in report.results)
    assert report.differing == 0


def test_greedy_sampling_makes_the_sampled_case_vacuous(run_fake: RunCheck) -> None:
    class Deaf(FakeEngine):
        def _draw(self, request, row, position, slot):  # type: ignore[no-untyped-def]
            request.temperature = 0
            return super()._draw(request, row, position, slot)

    report = run_fake("", "sampled", "samples", engine=Deaf())
    assert [result.status for result in report.results] == [Status.COULD_NOT_RUN] * 2
    assert "no noise to compare" in report.results[0].reason
    assert "samples are the same" in report.results[1].reason


class Lying(FakeEngine):
    """Uses its cache as it should, and says something else about it."""

    def __init__(self, says: Callable[[int], int]) -> None:
        super().__init__()
        self.says = says

    def _keep(self, request: FakeRequest) -> None:
        super()._keep(request)
        if len(request.output) == request.new_tokens:
            request.cached = self.says(request.cached)


@pytest.mark.parametrize(
    "says",
    [lambda cached: 0, lambda cached: cached + 16, lambda cached: max(0, cached - 16), lambda cached: cached + 1],
    ids=["nothing", "a page more", "a page less", "a token more"],
)
def test_server_that_lies_about_cached_tokens_could_not_run(run_fake: RunCheck, says: Callable[[int], int]) -> None:
    report = run_fake("", "warm-prefix", "branches", engine=Lying(says))
    assert [result.status for result in report.results] == [Status.COULD_NOT_RUN] * 2
    assert all(
        re.search(r"cached_tokens is \d+, expected|tokens came from the cache", r.reason) for r in report.results
    )
    assert report.differing == 0


def test_peer_that_dies_within_a_stream_could_not_run(run_fake: RunCheck) -> None:
    report = run_fake("", "streams", trouble=from_request(PROBES + 3, "dead"))
    assert report.results[0].status is Status.COULD_NOT_RUN
    assert "does not answer" in report.results[0].reason


def test_restart_after_which_nothing_was_ever_away_could_not_run(run_fake: RunCheck) -> None:
    async def idle() -> None:
        """A command that does nothing."""

    (result,) = run_fake("", "restart", restart=idle).results
    assert result.status is Status.COULD_NOT_RUN
    assert "nothing shows that the server was restarted" in result.reason


def test_restart_command_that_fails_says_its_last_words(run_fake: RunCheck) -> None:
    (result,) = run_fake("", "restart", restart=shell("echo no such unit; exit 5")).results
    assert (result.status, result.reason) == (Status.COULD_NOT_RUN, "the restart command ended with 5: no such unit")


def test_restart_without_a_command_is_not_possible(run_fake: RunCheck) -> None:
    (result,) = run_fake("", "restart", restart=None).results
    assert (result.status, result.reason) == (
        Status.NOT_POSSIBLE,
        "needs a command that restarts the server: --restart-command",
    )


def test_weights_that_are_the_same_ones_are_no_update(run_fake: RunCheck) -> None:
    (result,) = run_fake("old_weights", "update", other_weights="hash").results
    assert (result.status, result.reason) == (Status.COULD_NOT_RUN, "the other weights answer as these do")
