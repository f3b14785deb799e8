//! What the frontend measures of requests, for /metrics: how many, how long, how they ended.

use std::collections::BTreeMap;
use std::time::Instant;

use zerokl_wire::Record;

use crate::exposition::Histogram;

const TOKEN_BOUNDS_S: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
const REQUEST_BOUNDS_S: [f64; 15] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0];

/// A request here is a sequence: one prompt and one of its samples.
pub struct Meter {
    pub started: u64,
    /// By finished_reason.
    pub finished: BTreeMap<String, u64>,
    /// HTTP answers, by path and status.
    pub answers: BTreeMap<(String, String), u64>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generation_tokens: u64,
    /// Of streams: what isn't streamed comes all at once.
    pub first_token_s: Histogram,
    pub between_tokens_s: Histogram,
    pub request_s: Histogram,
}

impl Meter {
    pub fn new() -> Self {
        Self {
            started: 0,
            finished: BTreeMap::new(),
            answers: BTreeMap::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            generation_tokens: 0,
            first_token_s: Histogram::new(&REQUEST_BOUNDS_S),
            between_tokens_s: Histogram::new(&TOKEN_BOUNDS_S),
            request_s: Histogram::new(&REQUEST_BOUNDS_S),
        }
    }

    /// A request is taken in; show its records to what this gives.
    pub fn begin(&mut self, streams: bool) -> Trip {
        self.started += 1;
        Trip {
            streams,
            began: Instant::now(),
            heard: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            first_token_s: None,
            reason: String::new(),
        }
    }

    pub fn answered(&mut self, path: &str, status: u16) {
        *self.answers.entry((path.to_owned(), status.to_string())).or_default() += 1;
    }
}

/// One request from its admission on.
pub struct Trip {
    streams: bool,
    began: Instant,
    /// When the last token came.
    heard: Option<Instant>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Only of streams.
    pub first_token_s: Option<f64>,
    /// How it ended; empty: it hasn't.
    pub reason: String,
}

impl Trip {
    pub fn take(&mut self, record: &Record, meter: &mut Meter) {
        let now = Instant::now();
        if let Some(first) = &record.first {
            self.prompt_tokens = first.prompt_tokens.into();
            self.cached_tokens = first.cached_tokens.into();
            meter.prompt_tokens += self.prompt_tokens;
            meter.cached_tokens += self.cached_tokens;
        }
        if !record.tokens.is_empty() {
            let count = record.tokens.len() as u64;
            self.completion_tokens += count;
            meter.generation_tokens += count;
            if self.streams {
                match self.heard {
                    None => {
                        let waited_s = (now - self.began).as_secs_f64();
                        self.first_token_s = Some(waited_s);
                        meter.first_token_s.observe(waited_s, 1);
                    }
                    Some(heard) => meter.between_tokens_s.observe((now - heard).as_secs_f64() / count as f64, count),
                }
                self.heard = Some(now);
            }
        }
        if let Some(done) = &record.done {
            meter.request_s.observe((now - self.began).as_secs_f64(), 1);
            self.end(if done.status.is_some() { "error" } else { &done.kind }, meter);
        }
    }

    /// Nobody wants its records any more; nothing happens if its last has come.
    pub fn leave(&mut self, meter: &mut Meter) {
        if !self.has_ended() {
            self.end("abort", meter);
        }
    }

    pub fn has_ended(&self) -> bool {
        !self.reason.is_empty()
    }

    fn end(&mut self, reason: &str, meter: &mut Meter) {
        reason.clone_into(&mut self.reason);
        *meter.finished.entry(reason.to_owned()).or_default() += 1;
    }
}
