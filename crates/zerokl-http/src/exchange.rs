//! One HTTP exchange: the request's parts in, one answer out.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::body::AnswerBody;
use crate::fields::message;
use crate::json::parse_object;
use crate::python::unquote;
use crate::refusal::Refusal;

pub const JSON: &str = "application/json";
pub const TEXT: &str = "text/plain; charset=utf-8";
pub const HTML: &str = "text/html; charset=utf-8";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// Bytes; a longer body is read on a thread of its own.
const LONG_BODY: usize = 64 * 1024;
/// Bytes; of longer bodies few are held and fewer are understood at a time, because what they become takes many times
/// their length. The others wait in their clients' hands.
const HEAVY_BODY: usize = 1 << 20;
static READING: Semaphore = Semaphore::const_new(16);
static UNDERSTANDING: Semaphore = Semaphore::const_new(4);

pub type Answer = Response<AnswerBody>;

pub struct Exchange {
    pub method: String,
    pub path: String,
    pub query: String,
    /// The request's headers.
    given: HeaderMap,
    body: Option<Incoming>,
    /// Bytes of the body, when it was read.
    pub received: usize,
    /// The client sent nothing of a body it had begun: it is hung up on.
    pub stalled: bool,
    limits: Limits,
    /// Of a heavy body: its place among those that are held, and among those that are understood.
    reading: Option<SemaphorePermit<'static>>,
    understanding: Option<SemaphorePermit<'static>>,
}

/// What a client may do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub body_bytes: usize,
    /// How long a body may not go on.
    pub silence: Duration,
}

impl Exchange {
    pub fn new(request: Request<Incoming>, limits: Limits) -> Self {
        let (head, body) = request.into_parts();
        Self {
            method: head.method.as_str().to_owned(),
            path: unquote(head.uri.path()),
            query: head.uri.query().unwrap_or("").to_owned(),
            given: head.headers,
            body: Some(body),
            received: 0,
            stalled: false,
            limits,
            reading: None,
            understanding: None,
        }
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.given
    }

    /// A header of the request, the last of its name; empty if it isn't there.
    pub fn header(&self, name: &str) -> &[u8] {
        self.given.get_all(name).iter().next_back().map_or(b"", HeaderValue::as_bytes)
    }

    /// The whole body. 413 past the limit.
    pub async fn body(&mut self) -> Result<Bytes, Refusal> {
        let limit = self.limits.body_bytes;
        let too_large = || {
            let text = message("too_large", &[("limit", &limit)]);
            Refusal::new(413, text).code("request_too_large")
        };
        let declared = std::str::from_utf8(self.header("content-length")).ok().and_then(|text| text.parse().ok());
        if declared.is_some_and(|size: u128| size > limit as u128) {
            return Err(too_large());
        }
        let Some(mut body) = self.body.take() else { return Ok(Bytes::new()) };
        if declared.is_some_and(|size| size >= HEAVY_BODY as u128) {
            self.reading = Some(place(&READING).await);
        }
        let mut parts = BytesMut::new();
        loop {
            let Ok(frame) = tokio::time::timeout(self.limits.silence, body.frame()).await else {
                self.stalled = true;
                return Err(Refusal::new(408, String::new())); // nobody reads it
            };
            let Some(frame) = frame else { return Ok(parts.freeze()) };
            // An error here means that the client is gone, and nobody reads what we say about it.
            let frame = frame.map_err(|error| Refusal::invalid(error.to_string()))?;
            if let Ok(part) = frame.into_data() {
                if parts.len() + part.len() > limit {
                    return Err(too_large());
                }
                if parts.is_empty() && body.is_end_stream() {
                    return Ok(part);
                }
                parts.extend_from_slice(&part);
                if parts.len() >= HEAVY_BODY && self.reading.is_none() {
                    self.reading = Some(place(&READING).await);
                }
            }
        }
    }

    /// The body has become jobs, which take about as much as its bytes: the next heavy one may be understood.
    pub fn understood(&mut self) {
        self.understanding = None;
    }

    /// The body as one JSON object, whatever its content type.
    pub async fn json(&mut self) -> Result<Map<String, Value>, Refusal> {
        let body = self.body().await?;
        self.received = body.len();
        if body.len() < LONG_BODY {
            return parse_object(&body);
        }
        if body.len() >= HEAVY_BODY {
            self.understanding = Some(place(&UNDERSTANDING).await);
        }
        let parsed = tokio::task::spawn_blocking(move || parse_object(&body)).await;
        self.reading = None;
        parsed.map_err(Refusal::internal)?
    }
}

async fn place(among: &'static Semaphore) -> SemaphorePermit<'static> {
    among.acquire().await.expect("it is never closed")
}

/// A whole answer. An empty body has no content type.
pub fn answer(status: u16, body: impl Into<Bytes>, content_type: &'static str) -> Answer {
    let body = body.into();
    let mut answer = Response::new(AnswerBody::Whole(Bytes::new()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if !body.is_empty() {
        add_header(&mut answer, "content-type", content_type);
    }
    add_header(&mut answer, "content-length", &body.len().to_string());
    *answer.body_mut() = AnswerBody::Whole(body);
    answer
}

pub fn answer_json(value: &impl Serialize) -> Result<Answer, Refusal> {
    json_with_status(200, value)
}

pub fn json_with_status(status: u16, value: &impl Serialize) -> Result<Answer, Refusal> {
    Ok(answer(status, serde_json::to_vec(value).map_err(Refusal::internal)?, JSON))
}

/// A stream's answer.
pub fn answer_events(events: crate::streaming::Events) -> Answer {
    let mut answer = Response::new(AnswerBody::Events(Box::new(events)));
    add_header(&mut answer, "content-type", EVENTS);
    add_header(&mut answer, "cache-control", "no-cache");
    add_header(&mut answer, "x-accel-buffering", "no");
    answer
}

/// A value that HTTP doesn't allow in a header is left out.
pub fn add_header(answer: &mut Answer, name: &'static str, value: &str) {
    add_raw_header(answer, name, value.as_bytes());
}

pub fn add_raw_header(answer: &mut Answer, name: &'static str, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        answer.headers_mut().append(HeaderName::from_static(name), value);
    }
}
