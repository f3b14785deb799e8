//! Content around calls: what may still become a mark is held back, and so are blanks, which a call swallows.

use super::calls::{lstrip, rstrip};

/// Text up to a mark. Blanks right before and right after a call are no content.
pub struct Content {
    mark: &'static str,
    held: String,
    after_call: bool,
}

impl Content {
    pub fn new(mark: &'static str) -> Self {
        Self { mark, held: String::new(), after_call: false }
    }

    /// (content that is certain, what follows the mark; None if it hasn't come)
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.held.push_str(text);
        if let Some((before, after)) = self.held.split_once(self.mark) {
            let (before, after) = (rstrip(before).to_owned(), after.to_owned());
            self.held.clear();
            return (self.shown(&before), Some(after));
        }
        let certain = self.held.len() - self.partial();
        let certain = rstrip(&self.held[..certain]).len();
        let rest = self.held.split_off(certain);
        let content = std::mem::replace(&mut self.held, rest);
        (self.shown(&content), None)
    }

    pub fn call_ended(&mut self) {
        self.after_call = true;
    }

    /// What was held back.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        self.shown(&held)
    }

    fn shown(&mut self, text: &str) -> String {
        if !self.after_call {
            return text.to_owned();
        }
        let text = lstrip(text);
        self.after_call = text.is_empty();
        text.to_owned()
    }

    /// How much of the mark the held text ends with.
    fn partial(&self) -> usize {
        let longest = (self.mark.len() - 1).min(self.held.len());
        (1..=longest).rev().find(|size| self.held.ends_with(&self.mark[..*size])).unwrap_or(0)
    }
}
