//! An engine without a model or a scheduler, for benchmarks of frontends: it takes next to no CPU of its own.
//!
//!     fake_engine SOCKET VOCABULARY [STEP_MS]
//!
//! Every step gives each running request one token; a request that isn't streamed gets all its tokens at once. A
//! connection is one thread, and a step is sent when the frontend took the one before, or STEP_MS later.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use zerokl_wire::{
    Answer, Columns, Done, First, Heartbeat, Hello, PROTOCOL, Record, Submit, ToEngine, ToFrontend, decode, encode,
    encode_step,
};

const CONTEXT: u32 = 4096;
const LENGTH: u32 = 16;
const BEAT: Duration = Duration::from_secs(1);
/// Of every answer: a letter of the tests' byte tokenizer.
const TOKEN: i32 = b'a' as i32;

type Fault = Box<dyn std::error::Error>;

fn main() -> Result<(), Fault> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, vocabulary, step_ms @ ..] = &arguments[..] else {
        return Err("usage: fake_engine SOCKET VOCABULARY [STEP_MS]".into());
    };
    let vocabulary = vocabulary.parse()?;
    let step = Duration::from_millis(step_ms.first().map_or(Ok(0), |text| text.parse())?);
    for stream in UnixListener::bind(socket)?.incoming() {
        let stream = stream?;
        thread::spawn(move || Connection::new(stream, step).serve(vocabulary).unwrap_or_else(|why| eprintln!("{why}")));
    }
    Ok(())
}

/// One request that runs.
struct Running {
    rid: u64,
    prompt_tokens: u32,
    streams: bool,
    length: u32,
    given: u32,
}

impl Running {
    fn of(submit: &Submit) -> Self {
        let length = submit.max_new_tokens.unwrap_or(LENGTH);
        Self {
            rid: submit.rid,
            prompt_tokens: submit.prompt.size / 4,
            streams: submit.stream_interval > 0,
            length,
            given: 0,
        }
    }

    fn step(&mut self) -> Record {
        let first = (self.given == 0).then_some(First {
            row: 0,
            seed: 1,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            leading_nulls: 0,
        });
        let count = if self.streams { self.length.min(1) } else { self.length };
        self.given += count;
        let done = (self.given >= self.length).then(|| Done {
            row: 0,
            kind: "length".into(),
            completion_tokens: self.given,
            matched_id: None,
            matched_text: None,
            message: String::new(),
            status: None,
            code: None,
            param: None,
        });
        let tokens = vec![TOKEN; count as usize];
        Record { rid: self.rid, text: "a".repeat(tokens.len()), tokens, first, done, ..Record::default() }
    }
}

struct Connection {
    stream: UnixStream,
    step: Duration,
    pending: Vec<u8>,
    running: Vec<Running>,
    steps: u64,
    beat: Instant,
}

impl Connection {
    fn new(stream: UnixStream, step: Duration) -> Self {
        Self { stream, step, pending: Vec::new(), running: Vec::new(), steps: 0, beat: Instant::now() }
    }

    fn serve(mut self, vocabulary: u32) -> Result<(), Fault> {
        self.say(&ToFrontend::Hello(hello(vocabulary)))?;
        self.stream.set_read_timeout(Some(BEAT))?;
        while self.hear()? {
            self.take()?;
            if self.beat.elapsed() >= BEAT {
                self.beat = Instant::now();
                let running = self.running.len() as u32;
                self.say(&ToFrontend::Heartbeat(heartbeat(self.steps, running)))?;
            }
            if !self.running.is_empty() {
                self.run_step()?;
            }
        }
        Ok(())
    }

    /// Whatever has come; waits for it while nothing runs. False: the frontend is gone.
    fn hear(&mut self) -> Result<bool, Fault> {
        self.stream.set_nonblocking(!self.running.is_empty())?;
        let mut part = [0; 1 << 16];
        let read = self.stream.read(&mut part);
        self.stream.set_nonblocking(false)?;
        match read {
            Ok(count) => {
                self.pending.extend_from_slice(&part[..count]);
                Ok(count > 0)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self) -> Result<(), Fault> {
        let mut taken = 0;
        let mut answers = Vec::new();
        while let Some(frame) = decode::<ToEngine>(&self.pending[taken..])? {
            taken += frame.size;
            match frame.message {
                ToEngine::Submit(submit) => self.running.push(Running::of(&submit)),
                ToEngine::Abort(abort) => self.running.retain(|one| one.rid != abort.rid),
                ToEngine::Control(control) => {
                    answers.push(ToFrontend::Answer(Answer { call: control.call, ok: true, body: "{}".into() }));
                }
            }
        }
        self.pending.drain(..taken);
        answers.iter().try_for_each(|answer| self.say(answer))
    }

    fn run_step(&mut self) -> Result<(), Fault> {
        self.steps += 1;
        let records: Vec<Record> = self.running.iter_mut().map(Running::step).collect();
        self.running.retain(|one| one.given < one.length);
        self.stream.write_all(&encode_step(self.steps, &records)?)?;
        if !self.step.is_zero() {
            thread::sleep(self.step);
        }
        Ok(())
    }

    fn say(&mut self, message: &ToFrontend) -> Result<(), Fault> {
        Ok(self.stream.write_all(&encode(message, &Columns::default())?)?)
    }
}

fn hello(vocabulary: u32) -> Hello {
    Hello {
        protocol: PROTOCOL,
        fingerprint: "fake".into(),
        vocab: vocabulary,
        context: CONTEXT,
        eos_ids: Vec::new(),
        bos_id: None,
        max_running: 4096,
        max_queued: 4096,
        pool_tokens: 1 << 20,
        page_size: 64,
        default_seed: 0,
        sampling_defaults: None,
        facts: "{}".into(),
    }
}

fn heartbeat(step: u64, running: u32) -> Heartbeat {
    Heartbeat {
        step,
        running,
        waiting: 0,
        draining: false,
        busy_ms: 0,
        leased_pages: 0,
        cached_pages: 0,
        num_pages: 0,
        prefill_tokens: 0,
        sampled_tokens: 0,
        lookup_tokens: 0,
        hit_tokens: 0,
        preemptions: 0,
        stopped_limit: 0,
        stopped_full: 0,
        stopped_sliding: 0,
        stopped_state: 0,
        lost_tokens: 0,
    }
}
