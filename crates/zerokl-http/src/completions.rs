//! /v1/completions: prompts as text or ids, n samples each, echo and scoring.

use std::sync::Arc;

use serde_json::Value;
use zerokl_wire::{LogprobOptions, Record};

use crate::completions_body::{CompletionChoice, echo_of};
use crate::exchange::{Answer, Exchange, answer_json};
use crate::fields::message;
use crate::generate_request::{check_size, id_prompts, texts_of, tokens};
use crate::grammars::openai_grammar;
use crate::job::{Job, Prompt};
use crate::openai::{Counts, Shape, check_model, jobs_of, usage_of};
use crate::prompts::{Limits, check_not_empty, encode_all};
use crate::refusal::{Refusal, refused};
use crate::seeds::{name_seeds, stream_seeds};
use crate::service::Service;
use crate::streaming::{self, Out, says_something};
use crate::tokenizer::Names;
use crate::validate::{Values, check};

pub async fn completions(service: &Arc<Service>, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let body = exchange.json().await?;
    let limits = service.engine.limits()?;
    let mut values = check("completions", body, "", false)?;
    check_options(service, &values)?;
    let n = tokens(&values, "n").unwrap_or(1) as usize;
    let prompts = prompts_of(service, values.take("prompt"), n, limits).await?;
    let jobs = jobs(&mut values, &prompts, limits)?;
    let rid = values.text("rid");
    let name = service.name("cmpl-", rid);
    let named = rid.is_some();
    let shape = Shape::of(service, &values, name, "text_completion");
    let choices = choices_of(service, &values, &shape, &jobs)?;
    let names = vec![shape.name.clone(); jobs.len()];
    exchange.understood();
    let mut records = service.engine.run(jobs.clone(), names, named)?;
    let mut frames = CompletionFrames { shape, jobs, choices, n };
    if frames.shape.stream {
        return streaming::send(records, frames).await;
    }
    while let Some(next) = records.next().await {
        let (place, record) = next?;
        if let Some(refusal) = refused(record.done.as_ref()) {
            return Err(refusal);
        }
        frames.choices[place].add(record)?;
    }
    frames.whole()
}

/// What the table can't say.
fn check_options(service: &Service, values: &Values) -> Result<(), Refusal> {
    check_model(service, values)?;
    let (n, limit) = (values.int("n").unwrap_or(1), service.config.max_logprobs);
    if let Some(best_of) = values.int("best_of").filter(|best_of| *best_of != n) {
        let text = message("best_of", &[("n", &n), ("value", &best_of)]);
        return Err(Refusal::invalid(text).param("best_of").code("unsupported_value"));
    }
    if values.text("suffix").is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Refusal::invalid(message("no_suffix", &[])).param("suffix").code("unsupported_value"));
    }
    if let Some(asked) = values.get("logprobs").as_u64().filter(|asked| *asked > limit) {
        let text = message("max_logprobs", &[("name", &"logprobs"), ("limit", &limit), ("value", &asked)]);
        return Err(Refusal::invalid(text).param("logprobs"));
    }
    Ok(())
}

/// Four forms: a text, texts, ids, lists of ids.
async fn prompts_of(service: &Service, given: Value, n: usize, limits: Limits) -> Result<Vec<Prompt>, Refusal> {
    let first = given.as_array().and_then(|list| list.first());
    let batch = first.is_some_and(|first| first.is_string() || first.is_array());
    let items = match given {
        Value::Array(list) if batch => list,
        alone => vec![alone],
    };
    check_not_empty(&items, "prompt", batch)?;
    check_size(items.len(), n)?;
    if items[0].is_string() {
        return encode_all(texts_of(items), "prompt", &service.tokenizer, limits).await;
    }
    id_prompts(&items, "prompt", batch, limits)
}

/// Prompt-major. Unset sampling values are OpenAI's defaults here, not the model's.
fn jobs(values: &mut Values, prompts: &[Prompt], limits: Limits) -> Result<Vec<Arc<Job>>, Refusal> {
    for (name, default) in [
        ("temperature", Value::from(1.0)),
        ("top_p", Value::from(1.0)),
        ("top_k", Value::from(-1)),
        ("min_p", Value::from(0.0)),
        ("repetition_penalty", Value::from(1.0)),
    ] {
        if values.get(name).is_null() {
            values.set(name, default);
        }
    }
    let start = if values.flag("echo") { 0 } else { -1 };
    let logprobs = tokens(values, "logprobs").map(|num_top| LogprobOptions { start, num_top, ids: Vec::new() });
    let grammar = openai_grammar(values)?;
    let max_tokens = tokens(values, "max_tokens");
    let mut jobs = Vec::new();
    for prompt in prompts {
        jobs.extend(jobs_of(values, prompt, max_tokens, logprobs.as_ref(), limits, grammar.as_ref())?);
    }
    Ok(jobs)
}

fn choices_of(
    service: &Service,
    values: &Values,
    shape: &Shape,
    jobs: &[Arc<Job>],
) -> Result<Vec<CompletionChoice>, Refusal> {
    let names = Names::new(&service.tokenizer, shape.tokens_as_ids);
    let each = jobs.iter().enumerate();
    each.map(|(index, job)| {
        let echo = values.flag("echo").then(|| echo_of(job, &service.tokenizer)).transpose()?;
        Ok(CompletionChoice::new(job.clone(), index, echo, names.clone(), shape.token_ids))
    })
    .collect()
}

/// A stream's chunks: one per record, then usage if it was asked for.
struct CompletionFrames {
    shape: Shape,
    jobs: Vec<Arc<Job>>,
    choices: Vec<CompletionChoice>,
    n: usize,
}

impl CompletionFrames {
    fn whole(&self) -> Result<Answer, Refusal> {
        let choices: Vec<_> = self.choices.iter().map(CompletionChoice::choice).collect();
        let mut answer = answer_json(&self.shape.frame(&choices, Some(usage_of(&self.counts(), self.n))))?;
        let seeds: Vec<i64> = self.choices.iter().step_by(self.n).map(|choice| choice.seed).collect();
        name_seeds(&mut answer, &seeds);
        Ok(answer)
    }

    fn counts(&self) -> Vec<Counts> {
        self.choices.iter().map(|choice| choice.counts).collect()
    }
}

impl streaming::Frames for CompletionFrames {
    fn of(&mut self, place: usize, record: Record, out: &mut Out) -> Result<(), Refusal> {
        let shows = says_something(&record);
        let choice = &mut self.choices[place];
        choice.add(record)?;
        if !shows {
            return Ok(());
        }
        let usage = self.shape.continuous_usage.then(|| usage_of(&[choice.counts], 1));
        out.frame(&self.shape.frame(&[choice.choice()], usage))?;
        choice.forget();
        Ok(())
    }

    fn closing(&mut self, out: &mut Out) -> Result<(), Refusal> {
        if self.shape.include_usage {
            let none: [(); 0] = [];
            out.frame(&self.shape.frame(&none, Some(usage_of(&self.counts(), self.n))))?;
        }
        Ok(())
    }

    fn seeds(&self, place: usize) -> Vec<i64> {
        stream_seeds(&self.jobs, self.n, self.choices[place].seed)
    }
}
