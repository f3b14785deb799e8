//! Tool calls in the model's text: one file per form in which models write them, and the forms that are forced.
//!
//! A parser is shown the text as it comes, in whatever pieces; joined, what it gives is the same for all cuts. A call is
//! given when it is complete, so that what looked like one and isn't can still be content.

mod balance;
mod calls;
mod content;
pub mod forced;
mod hermes;
mod llama3;
mod mistral;

pub use calls::call_id;

/// What a parser makes of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Content(String),
    Call(CallPart),
}

impl Event {
    pub fn call(&self) -> Option<&CallPart> {
        if let Self::Call(part) = self { Some(part) } else { None }
    }
}

/// The beginning of a call, or more of its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct CallPart {
    pub index: usize,
    /// Given where the call begins.
    pub name: Option<String>,
    pub arguments: String,
}

/// One choice's text. Each implementation says how calls are written.
pub trait ToolParser: Send {
    /// What is certain with this text.
    fn push(&mut self, text: &str) -> Vec<Event>;

    /// What was held back.
    fn finish(&mut self) -> Vec<Event>;

    /// Its marks are special tokens, which must stay in the text.
    fn shows_special(&self) -> bool {
        false
    }

    /// Length of a call's id after its prefix.
    fn id_digits(&self) -> usize {
        24
    }
}

/// No tools: all is content.
pub struct PlainText;

impl ToolParser for PlainText {
    fn push(&mut self, text: &str) -> Vec<Event> {
        content(text)
    }

    fn finish(&mut self) -> Vec<Event> {
        Vec::new()
    }
}

/// By the values of --tool-call-parser.
pub fn parser_named(name: &str) -> Box<dyn ToolParser> {
    match name {
        "hermes" | "qwen25" => Box::new(hermes::Hermes::new()),
        "llama3" => Box::new(llama3::Llama3::new()),
        "mistral" => Box::new(mistral::Mistral::new()),
        _ => Box::new(PlainText),
    }
}

/// A text as an event, none if it is empty.
fn content(text: &str) -> Vec<Event> {
    if text.is_empty() { Vec::new() } else { vec![Event::Content(text.to_owned())] }
}

#[cfg(test)]
mod tests;
