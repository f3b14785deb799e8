//! Hermes' form, also Qwen's: calls as JSON between tags, text around them.
//!
//! What stands between tags and is no call is content, tags included; a call whose closing tag never came counts.

use super::calls::function_of;
use super::content::Content;
use super::{CallPart, Event, ToolParser, content};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// Calls may stand anywhere in the text, one after another.
pub struct Hermes {
    content: Content,
    /// What came after an opening tag; None outside.
    body: Option<String>,
    searched: usize,
    calls: usize,
}

impl Hermes {
    pub fn new() -> Self {
        Self { content: Content::new(BEGIN), body: None, searched: 0, calls: 0 }
    }

    /// What follows the mark, if it came.
    fn outside(&mut self, text: &str, events: &mut Vec<Event>) -> String {
        let (certain, after) = self.content.push(text);
        events.extend(content(&certain));
        let Some(after) = after else { return String::new() };
        (self.body, self.searched) = (Some(String::new()), 0);
        after
    }

    fn inside(&mut self, text: &str, events: &mut Vec<Event>) -> String {
        let mut body = self.body.take().unwrap_or_default();
        body.push_str(text);
        let Some(place) = body[self.searched..].find(END).map(|place| place + self.searched) else {
            let most = body.len().saturating_sub(END.len() - 1);
            self.searched = (0..=most).rev().find(|place| body.is_char_boundary(*place)).unwrap_or(0);
            self.body = Some(body);
            return String::new();
        };
        events.push(self.read(&body[..place], END));
        body.split_off(place + END.len())
    }

    fn read(&mut self, body: &str, closed: &str) -> Event {
        let Some((name, arguments)) = function_of(body, &["arguments", "parameters"]) else {
            return Event::Content(format!("{BEGIN}{body}{closed}"));
        };
        self.calls += 1;
        self.content.call_ended();
        Event::Call(CallPart { index: self.calls - 1, name: Some(name), arguments })
    }
}

impl ToolParser for Hermes {
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
            Some(body) => vec![self.read(&body, "")],
            None => content(&self.content.finish()),
        }
    }
}
