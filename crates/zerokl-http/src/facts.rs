//! Routes that tell about the server and its model.

use serde::Serialize;
use serde_json::{Value, json};

use crate::exchange::{Answer, Exchange, answer_json};
use crate::openai::no_such_model;
use crate::refusal::Refusal;
use crate::service::Service;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The resolved config, then live values; flat, because SGLang's readers want it so.
pub async fn server_info(service: &Service) -> Result<Answer, Refusal> {
    let live = service.engine.control("server_info", json!({})).await?.map_err(Refusal::invalid)?;
    let hello = service.engine.hello()?;
    let config = &service.config;
    let mut info = config.settings.clone();
    info.extend(service.engine.facts()?);
    let own = json!({
        "model_path": config.model,
        "served_model_name": service.model_name(),
        "tokenizer_path": config.tokenizer(),
        "version": VERSION,
        "fingerprint": hello.fingerprint,
        "frontend": "rust",
        "startup_time": service.startup_s.get().copied().unwrap_or(0.0),
        "context_length": hello.context,
        "vocab_size": hello.vocab,
        "page_size": hello.page_size,
        "max_total_num_tokens": hello.pool_tokens,
        "max_running_requests": hello.max_running,
        "random_seed": hello.default_seed,
        "tp_size": 1,
        "num_requests_in_flight": service.engine.flights.len(),
        "internal_states": [live],
    });
    if let Value::Object(own) = own {
        info.extend(own);
    }
    answer_json(&info)
}

pub fn model_info(service: &Service) -> Result<Answer, Refusal> {
    let (config, facts) = (&service.config, service.engine.facts()?);
    let parser = Some(&config.tool_call_parser).filter(|name| !name.is_empty());
    answer_json(&json!({
        "model_path": config.model,
        "served_model_name": service.model_name(),
        "tokenizer_path": config.tokenizer(),
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": config.weight_version,
        "load_format": config.load_format,
        "reasoning_parser": null,
        "tool_call_parser": parser,
        "model_type": facts.get("model_type"),
        "architectures": facts.get("architectures"),
        "has_image_understanding": false,
        "has_audio_understanding": false,
    }))
}

pub fn version() -> Result<Answer, Refusal> {
    answer_json(&json!({"version": VERSION}))
}

#[derive(Serialize)]
struct Card<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    owned_by: &'a str,
    root: &'a str,
    parent: Option<()>,
    max_model_len: u32,
}

pub fn models(service: &Service) -> Result<Answer, Refusal> {
    #[derive(Serialize)]
    struct Cards<'a> {
        object: &'a str,
        data: [Card<'a>; 1],
    }
    answer_json(&Cards { object: "list", data: [card(service)?] })
}

/// The id is the rest of the path, and may hold slashes.
pub fn one_model(service: &Service, exchange: &Exchange) -> Result<Answer, Refusal> {
    let asked = exchange.path.strip_prefix("/v1/models/").unwrap_or("");
    if asked != service.model_name() {
        return Err(no_such_model(service, asked));
    }
    answer_json(&card(service)?)
}

fn card(service: &Service) -> Result<Card<'_>, Refusal> {
    let config = &service.config;
    Ok(Card {
        id: service.model_name(),
        object: "model",
        created: service.started_at,
        owned_by: "zerokl",
        root: if config.model.is_empty() { service.model_name() } else { &config.model },
        parent: None,
        max_model_len: service.engine.hello()?.context,
    })
}
