"""Random requests, valid and broken, to both frontends of one engine: whole answers equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.http.live import Live, live_each
from tests.http.parity.exchanges import Answer, Case, exchanged
from tests.http.test_fuzz import requests
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=20, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=1500, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = pytest.mark.slow

Pair = tuple[Live, Live]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Without a prefix cache, so that the second to ask finds what the first did."""
    engine = {"num_pages": 64, "page_size": 16, "disable_radix_cache": True}
    with live_each(("python", "rust"), tool_call_parser="hermes", engine=engine) as [python, rust]:
        yield python, rust


def check_pair(pair: Pair, path: str, body: bytes) -> None:
    case = Case("random", "POST", path, body)
    python, rust = (comparable(exchanged(server.url, case)) for server in pair)
    assert rust == python


def comparable(answer: Answer) -> Answer:
    """Streams of several sequences interleave as they come: then their frames are compared as a set."""
    first = '"index":0' in "".join(answer.body)
    others = any(f'"index":{i}' in chunk for chunk in answer.body for i in range(1, 10))
    if len(answer.body) > 1 and first and others:
        return Answer(answer.status, answer.headers, tuple(sorted(answer.body)))
    return answer


QUICK = settings(max_examples=300, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
MANY = settings(QUICK, max_examples=20_000)


@QUICK
@given(request=requests())
def test_both_frontends_answer_any_request_with_the_same_bytes(pair: Pair, request: tuple[str, bytes]) -> None:
    check_pair(pair, *request)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@MANY
@given(request=requests())
def test_both_frontends_answer_twenty_thousand_requests_alike(pair: Pair, request: tuple[str, bytes]) -> None:
    check_pair(pair, *request)
