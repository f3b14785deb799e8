//! OpenTelemetry, as src/zerokl/server/tracing.py has it: one span per request, child of the client's own if it sent one.
//!
//! Off unless `--otlp-traces-endpoint` names a collector. A span never holds a prompt or an answer: route, status, ids,
//! and for each sequence its token counts, its times and how it ended. It ends when the answer and its records do.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::config::Config;
use crate::exchange::Exchange;
use crate::meter::Trip;

const SEND: Duration = Duration::from_secs(10);

/// Where spans go.
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Tracing {
    /// None: nothing is traced. The error says why the collector's address is none.
    pub fn of(config: &Config, runtime: Handle) -> Result<Option<Self>, String> {
        let endpoint = config.otlp_traces_endpoint.as_str();
        if endpoint.is_empty() {
            return Ok(None);
        }
        if !endpoint.starts_with("http://") {
            return Err(format!("--otlp-traces-endpoint {endpoint}: the Rust frontend sends to http:// alone"));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender { runtime })
            .with_endpoint(endpoint)
            .build()
            .map_err(|error| format!("--otlp-traces-endpoint {endpoint}: {error}"))?;
        let model = KeyValue::new("zerokl.model", config.served_model_name.clone());
        let resource = Resource::builder().with_service_name("zerokl").with_attribute(model).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Some(Self { tracer: provider.tracer("zerokl"), provider }))
    }

    /// A request's span, in the context in which its work is to run.
    pub fn begin(&self, exchange: &Exchange, route: &str) -> Context {
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(exchange.headers()));
        let span = self
            .tracer
            .span_builder(format!("{} {route}", exchange.method))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", exchange.method.clone()),
                KeyValue::new("http.route", route.to_owned()),
            ])
            .start_with_context(&self.tracer, &parent);
        parent.with_span(span)
    }

    /// Send what is held.
    pub fn close(&self) {
        let _ = self.provider.shutdown();
    }
}

pub fn answered(context: &Context, status: u16, request_id: &[u8]) {
    let span = context.span();
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    span.set_attribute(KeyValue::new("zerokl.request_id", String::from_utf8_lossy(request_id).into_owned()));
    if status >= 500 {
        span.set_status(Status::error(""));
    }
}

/// The span of the request whose work runs here, if it is traced.
pub fn current() -> Option<Context> {
    Context::map_current(|context| context.has_active_span().then(|| context.clone()))
}

pub fn sequence_ended(context: &Context, trip: &Trip) {
    let count = |name: &'static str, value: u64| KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX));
    let reasons = Value::Array(Array::String(vec![StringValue::from(trip.reason.clone())]));
    let mut attributes = vec![
        count("gen_ai.usage.input_tokens", trip.prompt_tokens),
        count("gen_ai.usage.output_tokens", trip.completion_tokens),
        KeyValue::new("gen_ai.response.finish_reasons", reasons),
        count("zerokl.cached_tokens", trip.cached_tokens),
    ];
    attributes.extend(trip.first_token_s.map(|seconds| KeyValue::new("gen_ai.server.time_to_first_token", seconds)));
    context.span().add_event("sequence ended", attributes);
}

/// Posts a batch of spans. The batches' own thread knows no runtime, so the work is done on the server's.
#[derive(Debug)]
struct Sender {
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.runtime.spawn(async { tokio::time::timeout(SEND, post(request)).await }).await??
    }
}

async fn post(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host = uri.host().ok_or("the collector's address has no host")?;
    let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connected = tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.uri = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    head.headers.insert("host", uri.authority().ok_or("the collector's address has no host")?.as_str().parse()?);
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    connected.abort();
    Ok(Response::from_parts(head, body))
}
