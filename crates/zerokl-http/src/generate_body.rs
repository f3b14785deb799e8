//! The records of one sequence as /generate's body, whole or so far.

use std::sync::Arc;

use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};
use zerokl_wire::{Done, LogprobOptions, Record};

use crate::job::Job;
use crate::refusal::Refusal;
use crate::scores::{NATIVE_FLOOR, Pairs, Rows};
use crate::tokenizer::Tokenizer;

/// [logprob or null, token id, text or null]
struct Entry {
    value: Option<f64>,
    token: i32,
    text: Option<Arc<str>>,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(3)?;
        tuple.serialize_element(&self.value)?;
        tuple.serialize_element(&self.token)?;
        tuple.serialize_element(&self.text.as_deref())?;
        tuple.end()
    }
}

/// The three parallel lists of logprobs, of the prompt or of the output.
#[derive(Default)]
struct Entries {
    own: Vec<Entry>,
    top: Vec<Option<Vec<Entry>>>,
    ids: Vec<Option<Vec<Entry>>>,
}

/// What the engine said so far about one job, in the shapes of /generate.
pub struct GenerateBody {
    pub seed: i64,
    job: Arc<Job>,
    rid: String,
    text: String,
    output_ids: Vec<i32>,
    completion_tokens: usize,
    prompt_tokens: usize,
    cached_tokens: u32,
    done: Option<Done>,
    input: Entries,
    output: Entries,
    /// Given where entries name their tokens.
    names: Option<Arc<Tokenizer>>,
}

/// What bodies show, whatever is in them.
#[derive(Clone)]
pub struct Style {
    pub weight_version: String,
    pub prompt_ids: bool,
}

impl GenerateBody {
    pub fn new(job: Arc<Job>, rid: String, names: Option<Arc<Tokenizer>>) -> Self {
        Self {
            seed: 0,
            // A request that is aborted before its turn ends without ever having begun.
            prompt_tokens: job.prompt.ids.len(),
            cached_tokens: 0,
            job,
            rid,
            text: String::new(),
            output_ids: Vec::new(),
            completion_tokens: 0,
            done: None,
            input: Entries::default(),
            output: Entries::default(),
            names,
        }
    }

    pub fn add(&mut self, record: Record) -> Result<(), Refusal> {
        if let Some(first) = &record.first {
            self.seed = first.seed;
            self.prompt_tokens = first.prompt_tokens as usize;
            self.cached_tokens = first.cached_tokens;
            self.add_scores(&record, first.leading_nulls as usize)?;
        }
        let mut rows = Rows::default();
        rows.extend(record.logprobs.as_ref(), NATIVE_FLOOR)?;
        let entries = self.entries(rows, &record.tokens)?;
        self.output.own.extend(entries.own);
        self.output.top.extend(entries.top);
        self.output.ids.extend(entries.ids);
        self.text.push_str(&record.text);
        self.completion_tokens += record.tokens.len();
        self.output_ids.extend(record.tokens);
        self.done = record.done;
        Ok(())
    }

    /// Scores run to the prompt's end, so they name their own start.
    fn add_scores(&mut self, record: &Record, leading_nulls: usize) -> Result<(), Refusal> {
        let mut rows = Rows::default();
        rows.extend_nulls(leading_nulls);
        rows.extend(record.scores.as_ref(), NATIVE_FLOOR)?;
        let job = self.job.clone();
        let start = job.prompt.ids.len().checked_sub(rows.chosen.len());
        let start = start.ok_or_else(|| Refusal::internal("more scores than the prompt has tokens"))?;
        self.input = self.entries(rows, &job.prompt.ids[start..])?;
        Ok(())
    }

    fn entries(&self, rows: Rows, tokens: &[i32]) -> Result<Entries, Refusal> {
        let Some(options) = self.job.logprobs.as_ref().filter(|_| !rows.chosen.is_empty()) else {
            return Ok(Entries::default());
        };
        if rows.chosen.len() != tokens.len() {
            return Err(Refusal::internal("a record with another number of logprobs than tokens"));
        }
        let wanted = |row: Vec<f64>| options.ids.iter().map(|id| *id as i32).zip(row).collect::<Pairs>();
        Ok(Entries {
            own: rows.chosen.iter().zip(tokens).map(|(value, token)| self.entry(*value, *token)).collect(),
            top: rows.top.into_iter().map(|pairs| pairs.map(|pairs| self.row(pairs))).collect(),
            ids: rows.ids.into_iter().map(|row| row.map(|row| self.row(wanted(row)))).collect(),
        })
    }

