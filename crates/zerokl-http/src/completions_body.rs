//! The records of one sequence as a choice of /v1/completions.

use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use zerokl_wire::{Done, Record};

use crate::generate_body::Matched;
use crate::job::Job;
use crate::openai::{Counts, finish_of};
use crate::refusal::Refusal;
use crate::scores::{OPENAI_FLOOR, Pairs, Rows};
use crate::tokenizer::{Names, Tokenizer};

/// Collects records; `choice` shows what came since `forget`.
pub struct CompletionChoice {
    pub seed: i64,
    pub counts: Counts,
    index: usize,
    job: Arc<Job>,
    echoes: bool,
    text: String,
    tokens: Vec<i32>,
    /// The tokens that `rows` is about.
    scored: Vec<i32>,
    rows: Rows,
    offset: usize,
    done: Option<Done>,
    names: Names,
    show_ids: bool,
    prompt_shown: bool,
}

impl CompletionChoice {
    pub fn new(job: Arc<Job>, index: usize, echo: Option<String>, names: Names, show_ids: bool) -> Self {
        Self {
            seed: 0,
            counts: Counts { prompt_tokens: job.prompt.ids.len(), ..Counts::default() },
            index,
            job,
            echoes: echo.is_some(),
            text: echo.unwrap_or_default(),
            tokens: Vec::new(),
            scored: Vec::new(),
            rows: Rows::default(),
            offset: 0,
            done: None,
            names,
            show_ids,
            prompt_shown: false,
        }
    }

    pub fn add(&mut self, record: Record) -> Result<(), Refusal> {
        if let Some(first) = &record.first {
            self.seed = first.seed;
            self.counts.begin(first);
            if self.echoes && self.job.logprobs.is_some() {
                self.rows.extend_nulls(first.leading_nulls as usize);
                self.rows.extend(record.scores.as_ref(), OPENAI_FLOOR)?;
                self.scored.extend_from_slice(&self.job.prompt.ids);
            }
        }
        self.text.push_str(&record.text);
        self.counts.completion_tokens += record.tokens.len();
        if record.logprobs.is_some() {
            self.rows.extend(record.logprobs.as_ref(), OPENAI_FLOOR)?;
            self.scored.extend_from_slice(&record.tokens);
        }
        self.tokens.extend(record.tokens);
        self.done = record.done;
        Ok(())
    }

    /// Everything since `forget`.
    pub fn choice(&self) -> Choice<'_> {
        let (finish_reason, matched_stop) = finish_of(self.done.as_ref());
        let prompt = (!self.prompt_shown).then_some(&self.job.prompt.ids[..]);
        Choice {
            index: self.index,
            text: &self.text,
            logprobs: self.logprobs(),
            finish_reason,
            matched_stop,
            token_ids: self.show_ids.then_some(&self.tokens),
            prompt_token_ids: self.show_ids.then_some(prompt),
        }
    }

    /// What was shown is not shown again.
    pub fn forget(&mut self) {
        self.offset += self.scored.iter().map(|token| self.names.of(*token).chars().count()).sum::<usize>();
        self.text.clear();
        self.tokens.clear();
        self.scored.clear();
        self.rows = Rows::default();
        self.prompt_shown = true;
    }

    fn logprobs(&self) -> Option<ListedLogprobs<'_>> {
        let options = self.job.logprobs.as_ref()?;
        let tokens: Vec<Arc<str>> = self.scored.iter().map(|token| self.names.of(*token)).collect();
        let mut offset = self.offset;
        let text_offset = tokens.iter().map(|text| {
            let here = offset;
            offset += text.chars().count(); // in code points, counted over the texts shown
            here
        });
        let top = |row: &Option<Pairs>| row.as_ref().map(|pairs| self.by_text(pairs));
        Some(ListedLogprobs {
            text_offset: text_offset.collect(),
            token_logprobs: &self.rows.chosen,
            top_logprobs: if options.num_top > 0 { self.rows.top.iter().map(top).collect() } else { Vec::new() },
            tokens: Texts(tokens),
        })
    }

    /// Two ids may have one text: the first, so the more likely, stays.
    fn by_text(&self, pairs: &Pairs) -> ByText {
        let mut by_text: Vec<(Arc<str>, f64)> = Vec::with_capacity(pairs.len());
        for (token, value) in pairs {
            let text = self.names.of(*token);
            if !by_text.iter().any(|(known, _)| *known == text) {
                by_text.push((text, *value));
            }
        }
        ByText(by_text)
    }
}

/// What a prompt given as ids echoes.
pub fn echo_of(job: &Job, tokenizer: &Tokenizer) -> Result<String, Refusal> {
    match &job.prompt.text {
        Some(text) => Ok(text.to_string()),
        None => tokenizer.decode(&job.prompt.ids, true),
    }
}

#[derive(Serialize)]
pub struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<ListedLogprobs<'a>>,
    finish_reason: Option<&'a str>,
    matched_stop: Matched<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a Vec<i32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [i32]>>,
}

#[derive(Serialize)]
struct ListedLogprobs<'a> {
    text_offset: Vec<usize>,
    token_logprobs: &'a [Option<f64>],
    tokens: Texts,
    top_logprobs: Vec<Option<ByText>>,
}

struct Texts(Vec<Arc<str>>);

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|text| &**text))
    }
}

/// An object in the order of its rows.
struct ByText(Vec<(Arc<str>, f64)>);

impl Serialize for ByText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, value) in &self.0 {
            map.serialize_entry(&**text, value)?;
        }
        map.end()
    }
}
