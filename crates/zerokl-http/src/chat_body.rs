//! The records of one sequence as a choice of /v1/chat/completions, whole or as deltas.

use std::sync::Arc;

use serde::Serialize;
use zerokl_wire::{Done, Record};

use crate::generate_body::Matched;
use crate::job::Job;
use crate::openai::{Counts, finish_of};
use crate::refusal::Refusal;
use crate::scores::{OPENAI_FLOOR, Rows};
use crate::tokenizer::{Names, Tokenizer};
use crate::tools::{CallPart, Event, ToolParser, call_id};

/// Collects records; `message` gives all of them as one choice, `delta` what came since `forget`.
pub struct ChatChoice {
    pub seed: i64,
    pub counts: Counts,
    index: usize,
    name: String,
    parser: Box<dyn ToolParser>,
    called: bool,
    done: Option<Done>,
    job: Arc<Job>,
    events: Vec<Event>,
    tokens: Vec<i32>,
    rows: Rows,
    tokenizer: Arc<Tokenizer>,
    names: Names,
    show_ids: bool,
}

impl ChatChoice {
    pub fn new(
        job: Arc<Job>,
        (name, index): (String, usize),
        parser: Box<dyn ToolParser>,
        tokenizer: Arc<Tokenizer>,
        names: Names,
        show_ids: bool,
    ) -> Self {
        Self {
            seed: 0,
            counts: Counts { prompt_tokens: job.prompt.ids.len(), ..Counts::default() },
            index,
            name,
            parser,
            called: false,
            done: None,
            job,
            events: Vec::new(),
            tokens: Vec::new(),
            rows: Rows::default(),
            tokenizer,
            names,
            show_ids,
        }
    }

    pub fn add(&mut self, record: Record) -> Result<(), Refusal> {
        if let Some(first) = &record.first {
            self.seed = first.seed;
            self.counts.begin(first);
        }
        self.events.extend(self.parser.push(&record.text));
        if record.done.is_some() {
            self.events.extend(self.parser.finish());
        }
        self.called = self.called || self.events.iter().any(|event| matches!(event, Event::Call(_)));
        self.rows.extend(record.logprobs.as_ref(), OPENAI_FLOOR)?;
        self.counts.completion_tokens += record.tokens.len();
        self.tokens.extend(record.tokens);
        self.done = record.done;
        Ok(())
    }

