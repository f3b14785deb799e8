//! Health: /health asks the frontend and never touches the device, /health_generate asks for one real token.

use std::time::Duration;

use tokio::sync::mpsc;
use zerokl_wire::{Sampling, Stopping};

use crate::client::{CallError, Client, Listener};
use crate::exchange::{Answer, answer};
use crate::job::{Job, Prompt};
use crate::refusal::{Refusal, refused};
use crate::service::Service;

const PROBE: Duration = Duration::from_secs(20);
/// The probe's priority: a long queue is no illness.
const FIRST: i64 = 1_000_000;

pub fn health(service: &Service) -> Result<Answer, Refusal> {
    service.engine.client()?;
    Ok(answer(200, "", ""))
}

pub async fn health_generate(service: &Service) -> Result<Answer, Refusal> {
    let client = service.engine.client()?;
    let start = client.hello.bos_id.unwrap_or(0).cast_signed();
    let probe = Job {
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        stopping: Stopping { ignore_eos: true, ..Stopping::default() },
        max_new_tokens: Some(1),
        priority: FIRST,
        use_cache: false,
        ..Job::of(Prompt { ids: [start].into(), text: None })
    };
    match tokio::time::timeout(PROBE, probed(&client, &probe)).await {
        Ok(done) => done.map(|()| answer(200, "", "")),
        Err(_) => Err(Refusal::trouble("engine_down")),
    }
}

/// Past the frontend's own admission: a full queue is for clients. 503 if the engine refuses or fails.
async fn probed(client: &Client, probe: &Job) -> Result<(), Refusal> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let rid = client.submit(|rid| probe.frame(rid), Listener { place: 0, sender, _permit: None });
    let rid = rid.map_err(|error| match error {
        CallError::Gone => Refusal::engine_lost(),
        CallError::Refused(why) => Refusal::internal(why),
    })?;
    let _left = Left { client, rid };
    loop {
        let Some(Some((_, record))) = receiver.recv().await else { return Err(Refusal::engine_lost()) };
        if let Some(refusal) = refused(record.done.as_ref()) {
            let code = refusal.code.unwrap_or_else(|| "engine_down".into());
            return Err(Refusal::new(503, refusal.message).code(code));
        }
        if record.done.is_some() {
            return Ok(());
        }
    }
}

/// Gives the probe up when nobody waits for it any more; nothing happens if it has ended.
struct Left<'a> {
    client: &'a Client,
    rid: u64,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.client.discard(self.rid);
    }
}
