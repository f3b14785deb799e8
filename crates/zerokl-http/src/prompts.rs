//! Token ids and lengths against the model's limits, each refusal with the value given and what is allowed.

use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;

use crate::fields::{message, shown, shown_text};
use crate::job::Prompt;
use crate::refusal::Refusal;
use crate::tokenizer::Tokenizer;

/// Bytes; a longer text is encoded on a thread of its own.
pub const LONG_TEXT: usize = 4_000;

/// Characters for each token of the context: of a longer text its beginning is encoded first.
pub const BEGINNING: usize = 16;

/// What the engine said it can take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub vocab: u32,
    pub context: usize,
}

/// The ids, if each is a JSON integer in the vocabulary.
pub fn check_ids(ids: &Value, name: &str, limits: Limits) -> Result<Vec<i32>, Refusal> {
    let list = ids.as_array().map_or(&[][..], Vec::as_slice);
    let id = |value: &Value| value.as_u64().filter(|id| *id < u64::from(limits.vocab)).map(|id| id as i32);
    let each = list.iter().enumerate();
    each.map(|(position, value)| id(value).ok_or_else(|| bad_id(value, name, position, limits))).collect()
}

fn bad_id(value: &Value, name: &str, position: usize, limits: Limits) -> Refusal {
    let text = if value.is_i64() || value.is_u64() {
        id_range(name, &position, limits, &shown(value))
    } else {
        message("id_type", &[("name", &name), ("position", &position), ("value", &shown(value))])
    };
    Refusal::invalid(text).param(name)
}

fn id_range(name: &str, position: &dyn Display, limits: Limits, value: &dyn Display) -> String {
    let last = i64::from(limits.vocab) - 1;
    message("id_range", &[("name", &name), ("position", position), ("last", &last), ("value", value)])
}

pub fn check_bias(bias: &[(u64, f64)], name: &str, limits: Limits) -> Result<(), Refusal> {
    match bias.iter().find(|(id, _)| *id >= u64::from(limits.vocab)) {
        None => Ok(()),
        Some((id, _)) => {
            let text = id_range(name, &shown_text(&id.to_string()), limits, id);
            Err(Refusal::invalid(text).param(name))
        }
    }
}

/// The prompt must leave room for what was asked for, and for one token if that is open. Nothing is cut silently.
///
/// A prompt as long as the context can still be scored (max_new_tokens 0): the longest output can be checked whole.
pub fn check_length(prompt: &Prompt, max_new_tokens: Option<u32>, limits: Limits) -> Result<(), Refusal> {
    let (given, context) = (prompt.ids.len(), limits.context);
    if given > context || (given == context && max_new_tokens != Some(0)) {
        return Err(too_long(message("context_full", &[("prompt", &given), ("context", &context)])));
    }
    let max_new = max_new_tokens.unwrap_or(0) as usize;
    let total = given + max_new;
    if total > context {
        let values: [(&str, &dyn Display); 4] =
            [("prompt", &given), ("max_new", &max_new), ("total", &total), ("context", &context)];
        return Err(too_long(message("context_over", &values)));
    }
    Ok(())
}

fn too_long(text: String) -> Refusal {
    Refusal::invalid(text).code("context_length_exceeded")
}

/// Each text as ids. A text without any token (empty, no BOS) is refused.
pub async fn encode_all(
    texts: Vec<String>,
    name: &str,
    tokenizer: &Arc<Tokenizer>,
    limits: Limits,
) -> Result<Vec<Prompt>, Refusal> {
    let bounded = move |tokenizer: &Tokenizer, text: &str| bounded_ids(tokenizer, text, limits.context, true);
    let rows = encode_rows(texts.clone(), tokenizer, bounded).await?;
    let count = texts.len();
    let named = |position: usize| if count == 1 { name.to_owned() } else { format!("{name}[{position}]") };
    let each = rows.into_iter().zip(texts).enumerate();
    each.map(|(position, (ids, text))| {
        let prompt = Prompt { ids: ids.into(), text: Some(text.into()) };
        if prompt.ids.is_empty() { Err(empty(&named(position))) } else { Ok(prompt) }
    })
    .collect()
}

/// The ids of each text; long ones off the threads that answer.
pub async fn encode_rows(
    texts: Vec<String>,
    tokenizer: &Arc<Tokenizer>,
    ids: impl Fn(&Tokenizer, &str) -> Result<Vec<i32>, Refusal> + Send + 'static,
) -> Result<Vec<Vec<i32>>, Refusal> {
    let long = texts.iter().map(String::len).sum::<usize>() > LONG_TEXT;
    let tokenizer = tokenizer.clone();
    let encode = move || texts.iter().map(|text| ids(&tokenizer, text)).collect();
    if long { tokio::task::spawn_blocking(encode).await.map_err(Refusal::internal)? } else { encode() }
}

/// The ids of a text, unless they are far more than the context: then it is refused by its beginning alone.
///
/// The library takes 150 bytes of memory for each character, so a body of 64 MiB would take 10 GB.
pub fn bounded_ids(tokenizer: &Tokenizer, text: &str, context: usize, special: bool) -> Result<Vec<i32>, Refusal> {
    let mut size = BEGINNING * context;
    while size < text.len() {
        let Some((end, _)) = text.char_indices().nth(size) else { break };
        if tokenizer.encode(&text[..end], special)?.len() > 2 * context {
            return Err(too_long(message("context_more", &[("context", &context)])));
        }
        size *= 4;
    }
    tokenizer.encode(text, special)
}

pub fn empty(name: &str) -> Refusal {
    let param = name.split('[').next().unwrap_or(name);
    Refusal::invalid(message("empty_prompt", &[("name", &name)])).param(param)
}

/// No prompt, or a prompt of nothing.
pub fn check_not_empty(items: &[Value], name: &str, listed: bool) -> Result<(), Refusal> {
    if items.is_empty() {
        return Err(empty(name));
    }
    let nothing = |item: &Value| match item {
        Value::String(text) => text.is_empty(),
        Value::Array(ids) => ids.is_empty(),
        _ => false,
    };
    match items.iter().position(nothing) {
        None => Ok(()),
        Some(position) if listed => Err(empty(&format!("{name}[{position}]"))),
        Some(_) => Err(empty(name)),
    }
}
