//! Chat templates: messages in, the prompt's text out, in the words of Jinja as Hugging Face's templates expect it.
//!
//! The Python frontend renders with jinja2, which is the reference. At start `verify` renders the launcher's battery of
//! conversations; a template on which the two differ is refused, so requests never meet a difference that was found.

mod environment;
mod repr;
mod source;
mod tojson;

use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::python;

/// What a render is made of. Messages and tools reach the template as they are; parts are joined if it takes text.
#[derive(Debug, Clone, Deserialize)]
pub struct Conversation {
    pub messages: Value,
    #[serde(default)]
    pub tools: Value,
    #[serde(default = "yes")]
    pub add_generation_prompt: bool,
    /// Leaves the last message open, for the model to go on.
    #[serde(default)]
    pub continue_final_message: bool,
    #[serde(default)]
    pub variables: Map<String, Value>,
}

fn yes() -> bool {
    true
}

/// A conversation and what jinja2 made of it.
#[derive(Debug, Deserialize)]
pub struct Rendered {
    pub conversation: Conversation,
    /// None: it failed.
    pub text: Option<String>,
    pub ids: Option<Vec<i32>>,
}

/// A model's template, compiled once.
pub struct ChatTemplate {
    environment: Option<Environment<'static>>,
    /// What it sees of the tokenizer: ("bos_token", "<s>"), ...
    names: Map<String, Value>,
    takes_parts: bool,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// The reason, if the template can't be compiled.
    pub fn new(source: &str, names: Map<String, Value>) -> Result<Self, String> {
        let mut template = Self { environment: None, names, takes_parts: false };
        if !source.is_empty() {
            let environment = environment::compiled(NAME, source).map_err(|error| format!("{error:#}"))?;
            template.environment = Some(environment);
            template.takes_parts = template.walks_parts();
        }
        Ok(template)
    }

    /// The prompt of a chat, or why there is none.
    pub fn render(&self, mut conversation: Conversation) -> Result<String, String> {
        if self.environment.is_none() {
            return Err("the model has no chat template; send a prompt, or start with --chat-template".into());
        }
        if !self.takes_parts
            && let Some(messages) = conversation.messages.as_array_mut()
        {
            messages.iter_mut().for_each(join_text);
        }
        let last = conversation.messages.as_array().and_then(|messages| messages.last());
        let last = last.filter(|_| conversation.continue_final_message).cloned();
        let mut context = Map::new();
        context.insert("messages".into(), conversation.messages);
        context.insert("tools".into(), conversation.tools);
        context.insert("documents".into(), Value::Null);
        context.extend(self.names.clone());
        context.extend(conversation.variables);
        context.insert("add_generation_prompt".into(), conversation.add_generation_prompt.into());
        let text = self.filled(&context)?;
        match last {
            Some(last) => left_open(text, last),
            None => Ok(text),
        }
    }

    fn filled(&self, context: &Map<String, Value>) -> Result<String, String> {
        let environment = self.environment.as_ref().expect("there is a template");
        let template = environment.get_template(NAME).map_err(|error| error.to_string())?;
        let context = Jinja::from_pairs(context.iter().map(|(key, value)| (key.as_str(), as_jinja(value))));
        template.render(context).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                format!("the chat template is too expensive: more than {} steps", environment::MAX_STEPS)
            }
            kind => format!("the chat template failed: {}", error.detail().map_or(kind.to_string(), str::to_owned)),
        })
    }

    /// True if the template itself walks a content that is a list of parts; else contents must be text.
    fn walks_parts(&self) -> bool {
        let mark = "zerokl-part";
        let mut context = Map::new();
        context.insert("messages".into(), json!([{"role": "user", "content": [{"type": "text", "text": mark}]}]));
        context.insert("tools".into(), Value::Null);
        context.insert("add_generation_prompt".into(), false.into());
        context.extend(self.names.clone());
        let text = self.filled(&context).unwrap_or_default();
        text.contains(mark) && !text.contains("'text'") && !text.contains("\"text\"")
    }
}

fn as_jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(flag) => Jinja::from(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Jinja::from(whole),
            (None, Some(whole)) => Jinja::from(whole),
            (None, None) => Jinja::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(list) => Jinja::from(list.iter().map(as_jinja).collect::<Vec<_>>()),
        Value::Object(object) => Jinja::from_pairs(object.iter().map(|(key, one)| (key.as_str(), as_jinja(one)))),
    }
}

/// A content of text parts becomes one text; any other stays as it is.
fn join_text(message: &mut Value) {
    let Some(content) = message.get_mut("content") else { return };
    let Some(parts) = content.as_array() else { return };
    let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
    if let Some(joined) = parts.iter().map(text).collect::<Option<String>>() {
        *content = Value::String(joined);
    }
}

/// `text` cut off right after the last message's content, whose outer spaces the template may have dropped.
fn left_open(text: String, mut last: Value) -> Result<String, String> {
    join_text(&mut last);
    let content = last.get("content").and_then(Value::as_str);
    let found = content.and_then(|content| Some((content, text.rfind(python::strip(content))?)));
    let Some((content, start)) = found else {
        return Err("continue_final_message: the chat template changes the last message's text".into());
    };
    let kept = python::lstrip(content);
    let size = if text[start..].starts_with(kept) { kept.len() } else { python::strip(content).len() };
    Ok(text[..start + size].to_owned())
}
