//! Messages between a frontend and the engine. Written by tools/generate_wire_rust.py: change schema.toml.
//!
//! Each is a msgpack array in field order; `Span` is a raw column after the header, see `frames.rs`.

use crate::codec::{Fields, Reader, Wire, WireError, Writer};

pub const PROTOCOL: u32 = 1;

pub const MAX_TO_ENGINE_BYTES: usize = 268435456;

pub const MAX_TO_FRONTEND_BYTES: usize = 1073741824;

/// A column's place in the bytes after the header.
#[derive(Debug, Clone, PartialEq, Copy, Default)]
pub struct Span {
    pub offset: u32,
    pub size: u32,
}

impl Wire for Span {
    fn write(&self, out: &mut Writer) {
        out.array(2);
        self.offset.write(out);
        self.size.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { offset: fields.or(0)?, size: fields.or(0)? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// Added to the logit of one id.
#[derive(Debug, Clone, PartialEq)]
pub struct Bias {
    pub id: u32,
    pub bias: f64,
}

impl Wire for Bias {
    fn write(&self, out: &mut Writer) {
        out.array(2);
        self.id.write(out);
        self.bias.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { id: fields.required()?, bias: fields.required()? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// How tokens are drawn; an absent value is resolved in the engine (the model's own default, or none).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// -1: all.
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    /// Absent: a hash of the server's default seed and the prompt.
    pub seed: Option<i64>,
    /// Which of n samples: sample j of one request draws from (seed, j).
    pub sample: u32,
    pub logit_bias: Vec<Bias>,
}

impl Wire for Sampling {
    fn write(&self, out: &mut Writer) {
        out.array(10);
        self.temperature.write(out);
        self.top_p.write(out);
        self.top_k.write(out);
        self.min_p.write(out);
        self.frequency_penalty.write(out);
        self.presence_penalty.write(out);
        self.repetition_penalty.write(out);
        self.seed.write(out);
        self.sample.write(out);
        self.logit_bias.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            temperature: fields.or(None)?,
            top_p: fields.or(None)?,
            top_k: fields.or(None)?,
            min_p: fields.or(None)?,
            frequency_penalty: fields.or(None)?,
            presence_penalty: fields.or(None)?,
            repetition_penalty: fields.or(None)?,
            seed: fields.or(None)?,
            sample: fields.or(0)?,
            logit_bias: fields.or(Vec::new())?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// When a request ends, besides its length.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stopping {
    /// The one that completes earliest wins; ties by this order.
    pub strings: Vec<String>,
    pub token_ids: Vec<u32>,
    pub regexes: Vec<String>,
    pub ignore_eos: bool,
    /// The text keeps what matched.
    pub no_trim: bool,
}

impl Wire for Stopping {
    fn write(&self, out: &mut Writer) {
        out.array(5);
        self.strings.write(out);
        self.token_ids.write(out);
        self.regexes.write(out);
        self.ignore_eos.write(out);
        self.no_trim.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            strings: fields.or(Vec::new())?,
            token_ids: fields.or(Vec::new())?,
            regexes: fields.or(Vec::new())?,
            ignore_eos: fields.or(false)?,
            no_trim: fields.or(false)?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// Which logprobs are computed. The request's own tokens' always are.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobOptions {
    /// First prompt position with an entry (which is null); -1: none.
    pub start: i64,
    pub num_top: u32,
    pub ids: Vec<u32>,
}

impl Default for LogprobOptions {
    fn default() -> Self {
        Self { start: -1, num_top: 0, ids: Vec::new() }
    }
}

impl Wire for LogprobOptions {
    fn write(&self, out: &mut Writer) {
        out.array(3);
        self.start.write(out);
        self.num_top.write(out);
        self.ids.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { start: fields.or(-1)?, num_top: fields.or(0)?, ids: fields.or(Vec::new())? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// What the output must look like. One that does not compile is refused with the first record.
#[derive(Debug, Clone, PartialEq)]
pub struct Grammar {
    /// json_schema, regex, ebnf or structural_tag.
    pub kind: String,
    pub source: String,
}

impl Wire for Grammar {
    fn write(&self, out: &mut Writer) {
        out.array(2);
        self.kind.write(out);
        self.source.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { kind: fields.required()?, source: fields.required()? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// What is known once, with a request's first record.
#[derive(Debug, Clone, PartialEq)]
pub struct First {
    /// The record's place in this step.
    pub row: u32,
    pub seed: i64,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Prompt positions before the first score that have an entry, which is null.
    pub leading_nulls: u32,
}

impl Wire for First {
    fn write(&self, out: &mut Writer) {
        out.array(5);
        self.row.write(out);
        self.seed.write(out);
        self.prompt_tokens.write(out);
        self.cached_tokens.write(out);
        self.leading_nulls.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            row: fields.required()?,
            seed: fields.required()?,
            prompt_tokens: fields.required()?,
            cached_tokens: fields.required()?,
            leading_nulls: fields.or(0)?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// How a request ended; its record is its last.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The record's place in this step.
    pub row: u32,
    /// stop, length or abort.
    pub kind: String,
    /// All of the request, a matched stop token included.
    pub completion_tokens: u32,
    /// The stop token.
    pub matched_id: Option<i64>,
    /// The stop string, or the source of the regex.
    pub matched_text: Option<String>,
    pub message: String,
    /// HTTP status, where a refusal or failure ended it.
    pub status: Option<u32>,
    /// Error code, as context_length_exceeded.
    pub code: Option<String>,
    /// The parameter at fault.
    pub param: Option<String>,
}

impl Wire for Done {
    fn write(&self, out: &mut Writer) {
        out.array(9);
        self.row.write(out);
        self.kind.write(out);
        self.completion_tokens.write(out);
        self.matched_id.write(out);
        self.matched_text.write(out);
        self.message.write(out);
        self.status.write(out);
        self.code.write(out);
        self.param.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            row: fields.required()?,
            kind: fields.required()?,
            completion_tokens: fields.or(0)?,
            matched_id: fields.or(None)?,
            matched_text: fields.or(None)?,
            message: fields.or(String::from(""))?,
            status: fields.or(None)?,
            code: fields.or(None)?,
            param: fields.or(None)?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// One sequence to continue. n samples are n submits with one prompt; the cache shares it.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// Chosen by the frontend, never reused on one connection while live.
    pub rid: u64,
    pub prompt: Span,
    pub sampling: Sampling,
    pub stopping: Stopping,
    /// 0: score only. Absent: up to the context's end.
    pub max_new_tokens: Option<u32>,
    /// Nothing but an abort ends it before.
    pub min_new_tokens: u32,
    /// Absent: none.
    pub logprobs: Option<LogprobOptions>,
    pub skip_special_tokens: bool,
    /// Kept for the API; fast tokenizers never put any.
    pub spaces_between_special_tokens: bool,
    /// Records at token 1, then every k. 0: one record, at the end.
    pub stream_interval: u32,
    /// Higher first; equal: by arrival.
    pub priority: i64,
    /// Prefixes are shared only at equal salt.
    pub cache_salt: String,
    /// False: neither reads nor fills the prefix cache.
    pub use_cache: bool,
    pub grammar: Option<Grammar>,
}

impl Wire for Submit {
    fn write(&self, out: &mut Writer) {
        out.array(14);
        self.rid.write(out);
        self.prompt.write(out);
        self.sampling.write(out);
        self.stopping.write(out);
        self.max_new_tokens.write(out);
        self.min_new_tokens.write(out);
        self.logprobs.write(out);
        self.skip_special_tokens.write(out);
        self.spaces_between_special_tokens.write(out);
        self.stream_interval.write(out);
        self.priority.write(out);
        self.cache_salt.write(out);
        self.use_cache.write(out);
        self.grammar.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            rid: fields.required()?,
            prompt: fields.required()?,
            sampling: fields.required()?,
            stopping: fields.required()?,
            max_new_tokens: fields.or(None)?,
            min_new_tokens: fields.or(0)?,
            logprobs: fields.or(None)?,
            skip_special_tokens: fields.or(true)?,
            spaces_between_special_tokens: fields.or(true)?,
            stream_interval: fields.or(1)?,
            priority: fields.or(0)?,
            cache_salt: fields.or(String::from(""))?,
            use_cache: fields.or(true)?,
            grammar: fields.or(None)?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// Ends a request with finish kind abort and the tokens so far. Unknown or finished: nothing happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Abort {
    pub rid: u64,
    pub message: String,
}

impl Wire for Abort {
    fn write(&self, out: &mut Writer) {
        out.array(2);
        self.rid.write(out);
        self.message.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { rid: fields.required()?, message: fields.or(String::from("Aborted"))? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// A rare call, answered once: flush_cache, server_info, abort_all, shutdown.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// Names the answer; chosen by the frontend.
    pub call: u64,
    pub name: String,
    /// A JSON object.
    pub args: String,
}

impl Wire for Control {
    fn write(&self, out: &mut Writer) {
        out.array(3);
        self.call.write(out);
        self.name.write(out);
        self.args.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { call: fields.required()?, name: fields.required()?, args: fields.or(String::from("{}"))? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// Sent once, at connect. A frontend hangs up on another protocol number.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    pub protocol: u32,
    pub fingerprint: String,
    /// Ids run from 0 to vocab - 1.
    pub vocab: u32,
    /// Longest prompt plus output.
    pub context: u32,
    pub eos_ids: Vec<u32>,
    pub bos_id: Option<u32>,
    pub max_running: u32,
    /// Submits past this many waiting are refused.
    pub max_queued: u32,
    /// Token slots of the cache.
    pub pool_tokens: u32,
    pub page_size: u32,
    pub default_seed: i64,
    /// What absent values become.
    pub sampling_defaults: Option<Sampling>,
    /// A JSON object about the model, for model_info and server_info.
    pub facts: String,
}

impl Wire for Hello {
    fn write(&self, out: &mut Writer) {
        out.array(13);
        self.protocol.write(out);
        self.fingerprint.write(out);
        self.vocab.write(out);
        self.context.write(out);
        self.eos_ids.write(out);
        self.bos_id.write(out);
        self.max_running.write(out);
        self.max_queued.write(out);
        self.pool_tokens.write(out);
        self.page_size.write(out);
        self.default_seed.write(out);
        self.sampling_defaults.write(out);
        self.facts.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            protocol: fields.required()?,
            fingerprint: fields.required()?,
            vocab: fields.required()?,
            context: fields.required()?,
            eos_ids: fields.or(Vec::new())?,
            bos_id: fields.or(None)?,
            max_running: fields.or(0)?,
            max_queued: fields.or(0)?,
            pool_tokens: fields.or(0)?,
            page_size: fields.or(0)?,
            default_seed: fields.or(0)?,
            sampling_defaults: fields.or(None)?,
            facts: fields.or(String::from("{}"))?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// What one engine step gave: a row per request that has a record. Without logprobs their columns are empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub step: u64,
    pub rids: Span,
    /// Per row.
    pub num_tokens: Span,
    /// Rows joined.
    pub tokens: Span,
    /// Per row.
    pub num_text_bytes: Span,
    /// UTF-8, rows joined.
    pub text: Span,
    /// Per row: logprobs of prompt tokens. They precede the row's others.
    pub num_scores: Span,
    /// Per row: logprobs of new tokens.
    pub num_logprobs: Span,
    /// Per row.
    pub num_top: Span,
    /// Per row.
    pub num_ids: Span,
    /// Of the token itself.
    pub chosen: Span,
    /// Highest first, ties by lower id.
    pub top_ids: Span,
    pub top: Span,
    /// In the order asked.
    pub ids: Span,
    pub firsts: Vec<First>,
    pub dones: Vec<Done>,
}

impl Wire for Step {
    fn write(&self, out: &mut Writer) {
        out.array(16);
        self.step.write(out);
        self.rids.write(out);
        self.num_tokens.write(out);
        self.tokens.write(out);
        self.num_text_bytes.write(out);
        self.text.write(out);
        self.num_scores.write(out);
        self.num_logprobs.write(out);
        self.num_top.write(out);
        self.num_ids.write(out);
        self.chosen.write(out);
        self.top_ids.write(out);
        self.top.write(out);
        self.ids.write(out);
        self.firsts.write(out);
        self.dones.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            step: fields.required()?,
            rids: fields.required()?,
            num_tokens: fields.required()?,
            tokens: fields.required()?,
            num_text_bytes: fields.required()?,
            text: fields.required()?,
            num_scores: fields.required()?,
            num_logprobs: fields.required()?,
            num_top: fields.required()?,
            num_ids: fields.required()?,
            chosen: fields.required()?,
            top_ids: fields.required()?,
            top: fields.required()?,
            ids: fields.required()?,
            firsts: fields.or(Vec::new())?,
            dones: fields.or(Vec::new())?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// To one Control.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub call: u64,
    pub ok: bool,
    /// A JSON object; if not ok, {"message": why}.
    pub body: String,
}

impl Wire for Answer {
    fn write(&self, out: &mut Writer) {
        out.array(3);
        self.call.write(out);
        self.ok.write(out);
        self.body.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self { call: fields.required()?, ok: fields.required()?, body: fields.or(String::from("{}"))? };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// Every second, whatever the loop does: how long it has been in one step, and figures of its last second.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    pub step: u64,
    pub running: u32,
    pub waiting: u32,
    pub draining: bool,
    /// How long the step has taken that runs now; 0: none runs.
    pub busy_ms: u32,
    /// In use by requests.
    pub leased_pages: u32,
    /// Kept for prefixes; free for whoever needs them.
    pub cached_pages: u32,
    pub num_pages: u32,
    /// This and what follows counts from the engine's start.
    pub prefill_tokens: u64,
    pub sampled_tokens: u64,
    /// Tokens that the prefix cache was asked for.
    pub lookup_tokens: u64,
    /// Tokens that it had.
    pub hit_tokens: u64,
    pub preemptions: u64,
    /// Lookups of prefixes, by what kept the match from being longer: the request.
    pub stopped_limit: u64,
    /// No more is cached.
    pub stopped_full: u64,
    /// Keys of a window are gone.
    pub stopped_sliding: u64,
    /// There is no state checkpoint.
    pub stopped_state: u64,
    /// Tokens that ran again though their keys were cached, for want of the last two.
    pub lost_tokens: u64,
}

impl Wire for Heartbeat {
    fn write(&self, out: &mut Writer) {
        out.array(18);
        self.step.write(out);
        self.running.write(out);
        self.waiting.write(out);
        self.draining.write(out);
        self.busy_ms.write(out);
        self.leased_pages.write(out);
        self.cached_pages.write(out);
        self.num_pages.write(out);
        self.prefill_tokens.write(out);
        self.sampled_tokens.write(out);
        self.lookup_tokens.write(out);
        self.hit_tokens.write(out);
        self.preemptions.write(out);
        self.stopped_limit.write(out);
        self.stopped_full.write(out);
        self.stopped_sliding.write(out);
        self.stopped_state.write(out);
        self.lost_tokens.write(out);
    }
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let mut fields = Fields::of(input)?;
        let value = Self {
            step: fields.required()?,
            running: fields.required()?,
            waiting: fields.required()?,
            draining: fields.or(false)?,
            busy_ms: fields.or(0)?,
            leased_pages: fields.or(0)?,
            cached_pages: fields.or(0)?,
            num_pages: fields.or(0)?,
            prefill_tokens: fields.or(0)?,
            sampled_tokens: fields.or(0)?,
            lookup_tokens: fields.or(0)?,
            hit_tokens: fields.or(0)?,
            preemptions: fields.or(0)?,
            stopped_limit: fields.or(0)?,
            stopped_full: fields.or(0)?,
            stopped_sliding: fields.or(0)?,
            stopped_state: fields.or(0)?,
            lost_tokens: fields.or(0)?,
        };
        fields.skip_tail()?;
        Ok(value)
    }
}

/// What is sent to the engine.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // made once per message, and moved little
pub enum ToEngine {
    Submit(Submit),
    Abort(Abort),
    Control(Control),
}

impl ToEngine {
    pub const LIMIT_BYTES: usize = MAX_TO_ENGINE_BYTES;

    pub fn knows(kind: u8) -> bool {
        matches!(kind, 1..=3)
    }

    pub fn kind(&self) -> u8 {
        match self {
            Self::Submit(_) => 1,
            Self::Abort(_) => 2,
            Self::Control(_) => 3,
        }
    }

    pub fn write(&self, out: &mut Writer) {
        match self {
            Self::Submit(message) => message.write(out),
            Self::Abort(message) => message.write(out),
            Self::Control(message) => message.write(out),
        }
    }

    /// The message of a kind that `knows` knows.
    pub fn read(kind: u8, input: &mut Reader) -> Result<Self, WireError> {
        Ok(match kind {
            1 => Self::Submit(Wire::read(input)?),
            2 => Self::Abort(Wire::read(input)?),
            3 => Self::Control(Wire::read(input)?),
            other => return Err(WireError::unknown_kind(other)),
        })
    }
}

/// What is sent to the frontend.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // made once per message, and moved little
pub enum ToFrontend {
    Hello(Hello),
    Step(Step),
    Answer(Answer),
    Heartbeat(Heartbeat),
}

impl ToFrontend {
    pub const LIMIT_BYTES: usize = MAX_TO_FRONTEND_BYTES;

    pub fn knows(kind: u8) -> bool {
        matches!(kind, 17..=20)
    }

    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 17,
            Self::Step(_) => 18,
            Self::Answer(_) => 19,
            Self::Heartbeat(_) => 20,
        }
    }

    pub fn write(&self, out: &mut Writer) {
        match self {
            Self::Hello(message) => message.write(out),
            Self::Step(message) => message.write(out),
            Self::Answer(message) => message.write(out),
            Self::Heartbeat(message) => message.write(out),
        }
    }

    /// The message of a kind that `knows` knows.
    pub fn read(kind: u8, input: &mut Reader) -> Result<Self, WireError> {
        Ok(match kind {
            17 => Self::Hello(Wire::read(input)?),
            18 => Self::Step(Wire::read(input)?),
            19 => Self::Answer(Wire::read(input)?),
            20 => Self::Heartbeat(Wire::read(input)?),
            other => return Err(WireError::unknown_kind(other)),
        })
    }
}