    fn row(&self, pairs: Pairs) -> Vec<Entry> {
        pairs.into_iter().map(|(token, value)| self.entry(Some(value), token)).collect()
    }

    fn entry(&self, value: Option<f64>, token: i32) -> Entry {
        Entry { value, token, text: self.names.as_ref().map(|names| names.token_text(token)) }
    }

    /// Everything so far. `latency_s`: given in the last (or only) body.
    pub fn whole<'a>(&'a self, style: &'a Style, latency_s: Option<f64>, index: Option<usize>) -> Whole<'a> {
        let options = self.job.logprobs.as_ref();
        let (top, ids) = (options.is_some_and(|o| o.num_top > 0), options.is_some_and(|o| !o.ids.is_empty()));
        Whole {
            text: &self.text,
            output_ids: &self.output_ids,
            meta_info: Meta {
                id: &self.rid,
                finish_reason: self.done.as_ref().map(finish_reason),
                prompt_tokens: self.prompt_tokens,
                weight_version: &style.weight_version,
                input_token_logprobs: options.map(|_: &LogprobOptions| &self.input.own[..]),
                output_token_logprobs: options.map(|_| &self.output.own[..]),
                output_token_logprobs_length: options.map(|_| self.completion_tokens),
                input_top_logprobs: top.then_some(&self.input.top[..]),
                output_top_logprobs: top.then_some(&self.output.top[..]),
                input_token_ids_logprobs: ids.then_some(&self.input.ids[..]),
                output_token_ids_logprobs: ids.then_some(&self.output.ids[..]),
                completion_tokens: self.completion_tokens,
                cached_tokens: self.cached_tokens,
                e2e_latency: latency_s,
            },
            prompt_token_ids: style.prompt_ids.then_some(&self.job.prompt.ids[..]),
            index,
        }
    }

    /// What is shown begins anew; the prompt's lists and the counters stay whole.
    pub fn forget_output(&mut self) {
        self.text.clear();
        self.output_ids.clear();
        self.output = Entries::default();
    }

    pub fn is_done(&self) -> bool {
        self.done.is_some()
    }
}

#[derive(Serialize)]
pub struct Whole<'a> {
    text: &'a str,
    output_ids: &'a [i32],
    meta_info: Meta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [i32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

type EntryRows<'a> = Option<&'a [Option<Vec<Entry>>]>;

#[derive(Serialize)]
struct Meta<'a> {
    id: &'a str,
    finish_reason: Option<FinishReason<'a>>,
    prompt_tokens: usize,
    weight_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_logprobs: Option<&'a [Entry]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_logprobs: Option<&'a [Entry]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_logprobs_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: EntryRows<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: EntryRows<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_ids_logprobs: EntryRows<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids_logprobs: EntryRows<'a>,
    completion_tokens: usize,
    cached_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e_latency: Option<f64>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum FinishReason<'a> {
    Stop { matched: Matched<'a> },
    Length { length: u32 },
    Abort { message: &'a str, status_code: Option<u32>, err_type: Option<&'a str> },
}

/// What ended a sequence: an id, a stop string, or nothing.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Matched<'a> {
    Text(&'a str),
    Id(Option<i64>),
}

impl<'a> Matched<'a> {
    pub fn of(done: &'a Done) -> Self {
        done.matched_text.as_deref().map_or(Self::Id(done.matched_id), Self::Text)
    }
}

fn finish_reason(done: &Done) -> FinishReason<'_> {
    match done.kind.as_str() {
        "stop" => FinishReason::Stop { matched: Matched::of(done) },
        "length" => FinishReason::Length { length: done.completion_tokens },
        _ => FinishReason::Abort { message: &done.message, status_code: done.status, err_type: done.code.as_deref() },
    }
}
