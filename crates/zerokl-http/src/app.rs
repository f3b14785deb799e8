//! Finds the route, checks the key, and turns every error into the one error form.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use opentelemetry::context::FutureExt as _;

use crate::auth::{Access, Keys};
use crate::cors;
use crate::exchange::{Answer, Exchange, add_header, add_raw_header, answer, json_with_status};
use crate::fields::{message, shown_text};
use crate::refusal::Refusal;
use crate::routes::{self, Action, Route};
use crate::service::Service;
use crate::{chat, completions, control, facts, generate, health, metrics, pages, spans, tokenizing};

pub struct App {
    pub service: Arc<Service>,
    keys: Keys,
}

impl App {
    pub fn new(service: Arc<Service>) -> Self {
        let keys = Keys::of(&service.config);
        Self { service, keys }
    }

    /// The answer of one exchange, whatever happens in it: a panic is a 500 of this request alone.
    pub async fn exchange(&self, exchange: &mut Exchange) -> Answer {
        let route = routes::find(&exchange.path);
        let name = route.map_or("other", |route| route.path.as_str());
        let counted = Counted { service: &self.service, path: name, status: 0 };
        let common = self.common_headers(exchange);
        let span = self.service.tracing.as_ref().map(|tracing| tracing.begin(exchange, name));
        let work = AssertUnwindSafe(self.answer(route, exchange)).catch_unwind();
        let settled = match &span {
            None => work.await,
            Some(span) => work.with_context(span.clone()).await,
        };
        let settled = settled.unwrap_or_else(|_| Err(Refusal::internal("a panic")));
        let mut answer = settled.unwrap_or_else(|refusal| refused(&refusal));
        common.add_to(&mut answer, &self.service.config.allow_origins, exchange.header("origin"));
        counted.answered(if exchange.stalled { 0 } else { answer.status().as_u16() });
        if let Some(span) = &span {
            spans::answered(span, answer.status().as_u16(), &common.request_id);
        }
        tracing::debug!("{} {}: {}", exchange.method, exchange.path, answer.status().as_u16());
        answer
    }

    async fn answer(&self, route: Option<&Route>, exchange: &mut Exchange) -> Result<Answer, Refusal> {
        if exchange.method == "OPTIONS" {
            return self.options(route, exchange);
        }
        let access = route.map_or(Access::User, |route| route.access);
        self.keys.admit(access, exchange.header("authorization"))?;
        let route = route.ok_or_else(|| not_found(&exchange.path))?;
        if !route.methods.contains(&exchange.method) {
            return Err(not_allowed(route, exchange));
        }
        self.act(route.action, exchange).await
    }

    async fn act(&self, action: Action, exchange: &mut Exchange) -> Result<Answer, Refusal> {
        let service = &self.service;
        match action {
            Action::Generate => generate::generate(service, exchange).await,
            Action::Completions => completions::completions(service, exchange).await,
            Action::Chat => chat::chat_completions(service, exchange).await,
            Action::Models => facts::models(service),
            Action::OneModel => facts::one_model(service, exchange),
            Action::Health => health::health(service),
            Action::HealthGenerate => health::health_generate(service).await,
            Action::ServerInfo => facts::server_info(service).await,
            Action::ModelInfo => facts::model_info(service),
            Action::Version => facts::version(),
            Action::Tokenize => tokenizing::tokenize(service, exchange).await,
            Action::Detokenize => tokenizing::detokenize(service, exchange).await,
            Action::TokenizerInfo => tokenizing::tokenizer_info(service),
            Action::FlushCache => control::flush_cache(service, exchange).await,
            Action::AbortRequest => control::abort_request(service, exchange).await,
            Action::UpdateWeights => control::update_weights_from_disk(exchange).await,
            Action::Metrics => metrics::metrics(service),
            Action::Playground => pages::playground(service, exchange),
            Action::Docs => Ok(pages::docs()),
            Action::OpenApi => Ok(pages::openapi()),
        }
    }

    /// A browser's preflight where CORS is on; else a method like any other.
    fn options(&self, route: Option<&Route>, exchange: &Exchange) -> Result<Answer, Refusal> {
        let asks = !exchange.header("access-control-request-method").is_empty();
        if asks && !self.service.config.allow_origins.is_empty() {
            let mut answer = answer(200, "", "");
            cors::add_preflight_headers(&mut answer);
            return Ok(answer);
        }
        let route = route.ok_or_else(|| not_found(&exchange.path))?;
        Err(not_allowed(route, exchange))
    }

    fn common_headers(&self, exchange: &Exchange) -> CommonHeaders {
        let given = exchange.header("x-request-id");
        let request_id = if given.is_empty() { self.service.clock.new_id("").into_bytes() } else { given.to_vec() };
        CommonHeaders { request_id, fingerprint: self.service.engine.fingerprint() }
    }
}

struct CommonHeaders {
    request_id: Vec<u8>,
    fingerprint: String,
}

impl CommonHeaders {
    fn add_to(&self, answer: &mut Answer, allowed: &[String], origin: &[u8]) {
        add_raw_header(answer, "x-request-id", &self.request_id);
        if !self.fingerprint.is_empty() {
            add_header(answer, "x-zerokl-fingerprint", &self.fingerprint);
        }
        cors::add_origin_headers(answer, allowed, origin);
    }
}

/// Counts an exchange when it is over; status 0: the client left before its answer.
struct Counted<'a> {
    service: &'a Service,
    path: &'a str,
    status: u16,
}

impl Counted<'_> {
    fn answered(mut self, status: u16) {
        self.status = status;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.service.engine.flights.meter().answered(self.path, self.status);
    }
}

fn refused(refusal: &Refusal) -> Answer {
    let mut answer = json_with_status(refusal.status, &refusal.body()).expect("an error can be written");
    for (name, value) in &refusal.headers {
        add_header(&mut answer, name, value);
    }
    answer
}

pub fn not_found(path: &str) -> Refusal {
    Refusal::new(404, message("not_found", &[("value", &shown_text(path))])).code("not_found")
}

fn not_allowed(route: &Route, exchange: &Exchange) -> Refusal {
    let allowed = route.methods.join(", ");
    let value = shown_text(&exchange.path);
    let text = message("method", &[("method", &exchange.method), ("value", &value), ("allowed", &allowed)]);
    let mut refusal = Refusal::new(405, text);
    refusal.headers.push(("allow", allowed));
    refusal
}
