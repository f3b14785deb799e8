//! /generate, the native route: one answer, an array of them, or a stream of cumulative or incremental frames.

use std::sync::Arc;
use std::time::Instant;

use zerokl_wire::Record;

use crate::exchange::{Answer, Exchange, answer_json};
use crate::flights::Records;
use crate::generate_body::{GenerateBody, Style};
use crate::generate_request::{Generate, parse};
use crate::job::Job;
use crate::refusal::{Refusal, refused};
use crate::seeds::{name_seeds, stream_seeds};
use crate::service::Service;
use crate::streaming::{self, Out, says_something};

pub async fn generate(service: &Arc<Service>, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let started = Instant::now();
    let body = exchange.json().await?;
    let request = parse(body, service.engine.limits()?, &service.tokenizer).await?;
    let names: Vec<String> = request.rids.iter().map(|rid| service.name("", rid.as_deref())).collect();
    let texts = request.token_texts.then(|| service.tokenizer.clone());
    let each = request.jobs.iter().zip(&names);
    let bodies = each.map(|(job, name)| GenerateBody::new(job.clone(), name.clone(), texts.clone())).collect();
    let style = Style { weight_version: service.config.weight_version.clone(), prompt_ids: request.prompt_ids };
    exchange.understood();
    let records = service.engine.run(request.jobs.clone(), names, request.named)?;
    if !request.stream {
        return whole(service, &request, bodies, &style, records, started).await;
    }
    let frames = GenerateFrames {
        service: service.clone(),
        incremental: service.config.incremental_streaming_output,
        listed: request.listed,
        n: request.n,
        jobs: request.jobs,
        bodies,
        style,
        started,
    };
    streaming::send(records, frames).await
}

async fn whole(
    service: &Service,
    request: &Generate,
    mut bodies: Vec<GenerateBody>,
    style: &Style,
    mut records: Records,
    started: Instant,
) -> Result<Answer, Refusal> {
    while let Some(next) = records.next().await {
        let (place, record) = next?;
        if let Some(refusal) = refused(record.done.as_ref()) {
            return Err(refusal);
        }
        bodies[place].add(record)?;
    }
    let latency_s = Some(service.clock.elapsed(started));
    let answers: Vec<_> = bodies.iter().map(|body| body.whole(style, latency_s, None)).collect();
    let mut answer = if request.listed { answer_json(&answers)? } else { answer_json(&answers[0])? };
    let seeds: Vec<i64> = bodies.iter().step_by(request.n).map(|body| body.seed).collect();
    name_seeds(&mut answer, &seeds);
    Ok(answer)
}

struct GenerateFrames {
    service: Arc<Service>,
    incremental: bool,
    listed: bool,
    n: usize,
    jobs: Vec<Arc<Job>>,
    bodies: Vec<GenerateBody>,
    style: Style,
    started: Instant,
}

impl streaming::Frames for GenerateFrames {
    fn of(&mut self, place: usize, record: Record, out: &mut Out) -> Result<(), Refusal> {
        let shows = says_something(&record);
        let body = &mut self.bodies[place];
        body.add(record)?;
        if !shows {
            return Ok(());
        }
        let latency_s = body.is_done().then(|| self.service.clock.elapsed(self.started));
        out.frame(&body.whole(&self.style, latency_s, self.listed.then_some(place)))?;
        if self.incremental {
            body.forget_output();
        }
        Ok(())
    }

    fn closing(&mut self, _out: &mut Out) -> Result<(), Refusal> {
        Ok(())
    }

    fn seeds(&self, place: usize) -> Vec<i64> {
        stream_seeds(&self.jobs, self.n, self.bodies[place].seed)
    }
}
