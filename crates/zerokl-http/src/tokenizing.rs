//! /tokenize, /detokenize, /tokenizer_info: the tokenizer over HTTP, as lm-eval's remote tokenizer wants it.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Value, json};

use crate::chat_request::{check_messages, plain_conversation, render};
use crate::exchange::{Answer, Exchange, answer_json};
use crate::fields::message;
use crate::generate_request::texts_of;
use crate::prompts::{BEGINNING, check_ids, encode_rows};
use crate::refusal::Refusal;
use crate::service::Service;
use crate::tokenizer::Tokenizer;
use crate::validate::check;

/// Of one text; more where the context is longer.
const MOST_CHARACTERS: usize = 1 << 20;

pub async fn tokenize(service: &Service, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let mut values = check("tokenize", exchange.json().await?, "", false)?;
    let (prompt, messages) = (values.take("prompt"), values.take("messages"));
    if prompt.is_null() == messages.is_null() {
        let given = if prompt.is_null() { "neither" } else { "both" };
        return Err(Refusal::invalid(message("tokenize_needs", &[("given", &given)])).param("prompt"));
    }
    if !messages.is_null() {
        check_messages(&messages)?;
        let ids = render(service, plain_conversation(messages), exchange.received).await?.ids;
        return answer_tokens(service, &ids[..], ids.len());
    }
    let special = values.flag("add_special_tokens");
    let (texts, listed) = match prompt {
        Value::Array(texts) => (texts_of(texts), true),
        text => (texts_of(vec![text]), false),
    };
    check_sizes(&texts, service.engine.limits()?.context)?;
    let ids = move |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, special);
    let rows = encode_rows(texts, &service.tokenizer, ids).await?;
    if listed {
        answer_tokens(service, &rows, rows.iter().map(Vec::len).collect::<Vec<_>>())
    } else {
        answer_tokens(service, &rows[0], rows[0].len())
    }
}

fn check_sizes(texts: &[String], context: usize) -> Result<(), Refusal> {
    let limit = MOST_CHARACTERS.max(BEGINNING * context);
    let size = |text: &String| if text.len() > limit { text.chars().count() } else { 0 };
    match texts.iter().map(size).find(|size| *size > limit) {
        None => Ok(()),
        Some(given) => {
            let values: [(&str, &dyn Display); 3] = [("name", &"prompt"), ("given", &given), ("limit", &limit)];
            Err(Refusal::invalid(message("text_too_long", &values)).param("prompt"))
        }
    }
}

fn answer_tokens(service: &Service, tokens: impl Serialize, count: impl Serialize) -> Result<Answer, Refusal> {
    #[derive(Serialize)]
    struct Tokens<T, C> {
        tokens: T,
        count: C,
        max_model_len: u32,
    }
    answer_json(&Tokens { tokens, count, max_model_len: service.engine.hello()?.context })
}

pub async fn detokenize(service: &Service, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let values = check("detokenize", exchange.json().await?, "", false)?;
    let (given, skip) = (values.get("tokens"), values.flag("skip_special_tokens"));
    let limits = service.engine.limits()?;
    let rows = given.as_array().filter(|list| list.first().is_some_and(Value::is_array));
    let Some(rows) = rows else {
        let text = service.tokenizer.decode(&check_ids(given, "tokens", limits)?, skip)?;
        return answer_json(&json!({"text": text}));
    };
    let each = rows.iter().enumerate();
    let ids = each.map(|(i, ids)| check_ids(ids, &format!("tokens[{i}]"), limits)).collect::<Result<Vec<_>, _>>()?;
    let texts = ids.iter().map(|ids| service.tokenizer.decode(ids, skip)).collect::<Result<Vec<_>, _>>()?;
    answer_json(&json!({"text": texts}))
}

pub fn tokenizer_info(service: &Service) -> Result<Answer, Refusal> {
    let tokenizer = &service.tokenizer;
    let template = Some(&tokenizer.template_source).filter(|source| !source.is_empty());
    let facts = service.engine.facts()?;
    answer_json(&json!({
        "tokenizer_class": facts.get("tokenizer_class"),
        "bos_token": tokenizer.names.get("bos_token"),
        "eos_token": tokenizer.names.get("eos_token"),
        "pad_token": tokenizer.names.get("pad_token"),
        "model_max_length": service.engine.hello()?.context,
        "chat_template": template,
    }))
}
