//! What /v1/completions and /v1/chat/completions share: sampling, usage, the frame around choices.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use zerokl_wire::{Done, First, Grammar, LogprobOptions};

use crate::fields::{message, shown_text};
use crate::generate_body::Matched;
use crate::generate_request::{check_min, tokens};
use crate::job::{Job, Prompt};
use crate::prompts::{Limits, check_length};
use crate::refusal::Refusal;
use crate::sampling::{check_token_fields, sampling_of, stopping_of};
use crate::service::Service;
use crate::validate::Values;

/// How the answer looks, whatever is in it.
pub struct Shape {
    /// Id of the answer.
    pub name: String,
    object: &'static str,
    model: String,
    created: u64,
    fingerprint: String,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    pub token_ids: bool,
    pub tokens_as_ids: bool,
}

#[derive(Serialize)]
pub struct Framed<'a, C> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    usage: Option<Usage>,
    system_fingerprint: &'a str,
}

impl Shape {
    pub fn of(service: &Service, values: &Values, name: String, object: &'static str) -> Self {
        let option = |key: &str| values.get("stream_options").get(key).and_then(Value::as_bool).unwrap_or(false);
        let model = values.text("model").filter(|model| !model.is_empty());
        Self {
            name,
            object,
            model: model.unwrap_or(service.model_name()).to_owned(),
            created: service.clock.now(),
            fingerprint: service.engine.fingerprint(),
            stream: values.flag("stream"),
            include_usage: option("include_usage"),
            continuous_usage: option("continuous_usage_stats"),
            token_ids: values.flag("return_token_ids"),
            tokens_as_ids: values.flag("return_tokens_as_token_ids"),
        }
    }

    pub fn frame<'a, C>(&'a self, choices: &'a [C], usage: Option<Usage>) -> Framed<'a, C> {
        Framed {
            id: &self.name,
            object: self.object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
            system_fingerprint: &self.fingerprint,
        }
    }
}

/// With --strict-model another model's name is 404; without, clients may send what they like.
pub fn check_model(service: &Service, values: &Values) -> Result<(), Refusal> {
    match values.text("model") {
        Some(asked) if service.config.strict_model && asked != service.model_name() => {
            Err(no_such_model(service, asked))
        }
        _ => Ok(()),
    }
}

pub fn no_such_model(service: &Service, asked: &str) -> Refusal {
    let values: [(&str, &dyn std::fmt::Display); 2] =
        [("value", &shown_text(asked)), ("model", &shown_text(service.model_name()))];
    Refusal::new(404, message("model_not_found", &values)).param("model").code("model_not_found")
}

/// One prompt's n samples. `values` are of the common table.
pub fn jobs_of(
    values: &Values,
    prompt: &Prompt,
    max_tokens: Option<u32>,
    logprobs: Option<&LogprobOptions>,
    limits: Limits,
    grammar: Option<&Grammar>,
) -> Result<Vec<Arc<Job>>, Refusal> {
    check_token_fields(values, "", limits)?;
    check_length(prompt, max_tokens, limits)?;
    check_min(tokens(values, "min_tokens"), max_tokens, "min_tokens")?;
    let job = |sample: u32| Job {
        sampling: sampling_of(values, values.int("seed"), sample),
        stopping: stopping_of(values),
        max_new_tokens: max_tokens,
        min_new_tokens: tokens(values, "min_tokens").unwrap_or(0),
        logprobs: logprobs.cloned(),
        skip_special_tokens: values.flag("skip_special_tokens"),
        stream_interval: u32::from(values.flag("stream")),
        priority: values.int("priority").unwrap_or(0),
        cache_salt: values.text("cache_salt").unwrap_or("").to_owned(),
        grammar: grammar.cloned(),
        ..Job::of(prompt.clone())
    };
    Ok((0..tokens(values, "n").unwrap_or(1)).map(|sample| Arc::new(job(sample))).collect())
}

/// (finish_reason, matched_stop)
pub fn finish_of(done: Option<&Done>) -> (Option<&str>, Matched<'_>) {
    match done {
        Some(done) if done.kind == "stop" => (Some("stop"), Matched::of(done)),
        Some(done) => (Some(done.kind.as_str()), Matched::Id(None)),
        None => (None, Matched::Id(None)),
    }
}

/// Token counts of one sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
}

impl Counts {
    pub fn begin(&mut self, first: &First) {
        self.prompt_tokens = first.prompt_tokens as usize;
        self.cached_tokens = first.cached_tokens as usize;
    }
}

#[derive(Serialize)]
pub struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: Option<()>,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// Of all samples of all prompts, prompt-major; a prompt counts once, whatever n is.
pub fn usage_of(samples: &[Counts], n: usize) -> Usage {
    let prompts = || samples.iter().step_by(n);
    let prompt_tokens = prompts().map(|one| one.prompt_tokens).sum::<usize>();
    let completion_tokens = samples.iter().map(|one| one.completion_tokens).sum::<usize>();
    Usage {
        prompt_tokens,
        total_tokens: prompt_tokens + completion_tokens,
        completion_tokens,
        prompt_tokens_details: PromptDetails { cached_tokens: prompts().map(|one| one.cached_tokens).sum() },
        completion_tokens_details: None,
    }
}
