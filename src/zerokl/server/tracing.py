"""OpenTelemetry: one span per request, child of the client's own if it sent one. Off, and not even loaded, by default.

`--otlp-traces-endpoint URL` turns it on; the libraries come with `pip install 'zerokl[otel]'`. A span never holds a
prompt or an answer: route, status, ids, and for each sequence its token counts, its times and how it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import zerokl
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.server.exchange import Exchange
from zerokl.server.meter import Trip

CARRIED = (b"traceparent", b"tracestate")
UNTRACED = nullcontext()


class Tracing:
    """Nothing is traced."""

    def request(self, exchange: Exchange, route: str) -> AbstractContextManager[None]:
        """Around one request, until its answer is written."""
        return UNTRACED

    def sequence_ended(self, trip: Trip) -> None:
        """Called where the sequence belongs to the request that is traced here."""

    def close(self) -> None:
        """Send what is held."""


class OpenTelemetry(Tracing):
    """Spans go to a tracer provider."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self._provider = provider
        self._tracer = provider.get_tracer("zerokl", zerokl.__version__)
        self._trace, self._propagate = trace, propagate

    @contextmanager
    def request(self, exchange: Exchange, route: str) -> Iterator[None]:
        carrier = {name.decode(): exchange.header(name).decode("latin-1") for name in CARRIED}
        parent = self._propagate.extract({name: value for name, value in carrier.items() if value})
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(f"{exchange.method} {route}", context=parent, kind=kind) as span:
            span.set_attribute("http.request.method", exchange.method)
            span.set_attribute("http.route", route)
            yield
            span.set_attribute("http.response.status_code", exchange.status)
            span.set_attribute("zerokl.request_id", exchange.request_id)
            if exchange.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR)

    def sequence_ended(self, trip: Trip) -> None:
        attributes: dict[str, Any] = {
            "gen_ai.usage.input_tokens": trip.prompt_tokens,
            "gen_ai.usage.output_tokens": trip.completion_tokens,
            "gen_ai.response.finish_reasons": [trip.reason],
            "zerokl.cached_tokens": trip.cached_tokens,
        }
        if trip.first_token_s is not None:
            attributes["gen_ai.server.time_to_first_token"] = trip.first_token_s
        self._trace.get_current_span().add_event("sequence ended", attributes)

    def close(self) -> None:
        self._provider.shutdown()


def tracing_of(config: Config) -> Tracing:
    """Raises ConfigError if it is asked for and its libraries aren't there."""
    if not config.otlp_traces_endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"--otlp-traces-endpoint needs pip install 'zerokl[otel]' ({error})") from error
    resource = Resource.create({"service.name": "zerokl", "zerokl.model": config.served_model_name})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(config.otlp_traces_endpoint)))
    return OpenTelemetry(provider)
