"""/metrics: text that Prometheus reads, figures that are right, and SGLang's and vLLM's names for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.live import Live, live, wait_until
from zerokl.engine import process as process_module
from zerokl.server.exposition import Counter, Family, Histogram, exposition
from zerokl.server.meter import Meter
from zerokl.types import Logprobs
from zerokl.wire.messages import Done, First
from zerokl.wire.records import Record

PARAMS = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr(process_module, "HEARTBEAT_S", 0.02)
    with live() as running:
        yield running


def values(server: Live) -> dict[str, float]:
    """Each sample by its name and labels, model_name left out."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "model_name"}
            assert sample.labels["model_name"] == "toy"
            found[sample.name + "".join(f" {key}={value}" for key, value in sorted(labels.items()))] = sample.value
    return found


def test_it_is_prometheus_text_in_order_of_names(server: Live) -> None:
    response = server.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(response.text))
    names = [line.split()[2] for line in response.text.splitlines() if line.startswith("# TYPE")]
    assert names == sorted(set(names))
    assert len(families) == len(names)
    assert all(family.documentation for family in families)
    assert {name.partition(":")[0] for name in names} == {"zerokl", "sglang", "vllm"}


def test_requests_and_tokens_are_counted_and_timed(fresh: Live) -> None:
    prompt = [*b"twice the same prompt of more than a page: " * 2]
    for _ in range(2):
        fresh.generate(input_ids=prompt, sampling_params=PARAMS)
    fresh.post("/generate", {"text": "ab", "stream": True, "sampling_params": {**PARAMS, "n": 2}})
    fresh.post("/generate", {"text": "ab", "sampling_params": {"regex": "["}})
    fresh.post("/nowhere", {})
    got = values(fresh)
    assert got["zerokl:num_requests_total"] == 5
    assert got["zerokl:request_success_total finished_reason=length"] == 4
    assert got["zerokl:request_success_total finished_reason=error"] == 1
    assert got["vllm:prompt_tokens_total"] == 2 * len(prompt) + 2 * 2
    assert got["sglang:generation_tokens_total"] == 4 * 5
    assert got["sglang:cached_tokens_total"] == 64
    assert got["zerokl:time_to_first_token_seconds_count"] == 2
    assert got["vllm:inter_token_latency_seconds_count"] == 2 * 4
    assert got["vllm:e2e_request_latency_seconds_bucket le=+Inf"] == 5
    assert got["zerokl:http_answers_total path=/generate status=200"] == 3
    assert got["zerokl:http_answers_total path=/generate status=400"] == 1
    assert got["zerokl:http_answers_total path=other status=404"] == 1


def test_the_engines_figures_come_with_its_heartbeat(fresh: Live) -> None:
    prompt = [*b"twice the same prompt of more than a page: " * 2]
    for _ in range(2):
        fresh.generate(input_ids=prompt, sampling_params=PARAMS)
    wait_until(lambda: values(fresh)["zerokl:sampled_tokens_total"] == 10)
    got = values(fresh)
    assert got["vllm:prefix_cache_hits_total"] == 64
    assert got["zerokl:num_cached_tokens"] == 64
    assert got["zerokl:prefix_matches_total stopped_by=full"] == 1
    assert got["zerokl:prefix_matches_total stopped_by=limit"] == 1
    assert got["zerokl:prefix_matches_total stopped_by=sliding"] == 0
    assert got["zerokl:prefix_matches_total stopped_by=state"] == 0
    assert got["zerokl:prefix_lost_tokens_total"] == 0
    assert got["sglang:max_total_num_tokens"] == 512 * 64
    assert got["sglang:num_running_reqs"] == got["vllm:num_requests_running"] == 0
    assert got["zerokl:engine_up"] == 1


def test_a_client_that_leaves_counts_as_an_abort() -> None:
    meter = Meter()
    trip = meter.begin(streams=True)
    trip.leave()
    assert meter.finished.samples() == [("", (("finished_reason", "abort"),), 1)]


def test_a_record_of_several_tokens_is_shared_among_them() -> None:
    times = iter([10.0, 11.0, 14.0])
    meter = Meter(clock=lambda: next(times))
    trip = meter.begin(streams=True)
    trip.take(Record(1, [5], "", None, Logprobs(), First(0, 0, 3, 0), None))
    trip.take(Record(1, [5, 6, 7], "", None, Logprobs(), None, Done(0, "stop", 4)))
    trip.leave()
    samples = {(suffix, labels): value for suffix, labels, value in meter.between_tokens_s.samples()}
    assert samples["_count", ()] == 3
    assert samples["_sum", ()] == 3.0
    assert samples["_bucket", (("le", "1.0"),)] == 3
    assert samples["_bucket", (("le", "0.75"),)] == 0
    assert meter.finished.samples() == [("", (("finished_reason", "stop"),), 1)]


def test_text_is_escaped_and_numbers_are_shortest() -> None:
    counter = Counter()
    counter.add(path='a"\\\n')
    histogram = Histogram([0.1, 1.0])
    histogram.observe(0.1)
    families = [Family("b", "counter", "B.", counter.samples()), Family("a", "histogram", "A.", histogram.samples())]
    assert exposition(families, {"m": "x"}).decode().splitlines() == [
        "# HELP a A.",
        "# TYPE a histogram",
        'a_bucket{m="x",le="0.1"} 1',
        'a_bucket{m="x",le="1.0"} 1',
        'a_bucket{m="x",le="+Inf"} 1',
        'a_count{m="x"} 1',
        'a_sum{m="x"} 0.1',
        "# HELP b B.",
        "# TYPE b counter",
        'b{m="x",path="a\\"\\\\\\n"} 1',
    ]
