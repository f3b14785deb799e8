//! Records as server-sent events: one frame per record, never joined, never split.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use serde::Serialize;
use zerokl_wire::Record;

use crate::exchange::{Answer, answer_events};
use crate::flights::Records;
use crate::refusal::{Refusal, refused};
use crate::seeds::name_seeds;

/// What a stream shows of each record.
pub trait Frames: Send + 'static {
    fn of(&mut self, place: usize, record: Record, out: &mut Out) -> Result<(), Refusal>;

    /// When all records have come.
    fn closing(&mut self, out: &mut Out) -> Result<(), Refusal>;

    /// For the head, asked when the first frames, of this job, are there.
    fn seeds(&self, place: usize) -> Vec<i64>;
}

/// Frames that wait to be sent.
#[derive(Default)]
pub struct Out {
    frames: VecDeque<Bytes>,
}

impl Out {
    /// One event. JSON is one line, so it never needs a second `data:`.
    pub fn frame(&mut self, value: &impl Serialize) -> Result<(), Refusal> {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut bytes, value).map_err(Refusal::internal)?;
        bytes.extend_from_slice(b"\n\n");
        self.frames.push_back(bytes.into());
        Ok(())
    }
}

/// The whole stream. Its head waits for the first frame, so a refusal before it is still a real 4xx.
pub async fn send(mut records: Records, mut frames: impl Frames) -> Result<Answer, Refusal> {
    let mut out = Out::default();
    let mut seeds = Vec::new();
    while out.frames.is_empty() {
        let Some(next) = records.next().await else { break };
        let (place, record) = next?;
        if let Some(refusal) = refused(record.done.as_ref()) {
            return Err(refusal);
        }
        frames.of(place, record, &mut out)?;
        seeds = frames.seeds(place);
    }
    let mut answer = answer_events(Events { records: Some(records), frames: Box::new(frames), out });
    if !seeds.is_empty() {
        name_seeds(&mut answer, &seeds);
    }
    Ok(answer)
}

/// A stream's body. Frames are made when they are asked for, so a slow reader holds records and not their texts.
pub struct Events {
    /// None when nothing more is to come.
    records: Option<Records>,
    frames: Box<dyn Frames>,
    out: Out,
}

impl Events {
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(frame) = self.out.frames.pop_front() {
                return Poll::Ready(Some(frame));
            }
            let Some(records) = &mut self.records else { return Poll::Ready(None) };
            let step = match ready!(records.poll_next(context)) {
                Some(Ok((place, record))) => self.show(place, record),
                Some(Err(refusal)) => Err(refusal),
                None => self.close(),
            };
            if let Err(refusal) = step {
                self.fail(&refusal);
            }
        }
    }

    fn show(&mut self, place: usize, record: Record) -> Result<(), Refusal> {
        if let Some(refusal) = refused(record.done.as_ref()) {
            return Err(refusal);
        }
        contained(|| self.frames.of(place, record, &mut self.out))
    }

    fn close(&mut self) -> Result<(), Refusal> {
        contained(|| self.frames.closing(&mut self.out))?;
        self.finish();
        Ok(())
    }

    /// After the head an error can only be a frame.
    fn fail(&mut self, refusal: &Refusal) {
        self.out.frame(&refusal.body()).expect("an error can be written");
        self.finish();
    }

    fn finish(&mut self) {
        self.out.frames.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.records = None;
    }
}

/// A panic is an error of this stream alone.
fn contained(work: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Refusal::internal("a panic")))
}

/// False for a record that only brings scores of the prompt: it is no frame, or chunking would show.
pub fn says_something(record: &Record) -> bool {
    !record.tokens.is_empty() || record.done.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_its_stream_alone() {
        let refusal = contained(|| panic!("planted")).expect_err("it was contained");
        assert_eq!(refusal.status, 500);
        assert!(!refusal.message.contains("planted"));
    }

    #[test]
    fn an_event_is_one_line_of_json_between_its_marks() {
        let mut out = Out::default();
        out.frame(&"two\nlines").expect("a text can be written");
        assert_eq!(&out.frames[0][..], b"data: \"two\\nlines\"\n\n");
    }
}
