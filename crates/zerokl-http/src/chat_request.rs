//! /v1/chat/completions: messages as a prompt, through the model's own template.

use std::sync::Arc;

use serde_json::{Map, Value};
use zerokl_wire::LogprobOptions;

use crate::config::Config;
use crate::fields::{message, shown};
use crate::generate_request::tokens;
use crate::grammars::openai_grammar;
use crate::job::{Job, Prompt};
use crate::openai::{check_model, jobs_of};
use crate::prompts::{LONG_TEXT, Limits, bounded_ids, empty};
use crate::refusal::Refusal;
use crate::service::Service;
use crate::template::Conversation;
use crate::tools::forced::{forced_grammar, forced_parser};
use crate::tools::{PlainText, ToolParser, parser_named};
use crate::validate::Values;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What the table can't say.
pub fn check_chat(service: &Service, values: &Values) -> Result<(), Refusal> {
    check_model(service, values)?;
    check_messages(values.get("messages"))?;
    if let Some(top) = values.int("top_logprobs").filter(|top| *top > 0 && !values.flag("logprobs")) {
        let text = message("top_needs_logprobs", &[("value", &top)]);
        return Err(Refusal::invalid(text).param("top_logprobs"));
    }
    if values.get("chat_template_kwargs").get("chat_template").is_some() {
        return Err(Refusal::invalid(message("template_in_request", &[])).param("chat_template_kwargs"));
    }
    Ok(())
}

/// Roles and content; everything else reaches the template as it was sent.
pub fn check_messages(messages: &Value) -> Result<(), Refusal> {
    let list = messages.as_array().map_or(&[][..], Vec::as_slice);
    for (position, one) in list.iter().enumerate() {
        let Some(fields) = one.as_object() else { return Err(bad("message_object", position, one, None)) };
        let role = fields.get("role").unwrap_or(&Value::Null);
        if !role.as_str().is_some_and(|role| ROLES.contains(&role)) {
            return Err(bad("message_role", position, role, None));
        }
        match fields.get("content").unwrap_or(&Value::Null) {
            Value::Null | Value::String(_) => {}
            Value::Array(parts) => check_parts(parts, position)?,
            other => return Err(bad("message_content", position, other, None)),
        }
    }
    Ok(())
}

fn check_parts(parts: &[Value], position: usize) -> Result<(), Refusal> {
    let is_text = |part: &Value| part.get("type").and_then(Value::as_str) == Some("text") && part["text"].is_string();
    match parts.iter().position(|part| !is_text(part)) {
        None => Ok(()),
        Some(index) => Err(bad("message_part", position, &parts[index], Some(index))),
    }
}

fn bad(key: &str, position: usize, value: &Value, part: Option<usize>) -> Refusal {
    let part = part.unwrap_or(0);
    let text = message(key, &[("position", &position), ("value", &shown(value)), ("part", &part)]);
    Refusal::invalid(text).param("messages")
}

/// The rendered conversation as ids. The template writes BOS itself, so the tokenizer must not. Takes what may be large
/// out of the values, so that it is given up where it was used, off the threads that answer.
pub async fn chat_prompt(service: &Service, values: &mut Values, received: usize) -> Result<Prompt, Refusal> {
    let tools = if values.text("tool_choice") == Some("none") { Value::Null } else { values.get("tools").clone() };
    let Value::Object(mut variables) = values.take("chat_template_kwargs") else { unreachable!("the table says so") };
    if let Some(effort) = values.text("reasoning_effort") {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let continues = values.flag("continue_final_message");
    let conversation = Conversation {
        messages: values.take("messages"),
        tools,
        add_generation_prompt: values.flag("add_generation_prompt") && !continues,
        continue_final_message: continues,
        variables,
    };
    render(service, conversation, received).await
}

/// A conversation of messages alone, as /tokenize takes it.
pub fn plain_conversation(messages: Value) -> Conversation {
    Conversation {
        messages,
        tools: Value::Null,
        add_generation_prompt: true,
        continue_final_message: false,
        variables: Map::new(),
    }
}

/// A template is somebody else's program, so what may take it long runs off the threads that answer. `received`: of how
/// many bytes the conversation was made.
pub async fn render(service: &Service, conversation: Conversation, received: usize) -> Result<Prompt, Refusal> {
    let tokenizer = service.tokenizer.clone();
    let context = service.engine.limits()?.context;
    let work = move || -> Result<Vec<i32>, Refusal> {
        let text = tokenizer.template.render(conversation).map_err(|text| Refusal::invalid(text).param("messages"))?;
        bounded_ids(&tokenizer, &text, context, false).map_err(|refusal| refusal.param("messages"))
    };
    let long = received > LONG_TEXT;
    let ids = if long { tokio::task::spawn_blocking(work).await.map_err(Refusal::internal)?? } else { work()? };
    if ids.is_empty() {
        return Err(empty("messages"));
    }
    Ok(Prompt { ids: ids.into(), text: None })
}

/// Makes the parser of one choice: calls are looked for where tools were given and may be used.
pub fn parser_of(config: &Config, values: &Values, forced: Option<&str>) -> Box<dyn ToolParser> {
    if let Some(name) = forced {
        return forced_parser(name);
    }
    let unused = values.get("tools").is_null() || values.text("tool_choice") == Some("none");
    if unused { Box::new(PlainText) } else { parser_named(&config.tool_call_parser) }
}

/// `forced`: the tool that must be called. `shows_special`: special tokens stay in the text, for the parser.
pub fn chat_jobs(
    values: &mut Values,
    prompt: &Prompt,
    limits: Limits,
    forced: Option<&str>,
    shows_special: bool,
) -> Result<Vec<Arc<Job>>, Refusal> {
    let max_tokens = tokens(values, "max_completion_tokens").or_else(|| tokens(values, "max_tokens"));
    let num_top = tokens(values, "top_logprobs").unwrap_or(0);
    let logprobs = values.flag("logprobs").then(|| LogprobOptions { num_top, ..LogprobOptions::default() });
    let mut grammar = openai_grammar(values)?;
    if let Some(name) = forced {
        if let Some(other) = grammar {
            let text = message("one_grammar", &[("given", &format!("tool_choice and {}", other.kind))]);
            return Err(Refusal::invalid(text).param("tool_choice"));
        }
        let parallel = values.get("parallel_tool_calls").as_bool() != Some(false);
        grammar = Some(forced_grammar(name, values.get("tools"), parallel)?);
    }
    if shows_special {
        values.set("skip_special_tokens", Value::Bool(false));
    }
    jobs_of(values, prompt, max_tokens, logprobs.as_ref(), limits, grammar.as_ref())
}
