"""/metrics: one list of figures. Where SGLang or vLLM have the same figure, it stands under their names too.

So a dashboard or a router made for either works unchanged. Nothing here waits for the engine: what only it knows comes
with its heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from zerokl.server.exchange import Exchange
from zerokl.server.exposition import CONTENT_TYPE, Family, Labels, Number, exposition
from zerokl.server.service import Service
from zerokl.wire.messages import Heartbeat

Samples = list[tuple[str, Labels, Number]]
SILENT = Heartbeat(0, 0, 0)


async def metrics(service: Service, exchange: Exchange) -> None:
    content = exposition(families(service), {"model_name": service.model_name})
    await exchange.answer(200, content, CONTENT_TYPE)


def families(service: Service) -> Iterator[Family]:
    yield from _engine(service)
    yield from _requests(service)


def _engine(service: Service) -> Iterator[Family]:
    engine = service.engine
    beat = engine.heartbeat or SILENT
    page, pool = engine.page_size, beat.num_pages * engine.page_size
    usage = beat.leased_pages / beat.num_pages if beat.num_pages else 0.0
    up = int(engine.trouble is None)
    yield from gauge("zerokl:engine_up", "1 if requests can be taken.", up)
    yield from gauge("zerokl:step_seconds", "How long the running step has taken.", beat.busy_ms / 1000)
    yield from gauge("zerokl:num_requests_in_flight", "Admitted by the frontend.", len(engine.flights))
    names = "zerokl:num_running_reqs sglang:num_running_reqs vllm:num_requests_running"
    yield from gauge(names, "Requests in the engine's batch.", beat.running)
    names = "zerokl:num_queue_reqs sglang:num_queue_reqs vllm:num_requests_waiting"
    yield from gauge(names, "Requests that wait for a place in the batch.", beat.waiting)
    yield from gauge("zerokl:max_total_num_tokens sglang:max_total_num_tokens", "Token slots of the cache.", pool)
    names = "zerokl:num_used_tokens sglang:num_used_tokens"
    yield from gauge(names, "Token slots that requests use.", beat.leased_pages * page)
    yield from gauge("zerokl:num_cached_tokens", "Token slots kept for prefixes.", beat.cached_pages * page)
    names = "zerokl:token_usage sglang:token_usage vllm:kv_cache_usage_perc"
    yield from gauge(names, "Share of the cache that requests use, 0 to 1.", usage)
    yield from counter("zerokl:steps_total", "Steps of the engine.", beat.step)
    yield from counter("zerokl:prefill_tokens_total", "Tokens run that were known before.", beat.prefill_tokens)
    yield from counter("zerokl:sampled_tokens_total", "Tokens drawn.", beat.sampled_tokens)
    names = "zerokl:prefix_cache_queries_total vllm:prefix_cache_queries_total"
    yield from counter(names, "Tokens that the prefix cache was asked for.", beat.lookup_tokens)
    names = "zerokl:prefix_cache_hits_total vllm:prefix_cache_hits_total"
    yield from counter(names, "Tokens that the prefix cache had.", beat.hit_tokens)
    stopped = {
        "limit": beat.stopped_limit,
        "full": beat.stopped_full,
        "sliding": beat.stopped_sliding,
        "state": beat.stopped_state,
    }
    text = "Lookups of prefixes, by what kept the match from being longer."
    yield from family("zerokl:prefix_matches_total", "counter", text, by("stopped_by", stopped))
    text = "Tokens that ran again though their keys were cached, for want of a window or a state."
    yield from counter("zerokl:prefix_lost_tokens_total", text, beat.lost_tokens)
    names = "zerokl:num_preemptions_total vllm:num_preemptions_total"
    yield from counter(names, "Requests put back into the queue for want of pages.", beat.preemptions)


def _requests(service: Service) -> Iterator[Family]:
    meter = service.engine.flights.meter
    yield from family("zerokl:http_answers_total", "counter", "By path and status.", meter.answers.samples())
    names = "zerokl:num_requests_total sglang:num_requests_total"
    yield from counter(names, "Sequences taken in.", meter.started)
    names = "zerokl:request_success_total vllm:request_success_total"
    yield from family(names, "counter", "Sequences that ended, by reason.", meter.finished.samples())
    aborted = meter.finished.values.get((("finished_reason", "abort"),), 0)
    names = "zerokl:num_aborted_requests_total sglang:num_aborted_requests_total"
    yield from counter(names, "Sequences that were aborted.", aborted)
    names = "zerokl:prompt_tokens_total sglang:prompt_tokens_total vllm:prompt_tokens_total"
    yield from counter(names, "Tokens of prompts.", meter.prompt_tokens)
    names = "zerokl:generation_tokens_total sglang:generation_tokens_total vllm:generation_tokens_total"
    yield from counter(names, "Tokens of answers.", meter.generation_tokens)
    names = "zerokl:cached_tokens_total sglang:cached_tokens_total"
    yield from counter(names, "Tokens of prompts that came from the prefix cache.", meter.cached_tokens)
    for name, text, histogram in (
        ("time_to_first_token_seconds", "From admission to the first token of a stream.", meter.first_token_s),
        ("inter_token_latency_seconds", "Between the tokens of a stream.", meter.between_tokens_s),
        ("e2e_request_latency_seconds", "From admission to the last token.", meter.request_s),
    ):
        names = " ".join(f"{prefix}:{name}" for prefix in ("zerokl", "sglang", "vllm"))
        yield from family(names, "histogram", text, histogram.samples())


def by(label: str, values: Mapping[str, Number]) -> Samples:
    return [("", ((label, name),), value) for name, value in values.items()]


def gauge(names: str, text: str, value: Number) -> Iterator[Family]:
    return family(names, "gauge", text, [("", (), value)])


def counter(names: str, text: str, value: Number) -> Iterator[Family]:
    return family(names, "counter", text, [("", (), value)])


def family(names: str, kind: Literal["counter", "gauge", "histogram"], text: str, samples: Samples) -> Iterator[Family]:
    """The same figure under each name."""
    return (Family(name, kind, text, samples) for name in names.split())