    pub fn message(&self) -> Result<Whole<'_>, Refusal> {
        let content = text_of(&self.events);
        let tool_calls = self.called.then(|| self.whole_calls());
        let (finish_reason, matched_stop) = self.finish();
        Ok(Whole {
            index: self.index,
            message: Message {
                role: "assistant",
                content: if self.called { Some(content).filter(|text| !text.is_empty()) } else { Some(content) },
                reasoning_content: None,
                tool_calls,
            },
            logprobs: self.logprobs()?,
            finish_reason,
            matched_stop,
            token_ids: self.show_ids.then_some(&self.tokens),
            prompt_token_ids: self.show_ids.then_some(&self.job.prompt.ids[..]),
        })
    }

    /// The first chunk: the role, before any text.
    pub fn opening(&self) -> Chunk<'_> {
        let delta = Delta { role: Some("assistant"), content: Some(Some(String::new())), ..Delta::default() };
        Chunk {
            token_ids: self.show_ids.then_some(&[]),
            prompt_token_ids: self.show_ids.then_some(Some(&self.job.prompt.ids[..])),
            ..self.chunk(delta)
        }
    }

    /// The text, ids and scores since `forget`.
    pub fn delta(&self) -> Result<Chunk<'_>, Refusal> {
        let content = text_of(&self.events);
        let parts: Vec<&CallPart> = self.events.iter().filter_map(Event::call).collect();
        let delta = if parts.is_empty() {
            Delta { content: Some(Some(content)), ..Delta::default() }
        } else {
            let content = Some(content).filter(|text| !text.is_empty());
            let calls = parts.into_iter().map(|part| self.call_delta(part)).collect();
            Delta { content: Some(content), tool_calls: Some(calls), ..Delta::default() }
        };
        Ok(Chunk {
            logprobs: self.logprobs()?,
            token_ids: self.show_ids.then_some(&self.tokens),
            prompt_token_ids: self.show_ids.then_some(None),
            ..self.chunk(delta)
        })
    }

    /// The last chunk: why it ended.
    pub fn closing(&self) -> Chunk<'_> {
        let (finish_reason, matched_stop) = self.finish();
        Chunk { finish_reason, matched_stop, ..self.chunk(Delta::default()) }
    }

    /// What a delta gave is not given again.
    pub fn forget(&mut self) {
        self.events.clear();
        self.tokens.clear();
        self.rows = Rows::default();
    }

    /// Whether the text holds something that no delta has given.
    pub fn has_delta(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn is_done(&self) -> bool {
        self.done.is_some()
    }

    fn finish(&self) -> (Option<&str>, Matched<'_>) {
        match finish_of(self.done.as_ref()) {
            (Some("stop"), matched) if self.called => (Some("tool_calls"), matched),
            other => other,
        }
    }

    fn whole_calls(&self) -> Vec<WholeCall> {
        let mut calls: Vec<(usize, WholeCall)> = Vec::new();
        for part in self.events.iter().filter_map(Event::call) {
            match calls.iter_mut().find(|(index, _)| *index == part.index) {
                Some((_, call)) => call.function.arguments.push_str(&part.arguments),
                None => calls.push((part.index, self.call(part))),
            }
        }
        calls.into_iter().map(|(_, call)| call).collect()
    }

    fn call(&self, part: &CallPart) -> WholeCall {
        WholeCall {
            id: call_id(&self.name, self.index, part.index, self.parser.id_digits()),
            r#type: "function",
            function: Function { name: part.name.clone(), arguments: part.arguments.clone() },
        }
    }

    fn call_delta(&self, part: &CallPart) -> CallDelta {
        let whole = part.name.is_some().then(|| self.call(part));
        CallDelta {
            index: part.index,
            id: whole.as_ref().map(|call| call.id.clone()),
            r#type: whole.is_some().then_some("function"),
            function: FunctionDelta { name: part.name.clone(), arguments: part.arguments.clone() },
        }
    }

    fn chunk(&self, delta: Delta) -> Chunk<'_> {
        Chunk {
            index: self.index,
            delta,
            logprobs: None,
            finish_reason: None,
            matched_stop: Matched::Id(None),
            token_ids: None,
            prompt_token_ids: None,
        }
    }

    fn logprobs(&self) -> Result<Option<ChatLogprobs<'_>>, Refusal> {
        if self.job.logprobs.is_none() {
            return Ok(None);
        }
        if self.tokens.len() != self.rows.chosen.len() {
            return Err(Refusal::internal("a record with another number of logprobs than tokens"));
        }
        let entry = |place: usize| {
            let candidates = self.rows.top[place].iter().flatten();
            ChatLogprob {
                candidate: self.candidate(self.tokens[place], self.rows.chosen[place]),
                top_logprobs: candidates.map(|(token, value)| self.candidate(*token, Some(*value))).collect(),
            }
        };
        Ok(Some(ChatLogprobs { content: (0..self.tokens.len()).map(entry).collect() }))
    }

    fn candidate(&self, token: i32, value: Option<f64>) -> Candidate<'_> {
        Candidate { token: Text(self.names.of(token)), bytes: self.tokenizer.token_bytes(token), logprob: value }
    }
}

fn text_of(events: &[Event]) -> String {
    events
        .iter()
        .filter_map(|event| if let Event::Content(text) = event { Some(text.as_str()) } else { None })
        .collect()
}

#[derive(Serialize)]
pub struct Whole<'a> {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'a str>,
    matched_stop: Matched<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a Vec<i32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [i32]>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    reasoning_content: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<WholeCall>>,
}

#[derive(Serialize)]
struct WholeCall {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: Option<String>,
    arguments: String,
}

#[derive(Serialize)]
pub struct Chunk<'a> {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'a str>,
    matched_stop: Matched<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [i32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [i32]>>,
}

#[derive(Serialize, Default)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    reasoning_content: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

#[derive(Serialize)]
struct ChatLogprobs<'a> {
    content: Vec<ChatLogprob<'a>>,
}

#[derive(Serialize)]
struct ChatLogprob<'a> {
    #[serde(flatten)]
    candidate: Candidate<'a>,
    /// A list, so that two ids of one text both stay.
    top_logprobs: Vec<Candidate<'a>>,
}

#[derive(Serialize)]
struct Candidate<'a> {
    token: Text,
    bytes: &'a [u8],
    logprob: Option<f64>,
}

struct Text(Arc<str>);

impl Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
