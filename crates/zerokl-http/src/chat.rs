//! /v1/chat/completions: one conversation, n samples.

use std::sync::Arc;

use zerokl_wire::Record;

use crate::chat_body::ChatChoice;
use crate::chat_request::{chat_jobs, chat_prompt, check_chat, parser_of};
use crate::exchange::{Answer, Exchange, answer_json};
use crate::openai::{Counts, Shape, usage_of};
use crate::refusal::{Refusal, refused};
use crate::seeds::name_seeds;
use crate::service::Service;
use crate::streaming::{self, Out, says_something};
use crate::tokenizer::Names;
use crate::tools::forced::forced_name;
use crate::validate::check;

pub async fn chat_completions(service: &Arc<Service>, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let body = exchange.json().await?;
    let limits = service.engine.limits()?;
    let mut values = check("chat", body, "", false)?;
    check_chat(service, &values)?;
    let forced = forced_name(&values)?;
    let shows_special = parser_of(&service.config, &values, forced.as_deref()).shows_special();
    let prompt = chat_prompt(service, &mut values, exchange.received).await?;
    let jobs = chat_jobs(&mut values, &prompt, limits, forced.as_deref(), shows_special)?;
    let rid = values.text("rid");
    let kind = if values.flag("stream") { "chat.completion.chunk" } else { "chat.completion" };
    let shape = Shape::of(service, &values, service.name("chatcmpl-", rid), kind);
    let names = Names::new(&service.tokenizer, shape.tokens_as_ids);
    let choice = |(i, job): (usize, &Arc<_>)| {
        let parser = parser_of(&service.config, &values, forced.as_deref());
        let tokenizer = service.tokenizer.clone();
        ChatChoice::new(Arc::clone(job), (shape.name.clone(), i), parser, tokenizer, names.clone(), shape.token_ids)
    };
    let choices: Vec<ChatChoice> = jobs.iter().enumerate().map(choice).collect();
    exchange.understood();
    let mut records = service.engine.run(jobs, vec![shape.name.clone(); choices.len()], rid.is_some())?;
    let opened = vec![false; choices.len()];
    let mut frames = ChatFrames { shape, choices, opened };
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

/// A stream's chunks: the role, one per record, why it ended, then usage if it was asked for.
struct ChatFrames {
    shape: Shape,
    choices: Vec<ChatChoice>,
    opened: Vec<bool>,
}

impl ChatFrames {
    fn whole(&self) -> Result<Answer, Refusal> {
        let choices = self.choices.iter().map(ChatChoice::message).collect::<Result<Vec<_>, _>>()?;
        let mut answer = answer_json(&self.shape.frame(&choices, Some(self.usage())))?;
        name_seeds(&mut answer, &[self.choices[0].seed]);
        Ok(answer)
    }

    /// One prompt, whatever n is.
    fn usage(&self) -> crate::openai::Usage {
        let counts: Vec<Counts> = self.choices.iter().map(|choice| choice.counts).collect();
        usage_of(&counts, counts.len())
    }
}

impl streaming::Frames for ChatFrames {
    fn of(&mut self, place: usize, record: Record, out: &mut Out) -> Result<(), Refusal> {
        let (shows, has_tokens) = (says_something(&record), !record.tokens.is_empty());
        let choice = &mut self.choices[place];
        choice.add(record)?;
        if !shows {
            return Ok(());
        }
        let usage = || self.shape.continuous_usage.then(|| usage_of(&[choice.counts], 1));
        if !std::mem::replace(&mut self.opened[place], true) {
            out.frame(&self.shape.frame(&[choice.opening()], usage()))?;
        }
        if has_tokens || choice.has_delta() {
            out.frame(&self.shape.frame(&[choice.delta()?], usage()))?;
        }
        if choice.is_done() {
            out.frame(&self.shape.frame(&[choice.closing()], usage()))?;
        }
        if has_tokens || choice.has_delta() {
            choice.forget();
        }
        Ok(())
    }

    fn closing(&mut self, out: &mut Out) -> Result<(), Refusal> {
        if self.shape.include_usage {
            let none: [(); 0] = [];
            out.frame(&self.shape.frame(&none, Some(self.usage())))?;
        }
        Ok(())
    }

    fn seeds(&self, place: usize) -> Vec<i64> {
        vec![self.choices[place].seed]
    }
}
