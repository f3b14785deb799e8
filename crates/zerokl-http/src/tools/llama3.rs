//! Llama 3's form: the whole answer is JSON, one object or several with semicolons between.
//!
//! An answer that begins otherwise is content, and so is everything from the first object on that is no call.

use super::balance::Balance;
use super::calls::function_of;
use super::{CallPart, Event, ToolParser, content};

const TAG: &str = "<|python_tag|>";
const BETWEEN: &[char] = &[' ', '\t', '\r', '\n', ';'];

/// Reads calls until something else comes, then only passes on.
pub struct Llama3 {
    /// What may still be a call, with the blanks and semicolons before it.
    held: String,
    balance: Option<Balance>,
    seen: usize,
    reading: bool,
    calls: usize,
}

impl Llama3 {
    pub fn new() -> Self {
        Self { held: String::new(), balance: None, seen: 0, reading: true, calls: 0 }
    }

    fn next_call(&mut self) -> Option<Event> {
        let start = self.start()?;
        if self.balance.is_none() {
            self.seen = start;
        }
        let Some(size) = self.balance.get_or_insert_default().end(&self.held[self.seen..]) else {
            self.seen = self.held.len();
            return None;
        };
        let end = self.seen + size;
        self.balance = None;
        let Some((name, arguments)) = function_of(&self.held[start..end], &["parameters", "arguments"]) else {
            self.reading = false;
            return None;
        };
        self.held.drain(..end);
        self.calls += 1;
        Some(Event::Call(CallPart { index: self.calls - 1, name: Some(name), arguments }))
    }

    /// Where the object begins; None if it hasn't yet. Anything else ends the reading.
    fn start(&mut self) -> Option<usize> {
        let blanks = if self.calls > 0 { BETWEEN } else { &BETWEEN[..BETWEEN.len() - 1] };
        let mut rest = self.held.trim_start_matches(blanks);
        if let Some(after) = rest.strip_prefix(TAG) {
            rest = after.trim_start_matches(blanks);
        }
        if !rest.is_empty() && !rest.starts_with('{') && !TAG.starts_with(rest) {
            self.reading = false;
        }
        rest.starts_with('{').then(|| self.held.len() - rest.len())
    }
}

impl ToolParser for Llama3 {
    fn push(&mut self, text: &str) -> Vec<Event> {
        if !self.reading {
            return content(text);
        }
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.reading
            && let Some(call) = self.next_call()
        {
            events.push(call);
        }
        if !self.reading {
            events.extend(self.finish());
        }
        events
    }

    /// An object that was cut off is content; blanks after a call are nothing.
    fn finish(&mut self) -> Vec<Event> {
        let rest = std::mem::take(&mut self.held);
        if self.calls > 0 && rest.trim_matches(BETWEEN).is_empty() {
            return Vec::new();
        }
        content(&rest)
    }

    fn shows_special(&self) -> bool {
        true
    }
}
