"""OpenTelemetry over its real exporter: a collector on a local port gets the spans that the requests should give."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.http.live import live
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.server.tracing import Tracing, tracing_of

pytest.importorskip("opentelemetry.sdk")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Collector(HTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Any] = []
        self.resources: list[Any] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append(resource.resource)  # type: ignore[attr-defined]
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def test_each_request_is_a_span_with_its_sequences_as_events(collector: Collector) -> None:
    with live(otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces") as server:
        params = {"max_new_tokens": 3, "temperature": 0, "n": 2}
        server.post("/generate", {"text": "secret", "stream": True, "sampling_params": params}, headers=PARENT)
        server.post("/v1/completions", {"prompt": ""}, headers={"x-request-id": "mine"})
        server.client.get("/nowhere/at/all")
    spans = {span.name: span for span in collector.spans}
    generated, refused = spans["POST /generate"], spans["POST /v1/completions"]
    assert generated.trace_id.hex() == TRACE
    assert plain(generated.attributes)["http.response.status_code"] == 200
    events = [plain(event.attributes) for event in generated.events]
    assert [event["gen_ai.usage.output_tokens"] for event in events] == [3, 3]
    assert all(event["gen_ai.usage.input_tokens"] == 6 for event in events)
    assert all(event["gen_ai.server.time_to_first_token"] > 0 for event in events)
    assert refused.trace_id.hex() != TRACE
    assert plain(refused.attributes)["http.response.status_code"] == 400
    assert plain(refused.attributes)["zerokl.request_id"] == "mine"
    assert "GET other" in spans
    assert plain(collector.resources[0].attributes)["service.name"] == "zerokl"
    assert not any(b"secret" in span.SerializeToString() for span in collector.spans)


@pytest.mark.python_frontend
def test_it_is_off_unless_asked_for_and_an_error_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(tracing_of(Config())) is Tracing
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'zerokl\[otel\]'"):
        tracing_of(Config(otlp_traces_endpoint="http://127.0.0.1:1"))
