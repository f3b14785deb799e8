//! Mistral's forms, after a mark that is a special token: an array of calls, or (newer) a name and its arguments.
//!
//! What follows the mark and is no call is content, the mark included.

use super::balance::Balance;
use super::calls::{function_of, is_array, is_object, lstrip, strip};
use super::content::Content;
use super::{CallPart, Event, ToolParser, content};

const MARK: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// After a mark one JSON value is read, with a name before it or not; then text may follow, or another mark.
pub struct Mistral {
    content: Content,
    /// What came after a mark; None outside.
    body: Option<String>,
    balance: Option<Balance>,
    start: usize,
    seen: usize,
    calls: usize,
}

impl Mistral {
    pub fn new() -> Self {
        Self { content: Content::new(MARK), body: None, balance: None, start: 0, seen: 0, calls: 0 }
    }

    fn outside(&mut self, text: &str, events: &mut Vec<Event>) -> String {
        let (certain, after) = self.content.push(text);
        events.extend(content(&certain));
        let Some(after) = after else { return String::new() };
        (self.body, self.balance) = (Some(String::new()), None);
        after
    }

    /// Reads up to the value's end; what follows it is outside again.
    fn inside(&mut self, text: &str, events: &mut Vec<Event>) -> String {
        let mut body = self.body.take().unwrap_or_default();
        body.push_str(text);
        if self.balance.is_none() {
            let Some(start) = value_start(&body) else {
                self.body = Some(body);
                return String::new();
            };
            (self.start, self.seen) = (start, start);
        }
        let Some(size) = self.balance.get_or_insert_default().end(&body[self.seen..]) else {
            self.seen = body.len();
            self.body = Some(body);
            return String::new();
        };
        let after = body.split_off(self.seen + size);
        events.extend(self.read(&body[..self.start], &body[self.start..]));
        after
    }

    fn read(&mut self, before: &str, value: &str) -> Vec<Event> {
        let calls = if strip(before).is_empty() { listed(value) } else { named(before, value) };
        if calls.is_empty() {
            return vec![Event::Content(format!("{MARK}{before}{value}"))];
        }
        self.content.call_ended();
        let first = self.calls;
        self.calls += calls.len();
        let each = (first..).zip(calls);
        each.map(|(index, (name, arguments))| Event::Call(CallPart { index, name: Some(name), arguments })).collect()
    }
}

impl ToolParser for Mistral {
    fn push(&mut self, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        let mut text = text.to_owned();
        while !text.is_empty() {
            text = match self.body {
                Some(_) => self.inside(&text, &mut events),
                None => self.outside(&text, &mut events),
            };
        }
        events
    }

    fn finish(&mut self) -> Vec<Event> {
        match self.body.take() {
            Some(body) => vec![Event::Content(format!("{MARK}{body}"))],
            None => content(&self.content.finish()),
        }
    }

    fn shows_special(&self) -> bool {
        true
    }

    fn id_digits(&self) -> usize {
        9
    }
}

/// Where the JSON begins: an array right after the mark, or the object after a name.
fn value_start(body: &str) -> Option<usize> {
    if lstrip(body).starts_with('[') { body.find('[') } else { body.find('{') }
}

fn named(before: &str, arguments: &str) -> Vec<(String, String)> {
    let name = before.split(ARGUMENTS).next().unwrap_or("");
    let name = strip(name.split(CALL_ID).next().unwrap_or(""));
    if name.is_empty() || !is_object(arguments) { Vec::new() } else { vec![(name.to_owned(), arguments.to_owned())] }
}

/// All calls of an array (or of a lone object); none if one of them is no call.
fn listed(value: &str) -> Vec<(String, String)> {
    let calls = parts_of(value).into_iter().map(|part| function_of(part, &["arguments", "parameters"]));
    calls.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// An array's objects as they were written.
fn parts_of(value: &str) -> Vec<&str> {
    if value.starts_with('{') {
        return vec![value];
    }
    if !is_array(value) {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut rest = value;
    while let Some(start) = rest.find('{') {
        let size = Balance::default().end(&rest[start..]).unwrap_or(0);
        parts.push(&rest[start..start + size]);
        rest = &rest[start + size..];
    }
    parts
}
